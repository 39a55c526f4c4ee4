"""The machine: its clock, memory, load and terminal, and what of it a run depends on."""
