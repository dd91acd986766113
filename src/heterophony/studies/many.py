"""Several runs: one by one, in parallel processes, or together on a Ray cluster."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from multiprocessing import connection
from pathlib import Path
from typing import Any

from ..config.sections import EngineSection
from ..core.accelerator import assign_gpu
from ..core.errors import DivergedError, EngineError
from ..core.files import write_json
from ..core.temporary import temporary_folder
from ..data.federation import Federation
from ..engines.base import MAX_ATTEMPTS, ClusterShare, count_cores, count_gpu_workers
from ..engines.child_processes import ChildProcess, send_errors, start_fork_server
from ..engines.wire import pickle_for_children, unpickle_from_parent
from ..runs.events import Event
from ..runs.folder import RunFolder
from ..runs.run_index import STOPPED_FILE
from ..trackers import Tracker
from .hooks import AbandonedError, Hook, MedianRule, RunsProgress, RunStatus
from .run import describe_other_accelerator, is_finished, run_one
from .spec import FederationCache, RunSpec

Runs = Mapping[RunFolder, RunSpec]
ABANDONED: Any = {"event": "abandoned"}  # the last message of the process of an abandoned trial


@dataclass(frozen=True)
class RunOptions:
    """Options for executing several runs; none of them changes a result."""

    progress: RunsProgress
    # number of runs at a time or, one by one, of jobs at a time; default: from [engine]
    workers: int | None = None
    # True: several runs on one core each; False: one run on all cores; None: whichever is faster
    side_by_side: bool | None = False
    track: Sequence[str | Tracker] = ()
    on_event: Hook = lambda event: None
    warn: Callable[[str], None] = warnings.warn
    rules: Mapping[Path, MedianRule] = field(default_factory=dict)  # by the trial's run folder


def run_many(runs: Runs, options: RunOptions) -> dict[Path, str]:
    """Complete several runs; return the folder of each run that diverged, and the reason.

    Runs on Ray share the cluster. With the engine "pool" they run in parallel if the options allow
    it; otherwise, and whenever they are tracked, one by one.
    """
    if not runs:
        return {}
    engine = next(iter(runs.values())).config.engine
    several = len(runs) > 1 and not options.track
    if several and engine.name == "ray":
        from ..engines.ray.engine import share_cluster

        workers = options.workers or engine.workers
        with share_cluster(workers, engine, len(runs)) as (width, share):
            return run_side_by_side(runs, options, width, share)
    if several and engine.name != "serial":
        width, chosen = count_parallel_runs(engine, options.workers), options.side_by_side
        if is_faster_side_by_side(runs, width) if chosen is None else chosen:
            return run_side_by_side(runs, options, width)
    return run_one_by_one(runs, options)


def is_faster_side_by_side(runs: Runs, width: int) -> bool:
    """Return True if unfinished runs can use all cores, and a round is too short to be split among cores."""
    due = [spec for folder, spec in runs.items() if not is_finished(list(folder.iterate_events()))]
    if not 1 < width <= len(due):
        return False
    return FederationCache().load_data(due[0]).build_plan().trains_in_groups


def run_all(runs: Runs, options: RunOptions) -> None:
    """Complete several runs; raise DivergedError if one diverged."""
    for path, reason in run_many(runs, options).items():
        raise DivergedError(reason if len(runs) == 1 else f"{path}: {reason}")


def count_parallel_runs(engine: EngineSection, workers: int | None) -> int:
    """Return the number of runs at a time: one per core, or a few per GPU."""
    if workers := workers or engine.workers:
        return workers
    compute = engine.choose_compute()
    return count_cores() if compute.is_cpu else count_gpu_workers(compute)


# One by one ----------------------------------------------------------------------------


def run_one_by_one(runs: Runs, options: RunOptions) -> dict[Path, str]:
    """Execute runs one by one, each on all workers; return the folders of diverged runs, with reasons."""
    cache, diverged = FederationCache(), dict[Path, str]()
    for folder, spec in runs.items():
        engine = spec.config.engine
        engine = replace(engine, workers=options.workers or engine.workers)
        spec = replace(spec, config=replace(spec.config, engine=engine))
        folder.lock()
        try:
            rule = options.rules.get(folder.path)
            hooks: list[Hook] = [options.on_event, *([] if rule is None else [rule])]
            complete = cache.load_data(spec)
            with record_abandoned(folder, rule):
                run_one(
                    *(complete, folder, complete.build_plan(), hooks, options.progress),
                    track=options.track,
                    warn=options.warn,
                )
        except DivergedError as error:
            diverged[folder.path] = str(error)
        finally:
            folder.close()
    return diverged


@contextmanager
def record_abandoned(folder: RunFolder, rule: MedianRule | None) -> Iterator[None]:
    """Write ``stopped.json`` to a trial's folder if its run is abandoned inside the ``with`` block."""
    try:
        yield
    except AbandonedError:
        write_json(folder.path / STOPPED_FILE, None if rule is None else rule.stopped)


# Side by side -----------------------------------------------------------------------------------


class RunProcess(ChildProcess):
    """A process that executes one run."""

    def __init__(self, folder: RunFolder, attempt: int, *arguments: object) -> None:
        self.folder, self.attempt = folder, attempt
        super().__init__(run_in_child, folder.path, *arguments)


