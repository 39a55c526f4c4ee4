"""A language model as a judge: a rubric is sent to an OpenAI-compatible address, and numbers by a schema come back."""
