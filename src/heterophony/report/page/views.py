"""The dashboard's views of a folder: a comparison of runs, or the list of all runs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from time import time
from typing import Any
from urllib.parse import quote

from ...algorithms import get_display_name
from ...core.errors import HeterophonyError
from ...core.files import is_file
from ...core.status_line import format_seconds
from ...results.boards import BoardStatus, build_boards_section, read_board_status
from ...results.overview import (
    RunOverview,
    RunProgress,
    is_running,
    read_held_locks,
    read_run_overview,
    read_run_progress,
)
from ...results.runs import Run, label_runs, load_run
from ...runs.run_index import BOARDS_FILE, CONFIG_FILE, EVENTS_FILE, RESULT_FILE, list_member_runs
from . import html
from .html import dump_safe_json
from .page_data import build_page_data

MAX_DEPTH = 4  # levels of subfolders to search
RunListRow = dict[str, Any]
FileStamp = tuple[int, int, int] | None
FolderStamp = tuple[FileStamp, ...]


@dataclass(frozen=True)
class RunListEntry:
    """A run folder or a folder of run folders, named by its path below the dashboard's folder."""

    name: str
    runs: tuple[Path, ...]
    is_nested: bool = False  # whether the entry is a run in the folder listed before it

    @property
    def last_changed(self) -> int:
        """When the events or configurations of the entry's runs last changed, in nanoseconds."""
        stamps = (stamp for run in self.runs for stamp in stamp_folder(run)[:2])
        return max((stamp[1] for stamp in stamps if stamp), default=0)


def stamp_folder(run: Path) -> FolderStamp:
    """Return stamps that change when the run folder changes, without reading its files."""
    return tuple(stamp_file(run / name) for name in (EVENTS_FILE, CONFIG_FILE, RESULT_FILE))


def stamp_file(path: Path) -> FileStamp:
    """Return size, modification time and inode of a file; None if it does not exist."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns, status.st_ino


def list_entries(folder: Path) -> list[RunListEntry]:
    """List the dashboard's entries below a folder, newest first; a folder of runs is followed by them."""
    groups = sorted(
        find_entry_groups(folder, "", MAX_DEPTH), key=lambda group: -group[0].last_changed
    )
    return [entry for group in groups for entry in group]


def find_entry_groups(folder: Path, prefix: str, depth: int) -> Iterator[list[RunListEntry]]:
    """Find groups of the dashboard's entries: a single run, or a folder followed by its runs."""
    children = list_subfolders(folder)
    runs = [child for child in children if is_run_folder(child)]
    several = bool(prefix) and len(runs) > 1
    entries = [RunListEntry(prefix + run.name, (run,), is_nested=several) for run in runs]
    if several:
        entries.sort(key=lambda entry: -entry.last_changed)
        yield [RunListEntry(prefix.removesuffix("/"), tuple(runs)), *entries]
    else:
        yield from ([entry] for entry in entries)
    for child in children if depth else []:
        if child not in runs:
            yield from find_entry_groups(child, f"{prefix}{child.name}/", depth - 1)


def is_run_folder(folder: Path) -> bool:
    """Return True if a folder holds a run, even if its configuration is not a regular file."""
    file = folder / CONFIG_FILE
    return is_file(file) or (os.path.lexists(file) and not file.is_dir())


