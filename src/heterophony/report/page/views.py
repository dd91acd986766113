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

from ...analysis.devices import DeviceTable
from ...analysis.devices import build_devices_section as shown_devices
from ...analysis.devices import read_device_table as read_devices
from ...analysis.runs import Run, label_runs, load_run
from ...core.errors import HeterophonyError
from ...run.run_index import CONFIG_FILE, DEVICES_FILE, list_member_runs
from . import html
from .page_data import build_page_data
from .run_list import (
    FileStamp,
    FolderStamp,
    RunListRow,
    build_progress_row,
    build_run_list_rows,
    decode_name,
    list_entries,
    stamp_file,
    stamp_folder,
)

MAX_CACHED_VIEWS = 32  # views whose runs stay in memory
FolderContents = dict[
    Path, tuple[FolderStamp, Any]
]  # what was read of a folder, and when it looked so
DeviceTables = dict[Path, tuple[FileStamp, DeviceTable]]  # the same of runs on devices


@dataclass(frozen=True)
class View:
    """Runs side by side, or a list to choose from, and in words what cannot be shown."""

    name: str
    note: str
    runs: tuple[Run, ...] = ()
    rows: list[RunListRow] | None = None
    folder_contents: FolderContents = field(default_factory=dict)
    devices: DeviceTables = field(default_factory=dict)
    message_parts: tuple[bytes, ...] = ()  # of the message: all but the devices, and these

    @property
    def message(self) -> bytes:
        """All of it, for an event stream."""
        return b"".join(self.message_parts)

    def render_html(self) -> str:
        """The page that shows it, and follows from there."""
        if self.runs:
            return html.render_report(self.runs, live=True)
        js = "\n".join(html.read_asset(name) for name in ("run_list.js", "devices.js", "live_updates.js"))
        css = html.read_asset("page.css") + html.read_asset("dashboard.css")
        return Template(html.read_asset("run_list.html")).substitute(
            policy=html.build_security_policy(css, js, live=True),
            title=escape(self.name),
            note=escape(self.note),
            css=css,
            js=js,
            data=html.dump_safe_json(self.rows or []),
        )


