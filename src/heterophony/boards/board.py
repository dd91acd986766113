"""A device's folder for one run: locked by one process, and recognised by an id."""

from __future__ import annotations

import os
import platform
import queue
import secrets
import threading
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import torch

from .. import __version__
from ..config.config import Config
from ..config.reading import resolve_config
from ..core.accelerator import CPU, Compute, prepare_torch
from ..core.algorithm import Reply
from ..core.errors import ConfigError, DivergedError, HeterophonyError
from ..core.files import load_secret, lock_folder, translate_disk_errors, write_atomically
from ..data.client_folders import OWN_DATA
from ..data.federation import Federation
from ..jobs.client_store import FolderClientStore
from ..jobs.plan import Job, Plan
from ..jobs.work import work
from ..population.availability import Devices
from ..population.participation import Uniform
from .board_data import load_shares, summarize_client
from .broker.enrolment import Enrolment
from .protocol import job_codec, topics
from .protocol.blobs import ReplyStore
from .protocol.board_session import DeviceSession
from .protocol.messages import Control, decode_message
from .protocol.topics import Publication
from .sensors import BoardSensors, MemoryGuard, read_free_bytes, reset_peak
from .transport.mqtt_transport import MqttTransport
from .transport.queues import BrokerEndpoint, ConnectionEvent, ReceivedMessage, Will


class DeviceFolder:
    """A folder that is locked until ``close``.

    The id distinguishes it from a new folder, and from that of a copied enrolment.
    """

    def __init__(self, path: Path) -> None:
        id_file = path / "home"
        with translate_disk_errors(path):
            path.mkdir(parents=True, exist_ok=True)
        self._lock = lock_folder(path)
        if not id_file.exists():
            write_atomically(id_file, secrets.token_hex(8).encode())
        with translate_disk_errors(id_file):
            self.folder_id = id_file.read_text()

    def close(self) -> None:
        os.close(self._lock)


MAX_BLOB_BYTES = 1 << 30  # of the tensors of one task
POLL_SECONDS = 0.05
SHOWN_CLIENTS = 8  # in the line that says what the device takes part in
Say = Callable[[str], None]
JobResult = tuple[Reply | Exception, float]


