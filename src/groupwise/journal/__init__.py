"""The outputs of a run: its folder, its rollouts, columns per token, trackers, and the terminal."""
