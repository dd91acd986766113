"""The command group ``data``: download, inspect, partition and export data sets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.markup import escape

from ..core.files import clean_line, sort_names
from ..core.scores import TaskName
from ..results.table import Column, Columns, ResultTable
from . import options, terminal

if TYPE_CHECKING:
    from ..config.config import Config
    from ..core.algorithm import Algorithm
    from ..data.federation import Federation
    from ..data.source import Source


SHOWN_CLIENTS = 20  # how many clients `data show` lists without --json


Platform = Literal["pfllib", "leaf", "huggingface", "npz"]
Chart = Literal["all", "heat", "bubbles", "sizes", "histograms"]


def register(app: typer.Typer) -> None:
    """Add the command group ``data`` to the app."""
    group = typer.Typer(no_args_is_help=True, help="Download, inspect and partition data sets.")
    group.command()(fetch)
    group.command()(show)
    for command in (partition, export, augment):
        group.command(cls=options.SettingsCommand)(command)
    app.add_typer(group, name="data")


def fetch(
    name: Annotated[str, typer.Argument(help="A name from `heterophony list datasets`.")],
) -> None:
    """Download a data set into the cache, unless it is already on this machine."""
    from ..data.sources import fetch_dataset

    terminal.print_note(f"{name} is in {fetch_dataset(name)}")


def show(
    name: Annotated[
        str, typer.Argument(help="A data set's name, or a path to a file or folder of data.")
    ],
    path: Annotated[
        str | None, typer.Option(help="The folder or archive with the data set's files.")
    ] = None,
    users: Annotated[
        str | None, typer.Option(help="The column or array that names clients; default: client.")
    ] = None,
    task: Annotated[
        TaskName, typer.Option(help="The kind of task, which decides how targets are read.")
    ] = "classification",
    json: options.JsonOption = False,
) -> None:
    """Describe a data set: its examples, their shape, its classes and any clients that it names."""
    from ..data.sources import read_source

    found = read_source(name, path, task=task, users=users)
    about = describe_source(found, get_format_name(name))
    if json:
        terminal.print_json(about)
        return
    shape = f"{'×'.join(map(str, about['shape']))} ({found.x.dtype})"
    shape = shape if found.record is None else found.record.describe()
    title = f"{found.name}: {len(found.y)} examples of {shape}"
    title += f", the first {found.official} to train" if found.official else ""
    title += f", of {len(found.user_names)} users" if found.user_names else ""
    title += f" · format: {about['format']}" if about["format"] else ""
    word = {"classification": "class", "multilabel": "label", "sequence": "token"}
    head, examples = word.get(found.task, "target"), Column("examples", form="d")
    classes = list(about["classes"].items())
    terminal.print_table(ResultTable.build([head, examples], classes, title))
    if found.columns:
        print_columns(about["columns"])
    print_remark(found)
    if shown := list(about.get("clients", {}).items())[:SHOWN_CLIENTS]:
        terminal.print_table(ResultTable.build(["client", examples], shown))
        if (more := len(about["clients"]) - len(shown)) > 0:
            terminal.print_note(f"and {more} more clients; --json prints all")


def print_remark(data: Source | Federation) -> None:
    """Print the note on a data set: parts not read, or differences from the published data set."""
    if data.remark:
        terminal.print_note(data.remark)


def get_format_name(name: str) -> str:
    """Return the name of the data format at a path; empty for a named data set."""
    from ..data.sources import SOURCES, find_dataset_name
    from ..data.sources.formats import find_format

    found = None if find_dataset_name(name) in SOURCES else find_format(Path(name).expanduser())
    return "" if found is None else found.name


def describe_source(found: Source, format_name: str) -> dict[str, Any]:
    """Return a description of a data set as plain data for JSON."""
    import numpy as np

    from ..data.source import count_targets

    counts = count_targets(found.y, found.task, len(found.labels))
    about: dict[str, Any] = {
        "name": found.name,
        "format": format_name,
        "examples": len(found.y),
        "shape": list(found.x.shape[1:]),
        "type": str(found.x.dtype),
        "official": found.official,
        "users": len(found.user_names),
        "classes": dict(zip(found.labels, counts.tolist(), strict=True)),
    }
    if found.columns:
        missing = np.isnan(found.x).sum(axis=0).tolist()
        about["columns"] = [
            {"name": c.name, "categories": list(c.categories), "missing": n}
            for c, n in zip(found.columns, missing, strict=True)
        ]
    if found.users is not None:
        held = np.bincount(found.users, minlength=len(found.user_names)).tolist()
        by_client = dict(zip(found.user_names, held, strict=True))
        about["clients"] = {c: by_client[c] for c in sort_names(by_client)}
    return about


def print_columns(columns: list[dict[str, Any]]) -> None:
    """Print a description of a table's columns."""
    rows = [
        (c["name"], ", ".join(c["categories"][:8]) or "numbers", c["missing"] or "")
        for c in columns
    ]
    heads: Columns = ["column", "values", Column("missing", form="d")]
    terminal.print_table(ResultTable.build(heads, rows))


