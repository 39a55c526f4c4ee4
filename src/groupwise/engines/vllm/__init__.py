"""vLLM as an engine. It runs in a child whose interpreter has vLLM; the run itself imports nothing of it."""
