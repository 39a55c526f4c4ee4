"""Training: what changes weights, and how they are saved."""
