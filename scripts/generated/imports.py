"""Write into SECURITY.md what each command imports; `tests/cli/test_imports.py` tries every line of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[2] / "SECURITY.md"
BEGIN, END = "<!-- imports: written by scripts/generate -->\n", "<!-- /imports -->\n"


@dataclass(frozen=True)
class Row:
    """Commands that import the same; ``tries`` are calls in a folder with a stranger's files, with exit codes.

    In a call, SMALL stands for settings of a short run, and THEIRS for a folder of a stranger outside
    the current one. The current folder is full of files that are named like packages; in it lie
    ``theirs``, a run folder that names one of them, ``swept``, ``tuned`` and the boards ``good`` and
    ``evil``.
    """

    commands: tuple[str, ...]
    imports: str
    tries: tuple[tuple[int, str], ...]


ROWS = (
    Row(
        ("run", "sweep", "pretrain", "testbed", "fleet data", "fleet start", "fleet run"),
        "the module that the command or its settings file names. A file from another folder, or in a"
        " run folder, cannot name a module of the current folder",
        (
            (0, "run fedavg SMALL -c engine.name=pool -c engine.workers=1 --out mine"),
            (3, "run THEIRS/settings.toml"),
            (3, "run THEIRS/model.toml"),
            (3, "run theirs/config.toml"),
            (0, "sweep fedavg -s training.lr=0.1,0.2 SMALL --out mine-swept"),
            (3, "sweep THEIRS/settings.toml -s training.lr=0.1,0.2"),
            (0, "pretrain fedavg SMALL -o base.safetensors"),
            (3, "pretrain THEIRS/settings.toml -o theirs.safetensors"),
            (3, "testbed THEIRS/settings.toml"),
            (3, "fleet THEIRS/boards.toml data THEIRS/settings.toml"),
            (3, "fleet THEIRS/boards.toml start THEIRS/settings.toml"),
            (3, "fleet THEIRS/boards.toml run THEIRS/settings.toml"),
        ),
    ),
    Row(
        ("compare", "tune", "slurm", "audit", "list"),
        "the modules that the command names. From a settings file, a model is imported as with `run`, an algorithm"
        " never",
        (
            (0, "compare fedavg --file THEIRS/settings.toml SMALL --out mine-compared"),
            (
                0,
                "tune fedavg -s training.lr=0.1,0.2 --sampler grid --file THEIRS/settings.toml SMALL --out mine-tuned",
            ),
            (3, "compare fedavg --file THEIRS/model.toml"),
            (3, "tune fedavg -s training.lr=0.1,0.2 --file THEIRS/model.toml"),
            (0, "slurm compare fedavg --file THEIRS/settings.toml SMALL --out mine-queued"),
            (3, "audit centralized"),
            (0, "list algorithms"),
            (0, "list runs"),
            (0, "list models --tensors mlp --algorithm fedper"),
        ),
    ),
    Row(
        ("server",),
        "as `run`; a module that its run folder names, only if the command names it again, or with `--trust`",
        ((3, "server --enrolment broker/server.toml --out theirs"),),
    ),
    Row(
        ("resume",),
        "only with `--trust`: the module that a run folder, a sweep or a tune names",
        ((3, "resume theirs"), (3, "resume swept"), (3, "resume tuned"), (0, "resume mine")),
    ),
    Row(
        ("board", "device"),
        "only with `--trust`: the module that the server's configuration names. No code is sent",
        ((3, "board --enrolment broker/one.toml"), (3, "device --enrolment broker/one.toml")),
    ),
    Row(
        ("leaderboard check",),
        "only with `--trust`: `algorithm.py` of an entry, by its path, and no other file of the entry",
        ((0, "leaderboard check good"), (3, "leaderboard check evil")),
    ),
    Row(
        (
            *("new", "reproduce", "report", "dashboard", "journal", "bench", "doctor"),
            *("leaderboard show", "leaderboard add"),
            *("data fetch", "data show", "data partition", "data export", "data augment", "schema"),
            *("broker up", "broker down", "broker enrol", "broker revoke", "broker status"),
            *("fleet check", "fleet wheels", "fleet install", "fleet enrol", "fleet stop"),
            *("fleet status", "fleet logs", "fleet collect", "fleet table"),
        ),
        "nothing, no matter what their files name",
        (
            (0, "--help"),
            (0, "new study"),
            (0, "reproduce fedreg-table2-sota --variants"),
            (0, "report theirs"),
            (0, "report theirs -o theirs.png"),
            (3, "dashboard theirs/config.toml"),
            (3, "journal theirs"),
            (3, "doctor --gpu --device nothing"),
            (3, "bench --device nothing"),
            (0, "leaderboard show good -o board.html"),
            (0, "leaderboard show evil"),
            (0, "leaderboard add more mine"),
            (3, "data fetch digits"),
            (0, "data show digits"),
            (0, "data partition THEIRS/settings.toml"),
            (0, "data export THEIRS/exported THEIRS/settings.toml --to npz"),
            (0, "schema"),
            (0, "data augment THEIRS/settings.toml -o copies.png"),
            (0, "broker up broker --port 0"),
            (0, "broker status broker"),
            (0, "broker enrol two broker -o broker/two.toml"),
            (0, "broker revoke two broker"),
            (0, "broker down broker"),
            (1, "fleet THEIRS/boards.toml check"),
            (1, "fleet THEIRS/boards.toml wheels"),
            (1, "fleet THEIRS/boards.toml install"),
            (1, "fleet THEIRS/boards.toml enrol"),
            (1, "fleet THEIRS/boards.toml stop"),
            (1, "fleet THEIRS/boards.toml status"),
            (1, "fleet THEIRS/boards.toml logs"),
            (1, "fleet THEIRS/boards.toml collect"),
            (3, "fleet THEIRS/boards.toml table nothing"),
        ),
    ),
)


def write_table() -> str:
    """Write the table in Markdown."""
    lines = [
        f"| {', '.join(f'`{name}`' for name in row.commands)} | {row.imports} |" for row in ROWS
    ]
    return "\n".join(
        ["| commands | what they import besides installed packages |", "|---|---|", *lines, ""]
    )


def put_table(page: str) -> str:
    """Return a page with the table between its two marks."""
    return re.sub(f"(?s){BEGIN}.*{END}", lambda _: f"{BEGIN}{write_table()}{END}", page)


def write() -> None:
    PAGE.write_text(put_table(PAGE.read_text()))
