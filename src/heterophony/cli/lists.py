"""The commands ``list``, ``schema``, ``bench`` and ``doctor``."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ..results.table import Column, Columns, ResultTable, Rows
from . import terminal
from .options import JsonOption

ListKind = Literal[
    "algorithms", "models", "datasets", "partitions", "protections", "papers", "runs"
]


def register(app: typer.Typer) -> None:
    """Add the commands ``list``, ``schema``, ``bench`` and ``doctor`` to the app."""
    app.command("list")(list_)
    app.command()(schema)
    app.command()(bench)
    app.command()(doctor)


def schema() -> None:
    """Print the JSON Schema of settings files, which editors use for completion and validation."""
    from ..config.keys import build_schema

    terminal.print_json(build_schema())


def list_(
    what: ListKind,
    tensors: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="With models: list the tensors of this model by name."),
    ] = None,
    algorithm: Annotated[
        str, typer.Option(help="With --tensors: the algorithm that shares or keeps them.")
    ] = "fedavg",
    json: JsonOption = False,
) -> None:
    """List algorithms, models, data sets, partitions, protections, papers or runs, one line each."""
    if tensors is not None:
        if what != "models":
            raise typer.BadParameter(
                "use it with `heterophony list models`", param_hint="--tensors"
            )
        show_tensors(tensors, algorithm, json)
        return
    found: list[dict[str, Any]] = {
        "algorithms": list_algorithms,
        "models": list_models,
        "datasets": list_datasets,
        "partitions": list_partitions,
        "protections": list_protections,
        "papers": list_papers,
        "runs": list_runs,
    }[what]()
    if json:
        terminal.print_json(found)
        return
    if not found:
        terminal.print_note("there are no runs in runs/" if what == "runs" else f"no {what} here")
        return
    columns = [k for k in found[0] if k != "settings"]
    rows = [[format_list_cell(k, r) for k in columns] for r in found]
    if what == "runs":
        drops = {"G best": 1, "P best": 2}
        heads = [
            Column(c, kind="text" if i < 3 else "number", drop=drops.get(c, 0))
            for i, c in enumerate(columns)
        ]
        terminal.print_list(ResultTable.build(heads, rows))
        return
    drops = {"bytes_up": 1, "bytes_down": 2, "stays": 3}
    heads = [Column(c.replace("_", " "), kind="text", drop=drops.get(c, 0)) for c in columns]
    terminal.print_table(ResultTable.build(heads, rows))
    if what == "algorithms":
        terminal.print_note(
            "bytes: sent by one client in one round, relative to FedAvg (convnet on CIFAR-10)"
        )


def show_tensors(model: str, algorithm: str, json: bool) -> None:
    """Print the table of a model's tensors, and whether an algorithm shares them."""
    from ..algorithms import find_algorithm_name, get_display_name
    from ..tools.tables import list_tensors

    found = list_tensors(model, algorithm)
    if json:
        terminal.print_json([tensor._asdict() for tensor in found])
        return
    rows = [[t.name, "×".join(map(str, t.shape)) or "one number", t.kind] for t in found]
    label = get_display_name(find_algorithm_name(algorithm))
    terminal.print_table(ResultTable.build(["name", "shape", f"with {label}"], rows))
    terminal.print_note(
        "personal parameters are patterns of these names, such as head.* or *.bias; the shapes are for 10 classes and, for image models, inputs of 3×32×32"
    )


def format_list_cell(key: str, row: dict[str, Any]) -> str:
    """Format a cell of ``heterophony list``; settings are listed below the description."""
    value = row[key]
    if key == "algorithm" and value is not None:
        from ..algorithms import get_display_name

        return get_display_name(value)
    if key == "about":
        return "\n".join([value, *map(format_setting, row["settings"])])
    if key.startswith("bytes"):
        return f"{value:.4f}"
    if isinstance(value, float):
        return f"{100 * value:.2f}"
    if isinstance(value, list):
        return ", ".join(value) or "–"
    return "–" if value is None else str(value)


def format_setting(setting: dict[str, Any]) -> str:
    """Format a setting in ``heterophony list``: ``mu = 0.001 (at least 0)``."""
    allowed = setting["allowed"]
    if setting["default"] is None:
        return f"{setting['name']}: not set ({allowed})"
    default = str(setting["default"])
    if " | " not in allowed:
        return f"{setting['name']} = {default} ({allowed})"
    default = default.lower() if isinstance(setting["default"], bool) else default
    others = [word for word in allowed.split(" | ") if word != default]
    return f"{setting['name']} = {default} (or {', '.join(others)})"


def list_algorithms() -> list[dict[str, Any]]:
    """List the algorithms for ``heterophony list``, from stored rows if they are complete."""
    from ..algorithms import ALGORITHM_CLASSES, read_stored_rows

    stored = read_stored_rows()
    if len(stored) == len(ALGORITHM_CLASSES):
        return [stored[name] for name in sorted(stored)]
    from ..tools.tables import list_algorithm_rows  # imports torch

    return list_algorithm_rows()


def list_papers() -> list[dict[str, Any]]:
    """List the published tables for ``heterophony list``."""
    from ..papers.listing import list_paper_tables

    return list_paper_tables()


def list_models() -> list[dict[str, Any]]:
    """List the models for ``heterophony list``."""
    from ..models import MODEL_DESCRIPTIONS

    return [{"name": k, "about": v, "settings": []} for k, v in sorted(MODEL_DESCRIPTIONS.items())]


