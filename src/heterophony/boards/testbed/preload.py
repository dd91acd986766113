"""Modules that the fork server of a testbed imports too before it forks."""

from . import processes  # noqa: F401
