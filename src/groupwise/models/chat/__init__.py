"""Conversations to prompt ids through chat templates, and checks of those templates."""
