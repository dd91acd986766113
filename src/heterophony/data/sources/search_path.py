"""Find the files of a data set: at a given path, in the caches, in system folders; or download."""

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
    """The files of a data set, and where they can be downloaded.

    Each of ``alternatives`` is a list of files below a folder that together are the data set. A
    file may have ``.gz`` appended; ``*`` matches any name.
    """

    folder: str  # its folder in a cache
    alternatives: tuple[tuple[str, ...], ...]
    remote_files: tuple[RemoteFile, ...] = ()
    hint: str = ""  # for error texts: how else to get it
    system_name: str | None = None  # its folder below SYSTEM_FOLDER

    def find_in(self, path: Path) -> Path | None:
        """Return the archive, or the folder that holds all files; None if the path has neither."""
        if path.is_file():
            return path
        for names in self.alternatives:
            if all(is_present(path, name) for name in names):
                archive = path / names[0]
                return archive if len(names) == 1 and archive.is_file() else path
        return None

    def list_search_paths(self) -> list[Path]:
        """List the folders to search on this machine, in order."""
        system = [SYSTEM_FOLDER / self.system_name] if self.system_name else []
        return [root / self.folder for root in list_cache_folders()] + system

    def find_local(self) -> Path | None:
        """Return where the data set is on this machine, or None."""
        return next(filter(None, map(self.find_in, self.list_search_paths())), None)


def list_cache_folders() -> list[Path]:
    """List the folders for data sets; downloads go to the first."""
    own = os.environ.get("HETEROPHONY_DATA")
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    shared = Path(base).expanduser() / "heterophony"
    return [Path(own).expanduser(), shared] if own else [shared]


def find_or_download(wanted: DatasetFiles, path: Path | None) -> Path:
    """Find the data set at the given path; without one, on this machine, or download it."""
    if path is None:
        return wanted.find_local() or download_to_cache(wanted)
    if local := wanted.find_in(path):
        return local
    if not path.exists():
        raise DataError(f"data.path: there is no {path}")
    missing = "; or ".join(find_missing_file(path, names) for names in wanted.alternatives)
    raise DataError(f"data.path: {path} does not hold {wanted.folder}: it lacks {missing}")


def download_to_cache(wanted: DatasetFiles) -> Path:
    """Download into the first cache; say where it looked if that fails."""
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


def find_missing_file(folder: Path, names: Sequence[str]) -> str:
    """Return the first of these files that the folder lacks."""
    return next(name for name in names if not is_present(folder, name))
