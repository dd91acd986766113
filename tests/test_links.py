"""What the documents point to exists: linked files and headings, source files, imported names."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from heterophony.algorithms import ALGORITHM_CLASSES, get_display_name

ROOT = Path(__file__).parents[1]
FOLDERS = ("", "benchmarks", "docs", "docs/*", "examples", "results", "results/*")
PAGES = sorted(page for folder in FOLDERS for page in ROOT.glob(f"{folder}/*.md".lstrip("/")))
SOURCE_FILES = [
    file
    for folder in ("benchmarks", "examples", "scripts", "src", "tests")
    for file in (ROOT / folder).rglob("*.py")
]
CODE = re.compile(r"^```.*?^```|^    .*?$|`[^`\n]*`", re.M | re.S)
PROGRAMS = [
    file
    for pattern in ("benchmarks/*.py", "examples/*.py", "scripts/*", "scripts/*/*.py")
    for file in sorted(ROOT.glob(pattern))
    if file.suffix == ".py"
    or (file.is_file() and file.read_bytes().startswith(b"#!/usr/bin/env python"))
]
IMPORT = re.compile(r"^from (heterophony[\w.]*) import (.+)$", re.M)
LINK = re.compile(r"\]\(([^)\s]+)\)")
SOURCE_FILE = re.compile(r"`([\w./-]+/[\w.-]+\.py)`")


def read_links(page: Path) -> list[str]:
    """List the targets of a page's links within the repository. Code is no text: skip it."""
    targets = LINK.findall(CODE.sub("", page.read_text()))
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


@cache
def read_anchors(page: Path) -> set[str]:
    """List the anchors GitHub gives to a page's headings, and those written as HTML."""
    text = page.read_text()
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M)
    anchors, seen = set(re.findall(r'<a (?:id|name)="([^"]+)"', text)), Counter[str]()
    for heading in headings:
        slug = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        anchors.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return anchors


def find_broken_links(page: Path) -> list[str]:
    broken = []
    for link in read_links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in read_anchors(target)):
            broken.append(link)
    return broken


def test_every_test_named_as_the_holder_of_a_promise_exists():
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "SECURITY.md").read_text()))
    tests = "".join(file.read_text() for file in SOURCE_FILES if file.name.startswith("test_"))
    assert len(named) > 20
    assert named <= set(re.findall(r"^def (test_\w+)\(", tests, re.M))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page):
    assert find_broken_links(page) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_source_file_named_exists(page):
    """A path may be cut at the left, as in `data/federation.py`; `fedfoo.py` is an example."""
    named = [path for path in SOURCE_FILE.findall(page.read_text()) if "foo" not in path]
    assert [path for path in named if not any(file.match(path) for file in SOURCE_FILES)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_import_in_an_example_works(page):
    for module, names in IMPORT.findall(page.read_text()):
        for name in names.split(","):
            assert hasattr(import_module(module), name.strip()), f"{module}.{name}"


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_import_in_a_program_works(program):
    """Programs that no test runs would otherwise go stale when a module is renamed."""
    nodes = ast.walk(ast.parse(program.read_text()))
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    for name in (f"{node.module} {alias.name}" for node in imports for alias in node.names):
        source, _, imported = name.partition(" ")
        if source.partition(".")[0] in ("heterophony", "helpers"):
            module = import_module(source)
            assert hasattr(module, imported) or import_module(f"{source}.{imported}")


def test_a_missing_file_and_a_missing_heading_are_noticed(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# One heading, `two` words\n[a](#one-heading-two-words) [b](#two) [c](gone.md) [d](.)\n"
        "```\n[e](in-code)\n```\n`[f](in-code)` [g](https://example.org)\n"
    )
    assert find_broken_links(page) == ["#two", "gone.md"]


def test_the_readme_counts_the_algorithms_that_there_are():
    told = re.search(r"read like their papers\*\*: (\d+)", (ROOT / "README.md").read_text())
    assert told
    assert int(told[1]) == len(ALGORITHM_CLASSES)


def test_the_readme_lists_every_algorithm_once():
    table = (ROOT / "README.md").read_text().split("## Algorithms")[1].split("Data: ")[0]
    cells = re.findall(r"\| ([^|]+) \|$", re.sub(r" \([^)]*\)", "", table), re.M)
    listed = [name for cell in cells for name in cell.strip().split(", ")]
    assert sorted(listed) == sorted(get_display_name(name) for name in ALGORITHM_CLASSES)
