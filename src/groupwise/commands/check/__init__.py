"""What `groupwise check` looks at before a run: problems, rewards, lengths, repeats, prompts, and the model itself."""
