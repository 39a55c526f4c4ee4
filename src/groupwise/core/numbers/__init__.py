"""Arithmetic that everything above shares: statistics, seeds, metrics that reduce, columns of any type as tensors."""
