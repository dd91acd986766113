"""A device: fetches the run's configuration, holds clients and what they keep, and does its tasks.

Work is done in a thread of its own, so that the network is heard meanwhile. All that must outlive
the process is in the device's folder: memories, and replies that the server has not taken yet.
"""

from __future__ import annotations

import hashlib
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
from ..core.algorithm import Reply
from ..core.errors import ConfigError, DivergedError, HeterophonyError
from ..core.tensors import tensor_to_bytes
from ..data.client_folders import OWN_DATA
from ..data.federation import Federation
from ..jobs.client_store import FolderClientStore
from ..jobs.plan import Job, Plan
from ..jobs.work import work
from ..population.device_speeds import Devices
from ..population.participation import Uniform
from .broker.enrolment import Enrolment
from .device_folder import DeviceFolder
from .protocol import job_codec, topics
from .protocol.device_session import DeviceSession
from .protocol.messages import ClientSummary, Control, decode_message
from .protocol.reply_store import ReplyStore
from .protocol.topics import Publication
from .transport.endpoint import BrokerEndpoint, Will
from .transport.inbox import ConnectionEvent, ReceivedMessage
from .transport.mqtt_transport import MqttTransport

MAX_BLOB_BYTES = 1 << 30  # bytes of what one task sends down
POLL_SECONDS = 0.05
Say = Callable[[str], None]
JobResult = tuple[Reply | Exception, float]


class Device:
    """One device in one run, from its start to the end of the run."""

    def __init__(
        self,
        enrolment: Enrolment,
        run: str,
        folder: Path,
        clients: Sequence[str],
        say: Say,
        slow: float = 1.0,
        data: Mapping[str, Path] | None = None,
    ) -> None:
        """``data`` says where each client's own lie, where the run has none to deal."""
        self.folder, self.clients, self.say, self.slowdown = folder / run, list(clients), say, slow
        self.data = data
        self.plan: Plan | None = None
        self.device_folder = DeviceFolder(self.folder)
        self.client_store = FolderClientStore(self.folder / "clients", self.folder / "scratch")
        shelf, now = ReplyStore(self.folder / "replies"), time.monotonic()
        self.device_session = DeviceSession(
            run, enrolment.device, secrets.token_hex(8), shelf, MAX_BLOB_BYTES, now
        )
        gone, here = (
            self.device_session.make_status_publication(state) for state in ("gone", "here")
        )
        self.transport = MqttTransport(
            BrokerEndpoint(
                enrolment.address, enrolment.port, enrolment.device, enrolment.make_ssl_context()
            ),
            topics.list_device_subscriptions(run, enrolment.device),
            retained={here.topic: here.payload},
            will=Will(gone.topic, gone.payload),
        )
        self.jobs: queue.Queue[Job] = queue.Queue(1)
        self.results: queue.Queue[JobResult] = queue.Queue()
        self.last_rejection = ""

    def run(self) -> None:
        """Until the run has ended."""
        threading.Thread(target=self.run_jobs, name="work", daemon=True).start()
        with closing(self.device_folder), self.transport:
            while not self.run_ended:
                self.handle_next_message()
                self.publish_all(self.device_session.tick(time.monotonic()))
                self.advance()

    @property
    def run_ended(self) -> bool:
        control = self.device_session.control
        return control is not None and control.state == "ended"

    def handle_next_message(self) -> None:
        """What has arrived, for a moment at most."""
        try:
            item: ReceivedMessage | ConnectionEvent = self.transport.inbox.get(timeout=POLL_SECONDS)
        except queue.Empty:
            return
        now = time.monotonic()
        if isinstance(item, ReceivedMessage):
            self.publish_all(self.device_session.receive(item.topic, item.payload, now))
        elif item.kind == "connected":
            self.publish_all(self.device_session.handle_connected(now))
        elif item.kind != "nudge":
            self.say(item.text)

    def advance(self) -> None:
        """Begin, take up work, hand in results; say what is new."""
        now = time.monotonic()
        if self.plan is None and self.device_session.config is not None:
            self.start_plan(self.device_session.config, now)
        while not self.results.empty():
            self.submit_result(*self.results.get(), now)
        if self.plan is not None and (task := self.device_session.take_next_task()):
            self.jobs.put(task.job)
        control = self.device_session.control
        if control is not None:
            self.client_store.delete_old_memories(self.clients, before=control.oldest)
        if self.device_session.refusal_reason:
            raise ConfigError(f"the server says: {self.device_session.refusal_reason}")
        words = self.device_session.last_rejection_reason
        if words and words != self.last_rejection:
            self.say(f"the server says: {words}")
        self.last_rejection = words

    def start_plan(self, text: bytes, now: float) -> None:
        """The configuration is here: deal the data, and say who is here."""
        config = parse_config(text)
        federation = load_federation(config, self.data)
        # who is asked and when is the server's matter, and speaks of clients that are not here
        here = replace(config, participation=Uniform(rate=1.0), devices=Devices())
        self.plan = here.build_device_plan(federation)
        unknown = [c for c in self.clients if c not in federation.clients]
        if unknown:
            raise ConfigError(f"--clients: the run has no client '{unknown[0]}'")
        if config.evaluation.share_personal:
            self.say("the run asks for personal parts, only to measure G, where G rests on them")
        held, home = (
            [summarize_client(federation, c) for c in self.clients],
            self.device_folder.folder_id,
        )
        self.publish_all(
            self.device_session.introduce(__version__, held, describe_hardware(), now, home)
        )

    def submit_result(self, result: Reply | Exception, seconds: float, now: float) -> None:
        if isinstance(result, Exception):
            self.publish_all(
                self.device_session.submit_failure(
                    result, not isinstance(result, DivergedError), now
                )
            )
        else:
            aside = self.plan is not None and self.plan.share_personal
            self.publish_all(
                self.device_session.submit_reply(
                    job_codec.encode_reply(result, aside), seconds, now
                )
            )

    def publish_all(self, messages: Sequence[Publication]) -> None:
        for topic, payload, retain in messages:
            self.transport.publish(topic, payload, retain)

    # In the thread --------------------------------------------------------------------------
    def run_jobs(self) -> None:
        """One job after the other, in one torch thread: the bits of every other engine."""
        torch.set_num_threads(1)
        while True:
            job, begun = self.jobs.get(), time.monotonic()
            assert self.plan is not None
            result: Reply | Exception
            try:
                result = work(self.plan, job, self.client_store)
            except HeterophonyError as error:
                result = error
            except Exception as error:  # whatever it is, the server hears of it
                result = HeterophonyError(repr(error))
            taken = time.monotonic() - begun
            if self.slowdown > 1:
                time.sleep(taken * (self.slowdown - 1))
            self.results.put((result, taken * self.slowdown))
            self.transport.inbox.offer(ConnectionEvent("nudge", "a job is done"))


