"""Helpers that one or several algorithm files use."""
