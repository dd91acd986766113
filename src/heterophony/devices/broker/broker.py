"""A broker: a folder with an authority, a register of devices, and Mosquitto over them."""

from __future__ import annotations

import tomllib
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import tomli_w

from ...core.errors import BusyError, ConfigError, FolderError
from ...core.files import disk, write
from . import (
    enrolment,
    mosquitto,
    network,
    process,
)
from .certificate_store import Register
from .certificates import Authority, Pair
from .enrolment import Enrolment
from .network import PORT

VALID = timedelta(days=2 * 365)  # of a device's enrolment


@dataclass(frozen=True)
class Place:
    """Where the broker listens; kept from one start to the next."""

    port: int
    lan: bool

    def changed(self, lan: bool | None, port: int | None) -> Place:
        """What is not said is as before."""
        return Place(self.port if port is None else port, self.lan if lan is None else lan)


class Broker:
    """One folder, for its owner alone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "broker.toml"
        self.server = folder / "server.toml"
        self.register = Register(folder)

    def up(self, lan: bool | None = None, port: int | None = None) -> tuple[Place, bool]:
        """Serve; what is not said is as before, port 0 is any. False: it did already."""
        process.program()
        if not self.file.exists():
            self._make_folder()
        if process.running(self.folder):
            return self._unchanged(lan, port), False
        with process.claimed(self.folder) as lock:
            known = self.place() if self.file.exists() else None
            wanted = (known or Place(PORT, lan=False)).changed(lan, port)
            wanted = replace(wanted, port=network.bindable(wanted.lan, wanted.port))
            server = self._prepared(self._authority() if known else self._founded(), wanted)
            process.start(self.folder, lock, server)
        return wanted, True

    def _unchanged(self, lan: bool | None, port: int | None) -> Place:
        known = self.place()
        if known.changed(lan, port or None) != known:
            raise BusyError(
                f"the broker in {self.folder} is up with other settings; end it first with"
                f" heterophony broker down {self.folder}"
            )
        return known

    def _make_folder(self) -> None:
        ours = {process.LOCK, "devices", "revoked", "ca.pem", "ca.key"}  # if it was cut short
        with disk(self.folder):
            if self.folder.exists() and {p.name for p in self.folder.iterdir()} - ours:
                raise FolderError(
                    f"{self.folder} holds other things; choose a new folder for the broker"
                )
            self.register.make()

    def _founded(self) -> Authority:
        authority = Authority.new()
        pair = authority.pair()
        self._write("ca.pem", pair.certificate)
        self._write("ca.key", pair.key)
        return authority

    def _prepared(self, authority: Authority, place: Place) -> Enrolment:
        """All that Mosquitto reads, and the server's enrolment, as the place wants them."""
        with disk(self.folder):
            self.folder.chmod(0o700)
        # a new one at every start: it never runs out, and it knows the addresses of today
        pair = authority.for_broker(network.here(place.lan))
        self._write("broker.pem", pair.certificate)
        self._write("broker.key", pair.key)
        self._write(mosquitto.CONF, mosquitto.settings(place.lan, place.port))
        self._write_lists(authority)
        if self.server.exists():
            server = replace(enrolment.read(self.server), port=place.port)
        else:
            here = replace(place, lan=False)
            server = self._enrolment(authority, mosquitto.SERVER, authority.until, here)
        write(self.server, server.toml(), private=True)
        write(self.file, tomli_w.dumps(asdict(place)).encode(), private=True)  # last: it is whole
        return server

    def down(self) -> bool:
        """End it; was it up?"""
        self.place()
        return process.stop(self.folder) is not None

    def enrol(self, name: str, out: Path) -> Enrolment:
        """A new device: its file is written, and the broker will know it."""
        if enrolment.checked(name) == mosquitto.SERVER:
            raise ConfigError(f"'{name}' is the server's own name; choose another")
        place = self.place()
        if out.exists():
            raise ConfigError(f"{out} is already there; choose another file with -o")
        until = datetime.now(UTC).replace(microsecond=0) + VALID
        made = self._enrolment(self._authority(), name, until, place)
        self.register.add(name, made.certificate)
        try:
            write(out, made.toml(), private=True)
        except Exception:
            self.register.remove(name)
            raise
        if name in self.register.ever_revoked():
            self._forgive()
        return made

    def _forgive(self) -> None:
        """A revoked name has rights again: who still is connected by the old file must go first."""
        up = process.stop(self.folder) is not None
        with process.claimed(self.folder) as lock:
            self._write_lists(self._authority())
            if up:
                process.start(self.folder, lock, enrolment.read(self.server))

    def revoke(self, name: str) -> None:
        """Take an enrolment back: at once without rights, and never let in again."""
        self.place()
        self.register.revoke(enrolment.checked(name))
        self._write_lists(self._authority())
        process.reload(self.folder)

    def pid(self) -> int | None:
        """Mosquitto's process, None while it is down."""
        return process.running(self.folder)

    def place(self) -> Place:
        """Where it listens; says so if there is no broker in the folder."""
        try:
            content = tomllib.loads(self.file.read_text())
            return Place(int(content["port"]), bool(content["lan"]))
        except (FileNotFoundError, NotADirectoryError):
            raise FolderError(
                f"there is no broker in {self.folder}; make one with"
                f" heterophony broker up {self.folder}"
            ) from None
        except (ValueError, KeyError, TypeError):
            raise FolderError(
                f"{self.file} is damaged: it needs port = {PORT} and lan = false, or as it was"
            ) from None

    def _authority(self) -> Authority:
        try:
            pair = Pair(*((self.folder / f"ca.{part}").read_text() for part in ("pem", "key")))
            return Authority.load(pair)
        except (OSError, ValueError):
            raise FolderError(
                f"the authority in {self.folder} is damaged: bring ca.pem and ca.key back, or"
                " make a broker in a new folder and enrol all devices again"
            ) from None

    def _enrolment(
        self, authority: Authority, name: str, until: datetime, place: Place
    ) -> Enrolment:
        until = min(until, authority.until)
        pair, ca = authority.for_device(name, until), authority.pair().certificate
        address = network.told(place.lan)
        return Enrolment(name, address, place.port, until, ca, pair.certificate, pair.key)

    def _write_lists(self, authority: Authority) -> None:
        """Who has no rights, and which certificates are taken back."""
        enrolled = {device.name for device in self.register.enrolled()}
        out = sorted(self.register.ever_revoked() - enrolled)
        self._write("revoked.pem", authority.revocations(self.register.taken_back()))
        self._write(mosquitto.ACL, mosquitto.rights(out))

    def _write(self, name: str, text: str) -> None:
        write(self.folder / name, text.encode(), private=True)
