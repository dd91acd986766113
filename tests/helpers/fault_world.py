"""A run with all its machines in one process: real server, boards and folders, simulated faults.

Time is virtual. Network, disks and clocks are simulated; every fault is drawn from one seed and has its
own seed, so that some faults can be left out without changing the others.
"""

from __future__ import annotations

import hashlib
import queue
import re
import secrets
import shutil
import tempfile
import types
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

from heterophony.boards import board as board_module
from heterophony.boards import board_data
from heterophony.boards import engine as engine_module
from heterophony.boards import server as server_module
from heterophony.boards.board import BoardRun
from heterophony.boards.broker.enrolment import Enrolment
from heterophony.boards.journal import StatusWriter
from heterophony.boards.protocol import job_codec
from heterophony.boards.protocol.blobs import ReplyStore
from heterophony.boards.protocol.board_session import JobQueue, rank_control_message
from heterophony.boards.protocol.messages import Control
from heterophony.boards.reply_checks import ReplyValidator
from heterophony.boards.server import ServerHooks, serve
from heterophony.boards.transport import queues
from heterophony.config.config import Config
from heterophony.config.reading import read_config
from heterophony.core import files
from heterophony.core.algorithm import Reply
from heterophony.core.errors import EngineError, HeterophonyError, StorageError
from heterophony.data.federation import Federation
from heterophony.engines import base
from heterophony.engines.base import Engine, EngineSpec, Serial
from heterophony.jobs.client_store import ClientStore, FolderClientStore
from heterophony.jobs.plan import Job, Plan
from heterophony.jobs.work import work
from heterophony.runs import loop, round_events
from heterophony.runs.folder import RunFolder
from heterophony.studies import run as run_module
from heterophony.studies.run import execute_plan

from .fault_disk import Disk, KilledError
from .fault_network import Fault, Network, SimulatedTransport

SERVER, WORKER, RUN = "server", "worker", "run"
GO_BACK = re.compile(r"or delete (\S+) to go back to round")
HOLDS = {"one": ["0", "2"], "two": ["1"]}
CALM_AFTER, LIMIT = 40.0, 3000.0  # seconds of virtual time
DISK_KINDS = ("full", "EIO", "kill at step", "power cut")
DRIVER_KINDS = (*DISK_KINDS, "power cut", "kill at step", "rot")
WORKER_KINDS = ("full", "EIO", "kill at step")
BOARD_KINDS = (
    *("lose", "repeat", "delay", "damage", "cut in", "cut out", "cut"),
    *DISK_KINDS,
    *("kill", "slow", "clock jump", "broker restart", "power cut", "rot"),
)
SETTINGS = (
    "data.name=digits",
    "data.clients=3",
    "data.partition.alpha=0.5",
    "model.name=mlp",
    "training.steps=1",
    "training.batch=16",
    "participation.rate=0.7",
    "engine.name=serial",
)
NOISE = ("protection.client_dp.noise=1.0", "protection.client_dp.clip=1.0")
SETUPS = {
    "ditto": ("rounds=3", "algorithm.name=ditto"),
    "private": ("rounds=2", "algorithm.name=fedavg", *NOISE, "aggregation.weights=uniform"),
    "private devices": (
        *("rounds=2", "algorithm.name=ditto", *NOISE, "aggregation.weights=uniform"),
        "protection.client_dp.where=device",
    ),
}


class PromiseError(AssertionError):
    """A promise of SECURITY.md was broken."""


# Shared by all seeds ----------------------------------------------------------------------------


@cache
def configure(setup: str) -> Config:
    return read_config(None, [*SETTINGS, *SETUPS[setup]])


BUILD_FEDERATION = Config.build_federation


@cache
def build_federation() -> Federation:
    return BUILD_FEDERATION(configure("ditto"))


@cache
def build_plan(setup: str) -> Plan:
    return configure(setup).build_plan(build_federation())


class OneMemory(ClientStore):
    """The store of one job: the memory that it reads, and the one that it writes."""

    def __init__(self, before: bytes, scratch: Path) -> None:
        self.before, self.scratch = before, scratch
        self.stored: bytes | None = None

    def read_blob(self, client: str, before: int) -> bytes:
        return self.before

    def write_blob(self, client: str, t: int, blob: bytes) -> None:
        self.stored = blob


