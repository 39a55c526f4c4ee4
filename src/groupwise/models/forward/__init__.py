"""Forward and backward passes: layouts of rows, attention, heads, log-probabilities, layers that hold less."""
