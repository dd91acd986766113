"""MQTT: a connection that is always restored, with bounded queues in both directions."""
