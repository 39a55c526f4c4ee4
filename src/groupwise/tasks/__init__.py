"""Tasks: where prompts come from and what scores a completion. `make.task` makes one by its name."""
