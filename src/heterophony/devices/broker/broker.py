"""A broker: a folder with an authority, a register of devices, and Mosquitto over them."""

from __future__ import annotations

import tomllib
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import tomli_w

from ...core.errors import BusyError, ConfigError, FolderError
from ...core.files import translate_disk_errors, write_atomically
from . import enrolment, mosquitto, network, process
from .certificate_store import CertificateStore
from .certificates import CertificateAndKey, CertificateAuthority
from .enrolment import Enrolment
from .network import DEFAULT_PORT

ENROLMENT_LIFETIME = timedelta(days=2 * 365)  # of a device's enrolment


@dataclass(frozen=True)
class ListenSettings:
    """Where the broker listens; kept from one start to the next."""

    port: int
    lan: bool

    def with_changes(self, lan: bool | None, port: int | None) -> ListenSettings:
        """What is not said is as before."""
        return ListenSettings(self.port if port is None else port, self.lan if lan is None else lan)


class Broker:
    """One folder, for its owner alone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings_file = folder / "broker.toml"
        self.server_enrolment_file = folder / "server.toml"
        self.certificate_store = CertificateStore(folder)

    def start(
        self, lan: bool | None = None, port: int | None = None
    ) -> tuple[ListenSettings, bool]:
        """Serve; what is not said is as before, port 0 is any. False: it did already."""
        process.find_mosquitto()
        if not self.settings_file.exists():
            self._make_folder()
        if process.find_running_pid(self.folder):
            return self._require_same_settings(lan, port), False
        with process.hold_lock(self.folder) as lock:
            known = self.read_listen_settings() if self.settings_file.exists() else None
            wanted = (known or ListenSettings(DEFAULT_PORT, lan=False)).with_changes(lan, port)
            wanted = replace(wanted, port=network.find_bindable_port(wanted.lan, wanted.port))
            server = self._write_all_files(
                self._load_authority() if known else self._create_authority(), wanted
            )
            process.start_mosquitto(self.folder, lock, server)
        return wanted, True

    def _require_same_settings(self, lan: bool | None, port: int | None) -> ListenSettings:
        known = self.read_listen_settings()
        if known.with_changes(lan, port or None) != known:
            raise BusyError(
                f"the broker in {self.folder} is up with other settings; end it first with"
                f" heterophony broker down {self.folder}"
            )
        return known

    def _make_folder(self) -> None:
        ours = {process.LOCK_FILE, "devices", "revoked", "ca.pem", "ca.key"}  # if it was cut short
        with translate_disk_errors(self.folder):
            if self.folder.exists() and {p.name for p in self.folder.iterdir()} - ours:
                raise FolderError(
                    f"{self.folder} holds other things; choose a new folder for the broker"
                )
            self.certificate_store.create_folders()

    def _create_authority(self) -> CertificateAuthority:
        authority = CertificateAuthority.create()
        pair = authority.export_pem()
        self._write_private_file("ca.pem", pair.certificate)
        self._write_private_file("ca.key", pair.key)
        return authority

    def _write_all_files(self, authority: CertificateAuthority, place: ListenSettings) -> Enrolment:
        """All that Mosquitto reads, and the server's enrolment, as the place wants them."""
        with translate_disk_errors(self.folder):
            self.folder.chmod(0o700)
        # a new one at every start: it never runs out, and it knows the addresses of today
        pair = authority.issue_for_broker(network.list_reachable_hosts(place.lan))
        self._write_private_file("broker.pem", pair.certificate)
        self._write_private_file("broker.key", pair.key)
        self._write_private_file(
            mosquitto.CONFIG_FILE, mosquitto.format_config(place.lan, place.port)
        )
        self._write_access_lists(authority)
        if self.server_enrolment_file.exists():
            server = replace(enrolment.read_enrolment(self.server_enrolment_file), port=place.port)
        else:
            here = replace(place, lan=False)
            server = self._issue_enrolment(
                authority, mosquitto.SERVER_NAME, authority.valid_until, here
            )
        write_atomically(self.server_enrolment_file, server.to_toml(), private=True)
        write_atomically(
            self.settings_file, tomli_w.dumps(asdict(place)).encode(), private=True
        )  # last: it is whole
        return server

    def stop(self) -> bool:
        """End it; was it up?"""
        self.read_listen_settings()
        return process.stop_mosquitto(self.folder) is not None

    def enrol(self, name: str, out: Path) -> Enrolment:
        """A new device: its file is written, and the broker will know it."""
        if enrolment.check_device_name(name) == mosquitto.SERVER_NAME:
            raise ConfigError(f"'{name}' is the server's own name; choose another")
        place = self.read_listen_settings()
        if out.exists():
            raise ConfigError(f"{out} is already there; choose another file with -o")
        until = datetime.now(UTC).replace(microsecond=0) + ENROLMENT_LIFETIME
        made = self._issue_enrolment(self._load_authority(), name, until, place)
        self.certificate_store.add(name, made.certificate)
        try:
            write_atomically(out, made.to_toml(), private=True)
        except Exception:
            self.certificate_store.remove(name)
            raise
        if name in self.certificate_store.list_revoked_names():
            self._restore_rights()
        return made

    def _restore_rights(self) -> None:
        """A revoked name has rights again: who still is connected by the old file must go first."""
        up = process.stop_mosquitto(self.folder) is not None
        with process.hold_lock(self.folder) as lock:
            self._write_access_lists(self._load_authority())
            if up:
                process.start_mosquitto(
                    self.folder, lock, enrolment.read_enrolment(self.server_enrolment_file)
                )

    def revoke(self, name: str) -> None:
        """Take an enrolment back: at once without rights, and never let in again."""
        self.read_listen_settings()
        self.certificate_store.revoke(enrolment.check_device_name(name))
        self._write_access_lists(self._load_authority())
        process.reload_mosquitto(self.folder)

    def find_pid(self) -> int | None:
        """Mosquitto's process, None while it is down."""
        return process.find_running_pid(self.folder)

    def read_listen_settings(self) -> ListenSettings:
        """Where it listens; says so if there is no broker in the folder."""
        try:
            content = tomllib.loads(self.settings_file.read_text())
            return ListenSettings(int(content["port"]), bool(content["lan"]))
        except (FileNotFoundError, NotADirectoryError):
            raise FolderError(
                f"there is no broker in {self.folder}; make one with"
                f" heterophony broker up {self.folder}"
            ) from None
        except (ValueError, KeyError, TypeError):
            raise FolderError(
                f"{self.settings_file} is damaged: it needs port = {DEFAULT_PORT} and lan = false, or as it was"
            ) from None

    def _load_authority(self) -> CertificateAuthority:
        try:
            pair = CertificateAndKey(
                *((self.folder / f"ca.{part}").read_text() for part in ("pem", "key"))
            )
            return CertificateAuthority.load(pair)
        except (OSError, ValueError):
            raise FolderError(
                f"the authority in {self.folder} is damaged: bring ca.pem and ca.key back, or"
                " make a broker in a new folder and enrol all devices again"
            ) from None

    def _issue_enrolment(
        self, authority: CertificateAuthority, name: str, until: datetime, place: ListenSettings
    ) -> Enrolment:
        until = min(until, authority.valid_until)
        pair, ca = authority.issue_for_device(name, until), authority.export_pem().certificate
        address = network.select_advertised_address(place.lan)
        return Enrolment(name, address, place.port, until, ca, pair.certificate, pair.key)

    def _write_access_lists(self, authority: CertificateAuthority) -> None:
        """Who has no rights, and which certificates are taken back."""
        enrolled = {device.name for device in self.certificate_store.list_enrolled()}
        out = sorted(self.certificate_store.list_revoked_names() - enrolled)
        self._write_private_file(
            "revoked.pem",
            authority.build_revocation_list(self.certificate_store.list_revoked_certificates()),
        )
        self._write_private_file(mosquitto.ACL_FILE, mosquitto.format_acl(out))

    def _write_private_file(self, name: str, text: str) -> None:
        write_atomically(self.folder / name, text.encode(), private=True)
