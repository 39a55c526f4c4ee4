"""Mutants of everything that can be given to groupwise, run through the real commands, judged by one oracle.

docs/dev/hostile_input.md says what counts; `make test-fuzz` runs the long form, test_mutants.py a short one.
"""
