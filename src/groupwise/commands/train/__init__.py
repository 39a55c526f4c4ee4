"""Start, resume and sum up a run: what `groupwise train` and the Python surface call."""
