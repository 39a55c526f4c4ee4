"""One file a claim."""
