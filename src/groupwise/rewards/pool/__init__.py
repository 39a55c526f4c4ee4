"""Processes that score, each with a deadline."""
