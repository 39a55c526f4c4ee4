"""vLLM as an engine, in a process of its own."""
