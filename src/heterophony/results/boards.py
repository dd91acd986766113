"""The boards of a run, for the page: their states from the server's file, and their activities by round.

Both contain values that boards sent, so none is trusted: a malformed file becomes a
one-line problem, and malformed numbers are left out.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

from ..core.errors import ConfigError
from ..core.files import UnsuitableFileError, read_regular_file, sort_names, write_atomically
from ..runs.events import Event, RoundEvent, select_rounds
from ..runs.run_index import BOARDS_FILE
from .table import Column, Columns, ResultTable, Rows, Value, render_csv, render_table_data

FORMAT_VERSION = 1
MAX_FILE_BYTES = 8 << 20
MAX_TEXT_LENGTH = 1000  # longest text in the status file
SILENCE_SECONDS = 30.0  # seconds without an update after which the server may have stopped
STATE_LABELS = {"here": "here", "arriving": "arriving", "expected": "not yet here"}
STATE_LABELS |= {"gone": "gone", "refused": "refused", "shut_out": "shut out"}
ACTIVITY_LABELS = {"asked": "asked for", "pull": "pulling for", "send": "sending for"}
ACTIVITY_LABELS |= {"train": "training", "evaluate": "measuring", "join": "joining"}
COLUMN_TITLES: Columns = [
    "board",
    "state",
    "clients",
    "now",
    "jobs",
    "seconds",
    "down",
    "up",
    "reconnects",
]
COLUMN_TITLES += ["refused", "last reason"]
MAX_LISTED_CLIENTS = 12  # clients listed per board; the others are counted
Json = dict[str, Any]


@dataclass(frozen=True)
class BoardStatus:
    """The states of a run's boards and their table, or a problem with the board status file."""

    problem: str = ""
    server: str = ""  # waiting, running, ended, stopped
    written_at: float = 0.0
    states: tuple[str, ...] = ()  # state of each board, in the order of the rows
    table: ResultTable = ResultTable((), ())
    num_refused: int = 0  # replies and messages, including those from unknown boards


def read_board_status(folder: Path) -> BoardStatus | None:
    """Read the board status that the server last wrote to the run folder; None if the run has no boards."""
    path = folder / BOARDS_FILE
    try:
        return parse_board_status(json.loads(read_regular_file(path, MAX_FILE_BYTES)))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        pass
    except UnsuitableFileError:  # too large, or not a regular file
        pass
    except OSError as error:
        return BoardStatus(f"The boards cannot be shown: {BOARDS_FILE}: {error.strerror}.")
    return BoardStatus(
        f"The boards cannot be shown: {BOARDS_FILE} is damaged, or of another version."
    )


def parse_board_status(content: Json) -> BoardStatus:
    """Parse the content of the board status file; raise an error if it is malformed."""
    if content["form"] != FORMAT_VERSION:
        raise ValueError("another version")
    written = require_number(content["written"])
    format_time(written, written)  # raises if it is not a date
    boards, others = content["boards"], content["others"]
    refused = [count_refused(others), require_count(content["foreign"])]
    refused += [count_refused(board) for board in boards.values()]
    rows = [list_board_cells(require_text(n), board, written) for n, board in boards.items()]
    return BoardStatus(
        "",
        require_text(content["state"]),
        written,
        tuple(require_text(board["state"]) for board in boards.values()),
        ResultTable.build(COLUMN_TITLES, rows),
        sum(refused),
    )


def count_refused(board: Json) -> int:
    """Count the refused and the wrong replies of a board."""
    return require_count(board["refused"]) + require_count(board["wrong"])


def list_board_cells(name: str, board: Json, written: float) -> list[Value]:
    """List the cells of a board in the table of boards."""
    state, since = require_text(board["state"]), board["since"]
    away = state == "gone" and since is not None
    return [
        name,
        f"gone since {format_time(require_number(since), written)}"
        if away
        else STATE_LABELS[state],
        format_client_list([require_text(c) for c in board["clients"]]),
        "; ".join(describe_activity(d) for d in board["doing"]) or "–",
        str(require_count(board["jobs"])),
        f"{require_number(board['seconds']):.1f}",
        format_bytes(require_count(board["bytes_down"])),
        format_bytes(require_count(board["bytes_up"])),
        str(require_count(board["reconnects"])),
        str(count_refused(board)),
        require_text(board["why"]) or "–",
    ]


