"""The user's own modules: located without importing anything, and loaded by their path.

Importing a module runs its code. So the current folder is searched only for modules that the user
named, and only after all installed packages.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from traceback import extract_tb
from types import ModuleType

from .errors import ConfigError
from .files import TEXT_LIMIT, read_regular_file, translate_disk_errors

Sources = Mapping[str, tuple[str, str]]  # module name -> (file, source text)
LIBRARIES = ("timm", "transformers")  # not modules: their models are named timm:resnet18 and so on
LOADED: dict[str, tuple[str, str]] = {}  # the modules that this process has loaded by path


def find_module_file(name: str) -> str | None:
    """Find the file that importing a user's module would run, without running it; None if there is none.

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
    """Find the import spec of a module, or of a module inside a package, as ``import`` would."""
    for finder in sys.meta_path:
        if (found := finder.find_spec(name, search)) is not None:
            return found
    return PathFinder.find_spec(name, list_current_folder()) if search is None else None


def make_importable(name: str) -> None:
    """Make a user's module in the current folder importable, unless another module has its name.

    The folder is appended to ``sys.path``, so installed packages come first.
    """
    if not is_installed(name):
        sys.path += [folder for folder in list_current_folder() if folder not in sys.path]


def is_installed(name: str) -> bool:
    """Return True if Python can already import the module, or the package that contains it."""
    top = name.partition(".")[0]
    return top in sys.modules or any(finder.find_spec(top, None) for finder in sys.meta_path)


def list_current_folder() -> list[str]:
    """Return the current folder as a search path, which is empty if the folder was deleted."""
    with suppress(OSError):
        return [str(Path.cwd())]
    return []


# By its name: every mistake is a one-line error ------------------------------------------------


EXAMPLES = {"Class": "MyClass", "function": "make_net"}


def is_own_code(name: str) -> bool:
    """Return True if an algorithm's or model's name refers to user code, as in ``package.module:Class``."""
    return ":" in name and not is_library_name(name)


def is_library_name(name: str) -> bool:
    """Return True if a name refers to a net of another package, as in ``timm:resnet18``."""
    library, sign, _ = name.partition(":")
    return bool(sign) and library in LIBRARIES


def locate_code(name: str, key: str, what: str, trust: bool) -> tuple[str, str]:
    """Split ``package.module:Class`` into module and class, and make the module importable.

    Errors start with the configuration key ``key``; ``what`` is "Class" or "function". A module that
    this process has not imported yet needs ``trust``.
    """
    module_name, _, inner = name.partition(":")
    parts = (*module_name.split("."), inner)
    if module_name.endswith(".py") or not all(part.isidentifier() for part in parts):
        hint = suggest_module_and_class(name, what)
        raise ConfigError(
            f"{key}: '{name}' must be package.module:{what}{f'; {hint}' if hint else ''}"
        )
    if not trust and module_name not in sys.modules:
        file = find_module_file(module_name)
        raise (
            make_missing_error(module_name, key)
            if file is None
            else ConfigError(
                f"{key}: {name} would import {file}; read that file, then add --trust (in Python:"
                " trust=True)"
            )
        )
    make_importable(module_name)
    return module_name, inner


def suggest_module_and_class(name: str, what: str) -> str:
    """Suggest ``package.module:Class`` if a name looks like a module or a file; else return an empty string."""
    path, colon, inner = name.partition(":")
    module = path.removesuffix(".py").strip("./").replace("/", ".")
    if not colon and not path.endswith(".py"):
        module, _, inner = module.rpartition(".")
    if not all(part.isidentifier() for part in module.split(".")):
        return ""
    if not inner:
        return f"write module:{what}, as in '{module}:{EXAMPLES[what]}'"
    return f"did you mean '{module}:{inner}'?" if inner.isidentifier() else ""


def import_named_module(name: str, key: str) -> ModuleType:
    """Import a module of the user; raise ConfigError, which starts with ``key``, if that fails."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name and f"{name}.".startswith(f"{error.name}."):
            raise make_missing_error(error.name, key) from None
        raise make_import_error(name, key, error) from None
    except Exception as error:  # another package may raise anything
        raise make_import_error(name, key, error) from None


def make_missing_error(module: str, key: str) -> ConfigError:
    """Return the error for a user's module that does not exist on this machine."""
    return ConfigError(
        f"{key}: there is no module '{module}' on this machine; install its package, or start in the"
        " folder that contains it"
    )


def make_import_error(name: str, key: str, error: Exception) -> ConfigError:
    """Return the error for a user's module that cannot be imported, with the line that failed."""
    reason = " ".join(str(error).split())
    file = f"{name.replace('.', '/')}.py"
    lines = [f.lineno for f in extract_tb(error.__traceback__) if f.filename.endswith(f"/{file}")]
    where = f" ({file}, line {lines[-1]})" if lines else ""
    return ConfigError(f"{key}: cannot import {name}: {type(error).__name__}: {reason}{where}")


# By its path ------------------------------------------------------------------------------------


def load_module_file(name: str, path: Path) -> None:
    """Load a user's file as the module of this name, here and in the workers that receive its plans."""
    with translate_disk_errors(path):
        text = read_regular_file(path, TEXT_LIMIT).decode()
    load_source(name, str(path), text)
    LOADED[name] = (str(path), text)


def forget_module(name: str) -> None:
    """Unload a module that was loaded by its path; another file may have the same name."""
    LOADED.pop(name, None)
    sys.modules.pop(name, None)


def load_source(name: str, path: str, text: str) -> None:
    """Run source text as a module, which can then be imported by its name."""
    module = sys.modules[name] = ModuleType(name)
    module.__file__ = path
    exec(compile(text, path, "exec"), module.__dict__)  # noqa: S102  # the caller vouches for the source


def load_sources(sources: Sources) -> None:
    """In a worker, load the user's modules that the driver loaded by path."""
    for name, (path, text) in sources.items():
        load_source(name, path, text)
