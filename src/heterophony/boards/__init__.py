"""Runs on real boards: the server, the boards, and the MQTT broker between them."""
