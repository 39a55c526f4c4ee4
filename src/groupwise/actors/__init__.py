"""Processes of a run as actors of a Ray; transport only."""
