"""Read the code blocks of documents, and check their commands."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

from typer import Exit
from typer.main import get_command

from heterophony.cli import app
from heterophony.cli.options import join_seed_words
from heterophony.config.reading import read_config

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^( *)```(\S*)([^\n]*)\n(.*?)^\1```$", re.M | re.S)
COMMENT = re.compile(r"(?<!`)<!-- (\w[\w ]*):\s+(.*?)\s+-->", re.S)
INDENTED = re.compile(r"(?:(?<=\n\n)|(?<=\n))((?:^    \S.*\n(?:^\n(?=    \S))?)+)", re.M)
PROGRAMS = r"heterophony|make|pip|python3?|cd|sudo|ray|scp|git|export|chmod|tensorboard|\\. |# "


@dataclass(frozen=True)
class Block:
    """A block of code: its language, its text, its line, its file name, and why it is not run."""

    language: str
    text: str
    line: int
    title: str = ""
    not_run: str = ""


def list_documents() -> list[Path]:
    """List the documents whose code is checked: all except the changelog."""
    folders = ("", "benchmarks", "docs", "docs/*", "examples", "results", "results/*")
    found = {page for folder in folders for page in ROOT.glob(f"{folder}/*.md".lstrip("/"))}
    return sorted(found - {ROOT / "CHANGELOG.md"})


def read_blocks(text: str) -> list[Block]:
    """Read the blocks of a page in their order; a comment right before one says why it is not run."""
    found = [*read_fenced(text), *read_indented(text), *read_setups(text)]
    return sorted(found, key=lambda block: block.line)


def read_fenced(text: str) -> Iterator[Block]:
    for block in FENCE.finditer(text):
        title = re.search(r'title="([^"]+)"', block[3])
        yield Block(
            block[2],
            dedent(block[4]),
            count_lines(text, block.start()),
            title[1] if title else "",
            read_reason(text[: block.start()]),
        )


def read_indented(text: str) -> Iterator[Block]:
    """Read the commands that are indented by four; those of lists and fences are not."""
    plain = FENCE.sub(lambda block: "\n" * block[0].count("\n"), text)
    for block in INDENTED.finditer(plain):
        before = plain[: block.start()].rstrip().rpartition("\n")[2]
        in_list = re.match(r" *([-*]|\d+\.) |  +\S", before) is not None
        if not in_list and re.match(rf"    ({PROGRAMS})", block[1]):
            line = count_lines(plain, block.start())
            yield Block("sh", dedent(block[1]), line, "", read_reason(plain[: block.start()]))


def read_setups(text: str) -> Iterator[Block]:
    """Read the setup code of a page, in comments that readers do not see."""
    for comment in COMMENT.finditer(text):
        if comment[1] == "setup":
            yield Block("python", comment[2], count_lines(text, comment.start()))


def count_lines(text: str, end: int) -> int:
    return text.count("\n", 0, end) + 1


def read_reason(before: str) -> str:
    """Read the reason in the comment that ends the text before a block, if there is one."""
    comments = list(COMMENT.finditer(before))
    if not comments or before[comments[-1].end() :].strip():
        return ""
    return comments[-1][2] if comments[-1][1] == "not run" else ""


# Commands ---------------------------------------------------------------------------------------


def split_commands(text: str) -> Iterator[list[str]]:
    """Split a shell block into the words of its commands, without comments."""
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        words = shlex.split(line, comments=True)
        at = 0
        for i, word in enumerate([*words, "&&"]):
            if word in ("&&", ";", "&", "|") or word.endswith(";"):
                command = [w.removesuffix(";") for w in words[at : i + word.endswith(";")]]
                at = i + 1
                if command:
                    yield command


def find_problem(words: list[str]) -> str:
    """Describe what is wrong with a command, without running it; empty if nothing is."""
    program, *rest = words
    if program == "heterophony":
        return "" if "…" in rest else check_heterophony(rest)
    if program == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
        return "" if not rest or rest[0] in targets else f"no target {rest[0]}"
    if program == "pip":
        return check_extras(" ".join(rest))
    if program == "python" and rest[0].endswith(".py"):
        known = [ROOT / rest[0], ROOT / "examples" / rest[0]]
        return "" if any(file.exists() for file in known) else f"no file {rest[0]}"
    return "" if program in ("cd", "python") else f"{program}: say why it is not run"


def check_extras(text: str) -> str:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [e for group in re.findall(r"\[([\w,]+)\]", text) for e in group.split(",")]
    unknown = [e for e in named if e not in extras["optional-dependencies"]]
    return f"no extra {unknown[0]}" if unknown else ""


def check_heterophony(words: list[str]) -> str:
    """Parse a command line with the program's own parser, and check its settings; return the problem."""
    try:
        values = parse(words)
    except Exit:  # of --help
        return ""
    except Exception as error:
        return f"{type(error).__name__}: {getattr(error, 'message', error)}"
    pairs, file = values.get("pairs") or [], str(values.get("file") or "")
    names = [file] if file else list(values.get("algorithms") or [])
    is_own = any(name.endswith(".toml") or ":" in name for name in names)  # of a reader's file
    if not pairs or is_own or words[0] in ("resume", "board", "device"):
        return ""
    usable = [p for p in pairs if "path=" not in p and "my_" not in p and "own_" not in p]
    for name in names or [""]:
        try:
            read_config(None, [*([f'algorithm.name="{name}"'] if name else []), *usable])
        except Exception as error:
            if "algorithm." not in str(error) or len(names) < 2:
                return str(error)
    return ""


def parse(words: list[str]) -> dict[str, Any]:
    """Return the values of a command's arguments and options; raise what the parser raises."""
    command: Any = get_command(app)
    rest, context = join_seed_words(words), None
    while True:
        context = command.make_context(rest[0] if rest else "", list(rest), parent=context)
        if not hasattr(command, "commands"):
            values: dict[str, Any] = context.params
            return values
        _, command, rest = command.resolve_command(
            context, [*context._protected_args, *context.args]
        )
