"""The broker: Mosquitto, its certificates, and who is enrolled."""
