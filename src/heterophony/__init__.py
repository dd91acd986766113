"""Personalised federated learning: one common model, and for every client one of its own."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

# The stub beside this file lists the public names, and where each one is defined. They are imported
# at first use, so that `heterophony --help` does not need torch.
STUB = Path(__file__).with_suffix(".pyi").read_text()
PUBLIC = {name: module for module, name in re.findall(r"from \.(\S+) import (\w+) as", STUB)}
__all__ = sorted(PUBLIC)  # editors and type checkers read the stub


def __getattr__(name: str) -> Any:
    if name not in PUBLIC:
        raise AttributeError(f"module 'heterophony' has no attribute {name!r}")
    return getattr(import_module(f".{PUBLIC[name]}", __name__), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
