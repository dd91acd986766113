"""The protocol between server and devices as pure state machines: no clock, no thread, no network."""
