"""Commands, a module each: train and evaluate, build a run, check a recipe."""
