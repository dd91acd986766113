"""``run``, ``resume`` and ``compare``: one run, or many, in folders that survive anything."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..core.errors import (
    ConfigError,
    DivergedError,
    FolderError,
    StoppedError,
)
from ..core.files import write_json
from . import terminal
from .result_tables import show_comparison, show_run

if TYPE_CHECKING:
    from ..config.config import Config, EngineSection
    from ..data.federation import Federation
    from ..engines.base import Share
    from ..jobs.plan import Plan
    from ..run.store import RunFolder
    from ..run.summary import Summary

Shown = Mapping[Path, tuple[str, int]]  # a run's folder: its label, its rounds

ConfigFile = Annotated[
    Path | None,
    typer.Argument(metavar="CONFIG.toml", help="Settings; whatever it leaves out has a default."),
]
Pairs = Annotated[
    list[str] | None,
    typer.Option("-c", "--config", help="One setting, as in local.lr=0.01; repeatable."),
]
Where = Annotated[
    list[str] | None,
    typer.Option("-c", "--config", help="Where it runs, as in engine.name=ray; repeatable."),
]
Out = Annotated[Path | None, typer.Option(help="The folder to write; default: a new one in runs/.")]
Json = Annotated[bool, typer.Option("--json", help="The result as JSON on stdout.")]
Track = Annotated[
    list[str] | None,
    typer.Option(help="Also write to tensorboard, mlflow or wandb; repeatable."),
]


def register(app: typer.Typer) -> None:
    """Put the commands into the app."""
    app.command()(run)
    app.command()(resume)
    app.command()(compare)


def run(
    file: ConfigFile = None,
    pairs: Pairs = None,
    out: Out = None,
    track: Track = None,
    json: Json = False,
) -> None:
    """Run one algorithm: a progress bar, a table of G and P, a run folder."""
    from ..config.config import read

    config = read(file, pairs or [])
    available(track)
    begin(config)
    federation = config.federation()
    plan = config.plan(federation)
    folder = fresh(out, f"{config.algorithm_name}-{federation.name}")
    folder.create(config.decided(federation).toml())
    summaries = played([(folder, config, plan)], folder.path, quiet=json, track=track)
    show_run(summaries[0], folder.path, json)


def resume(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Of a run or a comparison.")],
    workers: Annotated[
        int | None, typer.Option(min=1, help="Other than before; same result.")
    ] = None,
    pairs: Where = None,
    track: Track = None,
    json: Json = False,
) -> None:
    """Go on after any interruption; the result is the same, bit for bit."""
    from ..run.run_index import members
    from ..run.store import RunFolder

    available(track)
    elsewhere(pairs)
    several = [] if (folder / "config.toml").exists() else members(folder)
    if not several:
        summary = reopened([RunFolder(folder)], folder, workers, json, track, pairs)[0]
        show_run(summary, folder, json)
        return
    reopened([RunFolder(p) for p in several], folder, workers, json, track, pairs)
    show_comparison(folder, json)


def compare(
    algorithms: Annotated[
        list[str], typer.Argument(metavar="ALGO…", help="As in `heterophony list algorithms`.")
    ],
    pairs: Pairs = None,
    seeds: Annotated[
        str | None, typer.Option(help="As in 0,1,2; default: the configuration's one.")
    ] = None,
    file: Annotated[Path | None, typer.Option(help="A CONFIG.toml to start from.")] = None,
    out: Out = None,
    track: Track = None,
    json: Json = False,
) -> None:
    """The same federation for every algorithm and seed; again with the same --out, it goes on."""
    from ..config.config import read

    available(track)
    configs: dict[str, Config] = {}
    for seed in [None] if seeds is None else numbers(seeds):
        for name in algorithms:
            own = [f'algorithm.name="{name}"', *([] if seed is None else [f"seed={seed}"])]
            config = read(file, [*(pairs or []), *own])
            configs[f"{name}-{config.top.seed}"] = config
    begin(config)
    parent = out or free(f"compare-{Path(config.data.name).stem}")
    several = prepared(parent, configs)
    reopened(several, parent, None, json, track, whereabouts(pairs))
    show_comparison(parent, json)


def numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--seeds {text}: must be whole numbers, as in 0,1,2") from None


def elsewhere(pairs: list[str] | None) -> None:
    """What a run computes is decided when it begins; where, at any time."""
    for pair in pairs or []:
        if not pair.strip().startswith("engine."):
            raise ConfigError(f"-c {pair}: only where it runs can change, as in engine.name=ray")


def whereabouts(pairs: list[str] | None) -> list[str]:
    """Those settings that say where it runs: they need not be those of a run that goes on."""
    return [pair for pair in pairs or [] if pair.strip().startswith("engine.")]


def prepared(parent: Path, configs: dict[str, Config]) -> list[RunFolder]:
    """A folder for every run, its configuration written before any begins: all can be resumed."""
    from ..run.store import RunFolder

    if (parent / "config.toml").exists():
        raise FolderError(f"{parent} is a run of its own; choose another --out")
    deal, several = dealer(), []
    for label, config in configs.items():
        federation = deal(config)
        config.plan(federation)
        text, folder = config.decided(federation).toml(), RunFolder(parent / label)
        if not folder.config.exists():
            folder.create(text)
            folder.close()
        elif decides(folder.config.read_text()) != decides(text):
            raise FolderError(
                f"{folder.path} holds a run with other settings; choose another --out"
            )
        several.append(folder)
    write_json(parent / "compare.json", {"runs": list(configs)})
    return several


def decides(text: str) -> dict[str, Any]:
    """All settings but those that say where it runs."""
    try:
        return {k: v for k, v in tomllib.loads(text).items() if k != "engine"}
    except tomllib.TOMLDecodeError:
        return {}


def reopened(
    folders: list[RunFolder],
    parent: Path,
    workers: int | None,
    quiet: bool,
    track: list[str] | None = None,
    pairs: list[str] | None = None,
) -> list[Summary]:
    """Play what is left of existing runs."""
    from ..config.config import read

    deal, tasks = dealer(), []
    for folder in folders:
        text = folder.reopen()
        folder.close()
        if "\n[library]\n" in text:
            raise FolderError(
                f"{folder.path} was begun from Python with data of its own; go on there with"
                f" hp.run(..., out='{folder.path}', resume=True)"
            )
        config: Config = read(folder.config, pairs or [])
        begin(config)
        tasks.append((folder, config, config.plan(deal(config))))
    if len(tasks) > 1 and not track and all(c.engine.name == "ray" for _, c, _ in tasks):
        return spread(tasks, parent, quiet, workers)
    for folder, _, _ in tasks:
        folder.lock()
    return played(tasks, parent, quiet, workers, track)


def dealer() -> Callable[[Config], Federation]:
    """Deals each federation once, however many runs share it."""
    dealt: dict[tuple[str, int], Federation] = {}

    def deal(config: Config) -> Federation:
        key = (repr(config.data), config.top.seed)
        if key not in dealt:
            dealt[key] = config.federation()
        return dealt[key]

    return deal


def played(
    tasks: list[tuple[RunFolder, Config, Plan]],
    parent: Path,
    quiet: bool,
    workers: int | None = None,
    track: list[str] | None = None,
) -> list[Summary]:
    """Play the runs one after the other, each on all workers."""
    from ..experiments.execute import execute
    from ..trackers import chosen

    done = []
    with (
        terminal.progress(not quiet) as bars,
        interruptible(going_on(parent), bars.stop, [folder for folder, _, _ in tasks]),
    ):
        for folder, config, plan in tasks:
            label = f"{config.algorithm_name} (seed {config.top.seed})"
            sizes = list(plan.federation.sizes("test").values())
            bar = terminal.Bar(bars, label, plan.rounds, sizes)
            where = config.engine
            cores, trackers = workers or where.workers, chosen(track or [])
            try:
                done.append(
                    execute(plan, folder, where.name, cores, bar, trackers, terminal.note, where)
                )
            finally:
                folder.close()
    return done


def spread(
    tasks: list[tuple[RunFolder, Config, Plan]], parent: Path, quiet: bool, workers: int | None
) -> list[Summary]:
    """Play the runs side by side on one cluster."""
    from ..run.summary import summarise

    shown = {
        folder.path: (f"{config.algorithm_name} (seed {config.top.seed})", plan.rounds)
        for folder, config, plan in tasks
    }
    where = tasks[0][1].engine
    for why in on_cluster(shown, where, workers, quiet, going_on(parent)).values():
        raise DivergedError(why)
    return [summarise(list(folder.read())) for folder, _, _ in tasks]


def on_cluster(
    shown: Shown, where: EngineSection, workers: int | None, quiet: bool, how: str
) -> dict[Path, str]:
    """Runs side by side, each on its part of a Ray cluster; which diverged, and how."""
    from ..engines.ray.engine import shared

    with shared(workers or where.workers, where, len(shown)) as (width, share):
        return side_by_side(shown, width, quiet, how, share)


def side_by_side(
    shown: Shown, width: int, quiet: bool, how: str, share: Share | None = None
) -> dict[Path, str]:
    """So many runs at a time, a bar for each; which diverged, and how."""
    from ..experiments.parallel_runs import play

    with terminal.progress(not quiet) as bars, interruptible(how, bars.stop):
        begun: dict[Path, terminal.Bar] = {}

        def on_event(path: Path, event: dict[str, Any]) -> None:
            if path not in begun:
                begun[path] = terminal.Bar(bars, *shown[path])
            begun[path](event)

        return play(list(shown), width, on_event, share)


@contextmanager
def interruptible(
    how: str, tidy: Callable[[], None], folders: Sequence[RunFolder] = ()
) -> Iterator[None]:
    """Ctrl-C and SIGTERM end us on the spot, as kill -9 does: every run can go on, and ``how``.

    An exception instead could come up anywhere, also where nobody sees it.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        tidy()
        for folder in folders:
            folder.close()
        stopped = StoppedError(f"interrupted; nothing is lost: {how}")
        terminal.problem(str(stopped))
        os._exit(stopped.exit_code)

    with terminal.answering(stop):
        yield


def going_on(parent: Path) -> str:
    return f"go on with `heterophony resume {parent}`"


def available(track: list[str] | None) -> None:
    """A tracker that is not installed is a mistake to hear of before anything is written."""
    from ..trackers import chosen

    chosen(track or [])


def begin(config: Config) -> None:
    """Workers need seconds to import torch: begin while the data are read."""
    from ..engines.base import available

    available(config.engine.name)
    if config.engine.name == "pool":
        from ..engines.pool import warm

        warm()


def fresh(out: Path | None, name: str) -> RunFolder:
    from ..run.store import RunFolder

    return RunFolder(out or free(name))


def free(name: str) -> Path:
    """The first unused runs/NAME-1, -2, …"""
    number = 1
    while (Path("runs") / f"{name}-{number}").exists():
        number += 1
    return Path("runs") / f"{name}-{number}"
