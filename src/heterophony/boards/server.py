"""Which runs devices can take part in, and which devices may take part in a run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .. import __version__
from ..config.config import Config
from ..core.algorithm import Reply
from ..core.errors import ConfigError, FolderError
from ..core.files import NAME_PATTERN, read_json, sort_names, write_json
from ..data.client_folders import OWN_DATA, ExampleSpec
from ..jobs.plan import Job
from ..jobs.trials import check_merge
from ..runs.events import Event
from ..runs.folder import RunFolder
from ..runs.summary import Summary
from ..studies.run import execute_plan
from .board_data import FindSummary, RemoteFederation, load_known_summaries, make_remote_federation
from .broker.broker import Broker
from .broker.certificates import EnrolledClients
from .broker.enrolment import Enrolment
from .engine import (
    DeviceBlocker,
    DeviceEngine,
    ShutOut,
    announce_end,
    process_messages,
    publish_all,
)
from .journal import Journal
from .protocol import topics
from .protocol.message_fields import parse_fields
from .protocol.messages import ClientSummary, Hello
from .protocol.server_session import ServerSession
from .reply_checks import ReplyValidator
from .status import StatusWriter
from .transport.mqtt_transport import MqttTransport
from .transport.queues import BrokerEndpoint, Will

MAX_EXAMPLES = 10_000_000  # of one client; more would be claimed only to outweigh the others
MAX_VALUES = 1 << 20  # in one example; a network for more would take gigabytes
Summaries = Mapping[str, ClientSummary]  # of the clients introduced so far, by name


def check_devices_can_run(config: Config) -> None:
    """Refuse a configuration that devices cannot run, before anybody waits for them."""
    if config.algorithm.pooled:
        raise ConfigError(
            f"algorithm.name: {config.algorithm_name} trains on pooled data, which devices never"
            " send; use heterophony run"
        )
    if config.data.new_clients:
        raise ConfigError(
            "data.new_clients: devices cannot join after training; leave it out, or use"
            " heterophony run"
        )
    if config.attack.is_active:
        raise ConfigError(
            "attack.kind: attacks are simulated, and devices are real; leave it out, or use heterophony"
            " run"
        )


def list_numbered_clients(config: Config) -> list[str] | None:
    """Return the clients of the run if they are numbered; None if the data or a file name them."""
    partition = config.data.partition
    kind, pooled = partition.get("kind"), partition.get("iid", False)
    if config.data.name == OWN_DATA or kind == "file" or (kind == "natural" and not pooled):
        return None
    return [str(i) for i in range(config.data.clients)]


def find_objection(
    config: Config, summaries: Summaries, hello: Hello, find_summary: FindSummary | None = None
) -> str:
    """Return why a device cannot take part with its clients; an empty string if it can.

    ``find_summary`` computes what is true of a client's data, if the server has them.
    """
    if hello.version != __version__:
        return f"it has heterophony {hello.version}, the server {__version__}"
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
            return (
                f"the data of client '{client.name}' are not those that the configuration gives it;"
                " use the same data set as the server"
            )
    return ""


def find_data_objection(
    config: Config, summaries: Summaries, client: ClientSummary, first: ClientSummary
) -> str:
    """Return why a client's data do not fit the run; ``first`` is the device's first client."""
    if why := find_size_objection(client):
        return f"client '{client.name}' {why}"
    if config.data.name == OWN_DATA and sum(client.labels) != client.train:
        return f"client '{client.name}' has {client.train} examples, and other numbers by class"
    before = summaries.get(client.name)
    if before is not None and before != client:
        return f"the data of client '{client.name}' differ from those it started the run with"
    if not has_configured_format(config, client):
        return f"examples of client '{client.name}' do not match data.shape and data.classes"
    if get_example_format(client) != get_example_format(next(iter(summaries.values()), first)):
        return f"examples of client '{client.name}' have another format than those of others"
    return ""


def find_size_objection(client: ClientSummary) -> str:
    """Return what is wrong with the numbers that a client gives; an empty string if nothing is."""
    if client.train < 1 or len(client.labels) != client.classes:
        return "has no training data, or a wrong number of classes"
    if client.test < 1:
        return "has no test data"
    if (most := max(client.train, client.test, client.validation)) > MAX_EXAMPLES:
        return f"claims {most} examples, over {MAX_EXAMPLES}"
    if not 1 <= math.prod(client.shape) <= MAX_VALUES:
        return f"claims examples of {math.prod(client.shape)} values; 1 to {MAX_VALUES} are allowed"
    return ""


def describe_dominance(config: Config, summaries: Summaries) -> str:
    """Return a warning if one of several clients weighs more than all others; else nothing."""
    total = sum(c.train for c in summaries.values())
    largest = max(summaries.values(), key=lambda c: c.train)
    uniform = config.aggregation.weights == "uniform"
    if uniform or len(summaries) < 3 or 2 * largest.train <= total:
        return ""
    return (
        f"client {largest.name} says that it has {largest.train} of all {total} training examples,"
        " and weighs that much in averages; if that cannot be, set aggregation.weights = uniform"
    )


def find_membership_objection(config: Config, summaries: Summaries, clients: Sequence[str]) -> str:
    """Return why these cannot be clients of the run; an empty string if they are or can be."""
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
    """Return whether own data match the configuration, which describes no other data."""
    if config.data.name != OWN_DATA:
        return True
    spec = ExampleSpec.from_config(config.data.shape, config.data.classes)
    return get_example_format(client)[:2] == (spec.shape, len(spec.labels))


def get_example_format(client: ClientSummary) -> tuple[tuple[int, ...], int, str]:
    """Return what must be the same for all clients of a run: shape, classes and type."""
    return tuple(client.shape), client.classes, client.type


RECORD_FILE = "devices.json"
Say = Callable[[str], None]


class DevicesRecord:
    """What the server keeps besides the run: the device of each client, and its data summary."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / RECORD_FILE
        content = read_json(self.path) if self.path.is_file() else {}
        self.epoch: int = content.get("epoch", 0) + 1
        self.device_of_client: dict[str, str] = content.get("holders", {})
        self.folder_ids: dict[str, str] = content.get("homes", {})  # by device
        try:
            self.client_summaries = {
                # runs of earlier versions have no type: all examples were uint8
                name: parse_fields(ClientSummary, {"type": "uint8", **fields})
                for name, fields in content.get("held", {}).items()
            }
        except ValueError as error:
            raise FolderError(f"{self.path} is damaged: a client {error}") from None
        self.save()

    def record_clients(self, device: str, hello: Hello) -> None:
        """Assign new clients to the device for good, before the device is welcomed."""
        new = {c.name: c for c in hello.clients if c.name not in self.client_summaries}
        if new:
            self.client_summaries |= new
            self.device_of_client |= dict.fromkeys(new, device)
            self.folder_ids[device] = hello.home
            self.save()

    def save(self) -> None:
        content = {
            "epoch": self.epoch,
            "holders": self.device_of_client,
            "homes": self.folder_ids,
            "held": {name: asdict(summary) for name, summary in self.client_summaries.items()},
        }
        write_json(self.path, content)


