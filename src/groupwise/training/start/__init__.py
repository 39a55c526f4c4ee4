"""Starts of a run: a warm start, an initial policy, preference pairs, a reward model."""
