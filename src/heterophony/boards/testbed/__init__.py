"""A whole testbed on one machine: a broker, the server and devices as processes."""
