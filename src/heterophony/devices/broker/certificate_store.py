"""The certificates of all enrolled devices of a broker, and those that were revoked.

The store is two folders of files, each created or moved in one step: two commands at the same time
cannot lose each other's entries. Private keys of devices are not kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ...core.errors import ConfigError, FolderError, suggest_similar
from ...core.files import sync_folder, translate_disk_errors, write_atomically
from .certificates import read_clients, read_expiry, read_serial_number


@dataclass(frozen=True)
class EnrolledDevice:
    """A device's name, when its enrolment expires, and the clients that it may hold."""

    name: str
    until: datetime
    clients: tuple[str, ...] = ()  # none: any


class CertificateStore:
    """Certificates by device: enrolled ones in ``devices/``, revoked ones in ``revoked/``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.enrolled_folder, self.revoked_folder = folder / "devices", folder / "revoked"

    def create_folders(self) -> None:
        for folder in (self.folder, self.enrolled_folder, self.revoked_folder):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def add(self, name: str, certificate: str) -> None:
        """Store a certificate before anybody gets its key: only stored ones can be revoked."""
        path = self._certificate_path(name)
        temporary = self.folder / f".{read_serial_number(certificate)}.pem"
        write_atomically(temporary, certificate.encode(), private=True)
        with translate_disk_errors(path):
            try:
                path.hardlink_to(temporary)  # of two commands at the same time, one fails
            except FileExistsError:
                raise ConfigError(
                    f"{name} is already enrolled; to replace its file:"
                    f" heterophony broker revoke {name} {self.folder}, then enrol it again"
                ) from None
            finally:
                temporary.unlink()
            sync_folder(self.enrolled_folder)

    def remove(self, name: str) -> None:
        """Undo ``add`` for a certificate whose key nobody received."""
        self._certificate_path(name).unlink()

    def revoke(self, name: str) -> None:
        path = self._certificate_path(name)
        names = [device.name for device in self.list_enrolled()]
        if name not in names:
            raise ConfigError(
                f"{name} is not enrolled in {self.folder}{suggest_similar(name, names)}"
            )
        with translate_disk_errors(path):
            path.rename(self.revoked_folder / f"{name}.{read_serial_number(path.read_text())}.pem")
            sync_folder(self.revoked_folder)

    def list_enrolled(self) -> list[EnrolledDevice]:
        """Return all enrolled devices, sorted by name."""
        return [
            EnrolledDevice(path.stem, read_expiry(text), read_clients(text))
            for path, text in read_certificates(self.enrolled_folder)
        ]

    def list_revoked_certificates(self) -> list[str]:
        return [text for _, text in read_certificates(self.revoked_folder)]

    def list_revoked_names(self) -> set[str]:
        """Return all names that were ever revoked, also those enrolled again since."""
        return {path.stem.rpartition(".")[0] for path, _ in read_certificates(self.revoked_folder)}

    def _certificate_path(self, name: str) -> Path:
        return self.enrolled_folder / f"{name}.pem"


def read_certificates(folder: Path) -> list[tuple[Path, str]]:
    """Return all certificates in a folder, sorted by file name."""
    with translate_disk_errors(folder):
        certificates = [(path, path.read_text()) for path in sorted(folder.iterdir())]
    for path, text in certificates:
        try:
            read_expiry(text)
        except ValueError:
            raise FolderError(f"{path} is damaged: it is not a certificate") from None
    return certificates
