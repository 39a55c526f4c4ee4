"""The second reading of objective, models and gradients: plain definitions, a plain forward, plain autograd."""
