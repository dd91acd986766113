"""The server of a run on devices: waits for them, plays the rounds, keeps its journal."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch

from ..config.config import Config
from ..core.algorithm import Reply
from ..core.files import read_json, write_json
from ..data.client_folders import OWN_DATA, ExampleSpec
from ..experiments.execute import execute_plan
from ..jobs.plan import Job
from ..runs.events import Event
from ..runs.store import RunFolder
from ..runs.summary import Summary
from .admission import check_devices_can_run, find_objection, list_clients
from .broker.enrolment import Enrolment
from .engine import DeviceEngine, announce_end, process_messages, publish_all
from .protocol import topics
from .protocol.message_fields import parse_record
from .protocol.messages import ClientSummary, Hello
from .protocol.server_session import ServerSession
from .remote_federation import DataSummary, RemoteFederation, make_remote_federation
from .reply_checks import ReplyValidator
from .status_writer import StatusWriter
from .transport.endpoint import BrokerEndpoint, Will
from .transport.mqtt_transport import MqttTransport

MAX_REPLY_BYTES = 1 << 30  # bytes of one reply
JOURNAL_FILE = "devices.json"
Say = Callable[[str], None]


class Journal:
    """What outlives the server besides the run: who holds which client, with what data."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / JOURNAL_FILE
        told = read_json(self.path) if self.path.is_file() else {}
        self.epoch: int = told.get("epoch", 0) + 1
        self.device_of_client: dict[str, str] = told.get("holders", {})
        self.folder_ids: dict[str, str] = told.get("homes", {})  # by device
        self.client_summaries: dict[str, ClientSummary] = {
            name: parse_record(ClientSummary, {"type": "uint8", **h}, f"{self.path}, client {name}")
            for name, h in told.get("held", {}).items()
        }
        self.save()

    def record_clients(self, device: str, hello: Hello) -> None:
        """These clients are the device's from now on; written down before it hears of it."""
        fresh = {c.name: c for c in hello.clients if c.name not in self.client_summaries}
        if fresh:
            self.client_summaries |= fresh
            self.device_of_client |= dict.fromkeys(fresh, device)
            self.folder_ids[device] = hello.home
            self.save()

    def save(self) -> None:
        held = {name: asdict(h) for name, h in self.client_summaries.items()}
        who = {"holders": self.device_of_client, "homes": self.folder_ids, "held": held}
        write_json(self.path, {"epoch": self.epoch, **who})


def serve(
    config: Config,
    folder: RunFolder,
    enrolment: Enrolment,
    run: str,
    say: Say,
    on_event: Callable[[Event], None] = lambda event: None,
) -> Summary:
    """Play what is left of the run. The folder must be ours (locked)."""
    check_devices_can_run(config)
    journal = Journal(folder.path)
    expected: list[ReplyValidator] = []

    def check_reply(job: Job, reply: Reply) -> None:
        expected[0].check_reply(reply, job)

    def admit_device(device: str, hello: Hello) -> str:
        why = find_objection(config, journal.client_summaries, hello)
        if journal.folder_ids.get(device, hello.home) != hello.home:
            why = (
                f"device '{device}' began in another folder, where what its clients keep lies;"
                " start it with that one"
            )
        if not why:
            journal.record_clients(device, hello)
        return why

    peer = BrokerEndpoint(
        enrolment.address, enrolment.port, enrolment.device, enrolment.make_ssl_context()
    )
    will = Will(topics.make_server_topic(run), b"gone")
    now, text = time.monotonic(), folder.config_file.read_bytes()
    hub = ServerSession(
        run,
        journal.epoch,
        config.top.rounds,
        text,
        admit_device,
        check_reply,
        MAX_REPLY_BYTES,
        now,
        journal.device_of_client,
    )
    with (
        MqttTransport(peer, topics.list_server_subscriptions(run), will=will) as link,
        StatusWriter(hub, folder.path, say) as lookout,
    ):
        known = wait_for_clients(config, hub, link, journal, say, lookout.update)
        plan = config.build_device_plan(known)
        expected.append(ReplyValidator(plan))
        faults = config.faults
        fleet = DeviceEngine(
            plan,
            hub,
            link,
            expected[0],
            faults.deadline,
            faults.count_needed_replies,
            folder.find_oldest_commit,
            say,
            lookout.update,
        )
        summary = execute_plan(plan, folder, fleet, on_event=on_event)
        announce_end(
            hub, link, say
        )  # also of a run that had ended: its devices may not have heard of it
    return summary


def wait_for_clients(
    config: Config,
    hub: ServerSession,
    link: MqttTransport,
    journal: Journal,
    say: Say,
    look: Callable[[], None],
) -> RemoteFederation:
    """Wait until every client of the run has been introduced, now or before."""
    count, told = config.data.clients, ""
    publish_all(hub, link, [hub.make_control_publication()])
    while missing := count - len(journal.client_summaries):
        words = f"waiting for {missing} of {count} clients"
        if words != told:
            say(words)
            told = words
        process_messages(hub, link, say, look)
    held = {
        c: DataSummary(h.train, h.test, h.validation, tuple(h.labels), h.data_sha256)
        for c, h in (
            (c, journal.client_summaries[c]) for c in list_clients(config, journal.client_summaries)
        )
    }
    first = next(iter(journal.client_summaries.values()))
    labels = tuple(str(i) for i in range(first.classes))
    if config.data.name == OWN_DATA:
        labels = ExampleSpec.from_config(config.data.shape, config.data.classes).labels
    dtype = getattr(torch, first.type)
    return make_remote_federation(config.data.name, held, tuple(first.shape), labels, dtype)
