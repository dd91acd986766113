"""Checks of this machine and of algorithms: speed, installation, arithmetic, bytes on the wire."""
