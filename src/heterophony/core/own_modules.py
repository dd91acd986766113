"""The user's own modules: located without importing anything, and loaded by their path.

Importing a module runs its code. So the current folder is searched only for modules that the user
named, and only after all installed packages.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from .files import TEXT_LIMIT, read_regular_file, translate_disk_errors

Sources = Mapping[str, tuple[str, str]]  # module name -> (file, source text)
LOADED: dict[str, tuple[str, str]] = {}  # the modules that this process has loaded by their path


def find_module_file(name: str) -> str | None:
    """Return the file that importing a module would run, without running it; None if there is none.

    For a module inside a package, this is the module's own file.
    """
    search: Sequence[str] | None = None
    found: ModuleSpec | None = None
    parts = name.split(".")
    for i in range(len(parts)):
        found = find_spec_of_part(".".join(parts[: i + 1]), search)
        if found is None:
            return None
        search = found.submodule_search_locations or ()
    assert found is not None
    return found.origin or next(iter(found.submodule_search_locations or ()), None)


def find_spec_of_part(name: str, search: Sequence[str] | None) -> ModuleSpec | None:
    """Find a module, or a part of a package, as ``import`` will find it."""
    for finder in sys.meta_path:
        if (found := finder.find_spec(name, search)) is not None:
            return found
    return PathFinder.find_spec(name, list_current_folder()) if search is None else None


def make_importable(name: str) -> None:
    """Make a module of the current folder importable, unless another one has its name.

    The folder is appended to ``sys.path``, so installed packages come first.
    """
    if not is_installed(name):
        sys.path += [folder for folder in list_current_folder() if folder not in sys.path]


def is_installed(name: str) -> bool:
    """Return True if ``sys.path`` has the module or the package that contains it."""
    top = name.partition(".")[0]
    return top in sys.modules or any(finder.find_spec(top, None) for finder in sys.meta_path)


def list_current_folder() -> list[str]:
    """Return a list of the current folder; it is empty if the folder was deleted."""
    with suppress(OSError):
        return [str(Path.cwd())]
    return []


# By its path ------------------------------------------------------------------------------------


def load_module_file(name: str, path: Path) -> None:
    """Run a file as the module of this name, here and in child processes that receive our plans."""
    with translate_disk_errors(path):
        text = read_regular_file(path, TEXT_LIMIT).decode()
    load_source(name, str(path), text)
    LOADED[name] = (str(path), text)


def forget_module(name: str) -> None:
    """Forget a module that was loaded by its path; another file may have the same name."""
    LOADED.pop(name, None)
    sys.modules.pop(name, None)


def load_source(name: str, path: str, text: str) -> None:
    """Run source text as a module, which can then be imported by its name."""
    module = sys.modules[name] = ModuleType(name)
    module.__file__ = path
    exec(compile(text, path, "exec"), module.__dict__)  # noqa: S102  # the caller vouches for it


def load_sources(sources: Sources) -> None:
    """Load the modules that the plan's process had loaded by path."""
    for name, (path, text) in sources.items():
        load_source(name, path, text)
