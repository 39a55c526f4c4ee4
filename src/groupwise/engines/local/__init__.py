"""groupwise's own engine, which samples whole groups and can live in the training process."""
