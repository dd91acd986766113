"""``list``, ``data`` and ``report``: what there is, who holds what, and a page of results."""

from __future__ import annotations

import dataclasses
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import reproduce, screen
from .runs import ConfigFile, Json, Pairs

if TYPE_CHECKING:
    from ..algorithm import Algorithm
    from ..data.federation import Federation


class What(StrEnum):
    """What can be listed."""

    algorithms = "algorithms"
    models = "models"
    datasets = "datasets"
    partitions = "partitions"
    papers = "papers"
    runs = "runs"


class Picture(StrEnum):
    """Pictures of who holds what."""

    all = "all"
    heat = "heat"
    bubbles = "bubbles"
    sizes = "sizes"


class Figure(StrEnum):
    """Figures of runs."""

    curves = "curves"
    participation = "participation"


def register(app: typer.Typer) -> None:
    """Put the commands into the app."""
    app.command("list")(list_)
    app.command()(report)
    group = typer.Typer(no_args_is_help=True, help="Get, describe and deal data sets.")
    group.command()(fetch)
    group.command()(show)
    group.command()(partition)
    app.add_typer(group, name="data")


def list_(what: What, json: Json = False) -> None:
    """What there is, one line each."""
    found: list[dict[str, Any]] = {
        What.algorithms: algorithms,
        What.models: models,
        What.datasets: datasets,
        What.partitions: partitions,
        What.papers: reproduce.listed,
        What.runs: past_runs,
    }[what]()
    if json:
        screen.print_json(found)
        return
    if not found:
        screen.note(f"no {what.value} here")
        return
    columns = [k for k in found[0] if k != "settings"]
    rows = [[readable(k, r) for k in columns] for r in found]
    text = len(columns) if what is not What.runs else 3
    screen.print_table("", [c.replace("_", " ") for c in columns], rows, text)
    if what is What.algorithms:
        screen.note("bytes: of a client's round, relative to FedAvg's (convnet on CIFAR-10)")


def readable(key: str, row: dict[str, Any]) -> str:
    """A cell; the settings of a thing stand below the words about it."""
    value = row[key]
    if key == "about":
        return "\n".join([value, *map(told, row["settings"])])
    if key.startswith("bytes"):
        return f"{value:.4f}"
    if isinstance(value, float):
        return screen.percent(value)
    return "–" if value is None else str(value)


def told(setting: dict[str, Any]) -> str:
    """``mu = 0.001 (at least 0)``, ``augment = simple, or auto, copy``."""
    allowed = setting["allowed"]
    if setting["default"] is None:
        return f"{setting['name']}: not set ({allowed})"
    default = str(setting["default"])
    if " | " not in allowed:
        return f"{setting['name']} = {default} ({allowed})"
    default = default.lower() if isinstance(setting["default"], bool) else default
    others = [word for word in allowed.split(" | ") if word != default]
    return f"{setting['name']} = {default}, or {', '.join(others)}"


def algorithms() -> list[dict[str, Any]]:
    from ..algorithms import CLASSES, algorithm
    from ..traffic import relative

    rows = []
    for name in sorted(CLASSES):
        cls = algorithm(name)
        traffic = relative(cls())
        rows.append(
            {
                "name": name,
                "about": (cls.__doc__ or "").splitlines()[0],
                "paper": cls.paper,
                "stays": kept(cls),
                "bytes_down": round(traffic["down"], 4),
                "bytes_up": round(traffic["up"], 4),
                "settings": explained(cls),
            }
        )
    return rows


def kept(cls: type[Algorithm]) -> str:
    """The patterns of what never leaves a device."""
    from ..algorithm import Algorithm

    if cls.stays is not Algorithm.stays:
        return "parts of layers"
    return "everything" if cls.personal == ("*",) else ", ".join(cls.personal) or "nothing"


