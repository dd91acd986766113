"""``audit``: what somebody who sees all that travels can see of the clients' images."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..audit.size import Preset
from ..errors import ConfigError
from ..files import write_json
from . import screen
from .recovered import show
from .runs import Json, Pairs, begin, free, interruptible, prepared

if TYPE_CHECKING:
    from ..audit.cases import How
    from ..audit.running import Victims
    from ..audit.states import States
    from ..config import Config
    from ..plan import Plan
    from ..results import Event


class Attack(StrEnum):
    """How gradients are inverted."""

    inverting = "inverting"
    dlg = "dlg"


class Labels(StrEnum):
    """What the attacker knows of the labels."""

    known = "known"
    inferred = "inferred"


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
    labels: Annotated[Labels, typer.Option(help="Told to the attacker, or inferred.")] = (
        Labels.known
    ),
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
    from ..audit.presets import preset as of_size

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
    if labels is Labels.inferred and batch > 1:
        raise ConfigError("--labels inferred: only of one image; leave --batch at 1")
    names = list(dict.fromkeys(algorithms or base.algorithms))
    configs = configured(preset, base.settings, names, pairs or [], max(asked_rounds))
    parent = out or free(f"audit-{Path(configs[names[0]].data.name).stem}")
    content = carried_out(configs, victims, how, parent, quiet=json)
    if json:
        screen.print_json(content)
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
    from ..audit.presets import own_settings
    from ..config import overridden, resolve

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
    from ..audit.presets import TABLE
    from ..audit.running import DATA, Log, cases, fight, left
    from ..audit.states import States
    from ..audit.summary import summarised
    from ..engines import cores
    from ..papers import experiment
    from ..report.figures import save
    from ..report.reconstructions import sheet

    first = next(iter(configs.values()))
    begin(first)
    federation = first.federation()
    if len(federation.shape) != 3:
        raise ConfigError(f"data.name: an audit needs images, not examples of {federation.shape}")
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
    log, runs = Log(parent, asked), dict[str, States]()
    workers = 1 if first.engine.name == "serial" else first.engine.workers or cores()
    with interruptible("the same command goes on", lambda: None, folders):
        for (name, config), folder in zip(configs.items(), folders, strict=True):
            plan = config.plan(federation)
            runs[name] = States(plan, folder, victims.rounds, federation.clients[: victims.clients])
            trained(config, plan, runs[name], quiet)
        every = [c for n, states in runs.items() for c in cases(n, states, victims, how, log)]
        due = left(every, log)
        if due and not quiet:
            screen.note(f"{len(due)} gradients to invert, with and without the parts that stay")
        for done, (_, records) in enumerate(fight(due, runs, how, workers, parent), 1):
            log.add(records)
            if not quiet:
                tell(done, len(due))
    records = log.read()
    content = summarised(records, experiment(TABLE))
    write_json(parent / "audit.json", content)
    if any(r["event"] == "attack" for r in records):
        save(sheet(records), parent / "audit.png")
    for states in runs.values():
        shutil.rmtree(states.folder.scratch, ignore_errors=True)
    shutil.rmtree(parent / DATA, ignore_errors=True)
    return content


def tell(done: int, due: int) -> None:
    """A line now and then."""
    if done == due or done % max(1, due // 10) == 0:
        screen.note(f"{done} of {due} gradients inverted")


def trained(config: Config, plan: Plan, states: States, quiet: bool) -> None:
    """Play what is left of a run, keeping the states that will be attacked."""
    from ..session import execute

    states.folder.lock()
    try:
        with screen.progress(not quiet) as bars:
            bar = screen.Bar(bars, config.algorithm_name, plan.rounds)
            listen = both(bar, states.listener())
            execute(plan, states.folder, config.engine.name, config.engine.workers, listen)
            states.end()
    finally:
        states.folder.close()


def both(*listeners: Callable[[Event], None]) -> Callable[[Event], None]:
    def listen(event: Event) -> None:
        for each in listeners:
            each(event)

    return listen