# Texts --------------------------------------------------------------------------------------
def build_boards_section(boards: BoardStatus, label: str = "", now: float | None = None) -> Json:
    """Build the page's section about boards, with a warning if the server has not responded for long."""
    section = {"run": label, "table": render_table_data(boards.table), "states": boards.states}
    if boards.problem:
        return {**section, "summary": boards.problem, "caption": ""}
    ended = boards.server == "ended"
    when = format_time(boards.written_at, now or boards.written_at)
    sentences = [summarise_boards(boards), "The run has finished." if ended else ""]
    silent = not ended and now and now - boards.written_at > SILENCE_SECONDS
    if silent or boards.server == "stopped":
        sentences[1] = f"The server has stopped or not responded since {when}."
    caption = "at the end of the run" if ended else f"as of {when}"
    return {
        **section,
        "summary": " ".join(filter(None, sentences)),
        "caption": ", ".join(filter(None, (label, caption))),
    }


def summarise_boards(boards: BoardStatus) -> str:
    """Describe how many boards are in each state and how many messages were refused."""
    states, n = Counter(boards.states), len(boards.states)
    counts = [f"{states[state]} {label}" for state, label in STATE_LABELS.items() if states[state]]
    total = f"{n} board{'s' * (n != 1)}"
    parts = [f"{total}: {', '.join(counts)}" if counts else "No board yet"]
    if boards.num_refused:
        parts.append(f"{boards.num_refused} refused replies and messages")
    return "; ".join(parts) + "."


def describe_activity(doing: Json) -> str:
    """Describe what a board is doing, as in ``training client 3, round 7``."""
    return f"{ACTIVITY_LABELS[doing['what']]} client {require_text(doing['client'])}, round {require_count(doing['t'])}"


def format_client_list(names: Sequence[str]) -> str:
    """Format the clients of a board; those after ``MAX_LISTED_CLIENTS`` are only counted."""
    rest = len(names) - MAX_LISTED_CLIENTS
    return ", ".join(names[:MAX_LISTED_CLIENTS]) + (f" and {rest} more" if rest > 0 else "") or "–"


def format_bytes(n: int) -> str:
    """Format a number of bytes with its unit."""
    for unit, bytes_ in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n >= bytes_:
            return f"{n / bytes_:.1f} {unit}"
    return f"{n} B"


def format_time(date: float, reference: float) -> str:
    """Format the time of day, with the date if it differs from that of ``reference``."""
    time, other = datetime.fromtimestamp(date), datetime.fromtimestamp(reference)
    return time.strftime("%H:%M:%S" if time.date() == other.date() else "%Y-%m-%d %H:%M:%S")


# Checks of untrusted values ---------------------------------------------------------------------------------
def require_text(value: Any) -> str:
    """Return a text that a board reported, cut to ``MAX_TEXT_LENGTH``; raise TypeError for other values."""
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value[:MAX_TEXT_LENGTH]


def require_count(value: Any) -> int:
    """Return a count that a board reported; raise ValueError unless it is a whole number from 0 to 2⁶³ − 1."""
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError("not a count")
    return value


def require_number(value: Any) -> float:
    """Return a number that a board reported; raise ValueError if it is not finite."""
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError("not a number")
    return float(value)


# Rounds -------------------------------------------------------------------------------------

MAX_DRAWN_ROUNDS = 30  # rounds drawn per run; more would make the page slow
MAX_DRAWN_SPANS = 400  # spans drawn per board and round
ACTIVITIES = ("receive", "train", "evaluate", "send")
SECONDS = ("train", "evaluate", "transfer", "wait")
NUMBERS = (
    *(*SECONDS, "bytes_down", "bytes_up", "peak_bytes", "cpu_share", "celsius", "joules"),
    "clients_possible",
)
ROUND_COLUMNS = (
    *(Column(f"{activity} s") for activity in SECONDS),
    *map(Column, ("down", "up", "memory", "CPU", "°C", "J", "clients possible")),
)


class LabelledRun(Protocol):
    """A run with its label and events; stands for ``runs.Run``, which imports ``BoardStatus`` from here."""

    @property
    def label(self) -> str: ...

    @property
    def events(self) -> list[Event]: ...


def iterate_board_rounds(event: RoundEvent) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each board's name and reported values in a round."""
    boards = event.get("boards")
    if isinstance(boards, dict):
        known = {str(name): values for name, values in boards.items() if isinstance(values, dict)}
        yield from ((name, known[name]) for name in sort_names(known))


