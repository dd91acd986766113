"""Synthetic run folders for tests of the report, and readers of pages and messages."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

TESTS = [4, 6]  # test examples of the two clients
# correct answers of both clients at each evaluation
FIRST = {"G": [[1, 1], [2, 4], [2, 2]], "P": [[1, 1], [4, 6], [4, 3]]}
SECOND = {"G": [[1, 1], [4, 6], [4, 2]], "P": [[1, 1], [4, 4], [4, 6]]}
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"


def played(
    right: dict[str, Any],
    algorithm: str = "fedavg",
    seed: int = 0,
    clients: tuple[str, ...] = ("a", "b"),
    megabytes: int = 1,
    finished: bool = True,
) -> list[dict[str, Any]]:
    """Return the events of a run whose clients have these correct answers at each evaluation."""
    rounds = len(right["P"]) - 1
    start = {
        "event": "start",
        "version": "0",
        "algorithm": algorithm,
        "seed": seed,
        "rounds": rounds if finished else 60,
        "clients": list(clients),
        "train": [n * 3 for n in TESTS],
        "test": TESTS,
        "classes": ["cat", "dog"],
        "labels": [[12, 0], [9, 9]],
        "shared_parameters": 5,
        "data_sha256": f"data{seed}",
    }
    out = [start]
    for t, P in enumerate(right["P"]):
        out.append({"event": "evaluation", "t": t, "G": right["G"] and right["G"][t], "P": P})
        if t < rounds:
            out.append(
                {
                    "event": "round",
                    "t": t,
                    "clients": [clients[t % 2]],
                    "bytes_down": 2_000_000 * megabytes,
                    "bytes_up": 1_000_000 * megabytes,
                    "loss": {"main": 1.5},
                    "measures": {},
                    "P_local": [],
                    "work": {"train": 0.5, "evaluate": 0.25},
                    "seconds": 1.5,
                }
            )
    idle = {"seconds": 0.0, "work": {"train": 0.0, "evaluate": 0.0}}
    end = {"event": "end", "t": rounds, "model_sha256": "m", **idle}
    return [*out, end] if finished else out


def stored(folder: Path, events: list[dict[str, Any]], config: str = "") -> Path:
    """Write a run folder with these events."""
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(config or 'seed = 0\n[data]\nname = "digits"\n')
    (folder / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
    return folder


class Reader(HTMLParser):
    """Parses a page: its tags, and the content of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            self.scripts[-1] += data


def data_of(text: str) -> Any:
    """Return the JSON data in a page."""
    return json.loads(Reader(text).scripts[0])


def parts(message: bytes) -> dict[str, Any]:
    """Return the data of the events in a server-sent message, by kind of event."""
    out = {}
    for block in message.decode().strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n"))
        out[fields.get("event", "message")] = json.loads(fields["data"])
    return out
