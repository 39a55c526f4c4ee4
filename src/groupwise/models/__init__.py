"""Policies: Hugging Face folders in, log-probabilities out."""
