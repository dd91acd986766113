"""The board process: takes part in a run, runs one job at a time, keeps its clients' memories."""

from __future__ import annotations

import os
import platform
import queue
import secrets
import threading
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from .. import __version__
from ..config.config import Config
from ..config.reading import resolve_config
from ..config.sections import StopSection
from ..core import files
from ..core.accelerator import CPU, Compute, prepare_torch
from ..core.algorithm import Reply
from ..core.errors import ConfigError, DivergedError, HeterophonyError
from ..data.federation import Federation
from ..data.folders import OWN_DATA
from ..jobs.client_store import ID_FILE, FolderClientStore
from ..jobs.plan import Job, Plan
from ..jobs.work import work
from ..population.availability import Speeds
from ..population.participation import Uniform
from . import board_data
from .broker.enrolment import Enrolment, make_endpoint
from .protocol import job_codec, topics
from .protocol.blobs import MAX_BLOB_BYTES, GivenStore, ReplyStore
from .protocol.board_session import BoardSession, JobQueue
from .protocol.messages import Control, decode_message
from .protocol.topics import Publication
from .transport.mqtt_transport import MqttTransport
from .transport.queues import ConnectionEvent, ReceivedMessage, Will

POLL_SECONDS = 0.05
SHOWN_CLIENTS = 8  # clients listed in the line that announces the run
RUN_ID_FILE = "run-id"
GIVEN_FOLDER = "given"  # beside the folders of runs
Say = Callable[[str], None]
JobResult = tuple[Reply | Exception, float]


class BoardFolder:
    """A board's folder for one run, locked until ``close``.

    The server compares two ids: the folder's, so that no other folder or machine can stand in for the
    board, and the run's, because a later run may have the same name.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with files.translate_disk_errors(path):
            files.make_folder(path)
        self._lock = files.lock_folder(path)
        files.remove_unfinished_files(path)
        if not (path / ID_FILE).exists():
            files.write_atomically(path / ID_FILE, secrets.token_hex(8).encode())
        with files.translate_disk_errors(path):
            self.folder_id = (path / ID_FILE).read_text()
            known = path / RUN_ID_FILE
            self.run_id = known.read_text() if known.exists() else ""

    def record_run_id(self, run_id: str) -> None:
        """Store the id of the run in the board's folder, if it has none yet."""
        if not self.run_id:
            files.write_atomically(self.path / RUN_ID_FILE, run_id.encode())
            self.run_id = run_id

    def rename_for_new_run(self) -> Path:
        """Rename the board's closed folder, because a new run has the same name; return the new path."""
        with files.translate_disk_errors(self.path):
            return self.path.rename(self.path.with_name(f"{self.path.name}-{self.run_id}"))

    def close(self) -> None:
        """Release the lock of the board's folder."""
        os.close(self._lock)


@dataclass(frozen=True)
class BoardOptions:
    """Options of a board process, apart from its clients and its run."""

    data: Mapping[str, Path] | None = None  # clients' own data; None: the run uses a data set
    shares: Path | None = None  # folder with shares of the data set; None: load the whole set
    slowdown: float = 1.0
    memory_limit: int | None = None  # in bytes; None: all that the board has
    accelerator: torch.device = CPU
    trust: bool = False  # import an external algorithm if the server's configuration names one


DEFAULT_OPTIONS = BoardOptions()


def take_part_in_run(
    enrolment: Enrolment,
    run: str,
    folder: Path,
    clients: Sequence[str],
    say: Say,
    options: BoardOptions = DEFAULT_OPTIONS,
) -> None:
    """Take part in a run as a board until the run finishes, even if the run is deleted and started again."""
    while True:
        board = BoardRun(enrolment, run, folder, clients, say, options)
        board.run()
        if not board.session.replaced_by:
            return
        earlier = board.board_folder.rename_for_new_run()
        say(
            f"run {run} was started again from the beginning; the clients' memories of the earlier run"
            f" are in {earlier}"
        )


