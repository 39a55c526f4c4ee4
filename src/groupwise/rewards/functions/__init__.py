"""Rewards as functions: a user's own, and those of form.

A reward that returns None abstains and has no entry in `reward_scores`; one that failed has NaN there, which masks the
completion.
"""
