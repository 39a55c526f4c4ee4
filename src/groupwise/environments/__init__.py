"""Environments: what a user's class is, and episodes that are played here or in processes with a deadline."""
