"""One run: the server's loop over rounds, its events, its folder, and its result."""
