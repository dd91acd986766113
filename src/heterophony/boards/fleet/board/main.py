"""The one entry on a board: read a request from the input, do it, print the answer as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

from . import environment, service
from . import environment as enrolment
from . import environment as facts
from . import environment as files
from . import service as units
from .environment import ProblemError, describe_os_error

ACTIONS = {
    "facts": facts.read_facts,
    "missing": files.list_missing,
    "receive": files.receive_files,
    "read": files.read_files,
    "environment": environment.describe_environment,
    "versions": environment.list_versions,
    "install": environment.install,
    "enrolment": enrolment.describe_enrolment,
    "change-address": enrolment.change_address,
    "start": service.start,
    "stop": service.stop,
    "status": service.read_status,
    "start-unit": units.start_unit,
    "stop-unit": units.stop_unit,
    "unit-status": units.read_unit_status,
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
