"""Which clients take part in a round, when they can be reached, how fast they are, and what fails."""
