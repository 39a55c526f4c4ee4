"""What a run starts from: a warm start, an initial policy, preference pairs, a reward model."""
