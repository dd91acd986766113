"""The broker: start and stop Mosquitto, enrol boards and revoke them."""

from __future__ import annotations

import secrets
import time
import tomllib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from queue import Empty

import tomli_w

from ...core.errors import BrokerError, BusyError, ConfigError, FolderError
from ...core.files import NAME_PATTERN, NAME_RULE, translate_disk_errors, write_atomically
from ..protocol import topics
from ..transport.mqtt_transport import MqttTransport
from ..transport.queues import BrokerEndpoint, ReceivedMessage
from . import enrolment, process
from .certificates import CertificateAndKey, CertificateAuthority, CertificateStore
from .enrolment import DEFAULT_PORT, Enrolment

TIMEOUT_SECONDS = 15.0
POLL_SECONDS = 0.01
# makes the endpoint to connect under a name, with a certificate that is valid for minutes
MakeEndpoint = Callable[[str], BrokerEndpoint]


def end_mqtt_session(name: str, make_endpoint: MakeEndpoint) -> None:
    """End the MQTT session of a board at the broker by connecting under the board's name.

    Mosquitto has no command for this, but it keeps only the newest connection of a name.
    """
    with MqttTransport(make_endpoint(name)) as transport:
        wait_for_connection(transport, time.monotonic() + TIMEOUT_SECONDS)


def delete_retained_messages(board: str, make_endpoint: MakeEndpoint) -> int:
    """Delete the retained messages of a board at the broker; return how many there were."""
    own, mark = topics.make_board_pattern(board), topics.MAINTENANCE_TOPIC
    with MqttTransport(make_endpoint(topics.MAINTENANCE_NAME), [own, mark]) as transport:
        found = list_retained_topics(transport, mark)
        for topic in found:  # at most three messages, so the queue has room
            transport.publish(topic, b"", retain=True)
    return len(found)


def list_retained_topics(transport: MqttTransport, mark: str) -> list[str]:
    """Return the topics of the retained messages that the broker sends before our marker message."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    wait_for_connection(transport, deadline)
    end, found = secrets.token_bytes(16), dict[str, None]()
    transport.publish(mark, end)
    while time.monotonic() < deadline:
        with suppress(Empty):
            item = transport.inbox.get(timeout=POLL_SECONDS)
            if isinstance(item, ReceivedMessage) and item.payload == end:
                return list(found)
            if isinstance(item, ReceivedMessage):
                found[item.topic] = None
    raise BrokerError(f"{transport.endpoint} does not answer")


def wait_for_connection(transport: MqttTransport, deadline: float) -> None:
    """Wait until the broker is connected; raise BrokerError after the deadline."""
    while not transport.connected:
        if time.monotonic() > deadline:
            raise BrokerError(f"{transport.endpoint} does not answer")
        time.sleep(POLL_SECONDS)


ENROLMENT_LIFETIME = timedelta(days=2 * 365)
MAINTENANCE_LIFETIME = timedelta(minutes=2)


@dataclass(frozen=True)
class ListenSettings:
    """Where the broker listens; stored in its folder between starts."""

    port: int
    lan: bool

    def replace_given(self, lan: bool | None, port: int | None) -> ListenSettings:
        """Return the broker's settings with these values replaced; None keeps a value."""
        return ListenSettings(self.port if port is None else port, self.lan if lan is None else lan)


