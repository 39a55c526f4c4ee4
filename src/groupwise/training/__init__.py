"""What changes weights, and how they are saved."""
