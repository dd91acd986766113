"""Where a data set's files are looked for: what the user names, the caches, the system's folders."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...core.errors import DataError
from .download import Remote, download, reason

SYSTEM = Path("/usr/share/datasets")  # Debian's packages of data sets


@dataclass(frozen=True)
class Wanted:
    """What is looked for, and where it can be had.

    Each of ``forms`` is a list of files that together are the set: below a folder, as they are
    or with ``.gz``; ``*`` stands for anything.
    """

    folder: str  # its name below the caches
    forms: tuple[tuple[str, ...], ...]
    remote: tuple[Remote, ...] = ()
    hint: str = ""  # how else to get it
    system: str | None = None  # its name below the system's folder

    def look(self, path: Path) -> Path | None:
        """The set at this place: the archive, or the folder that holds the files."""
        if path.is_file():
            return path
        for form in self.forms:
            if all(present(path, name) for name in form):
                packed = path / form[0]
                return packed if len(form) == 1 and packed.is_file() else path
        return None

    def places(self) -> list[Path]:
        """Where it may be on this machine, in the order of search."""
        system = [SYSTEM / self.system] if self.system else []
        return [root / self.folder for root in caches()] + system

    def here(self) -> Path | None:
        """The set on this machine, if it is there."""
        return next(filter(None, map(self.look, self.places())), None)


def caches() -> list[Path]:
    """The folders that keep data sets; downloads go to the first."""
    own = os.environ.get("HETEROPHONY_DATA")
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    shared = Path(base).expanduser() / "heterophony"
    return [Path(own).expanduser(), shared] if own else [shared]


def find(wanted: Wanted, path: Path | None) -> Path:
    """The set: at the path given, else on this machine, else downloaded."""
    if path is None:
        return wanted.here() or fetched(wanted)
    if found := wanted.look(path):
        return found
    if not path.exists():
        raise DataError(f"data.path: there is no {path}")
    forms = "; or ".join(lacking(path, form) for form in wanted.forms)
    raise DataError(f"data.path: {path} does not hold {wanted.folder}: it lacks {forms}")


def fetched(wanted: Wanted) -> Path:
    """Download into the first cache; a clear answer when that fails."""
    looked = " and ".join(map(str, wanted.places()))
    missing = f"data set '{wanted.folder}' is not on this machine (looked in {looked})"
    if not wanted.remote:
        raise DataError(f"{missing}; {wanted.hint}")
    folder = caches()[0] / wanted.folder
    try:
        for remote in wanted.remote:
            download(remote, folder)
    except (OSError, ValueError) as error:  # requests' errors are OSErrors
        raise DataError(
            f"{missing} and could not be downloaded ({reason(error)}); {wanted.hint}"
        ) from None
    return wanted.look(folder) or folder


def present(folder: Path, name: str) -> bool:
    return any(folder.glob(name)) or (folder / f"{name}.gz").exists()


def lacking(folder: Path, form: Sequence[str]) -> str:
    """The first file of a form that is not there."""
    return next(name for name in form if not present(folder, name))