def get_finite_number(values: Mapping[str, Any], key: str) -> float | None:
    """Return the number under a key; None if it is missing or not finite."""
    value = values.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


# The page -----------------------------------------------------------------------------------
def build_board_rounds_section(run: LabelledRun) -> Json | None:
    """Build the section with charts of single rounds and a table of averages; None if the run has no boards."""
    rounds = [e for e in select_rounds(run.events) if any(iterate_board_rounds(e))]
    if not rounds:
        return None
    return {
        "run": run.label,
        "rounds": [build_round_chart(e) for e in select_evenly(rounds, MAX_DRAWN_ROUNDS)],
        "left_out": max(0, len(rounds) - MAX_DRAWN_ROUNDS),
        "table": render_table_data(build_round_table(rounds)),
    }


def select_evenly(rounds: Sequence[RoundEvent], count: int) -> list[RoundEvent]:
    """Return at most ``count`` evenly spaced rounds, including the first and the last."""
    if len(rounds) <= count:
        return list(rounds)
    places = {round(i * (len(rounds) - 1) / (count - 1)) for i in range(count)}
    return [rounds[i] for i in sorted(places)]


def build_round_chart(event: RoundEvent) -> Json:
    """Build the chart data of a round: the activities of every board."""
    return {
        "t": event["t"],
        "seconds": event["seconds"],
        "boards": [
            {"name": name, "spans": parse_spans(values.get("spans"))}
            for name, values in iterate_board_rounds(event)
        ],
    }


def parse_spans(spans: Any) -> list[list[Any]]:
    """Parse a board's spans [activity, client, begin, end]; leave out malformed ones."""
    found = []
    for span in spans[:MAX_DRAWN_SPANS] if isinstance(spans, list) else []:
        if isinstance(span, list) and len(span) == 4 and span[0] in ACTIVITIES:
            ends = [get_finite_number({"": n}, "") for n in span[2:]]
            if None not in ends:
                found.append([ACTIVITIES.index(span[0]), str(span[1])[:64], *ends])
    return found


def build_round_table(rounds: Sequence[RoundEvent]) -> ResultTable:
    """Build the table of boards with averages over the rounds."""
    values: dict[str, dict[str, list[float]]] = {}
    for event in rounds:
        for name, board in iterate_board_rounds(event):
            for key in NUMBERS:
                if (number := get_finite_number(board, key)) is not None:
                    values.setdefault(name, {}).setdefault(key, []).append(number)
    rows = [[name, *list_round_cells(values[name], len(rounds))] for name in sort_names(values)]
    return ResultTable.build(["board", *ROUND_COLUMNS], rows)


def list_round_cells(found: Mapping[str, list[float]], rounds: int) -> list[Value]:
    """List the cells of a board in the table of averages over the rounds."""

    def average(key: str) -> float:
        return sum(found.get(key, [])) / rounds

    def combine(key: str, how: Callable[[list[float]], float], form: str = "{:.0f}") -> str | None:
        return form.format(how(found[key])) if key in found else None

    peak = found.get("peak_bytes")
    return [
        *(average(key) for key in SECONDS),
        *(format_bytes(round(average(key))) for key in ("bytes_down", "bytes_up")),
        format_bytes(round(max(peak))) if peak else None,
        combine("cpu_share", lambda shares: 100 * fmean(shares), "{:.0f} %"),
        combine("celsius", max),
        combine("joules", sum),
        combine("clients_possible", lambda counts: counts[-1]),
    ]


def write_board_rounds(runs: Sequence[LabelledRun], path: Path) -> None:
    """Write a CSV of boards' rounds: one line per run, round and board."""
    if path.suffix != ".csv":
        raise ConfigError(f"--kind boards: write a .csv, as in -o boards.csv, not {path.name}")
    rows: Rows = [
        [
            *(run.label, event["t"], event["seconds"], name),
            *(None if n is None else n if n % 1 else int(n) for n in list_board_numbers(values)),
        ]
        for run in runs
        for event in select_rounds(run.events)
        for name, values in iterate_board_rounds(event)
    ]
    table = ResultTable.build(["run", "round", "round_seconds", "board", *NUMBERS], rows)
    write_atomically(path, render_csv(table).encode())


def list_board_numbers(values: Mapping[str, Any]) -> list[float | None]:
    """List a board's ``NUMBERS`` in one round; missing ones are None."""
    return [get_finite_number(values, key) for key in NUMBERS]
