"""Symptoms in a run's metrics, one small function for each thing worth saying."""
