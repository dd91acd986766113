"""Numbers computed from run folders: tables, statistics, progress, exports."""
