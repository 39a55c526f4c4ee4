"""Rewards: answer checkers, form, the user's own functions, and the processes in which they score."""
