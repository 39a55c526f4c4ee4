"""A user's own code: found, loaded, held while a program runs, and traced where it fails."""
