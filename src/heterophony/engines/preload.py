"""Modules that the fork server imports before it forks: all that every worker needs."""

import torch._dynamo  # noqa: F401  # torch's optimisers import it, slowly, at their first step

from . import pool  # noqa: F401
