"""The Ray engine: jobs as stateless tasks, on this machine or on a cluster."""
