"""Runs as people look at them: tables, figures, and one HTML page; all from the events alone."""
