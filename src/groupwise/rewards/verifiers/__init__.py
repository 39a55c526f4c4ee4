"""Whether an answer is the right one."""
