"""From a plan to a run at step 0: policies, engine, rewards, ranks, memory and disk."""
