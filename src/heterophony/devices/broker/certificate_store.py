"""The register of a broker: the certificates of all who are enrolled, and those taken back.

It is two folders of files, each made or moved in one step: no two commands can lose an entry of
each other. Keys of devices are not kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ...core.errors import ConfigError, FolderError, nearest
from ...core.files import disk, sync_folder, write
from .certificates import ends, number


@dataclass(frozen=True)
class Device:
    """Who is enrolled, and until when."""

    name: str
    until: datetime


class Register:
    """Who may come, and who no longer may."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.devices, self.revoked = folder / "devices", folder / "revoked"

    def make(self) -> None:
        for folder in (self.folder, self.devices, self.revoked):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def add(self, name: str, certificate: str) -> None:
        """Before anybody has the key: what is not in here could not be revoked."""
        record, new = self._record(name), self.folder / f".{number(certificate)}.pem"
        write(new, certificate.encode(), private=True)
        with disk(record):
            try:
                record.hardlink_to(new)  # of two at the same time, one is told
            except FileExistsError:
                raise ConfigError(
                    f"{name} is already enrolled; to replace its file:"
                    f" heterophony broker revoke {name} {self.folder}, then enrol it again"
                ) from None
            finally:
                new.unlink()
            sync_folder(self.devices)

    def remove(self, name: str) -> None:
        """As if it had never been added, for a key that nobody has."""
        self._record(name).unlink()

    def revoke(self, name: str) -> None:
        record, names = self._record(name), [device.name for device in self.enrolled()]
        if name not in names:
            raise ConfigError(f"{name} is not enrolled in {self.folder}{nearest(name, names)}")
        with disk(record):
            record.rename(self.revoked / f"{name}.{number(record.read_text())}.pem")
            sync_folder(self.revoked)

    def enrolled(self) -> list[Device]:
        """By name."""
        return [Device(path.stem, ends(text)) for path, text in certificates(self.devices)]

    def taken_back(self) -> list[str]:
        """All certificates that were revoked."""
        return [text for _, text in certificates(self.revoked)]

    def ever_revoked(self) -> set[str]:
        """Names, also of those who were enrolled again."""
        return {path.stem.rpartition(".")[0] for path, _ in certificates(self.revoked)}

    def _record(self, name: str) -> Path:
        return self.devices / f"{name}.pem"


def certificates(folder: Path) -> list[tuple[Path, str]]:
    """The certificates in a folder, by name."""
    with disk(folder):
        found = [(path, path.read_text()) for path in sorted(folder.iterdir())]
    for path, text in found:
        try:
            ends(text)
        except ValueError:
            raise FolderError(f"{path} is damaged: it is no certificate") from None
    return found