class Device:
    """One device in one run, from its start to the end of the run.

    ``data`` has the folder or file of each client's own data, for a run without a data set.
    ``shares`` is a folder with the clients' shares of the run's data set; None: it is loaded whole.
    ``memory_limit`` is in bytes; None: what the board has. With ``trust``, an algorithm from outside
    that the server names is imported.
    """

    def __init__(
        self,
        enrolment: Enrolment,
        run: str,
        folder: Path,
        clients: Sequence[str],
        say: Say,
        *,
        slowdown: float = 1.0,
        data: Mapping[str, Path] | None = None,
        shares: Path | None = None,
        memory_limit: int | None = None,
        device: torch.device = CPU,
        trust: bool = False,
    ) -> None:
        self.trust = trust
        self.folder, self.clients, self.say = folder / run, list(clients), say
        self.slowdown, self.data, self.compute = slowdown, data, Compute(device)
        self.shares, self.memory_limit = shares, memory_limit
        self.sensors = BoardSensors()
        self.memory_guard: MemoryGuard | None = None
        self.plan: Plan | None = None
        self.device_folder = DeviceFolder(self.folder)
        self.client_store = FolderClientStore(self.folder / "clients", self.folder / "scratch")
        self.session = DeviceSession(
            run=run,
            device=enrolment.device,
            session=secrets.token_hex(8),
            reply_store=ReplyStore(self.folder / "replies"),
            max_blob_bytes=MAX_BLOB_BYTES,
            now=time.monotonic(),
        )
        gone, here = (self.session.make_status_publication(state) for state in ("gone", "here"))
        self.transport = MqttTransport(
            make_endpoint(enrolment),
            topics.list_device_subscriptions(run, enrolment.device),
            retained={here.topic: here.payload},
            will=Will(gone.topic, gone.payload),
        )
        self.jobs: queue.Queue[Job] = queue.Queue(1)
        self.results: queue.Queue[JobResult] = queue.Queue()
        self.last_rejection = ""

    def run(self) -> None:
        """Take part until the run has ended."""
        threading.Thread(target=self.run_jobs, name="work", daemon=True).start()
        with closing(self.device_folder), self.transport:
            while not self.run_ended:
                self.handle_next_message()
                self.publish_all(self.session.tick(time.monotonic()))
                self.advance()

    @property
    def run_ended(self) -> bool:
        control = self.session.control
        return control is not None and control.state == "ended"

    def handle_next_message(self) -> None:
        """Wait briefly for a message or connection event, and handle it."""
        try:
            item: ReceivedMessage | ConnectionEvent = self.transport.inbox.get(timeout=POLL_SECONDS)
        except queue.Empty:
            return
        now = time.monotonic()
        if isinstance(item, ReceivedMessage):
            self.publish_all(self.session.receive(item.topic, item.payload, now))
        elif item.kind == "connected":
            self.publish_all(self.session.handle_connected(now))
        elif item.kind != "nudge":
            self.say(item.text)

    def advance(self) -> None:
        """Build the plan, start jobs, hand in results, and print the server's answers."""
        now = time.monotonic()
        if self.plan is None and self.session.config is not None:
            self.start_plan(self.session.config, now)
        while not self.results.empty():
            self.submit_result(*self.results.get(), now)
        if self.plan is not None and (task := self.session.take_next_task()):
            assert self.memory_guard is not None
            self.memory_guard.begin_job(task.job.client)
            self.jobs.put(task.job)
        control = self.session.control
        if control is not None:
            self.client_store.delete_old_memories(self.clients, before=control.oldest)
        if self.session.refusal_reason:
            raise ConfigError(f"the server refuses this device: {self.session.refusal_reason}")
        why = self.session.last_rejection_reason
        if why and why != self.last_rejection:
            self.say(f"the server rejects a reply: {why}")
        self.last_rejection = why

    def start_plan(self, text: bytes, now: float) -> None:
        """Load the clients' data for this configuration, and introduce the clients."""
        config = parse_config(text, self.trust)
        if self.shares is not None and config.data.name != OWN_DATA:
            federation = load_shares(self.shares, self.clients)
        else:
            federation = load_federation(config, self.data)
        # the server selects clients; its settings for that name clients that are not here
        local_config = replace(config, participation=Uniform(rate=1.0), devices=Devices())
        self.compute = replace(  # the server decides the precision, this device where it computes
            self.compute,
            precision=config.engine.precision,
            deterministic=config.engine.deterministic,
            fast=config.engine.fast == "auto",
        )
        prepare_torch(self.compute)
        plan = local_config.build_device_plan(federation)
        if plan.needs_secret:  # of this device: the server does not have it
            plan = replace(plan, secret=load_secret(self.folder, create=True))
        self.plan = plan
        self.memory_guard = self.make_memory_guard(federation)
        unknown = [c for c in self.clients if c not in federation.clients]
        if unknown:
            raise ConfigError(f"--clients: the run has no client '{unknown[0]}'")
        if config.evaluation.share_personal:
            self.say("the run asks for personal parameters, to measure G where G depends on them")
        summaries = [summarize_client(federation, c) for c in self.clients]
        folder_id = self.device_folder.folder_id
        self.publish_all(
            self.session.introduce(__version__, summaries, describe_hardware(), now, folder_id)
        )
        shown = [*self.clients[:SHOWN_CLIENTS], *["…"] * (len(self.clients) > SHOWN_CLIENTS)]
        self.say(f"taking part in run {self.folder.name}: clients {', '.join(shown)}")

    def make_memory_guard(self, federation: Federation) -> MemoryGuard:
        return MemoryGuard(
            self.memory_limit,
            len(self.clients),
            federation.x.nbytes + federation.y.nbytes,
            lambda: self.sensors.read_status_bytes("VmRSS") or 0,
            read_free_bytes,
        )

    def submit_result(self, result: Reply | Exception, seconds: float, now: float) -> None:
        if isinstance(result, Exception):
            again = not isinstance(result, DivergedError)
            self.publish_all(self.session.submit_failure(result, again, now))
        else:
            share_personal = self.plan is not None and self.plan.share_personal
            reply = job_codec.encode_reply(result, share_personal)
            self.publish_all(self.session.report_metrics(self.measure()))
            self.publish_all(self.session.submit_reply(reply, seconds, now))

    def measure(self) -> dict[str, float]:
        """Return what the board says, and how many clients it could hold."""
        assert self.memory_guard is not None
        possible = {"clients_possible": self.memory_guard.count_possible_clients()}
        return {**self.sensors.read(), **possible}

    def publish_all(self, messages: Sequence[Publication]) -> None:
        for topic, payload, retain in messages:
            self.transport.publish(topic, payload, retain)

    # In the thread of the jobs --------------------------------------------------------------
    def run_jobs(self) -> None:
        """Run one job after the other in one torch thread, for the same bits as every engine."""
        torch.set_num_threads(1)
        while True:
            job, start = self.jobs.get(), time.monotonic()
            reset_peak()
            assert self.plan is not None
            result: Reply | Exception
            try:
                result = work(self.plan, job, self.client_store, self.compute)
            except HeterophonyError as error:
                result = error
            except Exception as error:  # whatever it is, the server is told
                result = HeterophonyError(repr(error))
            seconds = time.monotonic() - start
            if self.memory_guard is not None:
                self.memory_guard.end_job(self.sensors.read_status_bytes("VmHWM") or 0)
            if self.slowdown > 1:
                time.sleep(seconds * (self.slowdown - 1))
            self.results.put((result, seconds * self.slowdown))
            self.transport.inbox.offer(ConnectionEvent("nudge", "a job is done"))


