"""The server of a run on boards: admit boards and run all rounds from start to end."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .. import __version__
from ..config.checkpoint import read_checkpoint_bytes
from ..config.config import Config
from ..core.errors import ConfigError, FolderError
from ..core.files import NAME_PATTERN, read_json, sort_names, write_json
from ..data.folders import OWN_DATA, ExampleSpec
from ..jobs.client_store import BOARDS_RECORD
from ..jobs.dry_runs import check_merge
from ..runs.events import Event
from ..runs.folder import RunFolder
from ..runs.summary import Summary
from ..studies.run import execute_plan
from .board_data import (
    FindSummary,
    RemoteFederation,
    load_known_summaries,
    make_remote_federation,
    read_record,
)
from .broker.broker import Broker
from .broker.certificates import EnrolledClients
from .broker.enrolment import Enrolment, make_endpoint
from .engine import BoardEngine, ServerLink
from .journal import Journal, StatusWriter
from .protocol import topics
from .protocol.blobs import MAX_BLOB_BYTES
from .protocol.message_fields import parse_fields
from .protocol.messages import BlobRef, ClientSummary, Control, Hello
from .protocol.server_session import ServerSession
from .reply_checks import ReplyValidator
from .transport.mqtt_transport import MqttTransport
from .transport.queues import Will

MAX_EXAMPLES = 10_000_000  # limit per client; claiming more would only outweigh other clients
MAX_VALUES = 1 << 20  # most values in one example; a net for larger examples would take gigabytes
Say = Callable[[str], None]
Summaries = Mapping[str, ClientSummary]  # summaries of the clients introduced so far, by name


def check_boards_can_run(config: Config) -> None:
    """Raise ConfigError if boards cannot run a configuration, before the server waits for them."""
    if config.algorithm.pooled:
        raise ConfigError(
            f"algorithm.name: {config.algorithm_name} trains on pooled data, which boards never"
            " send; use heterophony run"
        )
    if config.data.new_clients:
        raise ConfigError(
            "data.new_clients: clients on boards cannot join after training; leave it out, or use"
            " heterophony run"
        )
    if config.attack.is_active:
        raise ConfigError(
            "attack.kind: simulated attacks are not possible on boards; leave it out, or use heterophony"
            " run"
        )


def list_numbered_clients(config: Config) -> list[str] | None:
    """Return the clients of the run if they are numbered; None if the data or a file names them."""
    partition = config.data.partition
    kind, pooled = partition.get("kind"), partition.get("iid", False)
    if config.data.name == OWN_DATA or kind == "file" or (kind == "natural" and not pooled):
        return None
    return [str(i) for i in range(config.data.clients)]


def find_objection(
    config: Config, summaries: Summaries, hello: Hello, find_summary: FindSummary | None = None
) -> str:
    """Return why a board cannot take part with its clients; an empty string if it can.

    ``find_summary`` computes the true summary of a client's data, if the server has the data.
    """
    if hello.version != __version__:
        return f"it has heterophony {hello.version}, but the server has {__version__}"
    if why := find_membership_objection(config, summaries, [c.name for c in hello.clients]):
        return why
    for client in hello.clients:
        if why := find_data_objection(config, summaries, client, hello.clients[0]):
            return why
        if client.name in summaries or find_summary is None:
            continue
        if (known := find_summary(client.name)) is None:
            return f"the run has no client '{client.name}'"
        if client != known:
            return f"the data of client '{client.name}' differ from the configured data; use the same data set as the server"
    return ""


def find_data_objection(
    config: Config, summaries: Summaries, client: ClientSummary, first: ClientSummary
) -> str:
    """Return why a client's data do not match the run; an empty string if they do.

    All clients must have the format of ``first``.
    """
    if why := find_size_objection(client):
        return f"client '{client.name}' {why}"
    if config.data.name == OWN_DATA and sum(client.labels) != client.train:
        return f"client '{client.name}' has {client.train} examples, but its counts by class do not add up to that"
    try:
        read_record(client)
    except ValueError as error:
        return f"client '{client.name}' {error}"
    before = summaries.get(client.name)
    if before is not None and before != client:
        return f"the data of client '{client.name}' differ from those it started the run with"
    if not has_configured_format(config, client):
        return f"examples of client '{client.name}' do not match data.shape and data.classes"
    if get_format_of_examples(client) != get_format_of_examples(
        next(iter(summaries.values()), first)
    ):
        return (
            f"examples of client '{client.name}' have a different format from those of the others"
        )
    return ""


def find_size_objection(client: ClientSummary) -> str:
    """Return why the sizes of a client's data are not allowed; an empty string if they are."""
    if client.train < 1 or len(client.labels) != client.classes:
        return "has no training data, or a wrong number of classes"
    if client.test < 1:
        return "has no test data"
    if (most := max(client.train, client.test, client.validation)) > MAX_EXAMPLES:
        return f"claims {most} examples, over {MAX_EXAMPLES}"
    if not 1 <= math.prod(client.shape) <= MAX_VALUES:
        return f"claims examples of {math.prod(client.shape)} values; 1 to {MAX_VALUES} are allowed"
    return ""


