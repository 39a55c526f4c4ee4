"""Ranks: processes that hold one model's shards together, and what rank 0 tells the others."""
