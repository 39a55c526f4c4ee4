"""Low-rank adapters inside a model's own layers: which weights get one, the layers, merging, files."""