def partition(
    file: options.ConfigArgument = None,
    pairs: options.SettingsOption = None,
    out: Annotated[
        Path | None, typer.Option("-o", help="A figure (.png, .svg, .pdf) or a page (.html).")
    ] = None,
    kind: Annotated[
        Chart, typer.Option(help="The chart to draw; histograms show the first 12 clients.")
    ] = "all",
    save_to: Annotated[
        Path | None,
        typer.Option(
            "--save",
            help="Write the examples of each client to a .json or .npz, for partition.kind = file.",
        ),
    ] = None,
    json: options.JsonOption = False,
) -> None:
    """Partition a data set among clients, and show the label distribution."""

    config = read_data_settings(file, pairs)
    federation = config.build_federation()
    print_remark(federation)
    new, federation = federation.new, federation.include_new_clients()
    if save_to is not None:
        federation.save_partition(save_to)
        terminal.print_note(f"wrote {save_to}")
    if out is not None:
        save_label_distribution(federation, config.algorithm, out, kind)
        terminal.print_note(f"wrote {out}")
    if json:
        terminal.print_json(describe_clients(federation))
    else:
        print_label_table(federation)
    if new:
        terminal.print_note(f"join after training: {', '.join(new)}")


def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.")],
    to: Annotated[Platform, typer.Option(help="The format to write.")],
    file: options.ConfigArgument = None,
    pairs: options.SettingsOption = None,
) -> None:
    """Write the clients of a configuration in the format of another platform."""
    from ..data.export import export_federation

    federation = read_data_settings(file, pairs).build_federation()
    print_remark(federation)
    export_federation(federation, to, folder)
    clients = len(federation.include_new_clients().clients)
    terminal.print_note(f"wrote {folder}: {clients} clients of {federation.name} ({to})")


def augment(
    out: Annotated[Path, typer.Option("-o", help="A figure (.png, .svg, .pdf).")],
    file: options.ConfigArgument = None,
    pairs: options.SettingsOption = None,
    client: Annotated[
        str | None,
        typer.Option(
            help="The client whose images to draw; default: the client with the most copies."
        ),
    ] = None,
    each: Annotated[int, typer.Option(min=1, help="Number of copies to draw per class.")] = 4,
) -> None:
    """Draw the augmented copies that FedReG makes of a client's images, as in a run."""
    from ..algorithms.fedreg import FedReG
    from ..report.figures.label_distribution import draw_augmented_copies, make_augmented_copies
    from ..report.figures.run_figures import save_figure

    config = read_data_settings(file, pairs)
    how = config.algorithm if isinstance(config.algorithm, FedReG) else FedReG()
    federation = config.build_federation()
    found = make_augmented_copies(federation, how, config.top.seed, client, each)
    save_figure(draw_augmented_copies(found, federation.name), out)
    terminal.print_note(f"wrote {out}: client {found.client}, balanced to {found.target_rule}")


