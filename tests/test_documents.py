"""What documents show is true: Python runs, commands are understood, configurations are valid.

A page's Python runs in order in one namespace, on small data and for one round. Commands are parsed
by the program's own parser, and their settings are checked. On pages that say
``<!-- commands: run -->``, commands run, too. What cannot run says why: ``<!-- not run: why -->``.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import heterophony as hp
from helpers.documents import (
    COMMENT,
    ROOT,
    Block,
    find_problem,
    list_documents,
    read_blocks,
    split_commands,
)
from heterophony.cli import app
from heterophony.config.reading import resolve_config

PAGES = {str(page.relative_to(ROOT)): read_blocks(page.read_text()) for page in list_documents()}
OURS = ("heterophony", "make", "pip")  # checked beside commands that are not run
NEW_RUNS = ("run", "compare", "sweep")  # one round is enough here
ENGINE_COMMANDS = (*NEW_RUNS, "resume", "audit")
RUN_COMMANDS = {
    page for page in PAGES if ("commands", "run") in COMMENT.findall((ROOT / page).read_text())
}
ELSEWHERE = {"CONTRIBUTING.md"}  # its one block is run in tests/test_examples.py


def select(language: str) -> list[str]:
    """List the pages that have a block of this language which can be run."""
    return [
        page
        for page, blocks in PAGES.items()
        if page not in ELSEWHERE and any(b.language == language and not b.not_run for b in blocks)
    ]


# Commands ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", list(PAGES))
def test_commands_are_understood(page):
    problems = [
        f"{page}:{block.line}: {' '.join(words)}: {problem}"
        for block in PAGES[page]
        if block.language == "sh"
        for words in split_commands(block.text)
        if not (block.not_run and words[0] not in OURS) and (problem := find_problem(words))
    ]
    assert problems == []


def test_commands_that_cannot_be_understood_are_noticed():
    wrong = ["run --oops", "runn", "run -c local.lrr=3", "run fedfoo -c rounds=1", "list things"]
    lines = [*(f"heterophony {line}" for line in wrong), "make dinner", "pip install 'x[y]'", "ls"]
    words = [command for line in lines for command in split_commands(line)]
    assert [bool(find_problem(command)) for command in words] == [True] * len(lines)


# Python -----------------------------------------------------------------------------------------


@pytest.fixture
def short(monkeypatch, tmp_path):
    """Let what documents show run for a round, on few clients and on data that are here."""
    run, federate, sweep, tune = hp.run, hp.federate, hp.sweep, hp.tune

    def shorten(arguments: dict[str, Any]) -> dict[str, Any]:
        here = {k: v for k, v in arguments.items() if k not in ("workers", "cluster", "engine")}
        return {"progress": False, **here, "rounds": min(1, arguments.get("rounds", 1))}

    def federate_few(data: Any, **arguments: Any) -> hp.Federation:
        if isinstance(data, str):
            data, arguments = "digits", {k: v for k, v in arguments.items() if k != "split"}
        if "clients" in arguments:
            arguments["clients"] = min(10, arguments["clients"])
        return federate(data, **arguments)

    monkeypatch.setattr(hp, "run", lambda *a, **k: run(*a, **shorten(k)))
    monkeypatch.setattr(hp, "sweep", lambda *a, **k: sweep(*a, **shorten(k)))
    monkeypatch.setattr(hp, "tune", lambda *a, **k: tune(*a, **shorten({**k, "trials": 2})))
    monkeypatch.setattr(hp, "federate", federate_few)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # modules that a page writes
    with mpl.rc_context({"backend": "agg"}):
        yield


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")  # within torch's own exporter
@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("page", sorted({*select("python"), *RUN_COMMANDS}))
def test_pages_run(page):
    names: dict[str, Any] = {"hp": hp, "np": np, "torch": torch, "__name__": "__main__"}
    for block in PAGES[page]:
        if block.not_run:
            continue
        if block.title:
            Path(block.title).write_text(block.text)
        elif block.language == "python":
            lines = "\n" * block.line + block.text  # so that a traceback names the page's line
            exec(compile(lines, page, "exec"), names)
        elif block.language == "sh" and page in RUN_COMMANDS:
            run_commands(page, block)


def run_commands(page: str, block: Block) -> None:
    """Run the program's commands of a block here, in one process."""
    for words in split_commands(block.text):
        if words[0] != "heterophony":
            continue
        engine = ["-c", "engine.name=serial"] if words[1] in ENGINE_COMMANDS else []
        rounds = ["-c", "rounds=1"] if words[1] in NEW_RUNS else []
        done = CliRunner().invoke(app, [*words[1:], *engine, *rounds])
        assert done.exit_code == 0, f"{page}:{block.line}: {' '.join(words)}\n{done.output}"


# Configurations ---------------------------------------------------------------------------------


@pytest.mark.parametrize("page", select("toml"))
def test_configurations_are_valid(page):
    for block in PAGES[page]:
        if block.language == "toml" and not block.not_run:
            resolve_config(tomllib.loads(block.text))


@pytest.mark.parametrize("page", select("json"))
def test_json_is_valid(page):
    for block in PAGES[page]:
        if block.language == "json" and not block.not_run:
            json.loads(block.text)


def test_reasons_are_given():
    reasons = [b.not_run for blocks in PAGES.values() for b in blocks if b.not_run]
    assert [reason for reason in reasons if len(reason.split()) < 2] == []
