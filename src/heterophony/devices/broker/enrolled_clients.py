"""The clients that enrolments name: which device may hold which clients."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from .certificate_store import CertificateStore
from .certificates import read_serial_number


class EnrolledClients:
    """Reads the broker's folder whenever a device greets: devices are enrolled at any time."""

    def __init__(self, broker_folder: Path) -> None:
        self.store = CertificateStore(broker_folder)

    @property
    def can_be_read(self) -> bool:
        """Whether the broker's folder is on this machine."""
        return self.store.enrolled_folder.is_dir()

    def find_serial_number(self, device: str) -> str | None:
        """Return the number of the device's certificate; None if it is not enrolled here."""
        try:
            return read_serial_number((self.store.enrolled_folder / f"{device}.pem").read_text())
        except (OSError, ValueError):
            return None

    def find_objection(self, device: str, clients: Collection[str], total: int) -> str:
        """Return why a device may not hold these clients of ``total``; an empty string if it may."""
        by_device = {}
        if self.can_be_read:
            by_device = {d.name: d.clients for d in self.store.list_enrolled()}
            if device not in by_device:
                return f"device '{device}' is not enrolled any more"
        if own := by_device.get(device, ()):
            foreign = sorted(set(clients) - set(own))
            return f"its enrolment does not name client '{foreign[0]}'" if foreign else ""
        for other, named in sorted(by_device.items()):
            if taken := sorted(set(clients) & set(named)):
                return f"client '{taken[0]}' is named by the enrolment of device '{other}'"
        if len(clients) >= total > 1:
            return (
                f"it claims all {total} clients of the run; a device may hold them all only if its"
                " enrolment names them (heterophony broker enrol --clients)"
            )
        return ""
