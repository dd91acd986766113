"""The same algorithms on devices that talk MQTT: protocol, server, device, broker."""
