"""The privacy audit: which training images can be recovered from what an algorithm sends."""