class SharedWork:
    """Computes every job once for all seeds; it still reads and writes the simulated disk."""

    def __init__(self) -> None:
        self.results: dict[object, tuple[Reply, bytes | None]] = {}
        self.digests: dict[int, tuple[object, str]] = {}
        self.setup = ""

    def __call__(self, plan: Plan, job: Job, store: ClientStore, *rest: Any) -> Reply:
        before = store.read_blob(job.client, job.t)
        given = (self.setup, plan.secret, plan.clients_on_boards, job.kind, job.t, job.client)
        tensors = self.digest(job.tensors), self.digest(job.generic_model)
        key = (*given, job.turn, job.keeps_memory, *tensors, before)
        if key not in self.results:
            alone = OneMemory(before, store.scratch)
            reply = work(plan, job, alone, *rest)
            reply = replace(reply, metrics={**reply.metrics, "seconds": 1.0})
            self.results[key] = reply, alone.stored
        reply, stored = self.results[key]
        if stored is not None:
            store.write_blob(job.client, job.t, stored)
        return replace(reply, metrics=dict(reply.metrics))

    def digest(self, tensors: Any) -> str:
        if id(tensors) not in self.digests:
            if len(self.digests) > 1000:
                self.digests.clear()
            self.digests[id(tensors)] = tensors, tensors.digest()
        return self.digests[id(tensors)][1]


SHARED = SharedWork()


def work_apart(plan: Plan, jobs: Sequence[Job], store: ClientStore, *rest: Any) -> list[Reply]:
    return [SHARED(plan, job, store, *rest) for job in jobs]


PREPARE, PARSE_CONFIG = ReplyValidator.prepare, board_module.parse_config
BUILD_BOARD_PLAN = Config.build_board_plan
PREPARED: dict[str, dict[str, Any]] = {}
CONFIGS: dict[bytes, Config] = {}
PLANS: dict[object, Plan] = {}


def prepare_once(validator: ReplyValidator) -> None:
    if SHARED.setup not in PREPARED:
        PREPARE(validator)
        PREPARED[SHARED.setup] = {k: v for k, v in vars(validator).items() if k != "plan"}
    vars(validator).update(PREPARED[SHARED.setup])


def parse_once(text: bytes, trust: bool = False) -> Config:
    if text not in CONFIGS:
        CONFIGS[text] = PARSE_CONFIG(text, trust)
    return CONFIGS[text]


def build_board_plan_once(config: Config, federation: Any) -> Plan:
    key = SHARED.setup, type(federation)
    if key not in PLANS:
        PLANS[key] = BUILD_BOARD_PLAN(config, federation)
    return PLANS[key]


SUMMARIZE = board_data.summarize_client


@cache
def summarize_once(client: str) -> Any:
    return SUMMARIZE(build_federation(), client)


LIST_OUTSIDE = round_events.list_uncovered_facts
OUTSIDE: dict[str, Any] = {}


def list_outside_once(*args: Any) -> Any:
    if SHARED.setup not in OUTSIDE:
        OUTSIDE[SHARED.setup] = LIST_OUTSIDE(*args)
    return OUTSIDE[SHARED.setup]


class NoSensors:
    def read(self) -> dict[str, float]:
        return {}

    def read_status_bytes(self, name: str) -> int:
        return 0


def shared_patches() -> list[Any]:
    """Return patches that skip slow work whose result is the same for all seeds."""
    patch: Any = mock.patch.object
    return [
        patch(round_events, "list_uncovered_facts", list_outside_once),
        patch(base, "work_together", work_apart),
        patch(board_module, "work", SHARED),
        patch(board_module, "parse_config", parse_once),
        patch(board_data, "BoardSensors", NoSensors),
        patch(board_data, "reset_peak_memory", lambda: None),
        patch(board_data, "read_free_bytes", lambda: 1 << 32),
        patch(board_module, "prepare_torch", lambda compute: None),
        patch(board_data, "summarize_client", lambda federation, c: summarize_once(c)),
        patch(Config, "build_federation", lambda _: build_federation()),
        patch(Config, "build_board_plan", build_board_plan_once),
        patch(ReplyValidator, "prepare", prepare_once),
        patch(server_module, "check_merge", lambda plan: None),
    ]


