"""The commands ``run``, ``resume``, ``compare``, ``pretrain`` and ``new``."""

from __future__ import annotations

from contextlib import nullcontext
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..core.errors import FolderError
from ..core.files import hold_folder, write_atomically, write_json
from . import options, terminal
from .completion import complete_algorithm
from .search import resume_sweep, resume_tune
from .terminal import show_comparison, show_run

if TYPE_CHECKING:
    from ..runs.folder import RunFolder
    from ..runs.summary import Summary
    from ..studies.spec import RunSpec


WorkersOption = Annotated[
    int | None, typer.Option(min=1, help="Number of parallel jobs; does not change the result.")
]


def register(app: typer.Typer) -> None:
    """Add the commands ``run``, ``resume``, ``compare``, ``pretrain`` and ``new`` to the app."""
    app.command(cls=options.SettingsCommand)(run)
    app.command()(resume)
    app.command(cls=options.SeedsCommand)(compare)
    app.command(cls=options.SettingsCommand)(pretrain)
    app.command()(new)


def run(
    file: options.ConfigArgument = None,
    pairs: options.SettingsOption = None,
    out: options.OutOption = None,
    track: options.TrackOption = None,
    json: options.JsonOption = False,
) -> None:
    """Run one algorithm; show its progress and a table of G and P, and write a run folder."""
    options.start_fork_server_early(file, pairs or [])
    from ..algorithms import shorten_name
    from ..engines.base import prepare_engine
    from ..runs.folder import RunFolder
    from ..studies.spec import RunSpec

    spec = RunSpec(options.read_settings(file, pairs))
    config = spec.config
    check_trackers(track)
    prepare_engine(config.engine)
    spec = spec.load_data()
    spec.build_plan()  # raises before anything is written
    assert spec.federation is not None
    name = f"{shorten_name(config.algorithm_name)}-{spec.federation.name}"
    folder = RunFolder(out or options.find_free_folder(name))
    folder.create(spec.format_config())
    folder.close()
    hint = options.format_resume_hint(folder.path, config.own_code)
    run_and_wait({folder: spec}, hint, None, track)
    show_run(summarise_folder(folder), folder.path, json)


def resume(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder of a run, comparison, sweep or tune.")
    ],
    workers: WorkersOption = None,
    pairs: options.EngineOption = None,
    trust: options.TrustOption = False,
    track: options.TrackOption = None,
    json: options.JsonOption = False,
) -> None:
    """Continue a run, comparison, sweep or tune after any interruption, with the same bits."""
    from ..engines.base import prepare_engine
    from ..runs.folder import RunFolder
    from ..runs.run_index import list_member_runs
    from ..studies.spec import read_spec

    check_trackers(track)
    options.check_only_engine_settings(pairs)
    if (folder / "tune.json").exists():
        resume_tune(folder, workers, json, pairs, trust)
        return
    if (folder / "sweep.json").exists():
        resume_sweep(folder, workers, json, pairs or [], trust)
        return
    members = [] if (folder / "config.toml").exists() else list_member_runs(folder)
    folders = [RunFolder(path) for path in members or [folder]]
    specs = {f: read_spec(f, pairs or [], trust) for f in folders}
    for spec in specs.values():
        prepare_engine(spec.config.engine)
    hint = options.format_resume_hint(
        folder, [n for s in specs.values() for n in s.config.own_code]
    )
    with hold_folder(folder) if members else nullcontext():
        run_and_wait(specs, hint, workers, track)
    if members:
        show_comparison(folder, json)
    else:
        show_run(summarise_folder(folders[0]), folder, json)


def compare(
    algorithms: Annotated[
        list[str],
        typer.Argument(
            metavar="ALGO…",
            help="Names from `heterophony list algorithms`, or package.module:Class.",
            autocompletion=complete_algorithm,
        ),
    ],
    pairs: options.SettingsOption = None,
    seeds: options.SeedsOption = None,
    file: Annotated[Path | None, typer.Option(help="A CONFIG.toml to start from.")] = None,
    workers: WorkersOption = None,
    out: options.OutOption = None,
    track: options.TrackOption = None,
    json: options.JsonOption = False,
) -> None:
    """Run several algorithms on the same clients and seeds. To continue, repeat it with the same --out."""
    options.start_fork_server_early(None if file is None else str(file), pairs or [])
    from ..engines.base import prepare_engine
    from ..studies.compare import build_comparison, open_comparison

    check_trackers(track)
    chosen = None if seeds is None else options.parse_seeds(seeds)
    options.check_foreign_file(file, pairs or [], ["model.name"])
    specs = build_comparison(algorithms, chosen, file, pairs or [], terminal.print_note)
    first = next(iter(specs.values())).config
    prepare_engine(first.engine)
    parent = out or options.find_free_folder(f"compare-{Path(first.data.name).stem}")
    hint = options.format_resume_hint(
        parent, [n for s in specs.values() for n in s.config.own_code]
    )
    with open_comparison(parent, specs) as runs:
        run_and_wait(runs, hint, workers, track)
    show_comparison(parent, json)


def run_and_wait(
    runs: dict[RunFolder, RunSpec],
    hint: str,
    workers: int | None = None,
    track: list[str] | None = None,
) -> None:
    """Execute the remaining runs and show their progress; on Ctrl-C, print ``hint``."""
    from ..studies.many import RunOptions, run_all

    with terminal.show_interruptible_progress(hint, list(runs)) as shown:
        how = RunOptions(shown, workers, None, track or [], warn=terminal.print_note)
        run_all(runs, how)


def summarise_folder(folder: RunFolder) -> Summary:
    """Summarise the finished run in a run folder."""
    from ..runs.summary import summarise

    return summarise(list(folder.iterate_events()))


def check_trackers(track: list[str] | None) -> None:
    """Raise ConfigError if a tracker is not installed, before anything is written."""
    from ..trackers import select_trackers

    select_trackers(track or [])


def pretrain(
    out: Annotated[Path, typer.Option("-o", help="The checkpoint to write (.safetensors).")],
    file: options.ConfigArgument = None,
    pairs: options.SettingsOption = None,
    json: options.JsonOption = False,
) -> None:
    """Train one model on the data of all clients, for `model.init`. Run again to continue."""
    from ..engines.base import prepare_engine
    from ..studies.load import prepare_pretraining, save_pretrained
    from ..studies.spec import RunSpec

    config = options.read_settings(file, pairs)
    prepare_engine(config.engine)
    folder, spec = prepare_pretraining(RunSpec(config), out)
    run_and_wait({folder: spec}, options.SAME_COMMAND)
    save_pretrained(folder, spec, out)
    show_run(summarise_folder(folder), folder.path, json)
    terminal.print_note(f"wrote {out}; to start runs from it: -c model.init={out}")


TEMPLATE = files(__package__) / "new_study"  # files of Python end in .txt there


def new(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to write.")],
) -> None:
    """Write a folder to start a study from: settings, an algorithm, data and a passing test."""
    from ..config.keys import SCHEMA_FILE, build_schema

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FolderError(f"{folder} already exists; name a new folder")
    for file in sorted(TEMPLATE.iterdir(), key=lambda file: file.name):
        write_atomically(folder / file.name.removesuffix(".txt"), file.read_bytes(), durable=False)
    write_json(folder / SCHEMA_FILE, build_schema())
    terminal.print_note(
        f"wrote {folder}; next: cd {folder} && python make_data.py && heterophony run study.toml"
    )
