"""A fleet: boards that one command prepares, starts and monitors through the system's OpenSSH."""
