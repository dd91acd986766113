"""The commands ``server``, ``board``, ``journal``, ``testbed`` and ``broker``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..core.errors import ConfigError, FolderError
from ..core.files import clean_line
from ..results.table import Column, Columns, ResultTable
from . import options, terminal
from .terminal import show_run

if TYPE_CHECKING:
    from ..boards.broker.broker import Broker
    from ..boards.journal import Fact
    from ..boards.testbed import Testbed
    from ..config.config import Config
    from ..runs.folder import RunFolder


EnrolmentOption = Annotated[
    Path, typer.Option("--enrolment", help="The file that `heterophony broker enrol` writes.")
]


def register(app: typer.Typer) -> None:
    """Add the commands for boards and the broker to the app."""
    app.command()(server)
    app.command()(board)
    app.command("device", hidden=True)(board)  # former name
    app.command()(journal)
    app.command("testbed")(run_testbed)
    group = typer.Typer(no_args_is_help=True, help="Run the MQTT broker between server and boards.")
    for command in (up, down, enrol, revoke, status):
        group.command()(command)
    app.add_typer(group, name="broker")


def server(
    enrolment: EnrolmentOption,
    file: options.ConfigArgument = None,
    pairs: options.SettingsOption = None,
    out: Annotated[Path, typer.Option(help="The run folder; an existing run is continued.")] = Path(
        "runs/boards"
    ),
    trust: options.TrustOption = False,
    json: options.JsonOption = False,
) -> None:
    """Serve a run to boards. After an interruption, run the command again to continue."""
    from ..algorithms import get_display_name
    from ..boards.broker.certificates import EnrolledClients
    from ..boards.broker.enrolment import read_enrolment
    from ..boards.server import ServerHooks, serve
    from ..config.reading import read_config
    from ..runs.folder import RunFolder

    credentials, folder = read_enrolment(enrolment), RunFolder(out)
    enrolled = EnrolledClients(enrolment.parent)
    if not enrolled.can_be_read:
        terminal.print_note(
            f"{enrolment} is not in the broker's folder, so boards are not checked against their enrolments"
        )
    if folder.config_file.exists():
        named_again = names_same_code(file, pairs or [], folder.config_file)
        config = read_config(folder.config_file, trust=trust or named_again)
        folder.reopen()
    else:
        config = options.read_settings(file, pairs)
        if config.engine.accelerator not in ("auto", "cpu"):
            raise ConfigError(
                "engine.accelerator: each board chooses its own accelerator, as in `heterophony board -c"
                f" engine.accelerator={config.engine.accelerator}`; leave it out here"
            )
        folder.create(config.to_toml())
    try:
        with terminal.show_interruptible_progress(options.SAME_COMMAND, [folder]) as shown:
            status = shown.begin_run(get_display_name(config.algorithm_name), config.top.rounds)
            hooks = ServerHooks(terminal.print_note, status)
            summary = serve(config, folder, credentials, out.name, hooks, enrolled)
    finally:
        folder.close()
    show_run(summary, folder.path, json, trained=True)


def names_same_code(file: str | None, pairs: list[str], begun: Path) -> bool:
    """Return True if ``server`` was called with the same external modules as the run that it continues."""
    from ..core.own_modules import is_own_code

    own = {k: name for k, name in options.find_named_code(begun, []).items() if is_own_code(name)}
    if not own:
        return False
    settings, chosen = options.locate_settings(file, pairs)
    options.check_foreign_file(settings, pairs)
    named = options.find_named_code(settings, [*chosen, *pairs])
    return all(named.get(key) == name for key, name in own.items())


ClientsOption = Annotated[
    str,
    typer.Option(
        help="The clients on this board, as in 0,1,2; default with --data: all clients in it."
    ),
]
DataOption = Annotated[
    Path | None,
    typer.Option(help="Local data: one client's folder or .npz, or a folder with one per client."),
]
SharesOption = Annotated[
    Path | None,
    typer.Option(help="A folder with the clients' shares of the data set, as `fleet data` writes."),
]
FolderOption = Annotated[
    Path, typer.Option(help="The folder for clients' personal parameters, which are never sent.")
]
RunOption = Annotated[
    str | None,
    typer.Option(help="Name of the run; default: the first that a connected server announces."),
]
MemoryLimitOption = Annotated[
    int | None,
    typer.Option(min=64, help="Memory limit in MB; default: the board's memory."),
]
PairsOption = Annotated[
    list[str] | None,
    typer.Option(
        "-c",
        "--config",
        help="The accelerator of this board's jobs, as in engine.accelerator=cuda.",
    ),
]


def board(
    enrolment: EnrolmentOption,
    clients: ClientsOption = "",
    data: DataOption = None,
    shares: SharesOption = None,
    folder: FolderOption = Path("board"),
    run: RunOption = None,
    simulate_slow: Annotated[float, typer.Option(min=1.0, help="Slowdown factor.")] = 1.0,
    memory_limit: MemoryLimitOption = None,
    pairs: PairsOption = None,
    trust: options.TrustOption = False,
) -> None:
    """Take part in a run until it finishes. After an interruption, run the command again to continue."""
    from ..boards.board import BoardOptions, take_part_in_run, wait_for_run
    from ..boards.broker.enrolment import read_enrolment
    from ..config.keys import rename_key
    from ..config.reading import read_config
    from ..core.accelerator import find_device
    from ..data.folders import find_client_data

    for pair in pairs or []:
        if rename_key(pair.partition("=")[0].strip()) != "engine.accelerator":
            raise ConfigError(
                f"-c {pair}: a board chooses only engine.accelerator; the run sets everything else"
            )
    accelerator = find_device(read_config(None, pairs or []).engine.accelerator)
    credentials = read_enrolment(enrolment)
    names = [c.strip() for c in clients.split(",") if c.strip()]
    own = None if data is None else find_client_data(data, names, credentials.name)
    if own is None and not names:
        raise ConfigError(
            "--clients: missing; name the clients on this board, as in --clients 0,1,2"
        )
    how = BoardOptions(
        data=own,
        shares=shares,
        slowdown=simulate_slow,
        memory_limit=memory_limit * 1_000_000 if memory_limit else None,
        accelerator=accelerator,
        trust=trust,
    )
    note, held = terminal.print_note, list(own or names)
    with terminal.exit_on_interrupt(options.SAME_COMMAND, lambda: None):
        run_name = run or wait_for_run(credentials, note)
        take_part_in_run(credentials, run_name, folder / credentials.name, held, note, how)
    note("the run has finished")


def journal(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")],
    board: Annotated[
        str | None,
        typer.Option("--board", "--device", help="Print only entries about this board."),
    ] = None,
    kind: Annotated[
        str | None, typer.Option(help="Print only entries of this kind, as in refused.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only check that no line was altered or removed.")
    ] = False,
    json: options.JsonOption = False,
) -> None:
    """Print the journal of a run on boards: who joined, what was refused, what was sent."""
    from ..boards.journal import find_altered_lines, parse_journal_line, read_journal

    lines = read_journal(folder)
    damage = list(find_altered_lines(lines))
    for number, why in damage[:10]:
        terminal.print_note(f"line {number}: {why}")
    if check:
        if damage:
            raise FolderError(f"the journal of {folder} is damaged in {len(damage)} places")
        terminal.print_note(
            f"{len(lines)} lines; none was altered, and none is missing between them"
        )
        return
    facts = [
        fact
        for fact in map(parse_journal_line, lines)
        if fact and board in (None, fact.board) and kind in (None, fact.kind)
    ]
    if json:
        terminal.print_json([vars(fact) for fact in facts])
        return
    for fact in facts:
        print(clean_line(format_fact(fact)))


def format_fact(fact: Fact) -> str:
    """Format a journal entry as one line."""
    details = "; ".join(f"{key} {format_journal_value(v)}" for key, v in fact.details.items())
    return f"{fact.time}  {fact.kind:9} {fact.board:16} {details}".rstrip()


def format_journal_value(value: Any) -> str:
    """Format a value in the details of a journal entry."""
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


DEFAULT_ALGORITHM, DEFAULT_CLIENTS = "fedreg", 30  # defaults without a configuration file


def run_testbed(
    file: options.ConfigArgument = None,
    pairs: options.SettingsOption = None,
    boards: Annotated[
        int | None,
        typer.Option(
            "--boards",
            "--devices",
            min=1,
            help="Number of boards; clients are distributed evenly. Default: as before, or 10.",
        ),
    ] = None,
    faults: Annotated[
        list[str] | None,
        typer.Option(
            help="Inject a fault after every round into one of these: boards, server, broker, network or all, as in boards,broker."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="The run folder; an existing run is continued.")] = Path(
        "runs/testbed"
    ),
    json: options.JsonOption = False,
) -> None:
    """Rehearse a run on boards: broker, server and boards are processes of this machine."""
    from ..boards.broker.process import find_mosquitto

    find_mosquitto()
    open_broker(out)  # raises if its packages are missing
    from ..boards.server import check_boards_can_run
    from ..boards.testbed import (
        Testbed,
        assign_clients,
        parse_fault_kinds,
        start_testbed_fork_server,
    )
    from ..runs.folder import RunFolder
    from ..runs.summary import summarise
    from ..studies.spec import RunSpec, read_federation

    kinds = parse_fault_kinds(faults or [])
    config = options.read_settings(file, pairs, list_default_settings(pairs or []))
    if config.engine.accelerator not in ("auto", "cpu"):
        raise ConfigError("engine.accelerator: a testbed computes on the CPU; leave it out")
    folder = RunFolder(out)
    check_boards_can_run(config)
    start_testbed_fork_server()
    federation = read_federation(config)
    config.build_board_plan(federation)  # raises before anything is written
    assignment = assign_clients(federation.clients, boards, folder)
    RunSpec(config.fill_model_defaults(federation)).open_folder(folder)
    try:
        if not folder.result_file.exists():
            bed = Testbed(folder, assignment, config.top.seed, kinds, terminal.print_note)
            supervise_testbed(bed, config, folder, list(federation.sizes("test").values()))
    finally:
        folder.close()
    show_run(summarise(list(folder.iterate_events())), folder.path, json, trained=True)


def supervise_testbed(bed: Testbed, config: Config, folder: RunFolder, sizes: list[int]) -> None:
    """Run a testbed and show its progress; ``sizes`` has each client's number of test examples."""
    from ..algorithms import get_display_name
    from ..studies.hooks import show_progress

    with show_progress() as shown:
        name = get_display_name(config.algorithm_name)
        bed.on_event = shown.begin_run(name, config.top.rounds, sizes)

        def clean_up() -> None:
            shown.stop()
            bed.stop()

        with terminal.exit_on_interrupt(options.SAME_COMMAND, clean_up, [folder]), bed:
            bed.supervise()


