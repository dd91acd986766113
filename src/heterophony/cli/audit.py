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
from ..privacy.preset_names import Preset
from . import terminal
from .audit_table import show
from .runs import (
    Json,
    Pairs,
    begin,
    free,
    interruptible,
    prepared,
)

if TYPE_CHECKING:
    from ..config.config import Config, EngineSection
    from ..privacy.attack_job import Case, How
    from ..privacy.audit import Log, Victims
    from ..privacy.snapshots import States
    from ..run.store import RunFolder
    from ..run.summary import Event


class Attack(StrEnum):
    """How gradients are inverted."""

    inverting = "inverting"
    dlg = "dlg"


class Labels(StrEnum):
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
    pairs: Pairs = None,
    rounds: Annotated[
        str | None, typer.Option(help="After how many to attack, as in 10,20; 0: untrained.")
    ] = None,
    clients: Annotated[int | None, typer.Option(min=1, help="The first so many.")] = None,
    images: Annotated[int | None, typer.Option(min=1, help="The first so many of each.")] = None,
    attack: Annotated[Attack, typer.Option(help="Angle and signed Adam, or L-BFGS.")] = (
        Attack.inverting
    ),
    iterations: Annotated[int | None, typer.Option(min=1, help="Of each attack.")] = None,
    tv: Annotated[float | None, typer.Option(min=0, help="Weight of smoothness.")] = None,
    labels: Annotated[
        Labels,
        typer.Option(help="Told to the attacker, or inferred from the last bias, or sought (dlg)."),
    ] = (Labels.known),
    batch: Annotated[int, typer.Option(min=1, help="Images in one gradient.")] = 1,
    steps: Annotated[int, typer.Option(min=1, help="The victim makes before it sends.")] = 1,
    restarts: Annotated[int, typer.Option(min=1, help="The one that matches best counts.")] = 1,
    preset: Annotated[
        Preset, typer.Option(help="Minutes on patches of photos, or FedDecomp's Table 7.")
    ] = Preset.quick,
    out: Annotated[Path | None, typer.Option(help="Default: a new folder in runs/.")] = None,
    json: Json = False,
) -> None:
    """Recover training images from what each algorithm sends; again with the same --out, it goes on."""
    from ..privacy.presets import preset as of_size

    base = of_size(preset)
    asked_rounds = base.victims.rounds if rounds is None else whole(rounds)
    victims = replace(
        base.victims,
        rounds=asked_rounds,
        clients=clients or base.victims.clients,
        images=images or base.victims.images,
    )
    usual = 300 if attack is Attack.dlg else base.how.iterations
    how = replace(
        base.how,
        attack=attack.value,
        iterations=iterations or usual,
        tv=base.how.tv if tv is None else tv,
        labels=labels.value,
        batch=batch,
        steps=steps,
        restarts=restarts,
    )
    if labels is Labels.joint and attack is not Attack.dlg:
        raise ConfigError("--labels joint: only dlg seeks them with the images; add --attack dlg")
    names = list(dict.fromkeys(algorithms or base.algorithms))
    configs = configured(preset, base.settings, names, pairs or [], max(asked_rounds))
    parent = out or free(f"audit-{Path(configs[names[0]].data.name).stem}")
    content = carried_out(configs, victims, how, parent, quiet=json)
    if json:
        terminal.print_json(content)
    else:
        show(content, parent)


def whole(text: str) -> tuple[int, ...]:
    """Rounds as numbers, each once, ascending."""
    try:
        found = sorted({int(part) for part in text.split(",")})
    except ValueError:
        found = [-1]
    if found[0] < 0:
        raise ConfigError(f"--rounds {text}: must be whole numbers from 0, as in 10,20")
    return tuple(found)


def configured(
    preset: Preset, settings: dict[str, Any], names: Sequence[str], pairs: list[str], rounds: int
) -> dict[str, Config]:
    """A configuration for every algorithm: the preset's, then what the command says."""
    from ..algorithms import algorithm
    from ..config.config import overridden, resolve
    from ..privacy.presets import own_settings

    out = {}
    for name in names:
        if algorithm(name).pooled:
            raise ConfigError(f"{name}: one holds everybody's data, nothing travels; leave it out")
        raw = deepcopy(settings)
        raw |= {"algorithm": {**own_settings(preset, name), "name": name}, "rounds": rounds}
        for pair in pairs:
            if overridden(raw, pair) in ("rounds", "algorithm.name"):
                raise ConfigError(f"-c {pair}: name algorithms and --rounds in the command itself")
        out[name] = resolve(raw)
    return out


