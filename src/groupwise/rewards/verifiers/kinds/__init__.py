"""The kinds of answers, and their parts."""
