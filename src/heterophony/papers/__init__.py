"""Published tables and figures as files, and how to run them."""
