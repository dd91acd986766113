"""The Ray engine. Ray reads some environment variables when it is imported; they are set here.

Python runs this file before any module of the package, so before any ``import ray``.
"""

import os

from ..base import MAX_ATTEMPTS

RAY_VARIABLES = {  # also read by every process that Ray starts
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # otherwise Ray prints a warning per process
    "RAY_task_oom_retries": str(MAX_ATTEMPTS),  # otherwise Ray retries endlessly
    # otherwise Ray waits for its first workers, forever if one is killed before Ray knows it
    "RAY_prestart_worker_first_driver": "0",
}
os.environ.update(RAY_VARIABLES)
