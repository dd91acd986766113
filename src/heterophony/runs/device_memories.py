"""What a client of a run on devices keeps: it is read in the folder of its device, or in a copy of it."""

from __future__ import annotations

from pathlib import Path

from ..core.errors import DataError, FolderError
from ..core.files import read_json, read_text_file
from ..core.tensors import Memory
from ..jobs.client_store import FolderClientStore

DEVICES_RECORD = "devices.json"  # in the run folder: which device holds which client, and their ids
ID_FILE = "home"  # in a device's folder of a run


def load_device_memory(run: Path, device: str | Path | None, client: str, before: int) -> Memory:
    """Load what the client kept on its device when it last trained before that round."""
    if device is None:
        raise DataError(
            f"the personal model of client '{client}' is on its device; on it, or with a copy of its"
            f" folder: result.personal('{client}', device='that folder'). The run folder has only the"
            " generic one: result.generic()"
        )
    folder = find_device_folder(run, Path(device).expanduser(), client)
    return FolderClientStore(folder / "clients", folder / "scratch").load_memory(client, before)


def find_device_folder(run: Path, device: Path, client: str) -> Path:
    """Find the folder in which a device keeps its clients of a run, by the id that the server noted."""
    if not device.is_dir():
        raise DataError(f"{device} is not there; give the folder of a device, as --folder names it")
    try:
        record = read_json(run / DEVICES_RECORD)
        holder = record["holders"][client]
        wanted = record["homes"][holder]
    except (KeyError, TypeError, ValueError):
        raise FolderError(
            f"{run / DEVICES_RECORD} does not say which device holds client '{client}'"
        ) from None
    for pattern in (ID_FILE, f"*/{ID_FILE}", f"*/*/{ID_FILE}"):
        for found in sorted(device.glob(pattern)):
            if found.is_file() and read_text_file(found) == wanted:
                return found.parent
    raise DataError(
        f"{device} does not hold client '{client}' of this run: that is on device '{holder}'"
    )
