"""``server``, ``board`` and ``journal``: the two sides of a run on real boards, and its record."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..core.errors import FolderError
from ..core.files import clean_line
from . import terminal
from .options import (
    SAME_COMMAND,
    ConfigArgument,
    JsonOption,
    SettingsOption,
    TrustOption,
    check_foreign_file,
    find_named_algorithm,
    locate_settings,
    read_settings,
)
from .result_tables import show_run

if TYPE_CHECKING:
    from ..boards.journal import Fact


EnrolmentOption = Annotated[
    Path, typer.Option("--enrolment", help="The file that `heterophony broker enrol` writes.")
]


def register(app: typer.Typer) -> None:
    """Add the commands to the app."""
    app.command()(server)
    app.command()(board)
    app.command("device", hidden=True)(board)  # its name in earlier versions
    app.command()(journal)


def server(
    enrolment: EnrolmentOption,
    file: ConfigArgument = None,
    pairs: SettingsOption = None,
    out: Annotated[Path, typer.Option(help="The run's folder; a run in it continues.")] = Path(
        "runs/boards"
    ),
    trust: TrustOption = False,
    json: JsonOption = False,
) -> None:
    """Serve a run to boards. Started again after any interruption, it continues."""
    from ..algorithms import get_display_name
    from ..boards.broker.certificates import EnrolledClients
    from ..boards.broker.enrolment import read_enrolment
    from ..boards.server import ServerHooks, serve
    from ..config.reading import read_config
    from ..core.errors import ConfigError
    from ..runs.folder import RunFolder

    credentials, folder = read_enrolment(enrolment), RunFolder(out)
    enrolled = EnrolledClients(enrolment.parent)
    if not enrolled.can_be_read:
        terminal.print_note(
            f"{enrolment} is not in the broker's folder: the clients that enrolments name"
            " cannot be checked"
        )
    if folder.config_file.exists():
        named_again = names_own_algorithm(file, pairs or [], folder.config_file)
        config = read_config(folder.config_file, trust=trust or named_again)
        folder.reopen()
    else:
        config = read_settings(file, pairs)
        if config.engine.accelerator not in ("auto", "cpu"):
            raise ConfigError(
                "engine.accelerator: every board chooses its own, as in `heterophony board -c"
                f" engine.accelerator={config.engine.accelerator}`; leave it out here"
            )
        folder.create(config.to_toml())
    try:
        with terminal.show_interruptible_progress(SAME_COMMAND, [folder]) as shown:
            status = shown.begin_run(get_display_name(config.algorithm_name), config.top.rounds)
            hooks = ServerHooks(terminal.print_note, status)
            summary = serve(config, folder, credentials, out.name, hooks, enrolled)
    finally:
        folder.close()
    show_run(summary, folder.path, json, trained=True)


def names_own_algorithm(file: str | None, pairs: list[str], begun: Path) -> bool:
    """Return True if a command names the same algorithm from outside as the run it continues."""
    from ..algorithms import is_own_code

    name = find_named_algorithm(begun, [])
    if not is_own_code(name):
        return False
    settings, chosen = locate_settings(file, pairs)
    check_foreign_file(settings, pairs)
    return find_named_algorithm(settings, [*chosen, *pairs]) == name


def board(
    enrolment: EnrolmentOption,
    clients: Annotated[
        str,
        typer.Option(
            help="The clients on this board, as in 0,1,2; default with --data: all in it."
        ),
    ] = "",
    data: Annotated[
        Path | None,
        typer.Option(
            help="Local data: one client's folder or .npz, or a folder with one per client."
        ),
    ] = None,
    shares: Annotated[
        Path | None,
        typer.Option(
            help="A folder with the clients' shares of the data set, as `fleet data` writes."
        ),
    ] = None,
    folder: Annotated[
        Path, typer.Option(help="Where clients keep personal parameters, which are never sent.")
    ] = Path("board"),
    run: Annotated[
        str | None,
        typer.Option(help="Name of the run; default: the first that a connected server announces."),
    ] = None,
    simulate_slow: Annotated[float, typer.Option(min=1.0, help="Slowdown factor.")] = 1.0,
    memory_limit: Annotated[
        int | None,
        typer.Option(min=64, help="Memory limit in MB; default: what the board has."),
    ] = None,
    pairs: Annotated[
        list[str] | None,
        typer.Option(
            "-c", "--config", help="Where its jobs compute, as in engine.accelerator=cuda."
        ),
    ] = None,
    trust: TrustOption = False,
) -> None:
    """Take part in a run, until it ends. Started again after any interruption, it continues."""
    from ..boards.board import BoardOptions, take_part, wait_for_run
    from ..boards.broker.enrolment import read_enrolment
    from ..config.reading import read_config
    from ..config.short_keys import rename_key
    from ..core.accelerator import find_device
    from ..core.errors import ConfigError
    from ..data.client_folders import find_client_data

    for pair in pairs or []:
        if rename_key(pair.partition("=")[0].strip()) != "engine.accelerator":
            raise ConfigError(
                f"-c {pair}: a board chooses only engine.accelerator; the run decides the rest"
            )
    accelerator = find_device(read_config(None, pairs or []).engine.accelerator)
    credentials = read_enrolment(enrolment)
    names = [c.strip() for c in clients.split(",") if c.strip()]
    own = None if data is None else find_client_data(data, names, credentials.name)
    if own is None and not names:
        raise ConfigError("--clients: missing; name those on this board, as in --clients 0,1,2")
    options = BoardOptions(
        data=own,
        shares=shares,
        slowdown=simulate_slow,
        memory_limit=memory_limit * 1_000_000 if memory_limit else None,
        accelerator=accelerator,
        trust=trust,
    )
    note, held = terminal.print_note, list(own or names)
    with terminal.exit_on_interrupt(SAME_COMMAND, lambda: None):
        run_name = run or wait_for_run(credentials, note)
        take_part(credentials, run_name, folder / credentials.name, held, note, options)
    note("the run has ended")


def journal(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder.")],
    board: Annotated[str | None, typer.Option(help="Only what concerns this board.")] = None,
    kind: Annotated[str | None, typer.Option(help="Only this kind, as in refused.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only check that no line was altered or removed.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Print the journal of a run on boards: who joined, what was refused, what was sent."""
    from ..boards.journal import find_damage, parse_line, read_journal

    lines = read_journal(folder)
    damage = list(find_damage(lines))
    for number, why in damage[:10]:
        terminal.print_note(f"line {number}: {why}")
    if check:
        if damage:
            raise FolderError(f"the journal of {folder} is damaged in {len(damage)} places")
        terminal.print_note(f"{len(lines)} lines, none altered, none missing between them")
        return
    facts = [
        fact
        for fact in map(parse_line, lines)
        if fact and board in (None, fact.board) and kind in (None, fact.kind)
    ]
    if json:
        terminal.print_json([vars(fact) for fact in facts])
        return
    for fact in facts:
        print(clean_line(format_fact(fact)))


def format_fact(fact: Fact) -> str:
    details = "; ".join(f"{key} {format_value(v)}" for key, v in fact.details.items())
    return f"{fact.time}  {fact.kind:9} {fact.board:16} {details}".rstrip()


def format_value(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
