"""What a run's metrics mean, in words."""
