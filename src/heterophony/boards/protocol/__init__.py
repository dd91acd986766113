"""The protocol between server and boards as pure state machines: no clock, no thread, no network."""