def summarize_events(folder: RunFolder) -> list[tuple[Any, ...]]:
    """Return the part of the events that no fault may change: rounds, clients, ε and the model hash."""
    return [
        (e["event"], e.get("t"), e.get("clients"), e.get("epsilon"), e.get("model_sha256"))
        for e in folder.iterate_events()
    ]


FIRST_SECRET = b"s" * 32


@cache
def run_undisturbed(setup: str) -> list[tuple[Any, ...]]:
    """Return the events of a plain simulation, computed without these patches."""
    with (
        tempfile.TemporaryDirectory() as path,
        mock.patch.object(files, "draw_secret", return_value=FIRST_SECRET),
    ):
        folder = RunFolder(Path(path) / RUN)
        folder.create(configure(setup).to_toml())
        plan = build_plan(setup)
        execute_plan(plan, folder, configure(setup).engine, warn=lambda text: None)
        folder.close()
        return summarize_events(folder)


# The world ------------------------------------------------------------------------------------


class World:
    """All machines of one run, and the promises about them.

    It raises PromiseError as soon as it notices a broken promise.
    """

    def __init__(self, root: Path, setup: str, seed: int, faults: Sequence[Fault]) -> None:
        self.setup, self.config = setup, configure(setup)
        self.disk, self.draw = Disk(root), Random(f"{seed} world")
        self.waiting = sorted(faults, key=lambda f: f.at)  # faults that have not begun
        self.full = list[tuple[float, list[Any]]]()  # ends of full disks, and their armed faults
        self.slow = [f for f in faults if f.kind == "slow"]
        self.cuts: dict[str, list[int]] = {}
        self.offsets: dict[str, float] = {}
        self.network = Network(faults, Random(f"{seed} network"), self.step, self.wait)
        self.boards = {name: Board(self, name) for name in HOLDS}
        self.committed, self.server_killed = 0, False
        self.loaded: dict[str, int] = {}
        self.rotten: dict[str, Random] = {}  # machines whose disk damages a file when they stop
        self.released: dict[object, str] = {}
        self.answered = set[tuple[str, str, int]]()  # board, job and attempt
        for who in (SERVER, *HOLDS):
            (root / who).mkdir()
            self.disk.names[str(root / who)] = {}

    # Patches --------------------------------------------------------------------------------
    @contextmanager
    def patched(self) -> Iterator[None]:
        """Run the real program on this world's network, disks and clocks inside the block."""
        clock = types.SimpleNamespace(
            monotonic=self.monotonic, time=self.monotonic, sleep=lambda s: None
        )
        hex_draw = Random(f"{self.draw.random()}")
        with ExitStack() as stack:
            enter = stack.enter_context
            for patch in shared_patches():
                enter(patch)
            for module in (board_module, engine_module, server_module, queues):
                enter(mock.patch.object(module, "time", clock))
            for owner, name, replacement in (
                (board_module, "MqttTransport", self.make_transport),
                (server_module, "MqttTransport", self.make_transport),
                (board_module, "make_endpoint", lambda enrolment: enrolment.name),
                (server_module, "make_endpoint", lambda enrolment: enrolment.name),
                (server_module, "StatusWriter", partial(StatusWriter, clock=self.monotonic)),
                (secrets, "token_hex", lambda size=8: hex_draw.randbytes(size).hex()),
                (files, "draw_secret", self.draw_secret),
                (files, "load_secret", self.watch_secret(files.load_secret)),
                (run_module, "load_secret", self.watch_secret(files.load_secret)),
                (RunFolder, "commit", self.watch_commit(RunFolder.commit)),
                (RunFolder, "restore_newest_commit", self.watch_restore()),
                (job_codec, "make_assigned", self.watch_assigned(job_codec.make_assigned)),
                (ReplyStore, "put", self.watch_reply(ReplyStore.put)),
                (ReplyStore, "drop", self.watch_drop(ReplyStore.drop)),
                (ReplyStore, "read_range", self.watch_content(ReplyStore.read_range)),
                (JobQueue, "finish_current", self.watch_answer(JobQueue.finish_current)),
                (JobQueue, "handle_control", self.watch_control(JobQueue.handle_control)),
                (loop, "gather_replies", self.watch_merge(loop.gather_replies)),
            ):
                enter(mock.patch.object(owner, name, replacement))
            enter(self.disk.patched())
            yield

    def monotonic(self) -> float:
        return self.network.now + self.offsets.get(self.disk.current, 0.0)

    def make_transport(self, endpoint: Any, *args: Any, **kwargs: Any) -> SimulatedTransport:
        return SimulatedTransport(self.network, self.disk.current, *args, **kwargs)

    def draw_secret(self) -> bytes:
        """Return the same secret on all machines, but another one on a machine that already had a secret."""
        return FIRST_SECRET[1:] + bytes([self.loaded.get(self.disk.current, 115)])

    def watch_secret(self, load: Any) -> Any:
        def watched(*args: Any) -> Any:
            secret = load(*args)
            self.loaded[self.disk.current] = 0
            return secret

        return watched

    # Promises -------------------------------------------------------------------------------
    def watch_commit(self, commit: Any) -> Any:
        def watched(folder: RunFolder, server: Any, keep: int | None = None) -> None:
            commit(folder, server, keep)
            self.committed = max(self.committed, server.t)

        return watched

    def watch_restore(self) -> Any:
        restore = RunFolder.restore_newest_commit

        def watched(folder: RunFolder, samples: Any) -> Any:
            server = restore(folder, samples)
            if (server.t if server else 0) < self.committed:
                raise PromiseError(f"the commit of round {self.committed} is lost")
            return server

        return watched

    def watch_assigned(self, make_assigned: Any) -> Any:
        def watched(run_id: str, job: Job, *blobs: Any) -> Any:
            self.release(("model", job.kind, job.t, job.client, job.turn), blobs[0].sha256)
            return make_assigned(run_id, job, *blobs)

        return watched

    def watch_reply(self, put: Any) -> Any:
        def watched(store: ReplyStore, done: Any, reply: bytes) -> None:
            self.release(("reply", done.id), done.reply.sha256)
            put(store, done, reply)

        return watched

    def watch_drop(self, drop: Any) -> Any:
        """Allow a board to repeat a job whose reply the server has rejected."""

        def watched(store: ReplyStore, id: str) -> None:
            drop(store, id)
            self.answered = {a for a in self.answered if a[:2] != (self.disk.current, id)}

        return watched

    def watch_content(self, read_range: Any) -> Any:
        def watched(store: ReplyStore, done: Any, offset: int, size: int) -> bytes:
            whole = read_range(store, done, 0, done.reply.size)
            if hashlib.sha256(whole).hexdigest() != done.reply.sha256:
                raise PromiseError(f"a board sends a damaged reply to job {done.id}")
            return whole[offset : offset + size]

        return watched

    def watch_answer(self, finish: Any) -> Any:
        def watched(jobs: JobQueue, reply: bytes, seconds: float, now: float) -> Any:
            assert jobs.current is not None
            answer = self.disk.current, jobs.current.id, jobs.current.attempt
            if answer in self.answered:
                raise PromiseError(f"board {answer[0]} does job {answer[1]} again")
            out = finish(jobs, reply, seconds, now)
            self.answered.add(answer)
            return out

        return watched

    def watch_control(self, handle: Any) -> Any:
        def watched(jobs: JobQueue, control: Control, now: float) -> Any:
            if jobs.control and rank_control_message(control) < rank_control_message(jobs.control):
                raise PromiseError(f"board {self.disk.current} goes back to an older state")
            return handle(jobs, control, now)

        return watched

    def watch_merge(self, gather: Any) -> Any:
        def watched(plan: Plan, server: Any, replies: Sequence[Reply], sent: Any) -> Any:
            counted = [(r.client, r.turn) for r in replies]
            if len(set(counted)) < len(counted):
                raise PromiseError(f"round {server.t}: a job of a client counts twice")
            return gather(plan, server, replies, sent)

        return watched

    def release(self, what: object, sha256: str) -> None:
        """Raise PromiseError if something is released again with other noise: ε counts each release once."""
        if self.released.setdefault(what, sha256) != sha256:
            raise PromiseError(f"{what} is released twice with other content")

    # Time -----------------------------------------------------------------------------------
    def step(self, who: str) -> None:
        """Count a step of a machine; it may be killed there."""
        if who == SERVER and self.server_killed:
            self.server_killed = False
            self.disk.kill()
        self.disk.step("network", fails=False)

    def wait(self, who: str) -> None:
        if who == SERVER:
            try:
                self.pass_time()
            finally:
                self.disk.current = SERVER
            self.step(SERVER)

    def pass_time(self) -> None:
        """Let time pass until the next message or finished job."""
        now, flying = self.network.now, self.network.flying
        if now > LIMIT:
            raise PromiseError(
                f"the run has not ended after {LIMIT:.0f} s, long after the last fault"
            )
        due = [flying[0][0]] if flying else []
        due += [b.busy for b in self.boards.values() if b.busy is not None]
        until = min(max(min(due, default=now + 2), now + 0.05), now + 2)
        self.begin_faults(until)
        self.network.pass_time(until)
        for board in self.boards.values():
            board.live()
        self.disk.current = ""

    def begin_faults(self, now: float) -> None:
        for end, fault in [f for f in self.full if f[0] <= now]:
            self.full.remove((end, fault))
            # by identity: two full disks may have the same count of steps
            self.disk.armed = [f for f in self.disk.armed if f is not fault]
        while self.waiting and self.waiting[0].at <= now:
            self.begin(self.waiting.pop(0))

    def begin(self, fault: Fault) -> None:
        who, seconds = fault.who, fault.seconds
        match fault.kind:
            case "full" | "EIO" | "kill at step" | "power cut":
                self.disk.armed.append([who, fault.kind, fault.step])
                self.cuts.setdefault(who, []).append(fault.seed)
                if fault.kind == "full":
                    self.full.append((fault.at + seconds, self.disk.armed[-1]))
            case "rot":
                self.disk.armed.append([who, "kill at step", fault.step])
                self.rotten[who] = Random(fault.seed)
            case "kill" if who == SERVER:
                self.server_killed = True
            case "kill":
                self.boards[who].end(seconds / 4)
            case "cut":
                self.network.disconnect(who, seconds=seconds)
            case "broker restart":
                self.network.restart_broker(seconds / 4)
            case "clock jump":
                self.offsets[who] = self.offsets.get(who, 0.0) + 10 * seconds

    def is_slow(self, who: str) -> bool:
        now = self.network.now
        return any(f.who == who and f.at <= now < f.at + f.seconds for f in self.slow)

    def end_program(self, who: str) -> None:
        """End a machine's program; after a power cut, its disk may lose whatever was not synced."""
        self.network.end_program(who)
        self.disk.end_process(who)
        if who in self.disk.struck:
            self.disk.struck.discard(who)
            seed = (self.cuts.get(who) or [0])[-1]
            self.disk.cut_power(self.disk.root / who, Random(seed))
            self.forget_answers(who)
        if who in self.rotten and who in self.disk.dead:
            self.damage_newest(who, self.rotten.pop(who))
        self.disk.dead.discard(who)

    def damage_newest(self, who: str, draw: Random) -> None:
        """Damage the newest commit or a memory that only it needs, or a reply of a board."""
        folder = self.disk.root / who / RUN
        found = sorted(folder.glob("commits/0*" if who == SERVER else "replies/[0-9a-f]*"))
        if len(found) < (2 if who == SERVER else 1):
            return
        path = found[-1]
        if who == SERVER:
            self.committed = min(self.committed, int(found[-2].name))
            newest = f"{int(path.name) - 1:07d}"
            path = draw.choice([path, *sorted(folder.glob(f"commits/clients/*/{newest}"))])
        content = bytearray(path.read_bytes())
        if not content:
            return
        content[draw.randrange(len(content))] ^= 0x55
        path.write_bytes(content)
        self.disk.sync(path)
        self.forget_answers(who)

    def forget_answers(self, who: str) -> None:
        """Allow boards to repeat jobs: after damage to their disk, or to the server's, which goes back."""
        self.answered = {a for a in self.answered if who not in (a[0], SERVER)}

    # The server -----------------------------------------------------------------------------
    def run_to_end(self) -> None:
        """Start the server again and again until it has reached the end of the run."""
        while not self.attempt(self.serve):
            until = self.network.now + self.draw.uniform(0.5, 4)
            while self.network.now < until:
                self.pass_time()

    def attempt(self, play: Any) -> bool:
        """Start a program of the server as its user would; return True if it has reached the end."""
        folder = RunFolder(self.disk.root / SERVER / RUN)
        try:
            self.disk.current = SERVER
            if folder.config_file.exists():
                folder.reopen()
            else:
                folder.create(self.config.to_toml())
            play(folder)
            folder.close()
        except (StorageError, EngineError, KilledError):
            return False
        except HeterophonyError as error:
            if advice := GO_BACK.search(str(error)):  # after damage to a memory
                self.disk.current = ""  # the user follows the advice
                Path(advice[1]).unlink()
                return False
            raise PromiseError(f"the server cannot go on: {error}") from error
        finally:
            self.end_program(SERVER)
            self.disk.current = ""
        if summarize_events(folder) != run_undisturbed(self.setup):
            raise PromiseError(
                "the run has other events, or another model, than a plain simulation"
            )
        return True

    def serve(self, folder: RunFolder) -> None:
        serve(self.config, folder, enrol(SERVER), RUN, ServerHooks(lambda line: None))