def list_datasets() -> list[dict[str, Any]]:
    """List the named data sets and the kinds of users' data for ``heterophony list``."""
    from ..data.sources import SOURCES

    about = {k: v.about for k, v in sorted(SOURCES.items())}
    about["PATH.npz"] = "your own: x, y or x_train, y_train, x_test, y_test"
    about["FOLDER"] = (
        "your own: PFLlib, LEAF, UCI HAR, images, .npz of clients, …; data.md lists them"
    )
    about["hf:NAME"] = "a set of images on the Hugging Face hub, as hf:uoft-cs/cifar10 (extra: hf)"
    return [{"name": k, "about": v, "settings": []} for k, v in about.items()]


def list_partitions() -> list[dict[str, Any]]:
    """List the partitions for ``heterophony list``."""
    from ..data.partitions import PARTITIONS

    return describe_classes(dict(sorted(PARTITIONS.items())))


def list_protections() -> list[dict[str, Any]]:
    """List the protections for ``heterophony list``."""
    from ..protection import PROTECTION_CLASSES, get_protection_class

    return describe_classes({kind: get_protection_class(kind) for kind in PROTECTION_CLASSES})


def describe_classes(classes: Mapping[str, type]) -> list[dict[str, Any]]:
    """Describe classes by the first lines of their docstrings and by their settings."""
    from ..core.settings import describe_settings

    return [
        {"name": name, "about": (c.__doc__ or "").splitlines()[0], "settings": describe_settings(c)}
        for name, c in classes.items()
    ]


def list_runs() -> list[dict[str, Any]]:
    """List the runs below runs/ for ``heterophony list``, newest first."""
    from ..results.overview import list_run_progress

    return [
        {
            "name": str(run.folder),
            "algorithm": run.algorithm,
            "state": run.state,
            "G best": run.G and run.G.best,
            "G last 10": run.G and run.G.last10.mean,
            "P best": run.P and run.P.best,
            "P last 10": run.P and run.P.last10.mean,
        }
        for run in list_run_progress(Path("runs"))
    ]


def bench(
    json: JsonOption = False,
    seconds: Annotated[float, typer.Option(help="Duration of each measurement in seconds.")] = 6.0,
    device: Annotated[
        str,
        typer.Option(
            help="The device of the workers, as in cuda; the plain loop always runs on the CPU."
        ),
    ] = "cpu",
) -> None:
    """Measure this machine's speed relative to a plain training loop."""
    from ..core.accelerator import choose_compute
    from ..tools.bench import measure_speed

    compute = choose_compute(device)
    with terminal.handle_signals(signal.default_int_handler):
        found = measure_speed(seconds, terminal.print_note, compute)
    if json:
        terminal.print_json(found)
        return
    rows: Rows = [[k, v if isinstance(v, float) else str(v)] for k, v in found.items()]
    title = "convnet, Fashion-MNIST shapes, batch 20"
    terminal.print_table(ResultTable.build(["", Column("measured", form=",.3f")], rows, title))


def doctor(
    json: JsonOption = False,
    gpu: Annotated[
        bool,
        typer.Option(
            "--gpu", help="Check instead that a GPU gives the same bits with 1, 2 and 4 workers."
        ),
    ] = False,
    device: Annotated[
        str, typer.Option(help="The GPU that --gpu checks, as in cuda:1 or mps.")
    ] = "auto",
) -> None:
    """Check which engines can run here; print what is missing and how to install it."""
    from ..tools.doctor import check_installation

    if gpu:
        show_gpu_check(device, json)
        return
    with terminal.handle_signals(signal.default_int_handler):
        found = check_installation()
    if json:
        terminal.print_json(found)
    else:
        rows = [[c["name"], "ok" if c["ok"] else "missing", c["about"]] for c in found]
        terminal.print_table(ResultTable.build(["part", "state", "about"], rows))
    if any(not c["ok"] and c["needed"] for c in found):
        raise typer.Exit(1)


def show_gpu_check(device: str, json: bool) -> None:
    """Check a GPU and compare it with the CPU; exit with code 1 if bits depend on the number of workers."""
    from ..tools.doctor import check_gpu, describe_gpu_setup, find_differences

    with terminal.handle_signals(signal.default_int_handler):
        trials = check_gpu(device, terminal.print_note)
    setup, differences = describe_gpu_setup(device), find_differences(trials)
    if json:
        rows = [asdict(t) for t in trials]
        terminal.print_json({"setup": setup, "trials": rows, "differences": differences})
    else:
        columns: Columns = [
            *("algorithm", Column("device"), Column("workers", form="d"), Column("model")),
            *(Column("seconds", form=".1f"), Column("P %", kind="percent")),
            Column("MB on the GPU", form=".1f"),
        ]
        cells = [
            [
                *(t.algorithm, t.device, t.workers, t.model_sha256[:12], t.seconds, t.accuracy),
                "" if t.used_bytes is None else t.used_bytes / 1e6,
            ]
            for t in trials
        ]
        title = ", ".join(f"{k} {v}" for k, v in setup.items() if v)
        terminal.print_table(ResultTable.build(columns, cells, title))
    for line in differences:
        terminal.print_note(line)
    if differences:
        terminal.print_note("please report this with the table above: the bits should be the same")
        raise typer.Exit(1)
