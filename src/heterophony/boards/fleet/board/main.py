"""The one entry on a board: read a request from the input, do it, print the answer as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

from . import environment, service
from .environment import ProblemError, describe_os_error

ACTIONS = {
    "facts": environment.read_facts,
    "missing": environment.list_missing,
    "receive": environment.receive_files,
    "read": environment.read_files,
    "environment": environment.describe_environment,
    "versions": environment.list_versions,
    "install": environment.install,
    "enrolment": environment.describe_enrolment,
    "change-address": environment.change_address,
    "start": service.start,
    "stop": service.stop,
    "status": service.read_status,
    "start-unit": service.start_unit,
    "stop-unit": service.stop_unit,
    "unit-status": service.read_unit_status,
}


def main() -> None:
    """Print ``{"answer": …}``, or ``{"problem": …}`` in one line."""
    request: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    try:
        answer: dict[str, Any] = {"answer": ACTIONS[request["action"]](request)}
    except ProblemError as problem:
        answer = {"problem": str(problem)}
    except OSError as error:
        answer = {"problem": describe_os_error(error)}
    except Exception as error:  # whatever it is, the line names the board
        answer = {"problem": f"{request['action']} failed: {error!r}"}
    print(json.dumps(answer))
