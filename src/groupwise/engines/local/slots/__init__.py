"""Sampling in fixed slots, as a GPU does: what a step needs lies on the device, and one CUDA graph is one step."""
