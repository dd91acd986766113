"""Data sets, how they are dealt to clients, and what a federation holds."""
