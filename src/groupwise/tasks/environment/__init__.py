"""The task `environment`: problems that are played turn after turn."""
