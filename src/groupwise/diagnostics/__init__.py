"""What a step says about itself: metrics, and the invariants that a run checks."""
