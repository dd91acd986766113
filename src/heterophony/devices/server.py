"""The server of a run on devices: waits for the clients, runs the rounds, keeps a record of its devices."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .. import __version__
from ..config.config import Config
from ..core.algorithm import Reply
from ..core.errors import FolderError
from ..core.files import read_json, write_json
from ..core.names import sort_names
from ..data.client_folders import OWN_DATA, ExampleSpec
from ..experiments.execute import execute_plan
from ..jobs.merge_trial import check_merge
from ..jobs.plan import Job
from ..runs.events import Event
from ..runs.store import RunFolder
from ..runs.summary import Summary
from .admission import (
    check_devices_can_run,
    describe_dominance,
    find_objection,
)
from .broker.broker import Broker
from .broker.enrolled_clients import EnrolledClients
from .broker.enrolment import Enrolment
from .data_summaries import load_known_summaries
from .engine import DeviceEngine, ShutOut, announce_end, process_messages, publish_all
from .journal import Journal
from .protocol import topics
from .protocol.message_fields import parse_fields
from .protocol.messages import ClientSummary, Hello
from .protocol.server_session import ServerSession
from .remote_federation import RemoteFederation, make_remote_federation
from .reply_checks import ReplyValidator
from .shut_out import DeviceBlocker
from .status_writer import StatusWriter
from .transport.endpoint import BrokerEndpoint, Will
from .transport.mqtt_transport import MqttTransport

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
        summary = execute_plan(plan, folder, engine, on_event=on_event)
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
