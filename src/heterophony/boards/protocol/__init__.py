"""The protocol between server and boards as pure state machines, without clock, thread or network."""