def describe_dominant_client(config: Config, summaries: Summaries) -> str:
    """Return a warning if one client has more examples than all others together, else an empty string."""
    total = sum(c.train for c in summaries.values())
    largest = max(summaries.values(), key=lambda c: c.train)
    uniform = config.aggregation.weights == "uniform"
    if uniform or len(summaries) < 3 or 2 * largest.train <= total:
        return ""
    return (
        f"client {largest.name} says that it has {largest.train} of all {total} training examples,"
        " and weighs that much in averages; if that cannot be true, set aggregation.weights = uniform"
    )


def find_membership_objection(config: Config, summaries: Summaries, clients: Sequence[str]) -> str:
    """Return why clients with these names cannot take part in the run; an empty string if they can."""
    if (numbered := list_numbered_clients(config)) is not None:
        unknown = [c for c in clients if c not in numbered]
        return f"the run has no client '{unknown[0]}'" if unknown else ""
    invalid = [c for c in clients if not NAME_PATTERN.fullmatch(c)]
    if invalid:
        return f"'{invalid[0]}' cannot be a client's name"
    new = [c for c in clients if c not in summaries]
    free = config.data.clients - len(summaries)
    if len(new) > free:
        left = f"can take {free} more" if free else "is complete"
        return f"the run of {config.data.clients} clients {left}, and '{new[0]}' is not among them"
    return ""


def has_configured_format(config: Config, client: ClientSummary) -> bool:
    """Return True if a client's own data have the configured format, or if the run uses a data set."""
    if config.data.name != OWN_DATA:
        return True
    spec = ExampleSpec.from_config(config.data.shape, config.data.classes)
    return get_format_of_examples(client)[:2] == (spec.shape, len(spec.labels))


def get_format_of_examples(client: ClientSummary) -> tuple[tuple[int, ...], int, str, str]:
    """Return the format that the examples of all clients must share: shape, classes, type and record."""
    return tuple(client.shape), client.classes, client.type, client.record


class BoardsRecord:
    """The server's stored record of boards: the clients of each, and the summaries of their data."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / BOARDS_RECORD
        content = read_json(self.path) if self.path.is_file() else {}
        try:
            self.run_id: str = content.get("run_id") or secrets.token_hex(8)
            self.start: int = content.get("start", 0) + 1
            self.board_of_client: dict[str, str] = content.get("board_of_client", {})
            self.folder_ids: dict[str, str] = content.get("folder_ids", {})  # by the board's name
            self.client_summaries = {
                name: parse_fields(ClientSummary, fields)
                for name, fields in content.get("clients", {}).items()
            }
        except ValueError as error:
            raise FolderError(f"{self.path} is damaged: a client {error}") from None
        self.save()

    def record_clients(self, board: str, hello: Hello) -> None:
        """Record that the new clients in a board's Hello belong to this board for the whole run."""
        new = {c.name: c for c in hello.clients if c.name not in self.client_summaries}
        if new:
            self.client_summaries |= new
            self.board_of_client |= dict.fromkeys(new, board)
            self.folder_ids[board] = hello.folder_id
            self.save()

    def save(self) -> None:
        """Write the record of boards to the run folder."""
        content = {
            "run_id": self.run_id,
            "start": self.start,
            "board_of_client": self.board_of_client,
            "folder_ids": self.folder_ids,
            "clients": {name: asdict(summary) for name, summary in self.client_summaries.items()},
        }
        write_json(self.path, content)


class Admission:
    """Decides which boards may take part, and records the clients of an admitted board."""

    def __init__(
        self, config: Config, record: BoardsRecord, enrolled: EnrolledClients | None, say: Say
    ) -> None:
        self.config, self.record, self.enrolled = config, record, enrolled
        is_complete = len(record.client_summaries) >= config.data.clients
        self.find_summary = None if is_complete else load_known_summaries(config, say)

    def admit(self, board: str, hello: Hello) -> str:
        """Admit a board and record its clients, or return why it cannot take part."""
        why = self.find_objection(board, hello)
        if not why:
            self.record.record_clients(board, hello)
        return why

    def find_objection(self, board: str, hello: Hello) -> str:
        """Return why a board cannot take part; an empty string if it can."""
        record = self.record
        if record.folder_ids.get(board, hello.folder_id) != hello.folder_id:
            return (
                f"board '{board}' started in another folder, which has its clients' memories;"
                " start it with that folder"
            )
        why = find_objection(self.config, record.client_summaries, hello, self.find_summary)
        if why or self.enrolled is None:
            return why
        held = {c for c, holder in record.board_of_client.items() if holder == board}
        names = held | {c.name for c in hello.clients}
        return self.enrolled.find_objection(board, names, self.config.data.clients)


