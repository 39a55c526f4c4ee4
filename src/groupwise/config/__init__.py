"""Recipes in TOML, resolved into settings and parts, and the plan that is shown before anything runs."""
