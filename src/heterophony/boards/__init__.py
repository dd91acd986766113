"""Runs on real boards: a server and boards that talk over MQTT, and the broker between them."""
