"""Runs on devices: the server, the device, and a whole testbed on one machine."""
