"""Code that runs on a board: it is sent over SSH with every call and needs only the standard library.

None of it is installed there. Functions take and return JSON; ``receive_files`` also takes bytes.
"""
