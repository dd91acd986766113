"""The HTML page, the dashboard and figures, all computed from run folders."""
