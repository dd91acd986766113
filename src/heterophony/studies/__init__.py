"""One run or many, started from Python or from the command line."""