def explained(cls: type) -> list[dict[str, Any]]:
    """The settings of a class with defaults and ranges."""
    from typing import Literal, get_args, get_origin, get_type_hints

    from ..settings import range_of, settings

    hints, out = get_type_hints(cls), []
    for f in settings(cls):
        hint = hints[f.name]
        choices = get_args(hint) if get_origin(hint) is Literal else ()
        choices = ("true", "false") if hint is bool else choices
        default = None if f.default is dataclasses.MISSING else f.default
        allowed = " | ".join(map(str, choices)) or ("a text" if hint is str else range_of(f))
        doc = f.metadata.get("doc", "")
        out.append({"name": f.name, "default": default, "allowed": allowed, "about": doc})
    return out


def models() -> list[dict[str, Any]]:
    from ..models import BUILDERS

    return [{"name": k, "about": v, "settings": []} for k, v in sorted(BUILDERS.items())]


def datasets() -> list[dict[str, Any]]:
    from ..data.sources import SOURCES

    about = {k: v.about for k, v in sorted(SOURCES.items())}
    about["PATH.npz"] = "your own: x, y or x_train, y_train, x_test, y_test"
    about["FOLDER"] = (
        "your own: a folder of images per class (in train, test), or an .npz per client"
    )
    about["hf:NAME"] = "a set of images on the Hugging Face hub, as hf:uoft-cs/cifar10 (extra: hf)"
    return [{"name": k, "about": v, "settings": []} for k, v in about.items()]


def partitions() -> list[dict[str, Any]]:
    from ..data.partitions import PARTITIONS

    return [
        {"name": k, "about": (cls.__doc__ or "").splitlines()[0], "settings": explained(cls)}
        for k, cls in sorted(PARTITIONS.items())
    ]


def past_runs() -> list[dict[str, Any]]:
    """The runs below runs/, newest first."""
    configs = sorted(Path("runs").rglob("config.toml"), key=lambda p: -p.stat().st_mtime_ns)
    keys = ["name", "algorithm", "state", "G best", "P best"]
    rows = [[str(p.parent), *standing(p.parent)] for p in configs]
    return [dict(zip(keys, row, strict=True)) for row in rows]


def standing(folder: Path) -> tuple[str | None, str, float | None, float | None]:
    """How far a run got; one that cannot be read must not hide the others."""
    from ..errors import FolderError
    from ..report.runs import load
    from ..store import RunFolder

    try:
        if not any(True for _ in RunFolder(folder).read()):
            return None, "not begun", None, None
        run = load(folder)
        sofar = run.so_far
    except (FolderError, KeyError, TypeError):
        return None, "damaged", None, None
    g, p = (sofar.G, sofar.P) if sofar else (None, None)
    return run.algorithm, run.state, g.best if g else None, p.best if p else None


def fetch(name: Annotated[str, typer.Argument(help="As in `heterophony list datasets`.")]) -> None:
    """Download a data set into the cache, unless it is here."""
    from ..data.sources import fetch as download

    screen.note(f"{name} is in {download(name)}")


def show(
    name: Annotated[
        str, typer.Argument(help="A data set's name, or a path to an .npz file or a folder.")
    ],
    path: Annotated[
        str | None, typer.Option(help="The folder or archive that holds its files.")
    ] = None,
    json: Json = False,
) -> None:
    """Describe a data set."""
    import numpy as np

    from ..data.sources import source

    found = source(name, path)
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
        screen.print_json(about)
        return
    shape = "×".join(map(str, found.x.shape[1:]))
    title = f"{found.name}: {len(found.y)} examples of {shape} ({found.x.dtype})"
    title += f", the first {found.official} to train" if found.official else ""
    title += f", of {len(found.user_names)} users" if found.user_names else ""
    screen.print_table(title, ["class", "examples"], list(about["classes"].items()))


def partition(
    file: ConfigFile = None,
    pairs: Pairs = None,
    out: Annotated[
        Path | None, typer.Option("-o", help="A figure (.png, .svg, .pdf) or a page (.html).")
    ] = None,
    kind: Annotated[
        Picture, typer.Option(help="Which picture; a page has them all.")
    ] = Picture.all,
    save_to: Annotated[
        Path | None,
        typer.Option("--save", help="Who holds which rows: .json or .npz, for kind = 'file'."),
    ] = None,
    json: Json = False,
) -> None:
    """Deal a data set to clients, and show who holds what."""
    from ..config import read

    config = read(file, pairs or [])
    federation = config.federation()
    new, federation = federation.new, federation.whole()
    if save_to is not None:
        federation.save_partition(save_to)
        screen.note(f"wrote {save_to}")
    if out is not None:
        draw_holdings(federation, config.algorithm, out, kind)
        screen.note(f"wrote {out}")
    if json:
        screen.print_json(dealt(federation))
    else:
        heat_table(federation)
    if new:
        screen.note(f"join after training: {', '.join(new)}")


