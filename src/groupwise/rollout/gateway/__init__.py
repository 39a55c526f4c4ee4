"""Serves the policy to agents while a step is sampled, and makes episodes of what they ask."""
