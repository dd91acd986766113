"""The device protocol as pure state machines: no clock, no thread, no network."""
