"""Programs that nobody has read run here, with nothing to reach and nothing to gain."""
