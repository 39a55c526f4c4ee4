"""`groupwise sweep`: a grid of training runs, resumed where it stopped, and a table of what they came to."""