def carried_out(
    configs: dict[str, Config], victims: Victims, how: How, parent: Path, quiet: bool
) -> dict[str, Any]:
    """Train what is left to train, attack who is left to attack, and sum it up."""
    from ..papers.table import experiment
    from ..privacy.audit import Log, cases, left
    from ..privacy.presets import TABLE
    from ..privacy.snapshots import States
    from ..privacy.summary import summarised
    from ..report.figures.reconstructions import sheet
    from ..report.figures.run_figures import save

    first = next(iter(configs.values()))
    begin(first)
    federation = first.federation()
    if len(federation.shape) != 3:
        raise ConfigError(f"data.name: an audit needs images, not examples of {federation.shape}")
    if victims.clients > len(federation.clients):
        raise ConfigError(f"--clients {victims.clients}: there are {len(federation.clients)}")
    folders = prepared(parent, configs)
    asked = {
        "algorithms": list(configs),
        "victims": asdict(victims),
        "how": asdict(how),
        "seed": first.top.seed,
        "data": federation.name,
        "shape": list(federation.shape),
        "data_sha256": federation.sha256,
    }
    log, chosen = Log(parent, asked), federation.clients[: victims.clients]
    runs = {
        name: States(config.plan(federation), folder, victims.rounds, chosen)
        for (name, config), folder in zip(configs.items(), folders, strict=True)
    }
    train(configs, runs, log, quiet)
    every = {name: cases(name, states, victims, how, log) for name, states in runs.items()}
    due = {name: open_ for name, mine in every.items() if (open_ := left(mine, log))}
    fight(first.engine, runs, due, how, log, quiet)
    records = log.read()
    content = summarised(records, experiment(TABLE))
    write_json(parent / "audit.json", content)
    if any(r["event"] == "attack" for r in records):
        save(sheet(records), parent / "audit.png")
    return content


def again(runs: dict[str, States]) -> str:
    parent = next(iter(runs.values())).folder.path.parent
    return f"the same command with --out {parent} goes on"


def train(configs: dict[str, Config], runs: dict[str, States], log: Log, quiet: bool) -> None:
    """Play what is left of every run, keeping the states to attack, and see what is sent."""
    from ..experiments.execute import execute
    from ..privacy.audit import watch

    folders = [states.folder for states in runs.values()]
    with terminal.progress(not quiet) as bars, interruptible(again(runs), bars.stop, folders):
        for name, states in runs.items():
            where, plan = configs[name].engine, states.plan
            listen = both(terminal.Bar(bars, name, plan.rounds), states.listener())
            with locked(states.folder) as folder:
                execute(plan, folder, where.name, where.workers, listen, cluster=where)
                states.end()
                watch(name, states, log)


def fight(
    where: EngineSection,
    runs: dict[str, States],
    due: dict[str, list[Case]],
    how: How,
    log: Log,
    quiet: bool,
) -> None:
    """Invert gradients, each recorded as it is done."""
    from ..engines.base import engine
    from ..privacy.audit import inverted

    total, folders = sum(map(len, due.values())), [states.folder for states in runs.values()]
    with (
        terminal.counting(not quiet, "inverting gradients", total) as done,
        interruptible(again(runs), done.progress.stop, folders),
    ):
        for name, cases in due.items():
            states = runs[name]
            with (
                locked(states.folder),
                engine(where.name, where.workers, states.plan, states.place, where) as made,
            ):
                for records in inverted(cases, states, how, made):
                    log.add(records)
                    done()


@contextmanager
def locked(folder: RunFolder) -> Iterator[RunFolder]:
    """Ours, inside."""
    folder.lock()
    try:
        yield folder
    finally:
        folder.close()


def both(*listeners: Callable[[Event], None]) -> Callable[[Event], None]:
    def listen(event: Event) -> None:
        for each in listeners:
            each(event)

    return listen
