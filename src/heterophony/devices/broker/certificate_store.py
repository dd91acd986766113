"""The register of a broker: the certificates of all who are enrolled, and those taken back.

It is two folders of files, each made or moved in one step: no two commands can lose an entry of
each other. Keys of devices are not kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ...core.errors import ConfigError, FolderError, suggest_similar
from ...core.files import sync_folder, translate_disk_errors, write_atomically
from .certificates import read_expiry, read_serial_number


@dataclass(frozen=True)
class EnrolledDevice:
    """Who is enrolled, and until when."""

    name: str
    until: datetime


class CertificateStore:
    """Who may come, and who no longer may."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.enrolled_folder, self.revoked_folder = folder / "devices", folder / "revoked"

    def create_folders(self) -> None:
        for folder in (self.folder, self.enrolled_folder, self.revoked_folder):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def add(self, name: str, certificate: str) -> None:
        """Before anybody has the key: what is not in here could not be revoked."""
        record, new = (
            self._certificate_path(name),
            self.folder / f".{read_serial_number(certificate)}.pem",
        )
        write_atomically(new, certificate.encode(), private=True)
        with translate_disk_errors(record):
            try:
                record.hardlink_to(new)  # of two at the same time, one is told
            except FileExistsError:
                raise ConfigError(
                    f"{name} is already enrolled; to replace its file:"
                    f" heterophony broker revoke {name} {self.folder}, then enrol it again"
                ) from None
            finally:
                new.unlink()
            sync_folder(self.enrolled_folder)

    def remove(self, name: str) -> None:
        """As if it had never been added, for a key that nobody has."""
        self._certificate_path(name).unlink()

    def revoke(self, name: str) -> None:
        record, names = (
            self._certificate_path(name),
            [device.name for device in self.list_enrolled()],
        )
        if name not in names:
            raise ConfigError(
                f"{name} is not enrolled in {self.folder}{suggest_similar(name, names)}"
            )
        with translate_disk_errors(record):
            record.rename(
                self.revoked_folder / f"{name}.{read_serial_number(record.read_text())}.pem"
            )
            sync_folder(self.revoked_folder)

    def list_enrolled(self) -> list[EnrolledDevice]:
        """By name."""
        return [
            EnrolledDevice(path.stem, read_expiry(text))
            for path, text in read_certificates(self.enrolled_folder)
        ]

    def list_revoked_certificates(self) -> list[str]:
        """All certificates that were revoked."""
        return [text for _, text in read_certificates(self.revoked_folder)]

    def list_revoked_names(self) -> set[str]:
        """Names, also of those who were enrolled again."""
        return {path.stem.rpartition(".")[0] for path, _ in read_certificates(self.revoked_folder)}

    def _certificate_path(self, name: str) -> Path:
        return self.enrolled_folder / f"{name}.pem"


def read_certificates(folder: Path) -> list[tuple[Path, str]]:
    """The certificates in a folder, by name."""
    with translate_disk_errors(folder):
        found = [(path, path.read_text()) for path in sorted(folder.iterdir())]
    for path, text in found:
        try:
            read_expiry(text)
        except ValueError:
            raise FolderError(f"{path} is damaged: it is no certificate") from None
    return found
