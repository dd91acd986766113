"""The HTML page, the dashboard and figures, all computed from the run folders."""