def make_endpoint(enrolment: Enrolment) -> BrokerEndpoint:
    return BrokerEndpoint(
        enrolment.address, enrolment.port, enrolment.device, enrolment.make_ssl_context()
    )


def parse_config(text: bytes, trust: bool = False) -> Config:
    """Parse the server's configuration, with the same checks as a file of a user."""
    try:
        return resolve_config(tomllib.loads(text.decode()), settled=True, trust=trust)
    except (ValueError, tomllib.TOMLDecodeError):
        raise ConfigError("the server's configuration is not valid TOML") from None


def load_federation(config: Config, data: Mapping[str, Path] | None) -> Federation:
    """Load the configured data set with all clients, or the own data of this device's clients."""
    if (config.data.name == OWN_DATA) != (data is not None):
        raise ConfigError(
            f"--data: the run uses the data set {config.data.name}; leave --data out and give --clients"
            if data is not None
            else "--data: missing; this run uses the clients' own data, so say where they are"
        )
    return config.build_federation() if data is None else config.load_client_folders(data)


def describe_hardware() -> dict[str, str]:
    """Return facts about this machine, to show to people."""
    return {"machine": platform.machine(), "system": platform.system(), "torch": torch.__version__}


def wait_for_run(enrolment: Enrolment, say: Say) -> str:
    """Wait until a server announces a run on this broker; return its name."""
    say("waiting for a server")
    pattern = topics.make_any_control_pattern()
    with MqttTransport(make_endpoint(enrolment), [pattern]) as transport:
        while True:
            item = transport.inbox.get()
            if isinstance(item, ConnectionEvent):
                if item.kind != "connected":
                    say(item.text)
                continue
            try:
                control = decode_message(item.payload, Control)
            except HeterophonyError:
                continue
            if control.state != "ended":
                return control.run
