"""What runs on a board: sent over SSH with every call, and using Python's own library alone.

Nothing of it is installed there. Functions take JSON and return JSON; `files` receives bytes too.
"""
