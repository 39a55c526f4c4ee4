"""The content of a page, and the page as a file."""
