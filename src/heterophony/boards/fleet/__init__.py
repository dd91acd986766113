"""A fleet: boards that one command prepares, starts and watches over the system's OpenSSH."""
