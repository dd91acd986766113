"""Which clients take part in a round, when they are reachable, how fast they are, and what fails."""
