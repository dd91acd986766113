"""Runs on real devices: a server and devices that talk over MQTT, and the broker between them."""
