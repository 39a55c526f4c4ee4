"""Rewards: answer checkers, form, the user's own functions, and the processes they run in."""
