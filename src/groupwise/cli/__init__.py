"""The command line: a file for each group of commands, what they share in `app`, and `main` in `__main__`."""
