"""Bugs that are planted in a copy of the source, as data, and the runs that they are planted in."""