class Broker:
    """The broker of runs on boards: Mosquitto, its certificates and enrolments, in one private folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings_file = folder / "broker.toml"
        self.server_enrolment_file = folder / "server.toml"
        self.certificate_store = CertificateStore(folder)

    def start(
        self, lan: bool | None = None, port: int | None = None
    ) -> tuple[ListenSettings, bool]:
        """Start the broker; return its settings, and True unless it was already running.

        None keeps the setting from the last start; port 0 selects any free port.
        """
        process.find_mosquitto()
        if not self.settings_file.exists():
            self._make_folder()
        if process.find_running_pid(self.folder):
            return self._require_same_settings(lan, port), False
        with process.hold_broker_lock(self.folder) as lock:
            stored = self.read_listen_settings() if self.settings_file.exists() else None
            settings = (stored or ListenSettings(DEFAULT_PORT, lan=False)).replace_given(lan, port)
            free_port = enrolment.find_bindable_port(settings.lan, settings.port)
            settings = replace(settings, port=free_port)
            server = self._write_all_files(
                self._load_authority() if stored else self._create_authority(), settings
            )
            process.start_mosquitto(self.folder, lock, server)
        return settings, True

    def _require_same_settings(self, lan: bool | None, port: int | None) -> ListenSettings:
        """Return the settings of the running broker; raise BusyError if different ones are requested."""
        stored = self.read_listen_settings()
        if stored.replace_given(lan, port or None) != stored:
            raise BusyError(
                f"the broker in {self.folder} is running with other settings; stop it first with"
                f" heterophony broker down {self.folder}"
            )
        return stored

    def _make_folder(self) -> None:
        """Create the broker's folder; raise FolderError if it holds other files."""
        # an interrupted start may have left these behind
        ours = {process.LOCK_FILE, "boards", "revoked", "ca.pem", "ca.key"}
        with translate_disk_errors(self.folder):
            if self.folder.exists() and {p.name for p in self.folder.iterdir()} - ours:
                raise FolderError(
                    f"{self.folder} holds other files; choose a new folder for the broker"
                )
            self.certificate_store.create_folders()

    def _create_authority(self) -> CertificateAuthority:
        """Create the broker's certificate authority, and store its certificate and key."""
        authority = CertificateAuthority.create()
        pair = authority.export_pem()
        self._write_private_file("ca.pem", pair.certificate)
        self._write_private_file("ca.key", pair.key)
        return authority

    def _write_all_files(
        self, authority: CertificateAuthority, settings: ListenSettings
    ) -> Enrolment:
        """Write the server's enrolment and all files that Mosquitto reads; return the enrolment."""
        with translate_disk_errors(self.folder):
            self.folder.chmod(0o700)
        # a new one at every start: it never expires, and contains the current addresses
        pair = authority.issue_for_broker(enrolment.list_reachable_hosts(settings.lan))
        self._write_private_file("broker.pem", pair.certificate)
        self._write_private_file("broker.key", pair.key)
        self._write_private_file(
            process.CONFIG_FILE, process.format_config(settings.lan, settings.port)
        )
        self._write_access_lists(authority)
        if self.server_enrolment_file.exists():
            server = replace(
                enrolment.read_enrolment(self.server_enrolment_file), port=settings.port
            )
        else:
            here = replace(settings, lan=False)
            server = self._issue_enrolment(
                authority, process.SERVER_NAME, authority.valid_until, here
            )
        write_atomically(self.server_enrolment_file, server.encode(), private=True)
        # last: its existence means that the folder is complete
        write_atomically(self.settings_file, tomli_w.dumps(asdict(settings)).encode(), private=True)
        return server

    def stop(self) -> bool:
        """Stop the broker; return True if it was running."""
        self.read_listen_settings()
        return process.stop_mosquitto(self.folder) is not None

    def restart_if_crashed(self) -> bool:
        """Restart the broker if it has crashed; return True if it was restarted.

        Mosquitto deletes the file with its process id only when it is stopped.
        """
        try:
            if (
                process.find_running_pid(self.folder)
                or not (self.folder / process.PID_FILE).exists()
            ):
                return False
            return self.start()[1]
        except BusyError:  # the broker is being started, or its port is still in use
            return False

    def enrol(self, name: str, out: Path, clients: Sequence[str] = ()) -> Enrolment:
        """Enrol a new board and write its enrolment to ``out``; with ``clients``, the board may hold no others."""
        if enrolment.check_board_name(name) == process.SERVER_NAME:
            raise ConfigError(f"'{name}' is the server's own name; choose another")
        check_enrolled_clients(clients)
        settings = self.read_listen_settings()
        if out.exists():
            raise ConfigError(f"{out} already exists; choose another file with -o")
        until = datetime.now(UTC).replace(microsecond=0) + ENROLMENT_LIFETIME
        issued = self._issue_enrolment(self._load_authority(), name, until, settings, clients)
        self.certificate_store.add(name, issued.certificate)
        try:
            write_atomically(out, issued.encode(), private=True)
        except Exception:
            self.certificate_store.remove(name)
            raise
        if name in self.certificate_store.list_revoked_names():
            self._restart()  # so that no board stays connected with the revoked file of this name
        return issued

    def _restart(self) -> None:
        """Restart the broker with current access lists; all connections end, and messages are dropped."""
        was_running = process.stop_mosquitto(self.folder) is not None
        with process.hold_broker_lock(self.folder) as lock:
            self._write_access_lists(self._load_authority())
            if was_running:
                process.start_mosquitto(
                    self.folder, lock, enrolment.read_enrolment(self.server_enrolment_file)
                )

    def revoke(self, name: str) -> None:
        """Revoke a board's enrolment: end its connection and never admit it again.

        The board's retained messages are deleted.
        """
        self.read_listen_settings()
        self.certificate_store.revoke(enrolment.check_board_name(name))
        authority = self._load_authority()
        self._write_access_lists(authority)
        if process.reload_mosquitto(self.folder):
            make_endpoint = self._make_endpoints(authority)
            try:
                end_mqtt_session(name, make_endpoint)
                delete_retained_messages(name, make_endpoint)
            except (
                BrokerError
            ):  # the broker is too busy to answer, perhaps because this board floods it
                self._restart()

    def _make_endpoints(self, authority: CertificateAuthority) -> MakeEndpoint:
        """Return a function that makes the endpoint for a name, with a certificate valid for minutes."""
        server = enrolment.read_enrolment(self.server_enrolment_file)

        def make_endpoint(name: str) -> BrokerEndpoint:
            until = datetime.now(UTC) + MAINTENANCE_LIFETIME
            pair = authority.issue_for_board(name, until)
            return enrolment.make_endpoint(
                replace(server, name=name, until=until, certificate=pair.certificate, key=pair.key)
            )

        return make_endpoint

    def find_pid(self) -> int | None:
        """Return Mosquitto's process id; None while it is not running."""
        return process.find_running_pid(self.folder)

    def read_listen_settings(self) -> ListenSettings:
        """Read where the broker listens; raise FolderError if there is no broker in the folder."""
        try:
            content = tomllib.loads(self.settings_file.read_text())
            return ListenSettings(int(content["port"]), bool(content["lan"]))
        except (FileNotFoundError, NotADirectoryError):
            raise FolderError(
                f"there is no broker in {self.folder}; create one with"
                f" heterophony broker up {self.folder}"
            ) from None
        except (ValueError, KeyError, TypeError):
            raise FolderError(
                f"{self.settings_file} is damaged: it must contain port and lan, as in"
                f" port = {DEFAULT_PORT} and lan = false"
            ) from None

    def _load_authority(self) -> CertificateAuthority:
        """Load the broker's certificate authority; raise FolderError if it is damaged."""
        try:
            pair = CertificateAndKey(
                *((self.folder / f"ca.{part}").read_text() for part in ("pem", "key"))
            )
            return CertificateAuthority.load(pair)
        except (OSError, ValueError):
            raise FolderError(
                f"the authority in {self.folder} is damaged: restore ca.pem and ca.key, or create a"
                " broker in a new folder and enrol all boards again"
            ) from None

    def _issue_enrolment(
        self,
        authority: CertificateAuthority,
        name: str,
        until: datetime,
        settings: ListenSettings,
        clients: Sequence[str] = (),
    ) -> Enrolment:
        """Issue a certificate for a board or the server; return the enrolment that contains it."""
        until, ca = min(until, authority.valid_until), authority.export_pem().certificate
        pair = authority.issue_for_board(name, until, clients)
        address = enrolment.select_advertised_address(settings.lan)
        return Enrolment(name, address, settings.port, until, ca, pair.certificate, pair.key)

    def _write_access_lists(self, authority: CertificateAuthority) -> None:
        """Write the broker's access control list and revocation list."""
        enrolled = {board.name for board in self.certificate_store.list_enrolled()}
        revoked = sorted(self.certificate_store.list_revoked_names() - enrolled)
        self._write_private_file(
            "revoked.pem",
            authority.build_revocation_list(self.certificate_store.list_revoked_certificates()),
        )
        self._write_private_file(process.ACL_FILE, process.format_acl(revoked))

    def _write_private_file(self, name: str, text: str) -> None:
        """Write a file of the broker that only its owner can read."""
        write_atomically(self.folder / name, text.encode(), private=True)


def check_enrolled_clients(clients: Sequence[str]) -> None:
    """Raise ConfigError for an invalid client name, or for a name that is given twice."""
    for client in clients:
        if not NAME_PATTERN.fullmatch(client):
            raise ConfigError(f"--clients: {client!r} cannot be a client's name; {NAME_RULE}")
        if clients.count(client) > 1:
            raise ConfigError(f"--clients: '{client}' is listed twice")
