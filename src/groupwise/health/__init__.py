"""The meaning of a run's metrics, in words."""