def list_default_settings(pairs: list[str]) -> list[str]:
    """List the default settings of a testbed, without the number of clients if the data name them."""
    from ..config.keys import expand_section, find_choice
    from ..data.sources import find_named_clients

    chosen = [expand_section(pair) for pair in pairs]
    name, *users = (find_choice({}, chosen, k, "") for k in ("data.name", "data.users", "users"))
    named = bool(name) and find_named_clients(name, "".join(users) or None).names
    usual = [f"algorithm.name={DEFAULT_ALGORITHM}"]
    return usual if named else [*usual, f"data.clients={DEFAULT_CLIENTS}"]


# The broker -------------------------------------------------------------------------------------

FolderArgument = Annotated[Path, typer.Argument(metavar="[DIR]", help="The folder of the broker.")]
BoardArgument = Annotated[str, typer.Argument(metavar="BOARD", help="The name of the board.")]
DEFAULT_FOLDER = Path("broker")


def open_broker(folder: Path) -> Broker:
    """Open the broker in a folder; raise ConfigError if its packages are missing."""
    try:
        from ..boards.broker.broker import Broker
    except ImportError:
        raise ConfigError(
            "the broker needs cryptography; install it with pip install 'heterophony[mqtt]'"
        ) from None
    return Broker(folder)


def up(
    folder: FolderArgument = DEFAULT_FOLDER,
    lan: Annotated[
        bool | None,
        typer.Option(
            "--lan/--no-lan",
            help="Also listen to other machines. Default: as last time; off at first.",
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="0: any free port. Default: as last time; 8883 at first."
        ),
    ] = None,
) -> None:
    """Start Mosquitto in the background, with TLS and access control; create the folder if needed."""
    broker = open_broker(folder)
    listen, started = broker.start(lan, port)
    reach = "this machine and others" if listen.lan else "this machine only"
    terminal.print_note(f"{'up' if started else 'already up'} on port {listen.port}, for {reach}")
    if started and os.geteuid() == 0:
        terminal.print_note(
            "Mosquitto runs as root, because root started it; an ordinary user is safer"
        )
    terminal.print_note(f"the server's enrolment: {broker.server_enrolment_file}")


