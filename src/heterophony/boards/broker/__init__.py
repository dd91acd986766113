"""The broker: Mosquitto, its certificates, and the devices enrolled with it."""