UNUSED = {"algorithm.name": "fedavg", "model.name": "mlp"}  # replace the user's modules


def read_data_settings(file: str | None, pairs: list[str] | None) -> Config:
    """Read a configuration for a ``data`` command, without importing the user's modules."""
    from ..config.reading import read_config
    from ..core.own_modules import is_own_code

    settings, chosen = options.locate_settings(file, pairs or [])
    chosen += pairs or []
    for key, name in options.find_named_code(settings, chosen).items():
        if is_own_code(name):
            chosen.append(f"{key}={UNUSED[key]}")
    return read_config(settings, chosen, terminal.print_note)


def save_label_distribution(federation: Federation, how: Algorithm, out: Path, kind: Chart) -> None:
    """Save the label distribution as a figure or a page, by the suffix of the file."""
    from ..core.errors import ConfigError
    from ..results.label_distribution import compute_label_distribution

    held = compute_label_distribution(federation, how)
    if out.suffix == ".html":
        from ..report.page.html import write_label_page

        if kind != "all":
            raise ConfigError(f"{out}: a page has all charts; leave out --kind, or draw a .png")
        write_label_page(held, out)
    else:
        from ..report.figures.label_distribution import draw_label_distribution
        from ..report.figures.run_figures import save_figure

        save_figure(draw_label_distribution(held, kind), out)


def describe_clients(federation: Federation) -> list[dict[str, Any]]:
    """Return each client's example counts and label statistics, as plain data for JSON."""
    from ..data.federation import entropy, jensen_shannon, total_variation

    counts, held = federation.count_labels(), list_splits(federation)
    rows = zip(
        federation.clients,
        *(federation.sizes(part).values() for part in held),
        *(f(counts).round(4).tolist() for f in (entropy, total_variation, jensen_shannon)),
        counts.tolist(),
        strict=True,
    )
    keys = ("name", *held, "entropy", "total_variation", "jensen_shannon", "labels")
    return [dict(zip(keys, row, strict=True)) for row in rows]


def list_splits(federation: Federation) -> tuple[str, ...]:
    """List the splits of the clients' examples: train, test and, if held out, validation."""
    return ("train", *(["validation"] if federation.validates else []), "test")


def print_label_table(federation: Federation) -> None:
    """Print the table of training examples per client and class; stronger colours are larger numbers."""
    counts, labels = federation.count_labels(), federation.labels
    table = terminal.create_table()
    for name in ("client", *list_splits(federation), "entropy", "TV", "JS", *labels):
        table.add_column(escape(clean_line(name)), justify="right", no_wrap=True)
    most = max(1, int(counts.max()))
    for client, row in zip(describe_clients(federation), counts.tolist(), strict=True):
        shades = [f"[on {get_shade(n / most)}]{n or '·'}[/]" if n else "[dim]·[/]" for n in row]
        measures = [client[k] for k in ("entropy", "total_variation", "jensen_shannon")]
        name = escape(clean_line(client["name"]))
        sizes = [str(client[k]) for k in list_splits(federation)]
        table.add_row(name, *sizes, *(f"{m:.2f}" for m in measures), *shades)
    missing = [labels[i] for i, n in enumerate(counts.sum(axis=0)) if n == 0]
    terminal.print_titled_table(f"{federation.name}: training examples per client and class", table)
    terminal.print_note(
        "entropy in bits; TV, JS: total variation and Jensen-Shannon distance to the labels of all"
    )
    if missing:
        terminal.print_note(f"no client trains on class {', '.join(missing)}")


def get_shade(share: float) -> str:
    """Return the background colour of a cell for its share of the largest number, as rich markup."""
    strength = share**0.5
    r, g, b = (round(a + (z - a) * strength) for a, z in ((60, 20), (70, 90), (90, 200)))
    return f"rgb({r},{g},{b})"
