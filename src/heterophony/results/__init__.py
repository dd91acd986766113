"""Numbers computed from run folders: tables, statistics, progress and exports."""
