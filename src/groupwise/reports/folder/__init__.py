"""A run folder, read."""
