"""What a folder of runs has to show now: runs side by side, or a list to choose from."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from string import Template
from threading import Lock
from time import time
from typing import Any

from ...analysis.devices import Devices
from ...analysis.devices import read as read_devices
from ...analysis.devices import shown as shown_devices
from ...analysis.runs import Run, load, named
from ...core.errors import HeterophonyError
from ...run.run_index import CONFIG, DEVICES, members
from . import html
from .page_data import content
from .run_list import (
    Mark,
    Row,
    Stamp,
    mark,
    places,
    readable,
    rows,
    stamp,
    standing,
)

KEPT = 32  # views whose runs stay in memory
Read = dict[Path, tuple[Stamp, Any]]  # what was read of a folder, and when it looked so
OnDevices = dict[Path, tuple[Mark, Devices]]  # the same of runs on devices


@dataclass(frozen=True)
class View:
    """Runs side by side, or a list to choose from, and in words what cannot be shown."""

    name: str
    note: str
    runs: tuple[Run, ...] = ()
    rows: list[Row] | None = None
    read: Read = field(default_factory=dict)
    devices: OnDevices = field(default_factory=dict)
    parts: tuple[bytes, ...] = ()  # of the message: all but the devices, and these

    @property
    def message(self) -> bytes:
        """All of it, for an event stream."""
        return b"".join(self.parts)

    def html(self) -> str:
        """The page that shows it, and follows from there."""
        if self.runs:
            return html.render(self.runs, live=True)
        js = "\n".join(html.part(name) for name in ("board.js", "devices.js", "live.js"))
        css = html.part("page.css") + html.part("live.css")
        return Template(html.part("board.html")).substitute(
            policy=html.policy(css, js, live=True),
            title=escape(self.name),
            note=escape(self.note),
            css=css,
            js=js,
            data=html.block(self.rows or []),
        )


class Board:
    """A folder that is looked at, never written to; a name leads only to what was found in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.known: set[str] = set()
        self.views: dict[str, View] = {}
        self.lock = Lock()

    def look(self, name: str = "") -> View | None:
        """What there is to see under a name now; None if nothing ever was.

        Whatever is wrong in the folder becomes words: it may be right again at the next look.
        """
        with self.lock:
            if name and name not in self.known:
                self.known |= {place.name for place in places(self.root)}
                if name not in self.known:
                    return None
            old = self.views.pop(name, None)
            try:
                view = self._view(name, old)
            except Exception as error:
                view = told(self._title(name), f"This cannot be shown now: {words(error)}.")
            self.views[name] = view
            while len(self.views) > KEPT:
                del self.views[next(iter(self.views))]
            return view

    def _view(self, name: str, old: View | None) -> View:
        folder, title = self.root / name, self._title(name)
        # a list and runs side by side read different things of the same folders
        list_, report = (old, None) if old and old.rows is not None else (None, old)
        if not folder.is_dir():
            return told(title, f"{title} is not there; this page follows as soon as it is.")
        if (folder / CONFIG).is_file():
            return side_by_side(title, [folder], report)
        if name or (folder / "compare.json").is_file():
            return side_by_side(title, members(folder), report)
        return self._choice(title, list_)

    def _title(self, name: str) -> str:
        return readable(name or str(self.root))

    def _choice(self, title: str, old: View | None) -> View:
        found = places(self.root)
        self.known |= {place.name for place in found}
        folders = dict.fromkeys(run for place in found for run in place.runs)
        read = reread(folders, old, standing)
        if old and stamps(read) == stamps(old.read):
            return old
        none = f"No run is in {title} yet; this page follows as soon as one begins."
        told_rows = rows(found, {run: row for run, (_, row) in read.items()})
        return told(title, "" if found else none, rows=told_rows, read=read)


def side_by_side(title: str, folders: Iterable[Path], old: View | None) -> View:
    """These runs on one page; those that cannot be shown are left out and named."""
    read = reread(folders, old, shown)
    devices = reread_devices(read, old)
    same = old and old.read and stamps(read) == stamps(old.read)
    if old and same and devices.keys() == old.devices.keys():
        return with_devices(old, devices)
    problems = [f"{readable(f.name)} {why}." for f, (_, why) in read.items() if type(why) is str]
    runs = named([run for _, run in read.values() if isinstance(run, Run)])
    if not read:
        problems = [f"No run is in {title}; this page follows as soon as one begins."]
    fresh = tuple(on_devices(run, devices) for run in runs)
    return with_devices(told(title, " ".join(problems), runs=fresh, read=read), devices)


def with_devices(view: View, devices: OnDevices) -> View:
    """The view with its devices as they are now; the same, if they are as they were."""
    if not devices:
        return view
    labels = {run.folder: run.label for run in view.runs}
    names = {f: labels.get(f, readable(f.name)) for f in devices}
    now = [shown_devices(d, names[f], time()) for f, (_, d) in devices.items()]
    parts = (view.parts[0], f"event: devices\ndata: {html.block(now)}\n\n".encode())
    if parts == view.parts:
        return view
    runs = tuple(on_devices(run, devices) for run in view.runs)
    return replace(view, runs=runs, devices=devices, parts=parts)


def on_devices(run: Run, devices: OnDevices) -> Run:
    return replace(run, devices=devices[run.folder][1]) if run.folder in devices else run


def told(name: str, note: str, **what: Any) -> View:
    """A view with its message."""
    view = View(name, note, **what)
    parts = [f"event: note\ndata: {json.dumps(note)}\n\n"]
    if view.runs:
        parts.append(f"data: {html.block(content(view.runs))}\n\n")
    elif view.rows is not None:
        parts.append(f"event: board\ndata: {html.block(view.rows)}\n\n")
    return replace(view, parts=("".join(parts).encode(),))


def shown(folder: Path) -> Run | str:
    """The run, or in words why not: a torn file may do anything to its reader."""
    events = stamp(folder)[0]
    if not events or not events[0]:
        return "has not begun yet"
    try:
        run = load(folder)
        html.block(content([run]))
    except Exception as error:
        return f"cannot be shown now: {words(error)}"
    return run


def words(error: Exception) -> str:
    if isinstance(error, HeterophonyError):
        return str(error)
    return "its files are damaged, or were written by another version"


def reread(folders: Iterable[Path], old: View | None, read: Callable[[Path], Any]) -> Read:
    """What is in each folder; only what changed is read again."""
    before, out = old.read if old else {}, {}
    for folder in folders:
        now = stamp(folder)  # before it is read: what comes in between is seen at the next look
        known = before.get(folder)
        out[folder] = known if known and known[0] == now else (now, read(folder))
    return out


def reread_devices(folders: Iterable[Path], old: View | None) -> OnDevices:
    """The devices of those runs that have any."""
    before, out = old.devices if old else {}, {}
    for folder in folders:
        now, known = mark(folder / DEVICES), before.get(folder)
        if known and known[0] == now:
            out[folder] = known
        elif now and (found := read_devices(folder)):
            out[folder] = now, found
    return out


def stamps(read: Read) -> list[tuple[Path, Stamp]]:
    return [(folder, when) for folder, (when, _) in read.items()]
