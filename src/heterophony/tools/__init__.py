"""Measurements of this machine and of algorithms: speed, installation, arithmetic and traffic."""