class BoardRun:
    """A board that takes part in one run, from the start of its process to the end of the run."""

    def __init__(
        self,
        enrolment: Enrolment,
        run: str,
        folder: Path,
        clients: Sequence[str],
        say: Say,
        options: BoardOptions = DEFAULT_OPTIONS,
    ) -> None:
        self.folder, self.clients, self.say, self.options = (
            folder / run,
            list(clients),
            say,
            options,
        )
        self.compute = Compute(options.accelerator)
        self.sensors = board_data.BoardSensors()
        self.memory_guard: board_data.MemoryGuard | None = None
        self.plan: Plan | None = None
        self.board_folder = BoardFolder(self.folder)
        self.client_store = FolderClientStore(self.folder / "clients", self.folder / "scratch")
        stores = (ReplyStore(self.folder / "replies"), GivenStore(folder / GIVEN_FOLDER))
        now = time.monotonic()
        self.session = BoardSession(
            run=run,
            board=enrolment.name,
            session=secrets.token_hex(8),
            jobs=JobQueue(*stores, MAX_BLOB_BYTES, now),
            now=now,
            run_id=self.board_folder.run_id,
        )
        gone, here = (self.session.make_status_publication(state) for state in ("gone", "here"))
        self.transport = MqttTransport(
            make_endpoint(enrolment),
            topics.list_board_subscriptions(run, enrolment.name),
            retained={here.topic: here.payload},
            will=Will(gone.topic, gone.payload),
        )
        self.jobs: queue.Queue[Job | None] = queue.Queue(1)
        self.results: queue.Queue[JobResult] = queue.Queue()
        self.last_rejection = ""

    def run(self) -> None:
        """Take part until the run has finished, or a new run with the same name has replaced it."""
        worker = threading.Thread(target=self.run_jobs, name="work", daemon=True)
        worker.start()
        with closing(self.board_folder), self.transport:
            while not self.run_ended and not self.session.replaced_by:
                self.handle_next_message()
                self.publish_all(self.session.tick(time.monotonic()))
                self.advance()
            if self.session.replaced_by:
                self.jobs.put(None)
                worker.join()  # nothing of the earlier run may be written any more

    @property
    def run_ended(self) -> bool:
        """Whether the server has announced the end of the run."""
        control = self.session.control
        return control is not None and control.state == "ended"

    def handle_next_message(self) -> None:
        """Wait briefly for a message of the server or a connection event, and handle it."""
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
        """Build the plan once everything for it has arrived, start jobs, submit results and print refusals."""
        now = time.monotonic()
        if self.plan is None and self.session.has_everything:
            assert self.session.config is not None
            self.start_plan(self.session.config, now)
        while not self.results.empty():
            self.submit_result(*self.results.get(), now)
        if self.plan is not None and (job := self.session.jobs.take_next_job()):
            assert self.memory_guard is not None
            self.memory_guard.begin_job(job.client)
            self.jobs.put(job)
        control = self.session.control
        if control is not None:
            self.board_folder.record_run_id(control.run_id)
            self.client_store.delete_old_memories(self.clients, before=control.oldest)
        if self.session.refusal_reason:
            raise ConfigError(f"the server refuses this board: {self.session.refusal_reason}")
        why = self.session.last_rejection_reason
        if why and why != self.last_rejection:
            self.say(f"the server rejects a reply: {why}")
        self.last_rejection = why

    def start_plan(self, text: bytes, now: float) -> None:
        """Load the board's data and build the plan from this configuration; introduce the clients."""
        config = parse_config(text, self.options.trust)
        if self.options.shares is not None and config.data.name != OWN_DATA:
            federation = board_data.load_shares(self.options.shares, self.clients)
        else:
            federation = load_federation(config, self.options.data)
        # only the server selects clients; its settings may refer to clients of other boards
        local_config = replace(
            config.with_checkpoint(self.session.given),
            participation=Uniform(rate=1.0),
            speeds=Speeds(),
            stop=StopSection(),
        )
        self.compute = replace(  # the server chooses the precision, the board its accelerator
            self.compute,
            precision=config.engine.precision,
            deterministic=config.engine.deterministic,
            fast=config.engine.fast == "auto",
        )
        prepare_torch(self.compute)
        plan = local_config.build_board_plan(federation)
        if plan.needs_secret:  # each board has its own secret, which the server does not know
            plan = replace(plan, secret=files.load_secret(self.folder, True, self.say))
        self.plan = plan
        self.memory_guard = self.make_memory_guard(federation)
        unknown = [c for c in self.clients if c not in federation.clients]
        if unknown:
            raise ConfigError(f"--clients: the run has no client '{unknown[0]}'")
        if config.evaluation.share_personal:
            self.say("the run requests personal parameters, to measure G if it depends on them")
        summaries = [board_data.summarize_client(federation, c) for c in self.clients]
        folder_id = self.board_folder.folder_id
        self.publish_all(
            self.session.introduce(__version__, summaries, describe_hardware(), now, folder_id)
        )
        shown = [*self.clients[:SHOWN_CLIENTS], *["…"] * (len(self.clients) > SHOWN_CLIENTS)]
        self.say(f"taking part in run {self.folder.name}: clients {', '.join(shown)}")

    def make_memory_guard(self, federation: Federation) -> board_data.MemoryGuard:
        """Build the guard of the board's memory, with this process's readings."""
        return board_data.MemoryGuard(
            self.options.memory_limit,
            len(self.clients),
            federation.x.nbytes + federation.y.nbytes,
            lambda: self.sensors.read_status_bytes("VmRSS") or 0,
            board_data.read_free_bytes,
        )

    def submit_result(self, result: Reply | Exception, seconds: float, now: float) -> None:
        """Send the reply of a job to the server, or the reason if the job failed."""
        if isinstance(result, Exception):
            again = not isinstance(result, DivergedError)
            self.publish_all(self.session.submit_failure(result, again, now))
        else:
            share_personal = self.plan is not None and self.plan.share_personal
            reply = job_codec.encode_reply(result, share_personal)
            self.publish_all(self.session.report_metrics(self.measure()))
            self.publish_all(self.session.submit_reply(reply, seconds, now))

    def measure(self) -> dict[str, float]:
        """Return the board's sensor readings and how many clients it could hold."""
        assert self.memory_guard is not None
        possible = {"clients_possible": self.memory_guard.count_possible_clients()}
        return {**self.sensors.read(), **possible}

    def publish_all(self, messages: Sequence[Publication]) -> None:
        """Publish messages to the server."""
        for topic, payload, retain in messages:
            self.transport.publish(topic, payload, retain)

    # In the thread of the jobs --------------------------------------------------------------
    def run_jobs(self) -> None:
        """Run the board's jobs one after another in one torch thread, as every engine does."""
        torch.set_num_threads(1)
        while True:
            if (job := self.jobs.get()) is None:
                return
            start = time.monotonic()
            board_data.reset_peak_memory()
            assert self.plan is not None
            result: Reply | Exception
            try:
                result = work(self.plan, job, self.client_store, self.compute)
            except HeterophonyError as error:
                result = error
            except Exception as error:  # report any failure to the server
                result = HeterophonyError(repr(error))
            seconds = time.monotonic() - start
            if self.memory_guard is not None:
                self.memory_guard.end_job(self.sensors.read_status_bytes("VmHWM") or 0)
            slowdown = self.options.slowdown
            if slowdown > 1:
                time.sleep(seconds * (slowdown - 1))
            self.results.put((result, seconds * slowdown))
            self.transport.inbox.offer(ConnectionEvent("nudge", "a job is done"))