class ViewLoader:
    """A folder that is looked at, never written to; a name leads only to what was found in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.known_names: set[str] = set()
        self.views: dict[str, View] = {}
        self.lock = Lock()

    def load_view(self, name: str = "") -> View | None:
        """What there is to see under a name now; None if nothing ever was.

        Whatever is wrong in the folder becomes words: it may be right again at the next look.
        """
        with self.lock:
            if name and name not in self.known_names:
                self.known_names |= {place.name for place in list_entries(self.root)}
                if name not in self.known_names:
                    return None
            old = self.views.pop(name, None)
            try:
                view = self._build_view(name, old)
            except Exception as error:
                view = create_view(
                    self._format_title(name), f"This cannot be shown now: {describe_error(error)}."
                )
            self.views[name] = view
            while len(self.views) > MAX_CACHED_VIEWS:
                del self.views[next(iter(self.views))]
            return view

    def _build_view(self, name: str, old: View | None) -> View:
        folder, title = self.root / name, self._format_title(name)
        # a list and runs side by side read different things of the same folders
        list_, report = (old, None) if old and old.rows is not None else (None, old)
        if not folder.is_dir():
            return create_view(title, f"{title} is not there; this page follows as soon as it is.")
        if (folder / CONFIG_FILE).is_file():
            return build_comparison_view(title, [folder], report)
        if name or (folder / "compare.json").is_file():
            return build_comparison_view(title, list_member_runs(folder), report)
        return self._build_run_list(title, list_)

    def _format_title(self, name: str) -> str:
        return decode_name(name or str(self.root))

    def _build_run_list(self, title: str, old: View | None) -> View:
        found = list_entries(self.root)
        self.known_names |= {place.name for place in found}
        folders = dict.fromkeys(run for place in found for run in place.runs)
        read = read_changed_folders(folders, old, build_progress_row)
        if old and list_stamps(read) == list_stamps(old.folder_contents):
            return old
        none = f"No run is in {title} yet; this page follows as soon as one begins."
        told_rows = build_run_list_rows(found, {run: row for run, (_, row) in read.items()})
        return create_view(title, "" if found else none, rows=told_rows, read=read)


def build_comparison_view(title: str, folders: Iterable[Path], old: View | None) -> View:
    """These runs on one page; those that cannot be shown are left out and named."""
    read = read_changed_folders(folders, old, load_run_or_reason)
    devices = read_changed_devices(read, old)
    same = old and old.folder_contents and list_stamps(read) == list_stamps(old.folder_contents)
    if old and same and devices.keys() == old.devices.keys():
        return update_devices(old, devices)
    problems = [f"{decode_name(f.name)} {why}." for f, (_, why) in read.items() if type(why) is str]
    runs = label_runs([run for _, run in read.values() if isinstance(run, Run)])
    if not read:
        problems = [f"No run is in {title}; this page follows as soon as one begins."]
    fresh = tuple(attach_devices(run, devices) for run in runs)
    return update_devices(create_view(title, " ".join(problems), runs=fresh, read=read), devices)


def update_devices(view: View, devices: DeviceTables) -> View:
    """The view with its devices as they are now; the same, if they are as they were."""
    if not devices:
        return view
    labels = {run.folder: run.label for run in view.runs}
    names = {f: labels.get(f, decode_name(f.name)) for f in devices}
    now = [shown_devices(d, names[f], time()) for f, (_, d) in devices.items()]
    parts = (
        view.message_parts[0],
        f"event: devices\ndata: {html.dump_safe_json(now)}\n\n".encode(),
    )
    if parts == view.message_parts:
        return view
    runs = tuple(attach_devices(run, devices) for run in view.runs)
    return replace(view, runs=runs, devices=devices, message_parts=parts)


def attach_devices(run: Run, devices: DeviceTables) -> Run:
    return replace(run, devices=devices[run.folder][1]) if run.folder in devices else run


def create_view(name: str, note: str, **what: Any) -> View:
    """A view with its message."""
    view = View(name, note, **what)
    parts = [f"event: note\ndata: {json.dumps(note)}\n\n"]
    if view.runs:
        parts.append(f"data: {html.dump_safe_json(build_page_data(view.runs))}\n\n")
    elif view.rows is not None:
        parts.append(f"event: run_list\ndata: {html.dump_safe_json(view.rows)}\n\n")
    return replace(view, message_parts=("".join(parts).encode(),))


def load_run_or_reason(folder: Path) -> Run | str:
    """The run, or in words why not: a torn file may do anything to its reader."""
    events = stamp_folder(folder)[0]
    if not events or not events[0]:
        return "has not begun yet"
    try:
        run = load_run(folder)
        html.dump_safe_json(build_page_data([run]))
    except Exception as error:
        return f"cannot be shown now: {describe_error(error)}"
    return run


def describe_error(error: Exception) -> str:
    if isinstance(error, HeterophonyError):
        return str(error)
    return "its files are damaged, or were written by another version"


def read_changed_folders(
    folders: Iterable[Path], old: View | None, read: Callable[[Path], Any]
) -> FolderContents:
    """What is in each folder; only what changed is read again."""
    before, out = old.folder_contents if old else {}, {}
    for folder in folders:
        now = stamp_folder(
            folder
        )  # before it is read: what comes in between is seen at the next look
        known = before.get(folder)
        out[folder] = known if known and known[0] == now else (now, read(folder))
    return out


def read_changed_devices(folders: Iterable[Path], old: View | None) -> DeviceTables:
    """The devices of those runs that have any."""
    before, out = old.devices if old else {}, {}
    for folder in folders:
        now, known = stamp_file(folder / DEVICES_FILE), before.get(folder)
        if known and known[0] == now:
            out[folder] = known
        elif now and (found := read_devices(folder)):
            out[folder] = now, found
    return out


def list_stamps(read: FolderContents) -> list[tuple[Path, FolderStamp]]:
    return [(folder, when) for folder, (when, _) in read.items()]
