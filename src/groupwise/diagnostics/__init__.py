"""Metrics of a step, and the invariants that a run checks."""
