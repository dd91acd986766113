"""The privacy audit: what can be recovered from what an algorithm sends."""
