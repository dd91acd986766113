"""One client's work in one round: the run's plan, the work function, and the store of client memories."""
