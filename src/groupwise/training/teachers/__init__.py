"""Teachers whose prompt says more than the policy's, and several of them by the source of a problem."""