def parse_config(text: bytes, trust: bool = False) -> Config:
    """Parse the configuration that the server sent, with the same checks as for a user's file."""
    try:
        return resolve_config(tomllib.loads(text.decode()), settled=True, trust=trust)
    except (ValueError, tomllib.TOMLDecodeError):
        raise ConfigError("the server's configuration is not valid TOML") from None


def load_federation(config: Config, data: Mapping[str, Path] | None) -> Federation:
    """Load the configured data set with all clients or, from ``data``, the board's clients' own data."""
    if (config.data.name == OWN_DATA) != (data is not None):
        raise ConfigError(
            f"--data: the run uses the data set {config.data.name}; leave out --data and use --clients"
            if data is not None
            else "--data: missing; this run uses the clients' own data, so give the path of their folder"
        )
    return config.build_federation() if data is None else config.load_client_folders(data)


def describe_hardware() -> dict[str, str]:
    """Describe the board's hardware, for display by the server."""
    return {"machine": platform.machine(), "system": platform.system(), "torch": torch.__version__}


def wait_for_run(enrolment: Enrolment, say: Say) -> str:
    """Wait until a connected server announces a run on this broker; return the run's name."""
    say("waiting for a server")
    patterns = [topics.ALL_CONTROL_TOPICS, topics.ALL_SERVER_TOPICS]
    runs, servers = dict[str, Control](), dict[str, bytes]()
    with MqttTransport(make_endpoint(enrolment), patterns) as transport:
        while True:
            item = transport.inbox.get()
            if isinstance(item, ConnectionEvent):
                if item.kind != "connected":
                    say(item.text)
                continue
            with suppress(HeterophonyError):
                address = topics.parse_topic(item.topic)
                if address.channel == "server":
                    servers[address.run] = item.payload
                else:
                    runs[address.run] = decode_message(item.payload, Control)
                control, state = runs.get(address.run), servers.get(address.run)
                if control is None or control.state == "ended":
                    continue
                if state == topics.SERVER_HERE:
                    say(f"found run {address.run}")
                    return address.run
                if state is not None:
                    say(
                        f"run {address.run} has no server at present; waiting for it, or for another run"
                    )
