"""Personalised federated learning: one generic model, and a personal model for every client."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

__version__ = "0.3.0"
if sys.platform == "win32":
    raise ImportError("heterophony runs on Linux and macOS; on Windows, use it in WSL")

# The stub beside this file lists the public names, and where each one is defined. They are imported
# at first use, so that `heterophony --help` does not need torch.
STUB = Path(__file__).with_suffix(".pyi").read_text()
PUBLIC = {name: module for module, name in re.findall(r"from \.(\S+) import (\w+) as", STUB)}
__all__ = sorted(PUBLIC)  # editors and type checkers read the stub


def __getattr__(name: str) -> Any:
    module = PUBLIC.get(name) or find_algorithm_module(name)
    if module is None:
        message = f"module 'heterophony' has no attribute {name!r}"
        raise AttributeError(message, name=name, obj=sys.modules[__name__])
    return getattr(import_module(f".{module}", __name__), name)


def find_algorithm_module(name: str) -> str | None:
    """Find the module of an algorithm's class that is not in the stub yet."""
    if not name[:1].isupper():  # no class: do not import torch for it
        return None
    from .algorithms import ALGORITHM_CLASSES

    files = [file for file, cls in ALGORITHM_CLASSES.items() if cls == name]
    return f"algorithms.{files[0]}" if files else None


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