@cache
def enrol(name: str) -> Enrolment:
    return Enrolment(name, "127.0.0.1", 8883, datetime(2100, 1, 1, tzinfo=UTC), "", "", "")


class Board:
    """A board: its disk outlives its program."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.run: BoardRun | None = None
        self.back_at = world.draw.uniform(0, 2)
        self.busy: float | None = None  # when its job is done
        self.next_step = 0.0

    def live(self) -> None:
        """Run the program as far as it can go now; start it if it is due."""
        world, now = self.world, self.world.network.now
        if now < self.next_step or (self.run is None and now < self.back_at):
            return
        self.next_step = now + (3.0 if world.is_slow(self.name) else 0.0)
        world.disk.current = self.name
        try:
            if self.run is None:
                folder = world.disk.root / self.name
                self.run = BoardRun(enrol(self.name), RUN, folder, HOLDS[self.name], lambda s: None)
                self.run.jobs = queue.Queue()
            self.go_on(self.run, now)
        except (KilledError, StorageError):
            self.end(world.draw.uniform(0.5, 4))
        except HeterophonyError as error:
            raise PromiseError(f"board {self.name} cannot go on: {error}") from error

    def go_on(self, run: BoardRun, now: float) -> None:
        while not run.run_ended:
            run.handle_next_message()
            run.publish_all(run.session.tick(self.world.monotonic()))
            run.advance()
            if run.session.replaced_by:
                raise PromiseError(f"board {self.name} takes the run for another one")
            if run.jobs.queue and self.busy is None:
                slow = 8.0 if self.world.is_slow(self.name) else 1.0
                self.busy = now + slow * self.world.draw.uniform(0.2, 1.5)
            if self.busy is not None and self.busy <= now:
                self.busy = None
                run.jobs.put(None)
                run.run_jobs()
            if not run.transport.inbox.queue:
                return

    def end(self, seconds: float) -> None:
        self.run, self.busy = None, None
        self.back_at = self.world.network.now + seconds
        self.world.end_program(self.name)


# Simulations ------------------------------------------------------------------------------------


class LingeringWorkers(Engine):
    """Executes jobs in any order, as a pool does; workers of a killed driver may finish theirs later.

    A worker has the disk of the driver, and can be killed: then another does its job.
    """

    def __init__(
        self, plan: Plan, store: ClientStore, orphans: list[Any], draw: Random, disk: Disk
    ) -> None:
        self.plan, self.store, self.orphans, self.draw = plan, store, orphans, draw
        self.disk = disk

    def run(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        left = list(jobs)
        self.draw.shuffle(left)
        self.orphans += [(self.plan, job, self.store) for job in left]
        while left:
            if self.orphans and self.draw.random() < 0.5:
                orphan = self.orphans.pop(self.draw.randrange(len(self.orphans)))
                self.work(*orphan)
            reply = self.work(self.plan, left[-1], self.store)
            if reply is not None:
                left.pop()
                yield reply
        self.orphans.clear()

    def work(self, *job: Any) -> Reply | None:
        """Execute a job in a worker; return None if the worker is killed but its driver is not."""
        self.disk.current = WORKER
        try:
            return SHARED(*job)
        except KilledError:
            if SERVER in self.disk.dead:
                raise
            return None
        finally:
            self.disk.end_process(WORKER)
            self.disk.dead.discard(WORKER)
            self.disk.current = SERVER


def run_simulation(world: World, pool: bool) -> None:
    """Run a simulation on a faulty disk until it ends."""
    orphans: list[Any] = []
    world.disk.hosts[WORKER] = SERVER

    def create_engine(spec: EngineSpec, plan: Plan, store: FolderClientStore) -> Engine:
        if pool:
            return LingeringWorkers(plan, store, orphans, world.draw, world.disk)
        return Serial(plan, store, spec)

    def play(folder: RunFolder) -> None:
        engine = world.config.engine
        execute_plan(build_plan(world.setup), folder, engine, warn=lambda text: None)

    with mock.patch.object(run_module, "create_engine", create_engine):
        for attempt in range(200):
            world.network.now = 5.0 * attempt
            world.begin_faults(world.network.now)
            for fault in world.waiting[:1]:
                world.waiting.remove(fault)
                world.begin(fault)
            if world.attempt(play):
                return
    raise PromiseError("the run does not end")


# Seeds ------------------------------------------------------------------------------------------


def get_kind(seed: int) -> str:
    """Return the kind of run that a seed simulates."""
    return ("boards", "boards", "boards", "serial", "pool")[seed % 5]


def draw_faults(seed: int) -> list[Fault]:
    """Draw the faults of a seed."""
    draw, kind = Random(seed), get_kind(seed)
    places = {
        "boards": [(who, BOARD_KINDS) for who in (SERVER, *HOLDS)],
        "serial": [(SERVER, DRIVER_KINDS)],
        "pool": [(SERVER, DRIVER_KINDS), (WORKER, WORKER_KINDS)],
    }[kind]
    faults = []
    for _ in range(draw.randint(1, 8)):
        who, kinds = draw.choice(places)
        at, seconds = draw.uniform(0, CALM_AFTER / 2), draw.uniform(1, CALM_AFTER / 2)
        step, own_seed = int(draw.expovariate(1 / 25)), draw.getrandbits(32)
        faults.append(Fault(draw.choice(kinds), who, at, seconds, step, own_seed))
    return faults


def simulate(seed: int, faults: Sequence[Fault] | None = None) -> World:
    """Simulate a seed with its own faults, or with ``faults``; raise PromiseError if a promise is broken."""
    faults = draw_faults(seed) if faults is None else faults
    kind, setup = get_kind(seed), list(SETUPS)[seed // 5 % len(SETUPS)]
    run_undisturbed(setup)
    memory = Path("/dev/shm")
    root = Path(tempfile.mkdtemp(prefix="faults-", dir=memory if memory.is_dir() else None))
    SHARED.setup = setup
    try:
        world = World(root, setup, seed, faults)
        with world.patched():
            if kind == "boards":
                world.run_to_end()
            else:
                run_simulation(world, kind == "pool")
        for name in HOLDS:
            world.disk.end_process(name)
    except HeterophonyError as error:
        raise PromiseError(f"an unhandled error: {error!r}") from error
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return world


def is_broken(seed: int, faults: Sequence[Fault]) -> str:
    """Return the error of a broken promise; an empty string if every promise is kept."""
    try:
        simulate(seed, faults)
    except Exception as error:  # whatever the error is, the run did not end as promised
        return f"{type(error).__name__}: {error}"
    return ""


def shrink(seed: int) -> list[int]:
    """Return the numbers of the faults that suffice to break a promise."""
    faults = draw_faults(seed)
    kept = list(range(len(faults)))
    for i in list(kept):
        fewer = [k for k in kept if k != i]
        if is_broken(seed, [faults[k] for k in fewer]):
            kept = fewer
    return kept


def hash_trace(world: World) -> str:
    """Return a digest of a simulation, to compare two runs of one seed."""
    content = repr((world.network.number, world.network.now, sorted(map(str, world.released))))
    return hashlib.sha256(content.encode()).hexdigest()
