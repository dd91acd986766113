"""The broker: Mosquitto, its certificates and the boards enrolled with it."""
