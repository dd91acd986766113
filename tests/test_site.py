"""The site of the documents: it builds without a warning and needs no network; its links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest

from helpers.browser import find_browser
from heterophony.algorithms import ALGORITHM_CLASSES, get_display_name

ROOT = Path(__file__).parents[1]
LOADED = {"script": "src", "img": "src", "link": "href", "source": "src", "iframe": "src"}


class Page(HTMLParser):
    """What a page links to, what it loads, and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {key: value or "" for key, value in attrs}
        self.anchors |= {found[key] for key in ("id", "name") if key in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if tag in LOADED and found.get("rel") != "canonical":
            self.loaded.append(found.get(LOADED[tag], ""))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs")
    command = [sys.executable, str(ROOT / "scripts" / "docs"), "--folder", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "site"


@cache
def read_page(path: Path) -> Page:
    return Page(path.read_text())


def find_broken_links(page: Path) -> list[str]:
    broken = []
    for link in read_page(page).links:
        path, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        target = (page.parent / path).resolve() if path else page
        target = target / "index.html" if target.is_dir() else target
        is_page = target.suffix == ".html"
        if not target.exists() or (anchor and is_page and anchor not in read_page(target).anchors):
            broken.append(f"{page.name}: {link}")
    return broken


def list_pages(site: Path) -> list[Path]:
    return [page for page in sorted(site.rglob("*.html")) if page.name != "404.html"]


def test_every_link_of_the_site_leads_somewhere(site):
    assert [link for page in list_pages(site) for link in find_broken_links(page)] == []


def test_nothing_is_loaded_from_the_network(site):
    loaded = {address for page in list_pages(site) for address in read_page(page).loaded}
    assert [address for address in loaded if re.match(r"(https?:)?//", address)] == []
    pages = [page.read_text() for page in list_pages(site)]
    assert [page for page in pages if 'data-md-component="source"' in page] == []  # asks GitHub
    style = "".join(file.read_text() for file in site.rglob("*.css"))
    assert re.findall(r"url\(\s*['\"]?(?:https?:)?//[^)]*|@import[^;]*", style) == []


def test_no_line_of_code_runs_off_the_edge(site):
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=find_browser(), args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1280, "height": 900})
        for name in ("papers", "protection", "boards"):
            tab.goto(f"file://{site}/how-to/{name}.html")
            wide = "[...document.querySelectorAll('pre code')].filter(e => e.scrollWidth > e.clientWidth)"
            assert tab.evaluate(f"{wide}.map(e => e.innerText)") == []
        browser.close()


def test_every_algorithm_has_a_page(site):
    for name in ALGORITHM_CLASSES:
        text = (site / "reference" / "algorithms" / f"{name}.html").read_text()
        assert f"{get_display_name(name)}<" in text
        assert "What is sent" in text
        assert "Settings" in text


def test_only_sections_home_and_the_glossary_are_at_the_top():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "scripts")
        from pages import assemble
    pages = {p.relative_to(ROOT / "docs").as_posix(): "# A" for p in (ROOT / "docs").rglob("*.md")}
    top = [next(iter(entry)) for entry in assemble.list_navigation(pages)]
    assert top == ["Home", "Tutorials", "How-to", "Reference", "Explanation", "Glossary"]


def test_every_page_is_in_the_navigation(site):
    links = {
        (site / link.partition("#")[0]).resolve()
        for link in read_page(site / "index.html").links
        if not re.match(r"[a-z]+:", link)
    }
    first = {p.name: p for p in list_pages(site)}["commands.html"]
    links |= {
        (first.parent / link.partition("#")[0]).resolve()
        for link in read_page(first).links
        if not re.match(r"[a-z]+:", link)
    }
    assert [p.name for p in list_pages(site) if p.resolve() not in links] == []
