"""The commands ``report``, ``dashboard`` and ``audit``."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import isfinite
from pathlib import Path
from threading import Thread
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..core.errors import ConfigError, FolderError
from ..core.files import write_json
from ..privacy.summary import AuditPreset, build_audit_table, build_ordering_table
from . import terminal
from .options import JsonOption, SettingsOption, find_free_folder

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.figure import Figure

    from ..config.config import Config
    from ..privacy.attack_job import AttackSettings
    from ..privacy.audit import Victims
    from ..results.runs import Run


FigureKind = Literal["curves", "difference", "participation", "ranks", "boards"]


def register(app: typer.Typer) -> None:
    """Add the commands ``report``, ``dashboard`` and ``audit`` to the app."""
    app.command()(report)
    app.command()(dashboard)
    app.command()(audit)


FoldersArgument = Annotated[
    list[Path],
    typer.Argument(metavar="DIR…", help="Runs, comparisons, folders of runs, or a .zip of runs."),
]
FileOption = Annotated[
    Path | None,
    typer.Option(
        "-o",
        help="The page (.html; default: in the first folder), figure or table (.csv, .md, .tex) to write.",
    ),
]
KindOption = Annotated[
    FigureKind,
    typer.Option(
        help="The kind of figure; a page has all of them. boards: a .csv with a row per board and round."
    ),
]


def report(
    folders: FoldersArgument,
    out: FileOption = None,
    kind: KindOption = "curves",
    reference: Annotated[
        str | None,
        typer.Option(help="With --kind difference: the algorithm to compare with; default: first."),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(help="Only these columns of the table, as in G.last10,P.last10."),
    ] = None,
) -> None:
    """Write a self-contained HTML page with curves, tables and clients, or one figure or table."""
    from ..report.page.html import write_report
    from ..report.page.views import check_showable
    from ..results.boards import write_board_rounds
    from ..results.comparison_tables import export_comparison
    from ..results.runs import load_runs
    from ..results.table import TABLE_FORMATS

    first = folders[0]
    path = out or (first.parent if first.suffix == ".zip" else first) / "report.html"
    is_table = path.suffix in TABLE_FORMATS
    if columns is not None and not is_table:
        raise ConfigError(
            f"--columns {columns}: only a table has columns to choose; write a table with -o table.tex,"
            " table.md or table.csv"
        )
    drawn = not is_table and path.suffix != ".html"
    if reference is not None and (kind != "difference" or not drawn):
        raise ConfigError(
            f"--reference {reference}: only for a figure of --kind difference, as in"
            " -o difference.svg --kind difference"
        )
    runs = load_runs(folders, terminal.print_note, check_showable)
    if kind == "boards":
        write_board_rounds(runs, path)
    elif is_table:
        export_comparison(runs, path, parse_columns(columns))
    elif drawn:
        draw_figure(runs, kind, reference, path)
    else:
        write_report(runs, path)
    terminal.print_note(f"wrote {path}")


def draw_figure(runs: list[Run], kind: FigureKind, reference: str | None, path: Path) -> None:
    """Draw a figure of runs, of this kind, and save it."""
    from ..report.figures import run_figures
    from ..report.figures.cd_diagram import draw_cd_diagram

    functions: dict[FigureKind, Callable[[list[Run]], Figure]] = {
        "curves": run_figures.draw_comparison,
        "difference": partial(run_figures.draw_differences, reference=reference),
        "participation": run_figures.draw_participation,
        "ranks": draw_cd_diagram,
    }
    run_figures.save_figure(functions[kind](runs), path)


def parse_columns(text: str | None) -> list[str]:
    """Parse the value of ``--columns``, as in ``G.last10,P.last10``; None gives an empty list."""
    keys = [part.strip() for part in (text or "").split(",")]
    return list(dict.fromkeys(keys)) if text is not None else []


def dashboard(
    folder: Annotated[
        Path, typer.Argument(metavar="[DIR]", help="A run, a comparison, or a folder of runs.")
    ] = Path("runs"),
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="0: any free port. Default: 8765, or the next free one."
        ),
    ] = None,
) -> None:
    """Serve the page of `report` to this machine only, read-only and updated while runs progress."""
    from ..report.page.server import open_dashboard

    if folder.exists() and not folder.is_dir():
        raise FolderError(f"{folder} is not a folder; name a run, or a folder of runs")
    server = open_dashboard(folder, port)

    def stop(number: int, frame: FrameType | None) -> None:
        Thread(target=server.shutdown).start()  # shutdown waits for this thread

    with server, terminal.handle_signals(stop):
        print(server.url, flush=True)
        if not folder.exists():
            terminal.print_note(
                f"{folder} does not exist yet; the page shows it as soon as it exists"
            )
        terminal.print_note("press Ctrl-C to stop")
        server.serve_forever()


AlgorithmsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[ALGO…]", help="The algorithms to attack; default: those of the preset."
    ),
]
RoundsOption = Annotated[
    str | None, typer.Option(help="Attack after these rounds, as in 10,20; 0: untrained.")
]
LossesOption = Annotated[
    str | None,
    typer.Option(
        help="Compare at these training losses, as in 0.5,0.2: attack each algorithm after the first"
        " of --rounds that reaches the loss. none: attack after all of --rounds."
    ),
]
ClientsOption = Annotated[int | None, typer.Option(min=1, help="Number of clients to attack.")]
ImagesOption = Annotated[
    int | None, typer.Option(min=1, help="Number of images to attack per client.")
]
AttackOption = Annotated[
    Literal["inverting", "dlg"],
    typer.Option(help="Cosine distance and signed Adam, or DLG with L-BFGS."),
]
IterationsOption = Annotated[int | None, typer.Option(min=1, help="Steps of each attack.")]
VariationOption = Annotated[
    float | None,
    typer.Option(min=0, help="Weight of total variation, which prefers smooth images."),
]
LabelsOption = Annotated[
    Literal["known", "inferred", "joint"],
    typer.Option(
        help="Labels: known to the attacker, inferred from the last bias, or optimised with the images (dlg)."
    ),
]
BatchOption = Annotated[int, typer.Option(min=1, help="Images in one gradient.")]
StepsOption = Annotated[int, typer.Option(min=1, help="Local steps of the victim before it sends.")]
RestartsOption = Annotated[
    int, typer.Option(min=1, help="Attempts per image; the best one counts.")
]
PresetOption = Annotated[
    AuditPreset,
    typer.Option(
        help="quick: minutes, on patches of photos; medium and paper: FedDecomp's Table 7, small or as printed."
    ),
]


def audit(
    algorithms: AlgorithmsArgument = None,
    pairs: SettingsOption = None,
    rounds: RoundsOption = None,
    losses: LossesOption = None,
    clients: ClientsOption = None,
    images: ImagesOption = None,
    attack: AttackOption = "inverting",
    iterations: IterationsOption = None,
    tv: VariationOption = None,
    labels: LabelsOption = "known",
    batch: BatchOption = 1,
    steps: StepsOption = 1,
    restarts: RestartsOption = 1,
    preset: PresetOption = "quick",
    out: Annotated[Path | None, typer.Option(help="Default: a new folder in runs/.")] = None,
    json: JsonOption = False,
) -> None:
    """Recover training images from what each algorithm sends. To continue, repeat it with the same --out."""
    from ..privacy.run_audit import build_audit_configs, get_audit_preset

    base = get_audit_preset(preset)
    asked_rounds = base.victims.rounds if rounds is None else parse_rounds(rounds)
    victims = replace(
        base.victims,
        rounds=asked_rounds,
        clients=clients or base.victims.clients,
        images=images or base.victims.images,
        losses=base.victims.losses if losses is None else parse_losses(losses),
    )
    if labels == "joint" and attack != "dlg":
        raise ConfigError(
            "--labels joint: only dlg optimises them with the images; add --attack dlg"
        )
    own = base.attack_settings
    default = 300 if attack == "dlg" else own.iterations
    how = replace(
        own,
        attack=attack,
        iterations=iterations or default,
        tv=own.tv if tv is None else tv,
        labels=labels,
        batch=batch,
        steps=steps,
        restarts=restarts,
    )
    names = list(dict.fromkeys(algorithms or base.algorithms))
    settings, last = pairs or [], max(asked_rounds)
    configs = build_audit_configs(preset, base.settings, names, settings, last, terminal.print_note)
    first = next(iter(configs.values()))
    parent = out or find_free_folder(f"audit-{Path(first.data.name).stem}")
    show_audit(run_audit(configs, victims, how, parent), parent, json)


def show_audit(content: dict[str, Any], parent: Path, json: bool) -> None:
    """Print the table of a privacy audit and the published orderings."""
    if json:
        terminal.print_json(content)
        return
    orderings = build_ordering_table(content)
    terminal.print_tables([build_audit_table(content), *([orderings] if orderings else [])])
    terminal.print_note(
        f"wrote {parent}/audit.json and audit.png; for a page, run: heterophony report {parent}"
    )


def parse_rounds(text: str) -> tuple[int, ...]:
    """Parse the value of ``--rounds``, as in ``10,20``; return each round once, ascending."""
    try:
        rounds = sorted({int(part) for part in text.split(",")})
    except ValueError:
        rounds = [-1]
    if rounds[0] < 0:
        raise ConfigError(f"--rounds {text}: must be whole numbers from 0, as in 10,20")
    return tuple(rounds)


def parse_losses(text: str) -> tuple[float, ...]:
    """Parse the value of ``--losses``, as in ``0.5,0.2``; return each loss once, descending."""
    if text == "none":
        return ()
    try:
        losses = sorted({float(part) for part in text.split(",")}, reverse=True)
    except ValueError:
        losses = [0.0]
    if not all(isfinite(v) and v > 0 for v in losses):
        raise ConfigError(f"--losses {text}: must be numbers above 0, as in 0.5,0.2, or none")
    return tuple(losses)


def run_audit(
    configs: dict[str, Config], victims: Victims, how: AttackSettings, parent: Path
) -> dict[str, Any]:
    """Run the remaining training and attacks of a privacy audit; write and return its summary."""
    from ..papers.table import load_table
    from ..privacy.run_audit import LEAKAGE_TABLE, open_audit
    from ..privacy.summary import summarise_audit
    from ..report.figures.run_figures import draw_contact_sheet, save_figure

    opened = open_audit(configs, victims, how, parent)
    hint = f"run the same command with --out {parent} to continue"
    with terminal.show_interruptible_progress(hint, opened.folders) as shown:
        opened.train(shown)
    cases = opened.list_open_cases()
    total = sum(map(len, cases.values()))
    with (
        terminal.show_counter("inverting gradients", total) as counter,
        terminal.exit_on_interrupt(hint, counter.stop, opened.folders),
    ):
        opened.attack(cases, counter)
    records = opened.log.read_records()
    content = summarise_audit(records, load_table(LEAKAGE_TABLE))
    write_json(parent / "audit.json", content)
    if any(r["event"] == "attack" for r in records):
        save_figure(draw_contact_sheet(records), parent / "audit.png")
    return content
