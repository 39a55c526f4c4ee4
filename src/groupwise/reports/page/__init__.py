"""What a page shows, and how it is written."""
