"""The MQTT connection: reconnects forever, delivers messages in order."""
