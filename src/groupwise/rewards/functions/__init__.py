"""Rewards as functions: a user's own, and those of form."""