@dataclass(frozen=True)
class ServerHooks:
    """Functions that the server of a run on boards calls: ``say`` with lines to print, ``on_event`` with events.

    The server calls ``watch`` several times a second; an error raised by ``watch`` stops the run.
    """

    say: Say
    on_event: Callable[[Event], None] = lambda event: None
    watch: Callable[[], None] = lambda: None


def serve(
    config: Config,
    folder: RunFolder,
    enrolment: Enrolment,
    run: str,
    hooks: ServerHooks,
    enrolled: EnrolledClients | None = None,
) -> Summary:
    """Serve a run on boards until its end. The caller must hold the lock of the run folder.

    With ``enrolled``, a board may only have the clients that its enrolment names.
    """
    check_boards_can_run(config)
    record = BoardsRecord(folder.path)
    admission = Admission(config, record, enrolled, hooks.say)
    text, given = folder.config_file.read_bytes(), read_given(config)
    control = Control(
        run,
        record.run_id,
        record.start,
        "waiting",
        0,
        config.top.rounds,
        0,
        BlobRef.from_bytes(text),
        () if given is None else (BlobRef.from_bytes(given),),
    )
    if given is not None:
        hooks.say(
            f"boards that lack the checkpoint {config.model.init} receive it once:"
            f" {len(given) / 1e6:.1f} MB"
        )
    session = ServerSession(
        control, text, admission.admit, time.monotonic(), record.board_of_client, given
    )
    with (
        open_transport(enrolment, run) as transport,
        StatusWriter(session, folder.path, hooks.say) as status,
        Journal(folder.path, hooks.say) as journal,
    ):

        def on_poll() -> None:
            status.update()
            hooks.watch()

        connect_journal(journal, session, enrolment, enrolled)
        broker = None
        if enrolled is not None and enrolled.can_be_read:
            broker = Broker(enrolled.store.folder)
        link = ServerLink(session, transport, hooks.say, on_poll, broker)
        plan = config.build_board_plan(wait_for_clients(config, link, record))
        check_merge(plan)
        validator = ReplyValidator(plan)
        validator.prepare()
        session.assignments.rules = validator
        engine = BoardEngine(plan, link, validator, config.faults, folder.find_oldest_commit)
        summary = execute_plan(plan, folder, engine, [hooks.on_event])
        link.announce_end()  # even if the run had already finished: its boards may not know
    return summary


def read_given(config: Config) -> bytes | None:
    """Return the bytes of the checkpoint that the run starts from; None if there is none."""
    if config.model.init is None:
        return None
    given = read_checkpoint_bytes(config.model.init)
    if len(given) > MAX_BLOB_BYTES:
        raise ConfigError(
            f"model.init: {config.model.init} has {len(given)} bytes; boards receive at most"
            f" {MAX_BLOB_BYTES}"
        )
    return given


def open_transport(enrolment: Enrolment, run: str) -> MqttTransport:
    """Return the transport that connects the server of a run to the broker."""
    return MqttTransport(
        make_endpoint(enrolment),
        topics.list_server_subscriptions(),
        retained={topics.make_server_topic(run): topics.SERVER_HERE},
        will=Will(topics.make_server_topic(run), topics.SERVER_GONE),
        find_sender=topics.find_owner,
        # Mosquitto reads one acknowledgement for hundreds of messages of a flood: with them,
        # a flood would wait in the broker, unseen, and displace what others send
        acknowledges=False,
    )


def connect_journal(
    journal: Journal, session: ServerSession, enrolment: Enrolment, enrolled: EnrolledClients | None
) -> None:
    """Record in the journal the server's start and, from then on, the facts that the session reports."""

    def record_fact(kind: str, board: str = "-", **details: Any) -> None:
        if kind == "joined" and enrolled is not None:
            details["certificate"] = enrolled.find_serial_number(board)
        journal.record(kind, board, **details)

    session.stats.record_fact = record_fact
    control = session.control
    journal.record(
        "resumed" if control.start > 1 else "started",
        start=control.start,
        run=control.run,
        broker=f"{enrolment.address}:{enrolment.port}",
        version=__version__,
        configuration=control.config.sha256[:16],
    )


def wait_for_clients(config: Config, link: ServerLink, record: BoardsRecord) -> RemoteFederation:
    """Wait until boards have introduced all clients of the run; return their federation."""
    count, last_line = config.data.clients, ""
    link.publish([link.session.make_control_publication()])
    while missing := count - len(record.client_summaries):
        line = f"waiting for {missing} of {count} clients"
        if line != last_line:
            link.say(line)
            last_line = line
        link.process_messages()
    clients = sort_names(record.client_summaries)
    summaries = {c: record.client_summaries[c] for c in clients}
    if warning := describe_dominant_client(config, summaries):
        link.say(warning)
    labels = tuple(str(i) for i in range(summaries[clients[0]].classes))
    if config.data.name == OWN_DATA:
        labels = ExampleSpec.from_config(config.data.shape, config.data.classes).labels
    return make_remote_federation(config.data.name, summaries, labels)
