"""``audit``: what somebody who sees all that travels can see of the clients' images."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..core.errors import ConfigError
from ..core.files import write_json
from ..privacy.preset_names import AuditPreset
from . import terminal
from .audit_table import show_audit
from .runs import (
    JsonOption,
    SettingsOption,
    exit_on_interrupt,
    find_free_folder,
    prepare_run_folders,
    warm_up_engine,
)

if TYPE_CHECKING:
    from ..config.config import Config
    from ..config.sections import EngineSection
    from ..privacy.attack_job import AttackCase, AttackSettings
    from ..privacy.audit import AttackLog, Victims
    from ..privacy.snapshots import Snapshots
    from ..run.events import Event
    from ..run.store import RunFolder


class AttackMethod(StrEnum):
    """How gradients are inverted."""

    inverting = "inverting"
    dlg = "dlg"


class LabelKnowledge(StrEnum):
    """What the attacker knows of the labels."""

    known = "known"
    inferred = "inferred"
    joint = "joint"


def register(app: typer.Typer) -> None:
    """Put the command into the app."""
    app.command()(audit)


def audit(
    algorithms: Annotated[
        list[str] | None, typer.Argument(metavar="[ALGO…]", help="Default: those of the preset.")
    ] = None,
    pairs: SettingsOption = None,
    rounds: Annotated[
        str | None, typer.Option(help="After how many to attack, as in 10,20; 0: untrained.")
    ] = None,
    clients: Annotated[int | None, typer.Option(min=1, help="The first so many.")] = None,
    images: Annotated[int | None, typer.Option(min=1, help="The first so many of each.")] = None,
    attack: Annotated[AttackMethod, typer.Option(help="Angle and signed Adam, or L-BFGS.")] = (
        AttackMethod.inverting
    ),
    iterations: Annotated[int | None, typer.Option(min=1, help="Of each attack.")] = None,
    tv: Annotated[float | None, typer.Option(min=0, help="Weight of smoothness.")] = None,
    labels: Annotated[
        LabelKnowledge,
        typer.Option(help="Told to the attacker, or inferred from the last bias, or sought (dlg)."),
    ] = (LabelKnowledge.known),
    batch: Annotated[int, typer.Option(min=1, help="Images in one gradient.")] = 1,
    steps: Annotated[int, typer.Option(min=1, help="The victim makes before it sends.")] = 1,
    restarts: Annotated[int, typer.Option(min=1, help="The one that matches best counts.")] = 1,
    preset: Annotated[
        AuditPreset, typer.Option(help="Minutes on patches of photos, or FedDecomp's Table 7.")
    ] = AuditPreset.quick,
    out: Annotated[Path | None, typer.Option(help="Default: a new folder in runs/.")] = None,
    json: JsonOption = False,
) -> None:
    """Recover training images from what each algorithm sends; again with the same --out, it goes on."""
    from ..privacy.presets import get_preset as of_size

    base = of_size(preset)
    asked_rounds = base.victims.rounds if rounds is None else parse_rounds(rounds)
    victims = replace(
        base.victims,
        rounds=asked_rounds,
        clients=clients or base.victims.clients,
        images=images or base.victims.images,
    )
    usual = 300 if attack is AttackMethod.dlg else base.attack_settings.iterations
    how = replace(
        base.attack_settings,
        attack=attack.value,
        iterations=iterations or usual,
        tv=base.attack_settings.tv if tv is None else tv,
        labels=labels.value,
        batch=batch,
        steps=steps,
        restarts=restarts,
    )
    if labels is LabelKnowledge.joint and attack is not AttackMethod.dlg:
        raise ConfigError("--labels joint: only dlg seeks them with the images; add --attack dlg")
    names = list(dict.fromkeys(algorithms or base.algorithms))
    configs = build_configs(preset, base.settings, names, pairs or [], max(asked_rounds))
    parent = out or find_free_folder(f"audit-{Path(configs[names[0]].data.name).stem}")
    content = run_audit(configs, victims, how, parent, quiet=json)
    if json:
        terminal.print_json(content)
    else:
        show_audit(content, parent)


def parse_rounds(text: str) -> tuple[int, ...]:
    """Rounds as numbers, each once, ascending."""
    try:
        found = sorted({int(part) for part in text.split(",")})
    except ValueError:
        found = [-1]
    if found[0] < 0:
        raise ConfigError(f"--rounds {text}: must be whole numbers from 0, as in 10,20")
    return tuple(found)


def build_configs(
    preset: AuditPreset,
    settings: dict[str, Any],
    names: Sequence[str],
    pairs: list[str],
    rounds: int,
) -> dict[str, Config]:
    """A configuration for every algorithm: the preset's, then what the command says."""
    from ..algorithms import get_algorithm_class
    from ..config.reading import apply_override, resolve_config
    from ..privacy.presets import get_algorithm_settings

    out = {}
    for name in names:
        if get_algorithm_class(name).pooled:
            raise ConfigError(f"{name}: one holds everybody's data, nothing travels; leave it out")
        raw = deepcopy(settings)
        raw |= {
            "algorithm": {**get_algorithm_settings(preset, name), "name": name},
            "rounds": rounds,
        }
        for pair in pairs:
            if apply_override(raw, pair) in ("rounds", "algorithm.name"):
                raise ConfigError(f"-c {pair}: name algorithms and --rounds in the command itself")
        out[name] = resolve_config(raw)
    return out