def run_side_by_side(
    runs: Runs, options: RunOptions, width: int, share: ClusterShare | None = None
) -> dict[Path, str]:
    """Execute ``width`` runs at a time, each in a process; return the folders of diverged runs, with reasons.

    This keeps all cores busy: workers of a single run idle until the last job of a round is done. A
    process executes jobs itself, or on its ``share`` of a cluster.
    """
    statuses = dict[RunFolder, RunStatus]()
    for folder, spec in runs.items():
        compute = spec.config.engine.choose_compute()
        if other := describe_other_accelerator(list(folder.iterate_events()), compute):
            options.warn(f"{folder.path}: {other}")

    def receive(folder: RunFolder, event: Event) -> None:
        if folder not in statuses:
            spec = runs[folder]
            label = f"{spec.label} on {spec.config.engine.choose_compute().device}"
            statuses[folder] = options.progress.begin_run(label, spec.config.top.rounds)
        if event == ABANDONED:
            statuses[folder].end_early()
            return
        statuses[folder](event)
        options.on_event(event)

    with temporary_folder() as shared:
        work = {
            folder: (pack_spec(spec, shared, share), options.rules.get(folder.path), share)
            for folder, spec in runs.items()
        }
        return supervise_runs(work, width, receive)


def pack_spec(spec: RunSpec, shared: Path, share: ClusterShare | None) -> tuple[bytes, str]:
    """Pickle a run for its process; return it with the folder of its data, or "" if settings describe them.

    Data that settings cannot describe are stored once, and all processes map the same files.
    """
    engine, folder, federation = spec.config.engine, "", spec.federation
    if share is None:
        engine = EngineSection(
            name="serial",
            **{
                k: getattr(engine, k) for k in ("accelerator", "precision", "deterministic", "fast")
            },
        )
    else:
        engine = replace(engine, workers=share.workers, **asdict(share.cluster))
    if federation is not None and federation.recipe is None:
        folder = str(shared / str(id(federation)))
        if not Path(folder).exists():
            federation.save(Path(folder))
    config = replace(spec.config, engine=engine)
    return pickle_for_children(replace(spec, config=config, federation=None)), folder


def supervise_runs(
    work: Mapping[RunFolder, Sequence[Any]],
    width: int,
    receive: Callable[[RunFolder, Event], None],
) -> dict[Path, str]:
    """Execute runs in processes, ``width`` at a time; start another process for a run whose process dies.

    Return the folders of diverged runs, with reasons; the other runs continue.
    """
    start_fork_server()
    diverged: dict[Path, str] = {}
    waiting = [(folder, 1) for folder in reversed(list(work))]
    with kill_runs_at_exit() as running:
        while waiting or running:
            while waiting and len(running) < width:
                folder, attempt = waiting.pop()
                running.append(RunProcess(folder, attempt, *work[folder]))
            by_pipe = {r.pipe: r for r in running}
            for pipe in connection.wait(list(by_pipe)):
                run = by_pipe[pipe]  # type: ignore[index]
                try:
                    event = run.receive()
                except DivergedError as error:
                    diverged[run.folder.path] = str(error)
                except EOFError:
                    pass
                else:
                    receive(run.folder, event)
                    continue
                running.remove(run)
                if run.wait_for_exit() != 0:
                    waiting.append(retry_run(run))
    return diverged


@contextmanager
def kill_runs_at_exit() -> Iterator[list[RunProcess]]:
    """Kill the remaining processes when this context exits; their runs can be resumed."""
    runs: list[RunProcess] = []
    try:
        yield runs
    finally:
        for run in runs:
            run.kill()


def retry_run(run: RunProcess) -> tuple[RunFolder, int]:
    """Return the run of a dead process and its next attempt; raise EngineError after the last one."""
    if run.process.exitcode == 1:  # Python's exit code for a process that could not start
        raise EngineError(
            "a process of a run could not start: it imports the script again, so the script must"
            ' call hp.sweep below `if __name__ == "__main__":` (or use the serial engine); any other'
            " reason is printed above"
        )
    if run.attempt >= MAX_ATTEMPTS:
        raise EngineError(
            f"{run.folder.path}: {MAX_ATTEMPTS} processes died on this run (exit code"
            f" {run.process.exitcode}); perhaps for lack of memory: lower --workers"
        )
    return run.folder, run.attempt + 1


def run_in_child(
    pipe: connection.Connection,
    path: Path,
    packed: tuple[bytes, str],
    rule: MedianRule | None,
    share: ClusterShare | None,
) -> None:
    """Execute one run in this child process; send every event to the parent process."""
    folder, (content, data) = RunFolder(path), packed

    def warn(text: str) -> None:
        """Ignore a warning that the parent has already shown."""

    with send_errors(pipe, str(path)):
        spec: RunSpec = unpickle_from_parent(content)
        if data:
            spec = replace(spec, federation=Federation.open(Path(data)))
        if share is None:
            # process ids are consecutive, so runs spread over the GPUs
            spec = place_on_gpu(spec, os.getpid())
        else:
            os.environ.update(share.environment)
        folder.reopen()
        try:
            hooks: list[Hook] = [pipe.send, *([] if rule is None else [rule])]
            with record_abandoned(folder, rule):
                run_one(spec, folder, hooks=hooks, warn=warn)
                return
            pipe.send(ABANDONED)
        finally:
            folder.close()


def place_on_gpu(spec: RunSpec, number: int) -> RunSpec:
    """Return the run with the GPU of this index as its accelerator; on the CPU, return the run unchanged."""
    engine = spec.config.engine
    device = assign_gpu(engine.choose_compute(), number).device
    if device.type != "cuda":
        return spec
    engine = replace(engine, accelerator=str(device))
    return replace(spec, config=replace(spec.config, engine=engine))
