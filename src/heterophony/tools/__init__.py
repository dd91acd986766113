"""Measure this machine and algorithms: speed, installation, arithmetic and traffic."""