def down(folder: FolderArgument = DEFAULT_FOLDER) -> None:
    """Stop Mosquitto; running servers and boards continue after the next `up`."""
    terminal.print_note("down" if open_broker(folder).stop() else "the broker was not running")


def enrol(
    board: BoardArgument,
    folder: FolderArgument = DEFAULT_FOLDER,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", help="The file to write; default: BOARD.toml in the current folder."
        ),
    ] = None,
    clients: Annotated[
        str | None,
        typer.Option(help="Allow only these clients on the board, as in 0,1,2; default: any."),
    ] = None,
) -> None:
    """Enrol a board: write the only file it needs. It holds a private key; keep it secret."""
    file = out or Path(f"{board}.toml")
    names = [] if clients is None else [c.strip() for c in clients.split(",")]
    enrolment = open_broker(folder).enrol(board, file, names)
    print(file)
    terminal.print_note(
        f"{board} finds the broker at {enrolment.address}:{enrolment.port}; valid until"
        f" {enrolment.until:%Y-%m-%d}; copy the file to the board, then delete it here"
    )


def revoke(board: BoardArgument, folder: FolderArgument = DEFAULT_FOLDER) -> None:
    """Revoke a board's enrolment at once and for good; `enrol` makes a new one."""
    open_broker(folder).revoke(board)
    terminal.print_note(f"{board} is revoked")


def status(folder: FolderArgument = DEFAULT_FOLDER, json: options.JsonOption = False) -> None:
    """Show whether the broker is up, its port, and the enrolled boards."""
    broker = open_broker(folder)
    listen, pid = broker.read_listen_settings(), broker.find_pid()
    boards = broker.certificate_store.list_enrolled()
    if json:
        rows = [
            {"name": d.name, "until": d.until.isoformat(), "clients": list(d.clients)}
            for d in boards
        ]
        terminal.print_json(
            {"up": pid is not None, "pid": pid, "port": listen.port, "lan": listen.lan}
            | {"boards": rows}
        )
        return
    state = "down" if pid is None else f"up, process {pid}"
    reach = "this machine and others" if listen.lan else "this machine only"
    title = f"{state}; port {listen.port}, for {reach}"
    cells = [[d.name, f"{d.until:%Y-%m-%d}", ", ".join(d.clients) or "any"] for d in boards]
    columns: Columns = ["board", Column("valid until"), Column("clients")]
    terminal.print_table(ResultTable.build(columns, cells, title))
