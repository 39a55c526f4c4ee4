"""What a run writes: its folder, its rollouts, columns per token, trackers, and the terminal."""
