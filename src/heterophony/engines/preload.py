"""Modules that the fork server imports before it forks: all that every worker needs."""

from . import pool  # noqa: F401
