"""``data``: get, describe and deal data sets; who holds what."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import terminal
from .options import ConfigArgument, JsonOption, SettingsOption, read_settings

if TYPE_CHECKING:
    from ..core.algorithm import Algorithm
    from ..data.federation import Federation


class ChartChoice(StrEnum):
    """Pictures of who holds what."""

    all = "all"
    heat = "heat"
    bubbles = "bubbles"
    sizes = "sizes"


def register(app: typer.Typer) -> None:
    """Put the commands into the app."""
    group = typer.Typer(no_args_is_help=True, help="Get, describe and deal data sets.")
    group.command()(fetch)
    group.command()(show)
    group.command()(partition)
    group.command()(augment)
    app.add_typer(group, name="data")


def fetch(name: Annotated[str, typer.Argument(help="As in `heterophony list datasets`.")]) -> None:
    """Download a data set into the cache, unless it is here."""
    from ..data.sources import fetch_dataset as download

    terminal.print_note(f"{name} is in {download(name)}")


def show(
    name: Annotated[
        str, typer.Argument(help="A data set's name, or a path to an .npz file or a folder.")
    ],
    path: Annotated[
        str | None, typer.Option(help="The folder or archive that holds its files.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Describe a data set."""
    import numpy as np

    from ..data.sources import read_source

    found = read_source(name, path)
    counts = np.bincount(found.y, minlength=len(found.labels))
    about: dict[str, Any] = {
        "name": found.name,
        "examples": len(found.y),
        "shape": list(found.x.shape[1:]),
        "type": str(found.x.dtype),
        "official": found.official,
        "users": len(found.user_names),
        "classes": dict(zip(found.labels, counts.tolist(), strict=True)),
    }
    if json:
        terminal.print_json(about)
        return
    shape = "×".join(map(str, found.x.shape[1:]))
    title = f"{found.name}: {len(found.y)} examples of {shape} ({found.x.dtype})"
    title += f", the first {found.official} to train" if found.official else ""
    title += f", of {len(found.user_names)} users" if found.user_names else ""
    terminal.print_table(title, ["class", "examples"], list(about["classes"].items()))


def partition(
    file: ConfigArgument = None,
    pairs: SettingsOption = None,
    out: Annotated[
        Path | None, typer.Option("-o", help="A figure (.png, .svg, .pdf) or a page (.html).")
    ] = None,
    kind: Annotated[
        ChartChoice, typer.Option(help="Which picture; a page has them all.")
    ] = ChartChoice.all,
    save_to: Annotated[
        Path | None,
        typer.Option("--save", help="Who holds which rows: .json or .npz, for kind = 'file'."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Deal a data set to clients, and show who holds what."""

    config = read_settings(file, pairs)
    federation = config.build_federation()
    new, federation = federation.new, federation.whole()
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


def augment(
    out: Annotated[Path, typer.Option("-o", help="A figure (.png, .svg, .pdf).")],
    file: ConfigArgument = None,
    pairs: SettingsOption = None,
    client: Annotated[
        str | None, typer.Option(help="Whose images; default: who gets the most copies.")
    ] = None,
    each: Annotated[int, typer.Option(min=1, help="Copies of every class.")] = 4,
) -> None:
    """Draw what FedReG's augmentations make of a client's images, as in a run."""
    from ..algorithms.fedreg import FedReG
    from ..report.figures.augmentation import draw_augmented_copies, make_augmented_copies
    from ..report.figures.run_figures import save_figure

    config = read_settings(file, pairs)
    how = config.algorithm if isinstance(config.algorithm, FedReG) else FedReG()
    federation = config.build_federation()
    found = make_augmented_copies(federation, how, config.top.seed, client, each)
    save_figure(draw_augmented_copies(found, federation.name), out)
    terminal.print_note(f"wrote {out}: client {found.client}, balanced to {found.target_rule}")


def save_label_distribution(
    federation: Federation, how: Algorithm, out: Path, kind: ChartChoice
) -> None:
    """Who holds what, as a figure or a page, told by the suffix."""
    from ..analysis.label_distribution import compute_label_distribution
    from ..core.errors import ConfigError

    held = compute_label_distribution(federation, how)
    if out.suffix == ".html":
        from ..report.page.label_page import write_label_page

        if kind is not ChartChoice.all:
            raise ConfigError(f"{out}: a page has every picture; leave out --kind, or draw a .png")
        write_label_page(held, out)
    else:
        from ..report.figures.label_distribution import draw_label_distribution
        from ..report.figures.run_figures import save_figure

        save_figure(draw_label_distribution(held, kind.value), out)


def describe_clients(federation: Federation) -> list[dict[str, Any]]:
    """Every client's sizes and labels, and how unlike everybody's they are."""
    from ..data.label_statistics import entropy, jensen_shannon, total_variation

    counts, held = federation.counts(), list_splits(federation)
    rows = zip(
        federation.clients,
        *(federation.sizes(part).values() for part in held),
        *(f(counts).round(4).tolist() for f in (entropy, total_variation, jensen_shannon)),
        counts.tolist(),
        strict=True,
    )
    keys = ("name", *held, "entropy", "total_variation", "jensen_shannon", "labels")
    found = [dict(zip(keys, row, strict=True)) for row in rows]
    return [r | ({"user": n} if (n := federation.names.get(r["name"])) else {}) for r in found]


def list_splits(federation: Federation) -> tuple[str, ...]:
    """The parts that a client's examples fall into."""
    return ("train", *(["validation"] if federation.validates else []), "test")


def print_label_table(federation: Federation) -> None:
    """Training examples per client and class; the stronger the colour, the more."""
    counts, labels = federation.counts(), federation.labels
    users = ["user"] if federation.names else []
    table = terminal.create_table()
    for name in ("client", *users, *list_splits(federation), "entropy", "TV", "JS", *labels):
        table.add_column(name, justify="right", no_wrap=True)
    most = max(1, int(counts.max()))
    for client, row in zip(describe_clients(federation), counts.tolist(), strict=True):
        shades = [f"[on {get_shade(n / most)}]{n or '·'}[/]" if n else "[dim]·[/]" for n in row]
        measures = [client[k] for k in ("entropy", "total_variation", "jensen_shannon")]
        about = [client["name"], *(client.get(k, "") for k in users)]
        sizes = [str(client[k]) for k in list_splits(federation)]
        table.add_row(*about, *sizes, *(f"{m:.2f}" for m in measures), *shades)
    missing = [labels[i] for i, n in enumerate(counts.sum(axis=0)) if n == 0]
    terminal.print_titled_table(f"{federation.name}: training examples per client and class", table)
    terminal.print_note(
        "entropy in bits; TV, JS: total variation, Jensen-Shannon, to everybody's labels"
    )
    if missing:
        terminal.print_note(f"nobody trains on class {', '.join(missing)}")


def get_shade(share: float) -> str:
    """From pale to strong blue, readable under black and white text."""
    strength = share**0.5
    r, g, b = (round(a + (z - a) * strength) for a, z in ((60, 20), (70, 90), (90, 200)))
    return f"rgb({r},{g},{b})"
