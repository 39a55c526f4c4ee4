"""A run folder -> one page that a person reads, offline."""
