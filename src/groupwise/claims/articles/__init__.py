"""Claims of the articles, a file a subject: what measures, then what is claimed of it and when that holds."""