def run_audit(
    configs: dict[str, Config], victims: Victims, how: AttackSettings, parent: Path, quiet: bool
) -> dict[str, Any]:
    """Train what is left to train, attack who is left to attack, and sum it up."""
    from ..papers.table import load_table
    from ..privacy.audit import AttackLog, list_cases, list_open_cases
    from ..privacy.presets import LEAKAGE_TABLE
    from ..privacy.snapshots import Snapshots
    from ..privacy.summary import summarise_audit
    from ..report.figures.reconstructions import draw_contact_sheet
    from ..report.figures.run_figures import save_figure

    first = next(iter(configs.values()))
    warm_up_engine(first)
    federation = first.build_federation()
    if len(federation.shape) != 3:
        raise ConfigError(f"data.name: an audit needs images, not examples of {federation.shape}")
    if victims.clients > len(federation.clients):
        raise ConfigError(f"--clients {victims.clients}: there are {len(federation.clients)}")
    folders = prepare_run_folders(parent, configs)
    asked = {
        "algorithms": list(configs),
        "victims": asdict(victims),
        "how": asdict(how),
        "seed": first.top.seed,
        "data": federation.name,
        "shape": list(federation.shape),
        "data_sha256": federation.sha256,
    }
    log, chosen = AttackLog(parent, asked), federation.clients[: victims.clients]
    runs = {
        name: Snapshots(config.build_plan(federation), folder, victims.rounds, chosen)
        for (name, config), folder in zip(configs.items(), folders, strict=True)
    }
    train_runs(configs, runs, log, quiet)
    every = {name: list_cases(name, states, victims, how, log) for name, states in runs.items()}
    due = {name: open_ for name, mine in every.items() if (open_ := list_open_cases(mine, log))}
    run_pending_attacks(first.engine, runs, due, how, log, quiet)
    records = log.read_records()
    content = summarise_audit(records, load_table(LEAKAGE_TABLE))
    write_json(parent / "audit.json", content)
    if any(r["event"] == "attack" for r in records):
        save_figure(draw_contact_sheet(records), parent / "audit.png")
    return content


def format_continue_hint(runs: dict[str, Snapshots]) -> str:
    parent = next(iter(runs.values())).folder.path.parent
    return f"the same command with --out {parent} goes on"


def train_runs(
    configs: dict[str, Config], runs: dict[str, Snapshots], log: AttackLog, quiet: bool
) -> None:
    """Play what is left of every run, keeping the states to attack, and see what is sent."""
    from ..experiments.execute import execute_plan
    from ..privacy.audit import record_sent_parameters

    folders = [states.folder for states in runs.values()]
    with (
        terminal.show_progress_bars(not quiet) as bars,
        exit_on_interrupt(format_continue_hint(runs), bars.stop, folders),
    ):
        for name, states in runs.items():
            where, plan = configs[name].engine, states.plan
            listen = combine_listeners(
                terminal.RunProgressBar(bars, name, plan.rounds), states.make_listener()
            )
            with lock_run_folder(states.folder) as folder:
                execute_plan(plan, folder, where.name, where.workers, listen, cluster=where)
                states.save_last()
                record_sent_parameters(name, states, log)


def run_pending_attacks(
    where: EngineSection,
    runs: dict[str, Snapshots],
    due: dict[str, list[AttackCase]],
    how: AttackSettings,
    log: AttackLog,
    quiet: bool,
) -> None:
    """Invert gradients, each recorded as it is done."""
    from ..engines.base import create_engine
    from ..privacy.audit import invert_gradients

    total, folders = sum(map(len, due.values())), [states.folder for states in runs.values()]
    with (
        terminal.show_counter(not quiet, "inverting gradients", total) as done,
        exit_on_interrupt(format_continue_hint(runs), done.progress.stop, folders),
    ):
        for name, cases in due.items():
            states = runs[name]
            with (
                lock_run_folder(states.folder),
                create_engine(
                    where.name, where.workers, states.plan, states.client_store, where
                ) as made,
            ):
                for records in invert_gradients(cases, states, how, made):
                    log.append_records(records)
                    done()


@contextmanager
def lock_run_folder(folder: RunFolder) -> Iterator[RunFolder]:
    """Ours, inside."""
    folder.lock()
    try:
        yield folder
    finally:
        folder.close()


def combine_listeners(*listeners: Callable[[Event], None]) -> Callable[[Event], None]:
    def listen(event: Event) -> None:
        for each in listeners:
            each(event)

    return listen
