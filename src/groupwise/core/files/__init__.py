"""Files that are whole or not there: writing, JSON, JSON lines, paths that a person names."""