def serve(
    config: Config,
    folder: RunFolder,
    enrolment: Enrolment,
    run: str,
    say: Say,
    on_event: Callable[[Event], None] = lambda event: None,
    enrolled_clients: EnrolledClients | None = None,
    watch: Callable[[], None] = lambda: None,
) -> Summary:
    """Run the remaining rounds. The caller must hold the folder's lock.

    ``enrolled_clients`` are those that enrolments name; None lets any device hold any clients.
    ``watch`` is called several times a second; it may raise an error, which ends the run.
    """
    check_devices_can_run(config)
    record = DevicesRecord(folder.path)
    is_complete = len(record.client_summaries) >= config.data.clients
    find_summary = None if is_complete else load_known_summaries(config, say)
    validators: list[ReplyValidator] = []  # one, once the clients are known

    def check_reply(job: Job, reply: Reply) -> None:
        validators[0].check_reply(reply, job)

    def check_admission(device: str, hello: Hello) -> str:
        why = find_objection(config, record.client_summaries, hello, find_summary)
        if not why and enrolled_clients is not None:
            held = {c for c, holder in record.device_of_client.items() if holder == device}
            names = held | {c.name for c in hello.clients}
            why = enrolled_clients.find_objection(device, names, config.data.clients)
        if record.folder_ids.get(device, hello.home) != hello.home:
            why = (
                f"device '{device}' started in another folder, which has its clients' memories;"
                " start it with that folder"
            )
        if not why:
            record.record_clients(device, hello)
        return why

    endpoint = BrokerEndpoint(
        enrolment.address, enrolment.port, enrolment.device, enrolment.make_ssl_context()
    )
    session = ServerSession(
        run=run,
        epoch=record.epoch,
        rounds=config.top.rounds,
        config=folder.config_file.read_bytes(),
        check_admission=check_admission,
        check_reply=check_reply,
        limit_reply_bytes=lambda job: validators[0].limit_reply_bytes(job),
        now=time.monotonic(),
        device_of_client=record.device_of_client,
    )
    subscriptions, will = (
        topics.list_server_subscriptions(),
        Will(topics.make_server_topic(run), b"gone"),
    )
    with (
        MqttTransport(
            endpoint,
            subscriptions,
            will=will,
            find_sender=topics.find_sender,
            # Mosquitto reads one acknowledgement for hundreds of messages of a flood: with them,
            # a flood would wait in the broker, unseen, and displace what others send
            acknowledges=False,
        ) as transport,
        StatusWriter(session, folder.path, say) as status,
        Journal(folder.path, say) as journal,
    ):

        def record_fact(kind: str, device: str = "-", **details: Any) -> None:
            if kind == "joined" and enrolled_clients is not None:
                details["certificate"] = enrolled_clients.find_serial_number(device)
            journal.record(kind, device, **details)

        session.stats.record_fact = record_fact
        journal.record(
            "resumed" if record.epoch > 1 else "started",
            start=record.epoch,
            run=run,
            broker=f"{endpoint.address}:{endpoint.port}",
            version=__version__,
            configuration=session.config_blob.blob.sha256[:16],
        )
        broker = None
        if enrolled_clients is not None and enrolled_clients.can_be_read:
            broker = Broker(enrolled_clients.store.folder)
        shut_out = DeviceBlocker(session, transport, broker, say).shut_out

        def update() -> None:
            status.update()
            watch()

        federation = wait_for_clients(config, session, transport, record, say, update, shut_out)
        plan = config.build_device_plan(federation)
        check_merge(plan)
        validators.append(ReplyValidator(plan))
        validators[0].prepare()
        engine = DeviceEngine(
            plan=plan,
            session=session,
            transport=transport,
            reply_validator=validators[0],
            deadline=config.faults.deadline,
            count_needed=config.faults.count_needed_replies,
            find_oldest_round=folder.find_oldest_commit,
            say=say,
            update_status=update,
            shut_out=shut_out,
        )
        summary = execute_plan(plan, folder, engine, [on_event])
        # also if the run had ended before: its devices may not have heard of it
        announce_end(session, transport, say, shut_out)
    return summary


def wait_for_clients(
    config: Config,
    session: ServerSession,
    transport: MqttTransport,
    record: DevicesRecord,
    say: Say,
    update_status: Callable[[], None],
    shut_out: ShutOut,
) -> RemoteFederation:
    """Wait until every client of the run has been introduced, now or in an earlier start."""
    count, last_line = config.data.clients, ""
    publish_all(session, transport, [session.make_control_publication()])
    while missing := count - len(record.client_summaries):
        line = f"waiting for {missing} of {count} clients"
        if line != last_line:
            say(line)
            last_line = line
        process_messages(session, transport, say, update_status, shut_out)
    clients = sort_names(record.client_summaries)
    summaries = {c: record.client_summaries[c] for c in clients}
    if warning := describe_dominance(config, summaries):
        say(warning)
    labels = tuple(str(i) for i in range(summaries[clients[0]].classes))
    if config.data.name == OWN_DATA:
        labels = ExampleSpec.from_config(config.data.shape, config.data.classes).labels
    return make_remote_federation(config.data.name, summaries, labels)