def parse_config(text: bytes) -> Config:
    """The server's configuration; it comes over the network, so it is checked like any other."""
    try:
        return resolve_config(tomllib.loads(text.decode()))
    except (ValueError, tomllib.TOMLDecodeError):
        raise ConfigError("the server's configuration is not valid TOML") from None


def load_federation(config: Config, data: Mapping[str, Path] | None) -> Federation:
    """What is dealt, for all clients, or what the clients of this device have of their own."""
    if (config.data.name == OWN_DATA) != (data is not None):
        raise ConfigError(
            f"--data: the run deals {config.data.name} itself; leave it out, and name --clients"
            if data is not None
            else "--data: missing; the clients of this run have data of their own"
        )
    return config.build_federation() if data is None else config.load_client_folders(data)


def summarize_client(federation: Federation, client: str) -> ClientSummary:
    """What is told of a client: how much data, of which kind, and a digest."""
    i = federation.clients.index(client)
    sizes = {part: federation.sizes(part)[client] for part in ("train", "test", "validation")}
    digest = hashlib.sha256()
    for part in [p for p in sizes if sizes[p]]:
        samples = federation.samples(client, part)
        digest.update(tensor_to_bytes(samples.get_all_stored()))
        digest.update(tensor_to_bytes(samples.labels))
    counts = tuple(int(n) for n in federation.counts()[i])
    return ClientSummary(
        client, **sizes, labels=counts, data_sha256=digest.hexdigest(), shape=federation.shape,
        classes=federation.classes, type=str(federation.x.dtype).removeprefix("torch."),
    )  # fmt: skip


def describe_hardware() -> dict[str, str]:
    """For people to look at."""
    return {"machine": platform.machine(), "system": platform.system(), "torch": torch.__version__}


def wait_for_run(enrolment: Enrolment, say: Say) -> str:
    """The run that a server announces on this broker; waits for one."""
    peer = BrokerEndpoint(
        enrolment.address, enrolment.port, enrolment.device, enrolment.make_ssl_context()
    )
    say("waiting for a server")
    with MqttTransport(peer, [topics.make_any_control_pattern()]) as link:
        while True:
            item = link.inbox.get()
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
