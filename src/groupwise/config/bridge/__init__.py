"""The bridge from TRL and verl: a file of theirs is read, each of its keys answered, and a recipe written."""
