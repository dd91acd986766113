"""One client's work in one round: the plan of a run, the work function, and the store of client memories."""