def draw_holdings(federation: Federation, how: Algorithm, out: Path, kind: Picture) -> None:
    """Who holds what, as a figure or a page, told by the suffix."""
    from ..errors import ConfigError
    from ..report.holdings import holdings

    held = holdings(federation, how)
    if out.suffix == ".html":
        from ..report.holdings_page import write

        if kind is not Picture.all:
            raise ConfigError(f"{out}: a page has every picture; leave out --kind, or draw a .png")
        write(held, out)
    else:
        from ..report.figures import save
        from ..report.maps import draw

        save(draw(held, kind.value), out)


def dealt(federation: Federation) -> list[dict[str, Any]]:
    """Every client's sizes and labels, and how unlike everybody's they are."""
    from ..data.statistics import entropy, jensen_shannon, total_variation

    counts = federation.counts()
    rows = zip(
        federation.clients,
        federation.sizes().values(),
        federation.sizes("test").values(),
        *(f(counts).round(4).tolist() for f in (entropy, total_variation, jensen_shannon)),
        counts.tolist(),
        strict=True,
    )
    keys = ("name", "train", "test", "entropy", "total_variation", "jensen_shannon", "labels")
    found = [dict(zip(keys, row, strict=True)) for row in rows]
    return [r | ({"user": n} if (n := federation.names.get(r["name"])) else {}) for r in found]


def heat_table(federation: Federation) -> None:
    """Training examples per client and class; the stronger the colour, the more."""
    counts, labels = federation.counts(), federation.labels
    users = ["user"] if federation.names else []
    table = screen.new_table()
    for name in ("client", *users, "train", "test", "entropy", "TV", "JS", *labels):
        table.add_column(name, justify="right", no_wrap=True)
    most = max(1, int(counts.max()))
    for client, row in zip(dealt(federation), counts.tolist(), strict=True):
        shades = [f"[on {shade(n / most)}]{n or '·'}[/]" if n else "[dim]·[/]" for n in row]
        measures = [client[k] for k in ("entropy", "total_variation", "jensen_shannon")]
        about = [client["name"], *(client.get(k, "") for k in users)]
        sizes = [str(client[k]) for k in ("train", "test")]
        table.add_row(*about, *sizes, *(f"{m:.2f}" for m in measures), *shades)
    missing = [labels[i] for i, n in enumerate(counts.sum(axis=0)) if n == 0]
    screen.print_titled(f"{federation.name}: training examples per client and class", table)
    screen.note("entropy in bits; TV, JS: total variation, Jensen-Shannon, to everybody's labels")
    if missing:
        screen.note(f"nobody trains on class {', '.join(missing)}")


def shade(share: float) -> str:
    """From pale to strong blue, readable under black and white text."""
    strength = share**0.5
    r, g, b = (round(a + (z - a) * strength) for a, z in ((60, 20), (70, 90), (90, 200)))
    return f"rgb({r},{g},{b})"


def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR…", help="Runs, comparisons, folders of runs.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            help="A page (.html; default: in the first), a figure, or the table (.csv, .md, .tex).",
        ),
    ] = None,
    kind: Annotated[Figure, typer.Option(help="Which figure; a page has all.")] = Figure.curves,
) -> None:
    """One self-contained HTML page: curves, table, clients; works offline. Or a figure, a table."""
    from ..report.exports import FORMATS, export
    from ..report.figures import comparison, participation, save
    from ..report.page import write
    from ..report.runs import find

    path, runs = out or folders[0] / "report.html", find(folders)
    if path.suffix == ".html":
        write(runs, path)
    elif path.suffix in FORMATS:
        export(runs, path)
    else:
        save({Figure.curves: comparison, Figure.participation: participation}[kind](runs), path)
    screen.note(f"wrote {path}")
