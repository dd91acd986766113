"""What the fork server of a testbed imports before it forks: all that its processes need."""

from ..engines import preload  # noqa: F401
from . import processes  # noqa: F401
