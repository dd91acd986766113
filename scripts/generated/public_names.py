"""Write the algorithms' lines of src/heterophony/__init__.pyi."""

from __future__ import annotations

from pathlib import Path

from heterophony.algorithms import ALGORITHM_CLASSES

STUB = Path(__file__).parents[2] / "src" / "heterophony" / "__init__.pyi"
PREFIX = "from .algorithms."


def list_algorithm_lines() -> list[str]:
    """List one line for every algorithm, so that editors complete ``hp.FedProx``."""
    return [f"{PREFIX}{file} import {c} as {c}" for file, c in sorted(ALGORITHM_CLASSES.items())]


def write_stub(text: str) -> str:
    """Return the stub with exactly these lines before all others."""
    head, _, rest = text.partition("\n\n")
    others = [line for line in rest.splitlines() if not line.startswith(PREFIX)]
    return "\n".join([head, "", *list_algorithm_lines(), *others, ""])


def write() -> None:
    STUB.write_text(write_stub(STUB.read_text()))
