"""Where a run's processes live when they are actors of a Ray; transport alone."""
