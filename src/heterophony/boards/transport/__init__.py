"""MQTT: a connection that is made again for ever, with bounded queues to and from it."""