def list_subfolders(folder: Path) -> list[Path]:
    """List visible subfolders by name; links are not followed, so a search cannot run in circles."""
    try:
        with os.scandir(folder) as children:
            names = [e.name for e in children if e.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return [folder / name for name in sorted(names) if not name.startswith(".")]


# Rows ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ListedRun:
    """The data of one run in the dashboard's list."""

    progress: RunProgress
    overview: RunOverview

    @property
    def is_unfinished(self) -> bool:
        """Whether the run has started and can still continue."""
        return self.progress.state not in ("finished", "damaged", "unreadable")


def read_listed_run(run: Path) -> ListedRun:
    """Read the state of a run, its G and P over the last ten evaluations, and its small curves."""
    listed = ListedRun(read_run_progress(run), read_run_overview(run))
    try:
        dump_safe_json(build_run_list_row(listed, running=True))
    except Exception:  # an impossible number in one run; the other runs are shown anyway
        return ListedRun(RunProgress(run, "damaged"), RunOverview())
    return listed


def find_running(runs: dict[Path, ListedRun], now: float) -> frozenset[Path]:
    """Return the runs that a process is executing."""
    unfinished = {run: listed for run, listed in runs.items() if listed.is_unfinished}
    locks = read_held_locks() if unfinished else set()
    return frozenset(r for r, own in unfinished.items() if is_running(r, own.overview, locks, now))


def build_run_list_rows(
    entries: Iterable[RunListEntry], runs: dict[Path, ListedRun], running: Container[Path]
) -> list[RunListRow]:
    """Build the rows of the dashboard's list of runs, with the addresses of their pages."""
    return [
        {
            "name": decode_name(entry.name),
            "address": f"?of={quote(entry.name, safe='/', errors='surrogateescape')}",
            "nested": entry.is_nested,
            "runs": len(entry.runs),
            "changed": entry.last_changed // 10**6,  # milliseconds, as in JavaScript
            **merge_run_list_rows(
                [build_run_list_row(runs[run], run in running) for run in entry.runs]
            ),
        }
        for entry in entries
    ]


def build_run_list_row(run: ListedRun, running: bool) -> RunListRow:
    """Build the row of one run in the dashboard's list; ``activity`` is its state in one word."""
    progress, overview = run.progress, run.overview
    activity = progress.state
    if run.is_unfinished:
        activity = (
            "running" if running else "not started" if activity == "not started" else "stopped"
        )
    left = overview.seconds_left if activity == "running" else None
    return {
        "algorithm": get_display_name(progress.algorithm) if progress.algorithm else "–",
        "state": progress.state,
        "activity": activity,
        "done": overview.done,
        "rounds": overview.rounds,
        "seconds_left": left,
        "left": None if left is None else format_seconds(left),
        "G": progress.G and progress.G.last10.mean,
        "P": progress.P and progress.P.last10.mean,
        "curves": overview.curves,
    }


def merge_run_list_rows(rows: Sequence[RunListRow]) -> RunListRow:
    """Merge the rows of a folder's runs: their algorithms, and how many are finished."""
    if len(rows) == 1:
        return rows[0]
    names = list(dict.fromkeys(r["algorithm"] for r in rows if r["algorithm"] != "–"))
    short = names if len(names) <= 4 else [*names[:3], f"{len(names) - 3} more"]
    activities = [r["activity"] for r in rows]
    done = activities.count("finished")
    activity = "finished" if done == len(rows) else "stopped"
    return {
        "algorithm": ", ".join(short) or "–",
        "state": f"{done} of {len(rows)} runs finished",
        "activity": "running" if "running" in activities else activity,
        "done": sum(r["done"] for r in rows),
        "rounds": sum(r["rounds"] for r in rows),
        "seconds_left": None,  # how many of the other runs will run side by side is unknown
        "left": None,
        "G": None,
        "P": None,
        "curves": {},
    }


def decode_name(name: str) -> str:
    """Return a file name as text; bytes that are not UTF-8 are replaced."""
    return os.fsencode(name).decode(errors="replace")


NO_RUN_NOTE = "There is no run in {} yet. This page updates as soon as one starts."
MAX_CACHED_VIEWS = 32  # views whose runs are kept in memory
# By folder: its stamp and its content when it was read, so that only changed folders are read again.
FolderContents = dict[Path, tuple[FolderStamp, Any]]
BoardStatuses = dict[Path, tuple[FileStamp, BoardStatus]]


@dataclass(frozen=True)
class View:
    """A view of the dashboard: a comparison (``runs``) or a list of runs (``rows``), with a note on problems."""

    name: str
    note: str
    runs: tuple[Run, ...] = ()
    rows: list[RunListRow] | None = None
    folder_contents: FolderContents = field(default_factory=dict)
    boards: BoardStatuses = field(default_factory=dict)
    running: frozenset[Path] = frozenset()  # in a run list: the runs that a process is executing
    message_parts: tuple[bytes, ...] = ()  # everything but the boards; the boards

    def render_html(self) -> str:
        """Render the view as a live page."""
        if self.runs:
            return html.render_report(self.runs, live=True)
        return html.render_page(
            "run_list.html",
            html.RUN_LIST_SCRIPTS,
            self.rows or [],
            live=True,
            title=self.name,
            note=self.note,
        )


class ViewLoader:
    """Loads the dashboard's views of a folder, read-only; only names found in the folder can be loaded."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.known_names: set[str] = set()
        self.views: dict[tuple[str, ...], View] = {}
        self.lock = Lock()

    def load_view(self, *names: str) -> View | None:
        """Load the current view of these entries, or of the whole folder; None for an unknown name.

        Errors in the folder become a note, because the next read may succeed.
        """
        with self.lock:
            if not self.known_names.issuperset(names):
                self.known_names |= {entry.name for entry in list_entries(self.root)}
                if not self.known_names.issuperset(names):
                    return None
            old = self.views.pop(names, None)
            try:
                view = self._build_view(names, old)
            except Exception as error:
                view = create_view(
                    self._format_title(*names),
                    f"This cannot be shown: {describe_view_error(error)}.",
                )
            self.views[names] = view
            while len(self.views) > MAX_CACHED_VIEWS:
                del self.views[next(iter(self.views))]
            return view

    def _build_view(self, names: tuple[str, ...], old: View | None) -> View:
        title, folder = self._format_title(*names), self.root.joinpath(*names[:1])
        # a run list and a comparison read different content from the same folders
        old_list, old_comparison = (old, None) if old and old.rows is not None else (None, old)
        if len(names) > 1:
            chosen = dict.fromkeys(f for name in names for f in list_run_folders(self.root / name))
            return build_comparison_view(title, chosen, old_comparison)
        if not folder.is_dir():
            return create_view(
                title, f"{title} does not exist yet. This page updates as soon as it does."
            )
        if (folder / CONFIG_FILE).is_file():
            return build_comparison_view(title, [folder], old_comparison)
        if names or (folder / "compare.json").is_file():
            return build_comparison_view(title, list_member_runs(folder), old_comparison)
        return self._build_run_list(title, old_list)

    def _format_title(self, *names: str) -> str:
        return ", ".join(decode_name(name) for name in names or [str(self.root)])

    def _build_run_list(self, title: str, old: View | None) -> View:
        entries = list_entries(self.root)
        self.known_names |= {entry.name for entry in entries}
        folders = dict.fromkeys(run for entry in entries for run in entry.runs)
        contents = read_changed_folders(folders, old, read_listed_run)
        runs = {run: listed for run, (_, listed) in contents.items()}
        running = find_running(runs, time())  # may change although the folder does not
        same = old and list_stamps(contents) == list_stamps(old.folder_contents)
        if old and same and running == old.running:
            return old
        rows = build_run_list_rows(entries, runs, running)
        note = "" if entries else NO_RUN_NOTE.format(title)
        return create_view(title, note, rows=rows, folder_contents=contents, running=running)


def list_run_folders(folder: Path) -> list[Path]:
    """Return the folder itself if it is a run or does not exist, otherwise the runs in it."""
    if (folder / CONFIG_FILE).is_file() or not folder.is_dir():
        return [folder]
    return list_member_runs(folder)


def build_comparison_view(title: str, folders: Iterable[Path], old: View | None) -> View:
    """Build the dashboard's comparison of runs; its note names runs that cannot be shown."""
    contents = read_changed_folders(folders, old, load_run_or_reason)
    boards = read_changed_boards(contents, old)
    same = old and old.folder_contents and list_stamps(contents) == list_stamps(old.folder_contents)
    if old and same and boards.keys() == old.boards.keys():
        return update_boards(old, boards)
    problems = [
        f"{decode_name(f.name)} {why}." for f, (_, why) in contents.items() if type(why) is str
    ]
    if not contents:
        problems = [NO_RUN_NOTE.format(title)]
    runs = label_runs([run for _, run in contents.values() if isinstance(run, Run)])
    view = create_view(
        title,
        " ".join(problems),
        runs=tuple(attach_boards(run, boards) for run in runs),
        folder_contents=contents,
    )
    return update_boards(view, boards)


def update_boards(view: View, boards: BoardStatuses) -> View:
    """Return the view with the current status of boards; the same object if nothing changed."""
    if not boards:
        return view
    labels = {run.folder: run.label for run in view.runs}
    names = {f: labels.get(f, decode_name(f.name)) for f in boards}
    sections = [build_boards_section(d, names[f], time()) for f, (_, d) in boards.items()]
    parts = (
        view.message_parts[0],
        f"event: boards\ndata: {html.dump_safe_json(sections)}\n\n".encode(),
    )
    if parts == view.message_parts:
        return view
    runs = tuple(attach_boards(run, boards) for run in view.runs)
    return replace(view, runs=runs, boards=boards, message_parts=parts)


def attach_boards(run: Run, boards: BoardStatuses) -> Run:
    """Return the run with the current status of its boards."""
    return replace(run, boards=boards[run.folder][1]) if run.folder in boards else run


def create_view(name: str, note: str, **fields: Any) -> View:
    """Create a view of the dashboard, with its message for the event stream."""
    view = View(name, note, **fields)
    parts = [f"event: note\ndata: {json.dumps(note)}\n\n"]
    if view.runs:
        parts.append(f"data: {html.dump_safe_json(build_page_data(view.runs))}\n\n")
    elif view.rows is not None:
        parts.append(f"event: run_list\ndata: {html.dump_safe_json(view.rows)}\n\n")
    return replace(view, message_parts=("".join(parts).encode(),))


def load_run_or_reason(folder: Path) -> Run | str:
    """Load a run, or return why it cannot be shown; a half-written file may raise any error."""
    events = stamp_folder(folder)[0]
    if not events or not events[0]:
        return "has not started yet"
    try:
        run = load_run(folder)
        check_showable(run)
    except Exception as error:
        return f"cannot be shown: {describe_view_error(error)}"
    return run


def check_showable(run: Run) -> None:
    """Raise an error if the page of this run cannot be built."""
    html.dump_safe_json(build_page_data([run]))


def describe_view_error(error: Exception) -> str:
    """Describe why a run or a folder cannot be shown."""
    if isinstance(error, HeterophonyError):
        return str(error)
    return "its files are damaged, or were written by another version"


def read_changed_folders(
    folders: Iterable[Path], old: View | None, read: Callable[[Path], Any]
) -> FolderContents:
    """Return the content of each run folder; read only changed folders again."""
    before, out = old.folder_contents if old else {}, {}
    for folder in folders:
        # stamp before reading: a change in between is then noticed at the next read
        stamp, known = stamp_folder(folder), before.get(folder)
        out[folder] = known if known and known[0] == stamp else (stamp, read(folder))
    return out


def read_changed_boards(folders: Iterable[Path], old: View | None) -> BoardStatuses:
    """Return the board status of each run that has boards; read only changed files again."""
    before, out = old.boards if old else {}, {}
    for folder in folders:
        stamp, known = stamp_file(folder / BOARDS_FILE), before.get(folder)
        if known and known[0] == stamp:
            out[folder] = known
        elif stamp and (table := read_board_status(folder)):
            out[folder] = stamp, table
    return out


def list_stamps(contents: FolderContents) -> list[tuple[Path, FolderStamp]]:
    """List the stamps of folders, which show whether a folder has changed."""
    return [(folder, stamp) for folder, (stamp, _) in contents.items()]
