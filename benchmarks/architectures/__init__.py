"""Small folders of every language model class of transformers, and what groupwise does with each."""
