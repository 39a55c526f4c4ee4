"""What `benchmarks/parity.py` compares: each peer's own functions, and the batches that both sides get."""
