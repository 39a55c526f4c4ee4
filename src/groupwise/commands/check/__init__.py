"""`groupwise check` before a run: problems, duplicates, rewards, lengths, prompts, and the model itself."""
