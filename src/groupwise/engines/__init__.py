"""Rollout engines: what samples completions."""
