"""Claims of the articles, each a small experiment with a verdict."""
