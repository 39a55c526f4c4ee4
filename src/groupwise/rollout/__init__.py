"""Prompts to scored groups, and evaluation."""
