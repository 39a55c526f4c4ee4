"""Any engine in a process of its own: the engine that the run sees, what runs in the child, and what passes between."""
