"""``list``, ``data`` and ``report``: what there is, who holds what, and a page of results."""

from __future__ import annotations

import dataclasses
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import screen
from .runs import Json, Pairs

if TYPE_CHECKING:
    from ..data.federation import Federation


class What(StrEnum):
    """What can be listed."""

    algorithms = "algorithms"
    models = "models"
    datasets = "datasets"
    partitions = "partitions"
    runs = "runs"


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
        What.runs: past_runs,
    }[what]()
    if json:
        screen.print_json(found)
        return
    if not found:
        screen.note(f"no {what.value} here")
        return
    columns = list(found[0])
    screen.print_table("", columns, [[readable(r[k]) for k in columns] for r in found])


def readable(value: Any) -> str:
    if isinstance(value, list):
        return "\n".join(f"{v['name']} = {v['default']} ({v['allowed']})" for v in value)
    return "–" if value is None else str(value)


def algorithms() -> list[dict[str, Any]]:
    from ..algorithms import CLASSES, algorithm

    rows = []
    for name in sorted(CLASSES):
        cls = algorithm(name)
        stays = ", ".join(cls.personal) or "nothing"
        rows.append(
            {
                "name": name,
                "idea": (cls.__doc__ or "").splitlines()[0],
                "paper": cls.paper,
                "travels": "nothing" if cls.personal == ("*",) else "all but what stays",
                "stays": "everything" if cls.personal == ("*",) else stays,
                "settings": explained(cls),
            }
        )
    return rows


def explained(cls: type) -> list[dict[str, Any]]:
    """The settings of a class with defaults and ranges."""
    from typing import Literal, get_args, get_origin, get_type_hints

    from ..settings import range_of, settings

    hints, out = get_type_hints(cls), []
    for f in settings(cls):
        hint = hints[f.name]
        choices = get_origin(hint) is Literal
        default = None if f.default is dataclasses.MISSING else f.default
        allowed = " | ".join(map(str, get_args(hint))) if choices else range_of(f)
        doc = f.metadata.get("doc", "")
        out.append({"name": f.name, "default": default, "allowed": allowed, "about": doc})
    return out


def models() -> list[dict[str, Any]]:
    from ..models import BUILDERS

    return [{"name": k, "about": v} for k, v in sorted(BUILDERS.items())]


def datasets() -> list[dict[str, Any]]:
    from ..data.sources import SOURCES

    rows = [{"name": k, "about": v.about} for k, v in sorted(SOURCES.items())]
    return [
        *rows,
        {"name": "PATH.npz", "about": "your own: x, y or x_train, y_train, x_test, y_test"},
    ]


def partitions() -> list[dict[str, Any]]:
    from ..data.partition import PARTITIONS

    return [
        {"name": k, "about": (cls.__doc__ or "").splitlines()[0], "settings": explained(cls)}
        for k, cls in sorted(PARTITIONS.items())
    ]


def past_runs() -> list[dict[str, Any]]:
    """The runs below runs/, newest first."""
    from ..store import RunFolder, read_json

    rows = []
    configs = sorted(Path("runs").rglob("config.toml"), key=lambda p: -p.stat().st_mtime)
    for path in configs:
        folder = RunFolder(path.parent)
        if folder.result.exists():
            r = read_json(folder.result)
            g = r["G"] and screen.percent(r["G"]["best"])
            state = "finished"
            rows.append([r["algorithm"], r["rounds"], state, g, screen.percent(r["P"]["best"])])
        else:
            events = list(folder.read())
            name = events[0]["algorithm"] if events else "–"
            done = sum(e["event"] == "round" for e in events)
            rows.append([name, done, "unfinished", None, None])
        rows[-1].insert(0, str(path.parent))
    keys = ["name", "algorithm", "rounds", "state", "G best", "P best"]
    return [dict(zip(keys, row, strict=True)) for row in rows]


def fetch(name: str) -> None:
    """Download a data set into the cache."""
    from ..data.sources import fetch as download

    screen.note(f"{name} is in {download(name)}")


def show(name: str, path: Annotated[str | None, typer.Option()] = None, json: Json = False) -> None:
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
        "classes": dict(zip(found.labels, counts.tolist(), strict=True)),
    }
    if json:
        screen.print_json(about)
        return
    shape = "×".join(map(str, found.x.shape[1:]))
    title = f"{found.name}: {len(found.y)} examples of {shape} ({found.x.dtype})"
    screen.print_table(title, ["class", "examples"], list(about["classes"].items()))


def partition(
    file: Annotated[Path | None, typer.Argument(metavar="[CONFIG.toml]")] = None,
    pairs: Pairs = None,
    out: Annotated[Path | None, typer.Option("-o", help="A heat map: .png, .svg or .pdf.")] = None,
    json: Json = False,
) -> None:
    """Deal a data set to clients, and show who holds what."""
    from ..config import read

    federation = read(file, pairs or []).federation()
    if out is not None:
        from ..report.figures import label_map, save

        title = f"{federation.name}, {len(federation.clients)} clients"
        figure = label_map(
            federation.counts().tolist(), federation.labels, federation.clients, title
        )
        save(figure, out)
        screen.note(f"wrote {out}")
    if json:
        screen.print_json(dealt(federation))
    else:
        heat_table(federation)


def dealt(federation: Federation) -> list[dict[str, Any]]:
    rows = zip(
        federation.clients,
        federation.sizes().values(),
        federation.sizes("test").values(),
        federation.counts().tolist(),
        strict=True,
    )
    return [{"name": c, "train": a, "test": b, "labels": k} for c, a, b, k in rows]


def heat_table(federation: Federation) -> None:
    """Counts per client and class; the darker, the larger the share of the class."""
    from rich.table import Table

    counts, labels = federation.counts(), federation.labels
    table = Table(title=f"{federation.name}: training examples per client and class")
    for name in ("client", "train", "test", *labels):
        table.add_column(name, justify="right")
    most = max(1, int(counts.max()))
    for client, row in zip(dealt(federation), counts.tolist(), strict=True):
        shades = [f"[on {shade(n / most)}]{n or '·'}[/]" if n else "[dim]·[/]" for n in row]
        table.add_row(client["name"], str(client["train"]), str(client["test"]), *shades)
    missing = [labels[i] for i, n in enumerate(counts.sum(axis=0)) if n == 0]
    screen.OUT.print(table)
    if missing:
        screen.note(f"nobody trains on class {', '.join(missing)}")


def shade(share: float) -> str:
    """From pale to strong blue, readable under black and white text."""
    strength = share**0.5
    r, g, b = (round(a + (z - a) * strength) for a, z in ((60, 20), (70, 90), (90, 200)))
    return f"rgb({r},{g},{b})"


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR…")],
    out: Annotated[
        Path | None, typer.Option("-o", help="Default: report.html in the first.")
    ] = None,
) -> None:
    """One self-contained HTML page: curves, table, clients; works offline."""
    from ..report.page import write
    from ..report.runs import find

    path = out or folders[0] / "report.html"
    write(find(folders), path)
    screen.note(f"wrote {path}")
