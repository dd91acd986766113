"""Rows of `heterophony list algorithms`: read from a stored table, computed where that is out of date.

Importing torch and measuring the bytes of every algorithm takes seconds. So `table.json` beside the
algorithms stores their rows, each with a digest of the algorithm's file. A new or changed algorithm
has no stored row, and needs none. `scripts/generate` writes the table.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import algorithms
from ..algorithms import ALGORITHM_CLASSES, construct_algorithm, get_algorithm_class
from ..core.settings import describe_settings

if TYPE_CHECKING:
    from ..core.algorithm import Algorithm


Row = dict[str, Any]
ALGORITHMS_FOLDER = Path(algorithms.__file__).parent
TABLE_FILE = ALGORITHMS_FOLDER / "table.json"


def list_algorithm_rows() -> list[Row]:
    """List a row for every algorithm, by name."""
    stored = read_stored_rows()
    return [stored.get(name) or compute_row(name) for name in sorted(ALGORITHM_CLASSES)]


def read_stored_rows() -> dict[str, Row]:
    """Read the rows of those algorithms whose file has not changed since."""
    table = json.loads(TABLE_FILE.read_text()) if TABLE_FILE.exists() else {}
    return {
        name: entry["row"]
        for name, entry in table.items()
        if name in ALGORITHM_CLASSES and entry["source_sha256"] == digest_source(name)
    }


def write_table() -> None:
    """Compute all rows and store them."""
    table = {
        name: {"source_sha256": digest_source(name), "row": compute_row(name)}
        for name in sorted(ALGORITHM_CLASSES)
    }
    TABLE_FILE.write_text(json.dumps(table, indent=1) + "\n")


def digest_source(name: str) -> str:
    """Return the sha256 of an algorithm's file."""
    return hashlib.sha256((ALGORITHMS_FOLDER / f"{name}.py").read_bytes()).hexdigest()


def compute_row(name: str) -> Row:
    """Describe one algorithm, and measure its bytes."""
    from .tensor_table import measure_relative_to_fedavg

    cls = get_algorithm_class(name)
    wire_bytes = measure_relative_to_fedavg(construct_algorithm(cls, {}))
    return {
        "name": name,
        "about": (cls.__doc__ or "").splitlines()[0],
        "paper": cls.paper,
        "stays": describe_personal_parameters(cls),
        "bytes_down": round(wire_bytes["down"], 4),
        "bytes_up": round(wire_bytes["up"], 4),
        "settings": describe_settings(cls),
    }


def describe_personal_parameters(cls: type[Algorithm]) -> str:
    """Describe which parameters never leave a device."""
    from ..core.algorithm import Algorithm

    if cls.stays is not Algorithm.stays:
        return "parts of layers"
    return "everything" if cls.personal == ("*",) else ", ".join(cls.personal) or "nothing"
