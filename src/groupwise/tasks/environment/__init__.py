"""The task `environment`: problems that are played turn after turn, and the environments that come along."""
