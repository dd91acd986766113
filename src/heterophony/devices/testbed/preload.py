"""What the fork server of a testbed imports too before it forks: what its processes need."""

from . import processes  # noqa: F401
