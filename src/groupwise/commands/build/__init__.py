"""Builders that make a run at step 0 of a plan: policies, engine, rewards, ranks, memory and disk."""
