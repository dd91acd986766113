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

from ..core.errors import ConfigError, DivergedError, FolderError, StoppedError
from ..core.files import write_json
from . import terminal
from .result_tables import show_comparison, show_run

if TYPE_CHECKING:
    from ..config.config import Config
    from ..config.sections import EngineSection
    from ..data.federation import Federation
    from ..engines.base import ClusterShare
    from ..jobs.plan import Plan
    from ..run.events import Event
    from ..run.store import RunFolder
    from ..run.summary import Summary

LabelledRuns = Mapping[Path, tuple[str, int]]  # a run's folder: its label, its rounds

ConfigFile = Annotated[
    Path | None,
    typer.Argument(metavar="CONFIG.toml", help="Settings; whatever it leaves out has a default."),
]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option("-c", "--config", help="One setting, as in local.lr=0.01; repeatable."),
]
EngineOption = Annotated[
    list[str] | None,
    typer.Option("-c", "--config", help="Where it runs, as in engine.name=ray; repeatable."),
]
OutOption = Annotated[
    Path | None, typer.Option(help="The folder to write; default: a new one in runs/.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="The result as JSON on stdout.")]
TrackOption = Annotated[
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
    pairs: SettingsOption = None,
    out: OutOption = None,
    track: TrackOption = None,
    json: JsonOption = False,
) -> None:
    """Run one algorithm: a progress bar, a table of G and P, a run folder."""
    from ..config.reading import read_config

    config = read_config(file, pairs or [])
    check_trackers(track)
    warm_up_engine(config)
    federation = config.build_federation()
    plan = config.build_plan(federation)
    folder = choose_run_folder(out, f"{config.algorithm_name}-{federation.name}")
    folder.create(config.fill_model_defaults(federation).to_toml())
    summaries = run_sequentially([(folder, config, plan)], folder.path, quiet=json, track=track)
    show_run(summaries[0], folder.path, json)


def resume(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Of a run or a comparison.")],
    workers: Annotated[
        int | None, typer.Option(min=1, help="Other than before; same result.")
    ] = None,
    pairs: EngineOption = None,
    track: TrackOption = None,
    json: JsonOption = False,
) -> None:
    """Go on after any interruption; the result is the same, bit for bit."""
    from ..run.run_index import list_member_runs
    from ..run.store import RunFolder

    check_trackers(track)
    check_only_engine_settings(pairs)
    several = [] if (folder / "config.toml").exists() else list_member_runs(folder)
    if not several:
        summary = continue_runs([RunFolder(folder)], folder, workers, json, track, pairs)[0]
        show_run(summary, folder, json)
        return
    continue_runs([RunFolder(p) for p in several], folder, workers, json, track, pairs)
    show_comparison(folder, json)


def compare(
    algorithms: Annotated[
        list[str], typer.Argument(metavar="ALGO…", help="As in `heterophony list algorithms`.")
    ],
    pairs: SettingsOption = None,
    seeds: Annotated[
        str | None, typer.Option(help="As in 0,1,2; default: the configuration's one.")
    ] = None,
    file: Annotated[Path | None, typer.Option(help="A CONFIG.toml to start from.")] = None,
    out: OutOption = None,
    track: TrackOption = None,
    json: JsonOption = False,
) -> None:
    """The same federation for every algorithm and seed; again with the same --out, it goes on."""
    from ..config.reading import read_config

    check_trackers(track)
    configs: dict[str, Config] = {}
    for seed in [None] if seeds is None else parse_seeds(seeds):
        for name in algorithms:
            own = [f'algorithm.name="{name}"', *([] if seed is None else [f"seed={seed}"])]
            config = read_config(file, [*(pairs or []), *own])
            configs[f"{name}-{config.top.seed}"] = config
    warm_up_engine(config)
    parent = out or find_free_folder(f"compare-{Path(config.data.name).stem}")
    several = prepare_run_folders(parent, configs)
    continue_runs(several, parent, None, json, track, select_engine_settings(pairs))
    show_comparison(parent, json)


def parse_seeds(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--seeds {text}: must be whole numbers, as in 0,1,2") from None


def check_only_engine_settings(pairs: list[str] | None) -> None:
    """What a run computes is decided when it begins; where, at any time."""
    for pair in pairs or []:
        if not pair.strip().startswith("engine."):
            raise ConfigError(f"-c {pair}: only where it runs can change, as in engine.name=ray")


def select_engine_settings(pairs: list[str] | None) -> list[str]:
    """Those settings that say where it runs: they need not be those of a run that goes on."""
    return [pair for pair in pairs or [] if pair.strip().startswith("engine.")]


def prepare_run_folders(parent: Path, configs: dict[str, Config]) -> list[RunFolder]:
    """A folder for every run, its configuration written before any begins: all can be resumed."""
    from ..run.store import RunFolder

    if (parent / "config.toml").exists():
        raise FolderError(f"{parent} is a run of its own; choose another --out")
    deal, several = create_federation_cache(), []
    for label, config in configs.items():
        federation = deal(config)
        config.build_plan(federation)
        text, folder = config.fill_model_defaults(federation).to_toml(), RunFolder(parent / label)
        if not folder.config_file.exists():
            folder.create(text)
            folder.close()
        elif parse_non_engine_settings(folder.config_file.read_text()) != parse_non_engine_settings(
            text
        ):
            raise FolderError(
                f"{folder.path} holds a run with other settings; choose another --out"
            )
        several.append(folder)
    write_json(parent / "compare.json", {"runs": list(configs)})
    return several


def parse_non_engine_settings(text: str) -> dict[str, Any]:
    """All settings but those that say where it runs."""
    try:
        return {k: v for k, v in tomllib.loads(text).items() if k != "engine"}
    except tomllib.TOMLDecodeError:
        return {}


def continue_runs(
    folders: list[RunFolder],
    parent: Path,
    workers: int | None,
    quiet: bool,
    track: list[str] | None = None,
    pairs: list[str] | None = None,
) -> list[Summary]:
    """Play what is left of existing runs."""
    from ..config.reading import read_config

    deal, tasks = create_federation_cache(), []
    for folder in folders:
        text = folder.reopen()
        folder.close()
        if "\n[library]\n" in text:
            raise FolderError(
                f"{folder.path} was begun from Python with data of its own; go on there with"
                f" hp.run(..., out='{folder.path}', resume=True)"
            )
        config: Config = read_config(folder.config_file, pairs or [])
        warm_up_engine(config)
        tasks.append((folder, config, config.build_plan(deal(config))))
    if len(tasks) > 1 and not track and all(c.engine.name == "ray" for _, c, _ in tasks):
        return continue_on_cluster(tasks, parent, quiet, workers)
    for folder, _, _ in tasks:
        folder.lock()
    return run_sequentially(tasks, parent, quiet, workers, track)


def create_federation_cache() -> Callable[[Config], Federation]:
    """Deals each federation once, however many runs share it."""
    dealt: dict[tuple[str, int], Federation] = {}

    def get_federation(config: Config) -> Federation:
        key = (repr(config.data), config.top.seed)
        if key not in dealt:
            dealt[key] = config.build_federation()
        return dealt[key]

    return get_federation


def run_sequentially(
    tasks: list[tuple[RunFolder, Config, Plan]],
    parent: Path,
    quiet: bool,
    workers: int | None = None,
    track: list[str] | None = None,
) -> list[Summary]:
    """Play the runs one after the other, each on all workers."""
    from ..experiments.execute import execute_plan
    from ..trackers import select_trackers

    done = []
    with (
        terminal.show_progress_bars(not quiet) as bars,
        exit_on_interrupt(
            format_resume_hint(parent), bars.stop, [folder for folder, _, _ in tasks]
        ),
    ):
        for folder, config, plan in tasks:
            label = f"{config.algorithm_name} (seed {config.top.seed})"
            sizes = list(plan.federation.sizes("test").values())
            bar = terminal.RunProgressBar(bars, label, plan.rounds, sizes)
            where = config.engine
            cores, trackers = workers or where.workers, select_trackers(track or [])
            try:
                done.append(
                    execute_plan(
                        plan, folder, where.name, cores, bar, trackers, terminal.print_note, where
                    )
                )
            finally:
                folder.close()
    return done


def continue_on_cluster(
    tasks: list[tuple[RunFolder, Config, Plan]], parent: Path, quiet: bool, workers: int | None
) -> list[Summary]:
    """Play the runs side by side on one cluster."""
    from ..run.summary import summarise

    shown = {
        folder.path: (f"{config.algorithm_name} (seed {config.top.seed})", plan.rounds)
        for folder, config, plan in tasks
    }
    where = tasks[0][1].engine
    for why in run_on_cluster(shown, where, workers, quiet, format_resume_hint(parent)).values():
        raise DivergedError(why)
    return [summarise(list(folder.iterate_events())) for folder, _, _ in tasks]


def run_on_cluster(
    shown: LabelledRuns, where: EngineSection, workers: int | None, quiet: bool, how: str
) -> dict[Path, str]:
    """Runs side by side, each on its part of a Ray cluster; which diverged, and how."""
    from ..engines.ray.cluster import share_cluster

    with share_cluster(workers or where.workers, where, len(shown)) as (width, share):
        return run_parallel_with_bars(shown, width, quiet, how, share)


def run_parallel_with_bars(
    shown: LabelledRuns, width: int, quiet: bool, how: str, share: ClusterShare | None = None
) -> dict[Path, str]:
    """So many runs at a time, a bar for each; which diverged, and how."""
    from ..experiments.parallel_runs import run_in_parallel

    with terminal.show_progress_bars(not quiet) as bars, exit_on_interrupt(how, bars.stop):
        begun: dict[Path, terminal.RunProgressBar] = {}

        def on_event(path: Path, event: Event) -> None:
            if path not in begun:
                begun[path] = terminal.RunProgressBar(bars, *shown[path])
            begun[path](event)

        return run_in_parallel(list(shown), width, on_event, share)


@contextmanager
def exit_on_interrupt(
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
        terminal.print_error(str(stopped))
        os._exit(stopped.exit_code)

    with terminal.handle_signals(stop):
        yield


def format_resume_hint(parent: Path) -> str:
    return f"go on with `heterophony resume {parent}`"


def check_trackers(track: list[str] | None) -> None:
    """A tracker that is not installed is a mistake to hear of before anything is written."""
    from ..trackers import select_trackers

    select_trackers(track or [])


def warm_up_engine(config: Config) -> None:
    """Workers need seconds to import torch: begin while the data are read."""
    from ..engines.base import check_engine_installed

    check_engine_installed(config.engine.name)
    if config.engine.name == "pool":
        from ..engines.child_processes import start_fork_server

        start_fork_server()


def choose_run_folder(out: Path | None, name: str) -> RunFolder:
    from ..run.store import RunFolder

    return RunFolder(out or find_free_folder(name))


def find_free_folder(name: str) -> Path:
    """The first unused runs/NAME-1, -2, …"""
    number = 1
    while (Path("runs") / f"{name}-{number}").exists():
        number += 1
    return Path("runs") / f"{name}-{number}"
