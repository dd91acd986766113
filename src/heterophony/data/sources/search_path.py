"""Where a data set's files are looked for: what the user names, the caches, the system's folders."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...core.errors import DataError
from .download import RemoteFile, download_file, explain_failure

SYSTEM_FOLDER = Path("/usr/share/datasets")  # Debian's packages of data sets


@dataclass(frozen=True)
class DatasetFiles:
    """What is looked for, and where it can be had.

    Each of ``forms`` is a list of files that together are the set: below a folder, as they are
    or with ``.gz``; ``*`` stands for anything.
    """

    folder: str  # its name below the caches
    alternatives: tuple[tuple[str, ...], ...]
    remote_files: tuple[RemoteFile, ...] = ()
    hint: str = ""  # how else to get it
    system_name: str | None = None  # its name below the system's folder

    def find_in(self, path: Path) -> Path | None:
        """The set at this place: the archive, or the folder that holds the files."""
        if path.is_file():
            return path
        for form in self.alternatives:
            if all(is_present(path, name) for name in form):
                packed = path / form[0]
                return packed if len(form) == 1 and packed.is_file() else path
        return None

    def list_search_paths(self) -> list[Path]:
        """Where it may be on this machine, in the order of search."""
        system = [SYSTEM_FOLDER / self.system_name] if self.system_name else []
        return [root / self.folder for root in list_cache_folders()] + system

    def find_local(self) -> Path | None:
        """The set on this machine, if it is there."""
        return next(filter(None, map(self.find_in, self.list_search_paths())), None)


def list_cache_folders() -> list[Path]:
    """The folders that keep data sets; downloads go to the first."""
    own = os.environ.get("HETEROPHONY_DATA")
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    shared = Path(base).expanduser() / "heterophony"
    return [Path(own).expanduser(), shared] if own else [shared]


def find_or_download(wanted: DatasetFiles, path: Path | None) -> Path:
    """The set: at the path given, else on this machine, else downloaded."""
    if path is None:
        return wanted.find_local() or download_to_cache(wanted)
    if found := wanted.find_in(path):
        return found
    if not path.exists():
        raise DataError(f"data.path: there is no {path}")
    forms = "; or ".join(find_missing_file(path, form) for form in wanted.alternatives)
    raise DataError(f"data.path: {path} does not hold {wanted.folder}: it lacks {forms}")


def download_to_cache(wanted: DatasetFiles) -> Path:
    """Download into the first cache; a clear answer when that fails."""
    looked = " and ".join(map(str, wanted.list_search_paths()))
    missing = f"data set '{wanted.folder}' is not on this machine (looked in {looked})"
    if not wanted.remote_files:
        raise DataError(f"{missing}; {wanted.hint}")
    folder = list_cache_folders()[0] / wanted.folder
    try:
        for remote in wanted.remote_files:
            download_file(remote, folder)
    except (OSError, ValueError) as error:  # requests' errors are OSErrors
        raise DataError(
            f"{missing} and could not be downloaded ({explain_failure(error)}); {wanted.hint}"
        ) from None
    return wanted.find_in(folder) or folder


def is_present(folder: Path, name: str) -> bool:
    return any(folder.glob(name)) or (folder / f"{name}.gz").exists()


def find_missing_file(folder: Path, form: Sequence[str]) -> str:
    """The first file of a form that is not there."""
    return next(name for name in form if not is_present(folder, name))
