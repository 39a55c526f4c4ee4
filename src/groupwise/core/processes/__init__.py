"""Processes and what connects them: children, channels, addresses, where they live, and how they are stopped."""
