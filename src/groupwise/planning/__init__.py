"""Needs of a run, before it runs: memory of each rank by phase, and about how long a step takes."""
