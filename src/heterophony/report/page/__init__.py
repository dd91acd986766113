"""The HTML page and the live dashboard."""
