"""Assemble the site's pages in one folder: documents, generated pages, and the files they link to."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path, PurePosixPath

import yaml

from heterophony.algorithms import ALGORITHM_CLASSES, get_display_name

from .algorithm_pages import write_algorithm_pages
from .markdown import adapt_page
from .reference import (
    write_commands_page,
    write_exit_codes_page,
    write_keys_page,
    write_python_page,
)

ROOT = Path(__file__).parents[2]
REPOSITORY = "https://github.com/heterophony/heterophony"
OTHER_DOCUMENTS = {  # documents outside docs/, and their places on the site
    "CHANGELOG.md": "project/changelog.md",
    "CODE_OF_CONDUCT.md": "project/code-of-conduct.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "README.md": "project/readme.md",
    "SECURITY.md": "project/security.md",
    "benchmarks/README.md": "project/benchmarks.md",
    "examples/README.md": "project/examples.md",
    "results/README.md": "project/results.md",
    "results/audit-quick/README.md": "project/audit.md",
}
SECTIONS = ("tutorials", "how-to", "reference", "explanation", "project")
TITLES = {"how-to": "How-to", "project/readme.md": "README"}
ORDER = {  # first these, in this order; then all others by their title
    "tutorials": ["first-run", "own-data", "own-algorithm", "boards-on-one-machine"],
    "reference": [
        "commands",
        "configuration",
        "keys",
        "python",
        "algorithms",
        "comparison",
        "data",
    ],
    "explanation": [
        "architecture",
        "statistics",
        "claims",
        "fixhead",
        "fixhead-results",
        "gausshead",
        "gausshead-results",
        "fine-tuning-results",
    ],
    "project": ["readme", "contributing", "changelog", "security", "examples", "results"],
}


def assemble(folder: Path) -> None:
    """Write all pages below ``folder/pages``, and the site's configuration next to them."""
    pages = folder / "pages"
    shutil.rmtree(pages, ignore_errors=True)
    sources = {path: place for path, place in list_documents().items() if (ROOT / path).exists()}
    generated = write_generated_pages()
    written: dict[str, str] = {}
    for path, place in sources.items():
        if place not in generated:
            written[place] = adapt(path, place, (ROOT / path).read_text(), sources, pages)
    for place, text in generated.items():
        written[place] = adapt(f"docs/{place}", place, text, sources, pages)
    for place, text in written.items():
        (pages / place).parent.mkdir(parents=True, exist_ok=True)
        (pages / place).write_text(text)
    shutil.copytree(ROOT / "docs" / "style", pages / "style")
    settings = {"docs_dir": "pages", "site_dir": "site", "nav": list_navigation(written)}
    plain = yaml.safe_dump(settings, allow_unicode=True, sort_keys=False)
    (folder / "mkdocs.yml").write_text((ROOT / "mkdocs.yml").read_text() + plain)


def list_documents() -> dict[str, str]:
    """List the documents of the repository, and their places on the site."""
    found = sorted((ROOT / "docs").rglob("*.md"))
    kept = [p.relative_to(ROOT).as_posix() for p in found if p.parent.name != "rules"]
    return {path: path.removeprefix("docs/") for path in kept} | OTHER_DOCUMENTS


def write_generated_pages() -> dict[str, str]:
    pages = {
        "reference/commands.md": write_commands_page(),
        "reference/keys.md": write_keys_page(),
        "reference/exit-codes.md": write_exit_codes_page(),
        "reference/python.md": write_python_page(),
    }
    own = write_algorithm_pages()
    return pages | {f"reference/algorithms/{name}.md": text for name, text in own.items()}


# Links ------------------------------------------------------------------------------------------


def adapt(path: str, place: str, text: str, sources: dict[str, str], pages: Path) -> str:
    """Adapt one page of the repository to its place on the site."""

    def mend_link(link: str) -> str:
        target, sign, anchor = link.partition("#")
        if re.match(r"[a-z]+:", link) or not target:
            return link
        wanted = os.path.normpath(PurePosixPath(path).parent / target)
        return relate(find_place(wanted, anchor, sources, pages), sign + anchor, place)

    text = re.sub(r'(<img [^>]*src=")([^"]+)"', lambda m: f'{m[1]}{mend_link(m[2])}"', text)
    text = re.sub(r"<!-- site links: ([\w ,-]+) -->", lambda m: write_site_links(m[1]), text)
    formulas = place.startswith(("reference/algorithms/", "explanation/"))
    return adapt_page(link_algorithms(place, text), mend_link, formulas)


def write_site_links(listed: str) -> str:
    """Write links to generated pages, which are not in the repository: ``Title page, Title page``."""
    pairs = [item.strip().rpartition(" ") for item in listed.split(",")]
    return " · ".join(f"[{title}](reference/{page}.md)" for title, _, page in pairs)


def find_place(wanted: str, anchor: str, sources: dict[str, str], pages: Path) -> str:
    """Return where a file of the repository is on the site, or its address at the repository."""
    if wanted == "docs/reference/algorithms.md" and anchor in ALGORITHM_CLASSES:
        return f"reference/algorithms/{anchor}.md#"  # a page of its own: no anchor
    if wanted in sources:
        return sources[wanted]
    if wanted.startswith("docs/") and wanted.endswith(".md"):
        return wanted.removeprefix("docs/")  # a generated page
    file = ROOT / wanted
    if file.is_file() and file.suffix in (".png", ".svg", ".json"):
        copy = pages / "files" / wanted
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
        return f"files/{wanted}"
    return f"{REPOSITORY}/{'tree' if file.is_dir() else 'blob'}/main/{wanted}"


def relate(target: str, anchor: str, place: str) -> str:
    if target.startswith("http"):
        return target + anchor
    if target.endswith("#"):
        target, anchor = target[:-1], ""
    above = PurePosixPath(place).parent
    return Path(os.path.relpath(target, above)).as_posix() + anchor


def link_algorithms(place: str, text: str) -> str:
    """Link the table of all algorithms to their pages, which hold the settings."""
    if place != "reference/algorithms.md":
        return text
    text = re.sub(r"\(#(\w+)\)", r"(algorithms/\1.md)", text.partition("\n## Settings")[0])
    return text.replace("(algorithms/", "(../reference/algorithms/")


# Navigation -------------------------------------------------------------------------------------


def list_navigation(written: dict[str, str]) -> list[dict[str, object]]:
    """List the pages by section; pages without a given place come last."""
    nav: list[dict[str, object]] = [{"Home": "index.md"}]
    for section in SECTIONS:
        places = [p for p in written if p.startswith(f"{section}/") and p.count("/") == 1]
        order = ORDER.get(section, [])

        def rank(place: str, order: list[str] = order) -> tuple[int, str]:
            stem = PurePosixPath(place).stem
            return (order.index(stem) if stem in order else len(order), read_title(written[place]))

        entries: list[object] = [
            {TITLES.get(p) or read_title(written[p]): p} for p in sorted(places, key=rank)
        ]
        if section == "reference":
            names = sorted(ALGORITHM_CLASSES, key=lambda n: get_display_name(n).lower())
            each = [{get_display_name(n): f"reference/algorithms/{n}.md"} for n in names]
            entries.append({"Each algorithm": each})
        if entries:
            nav.append({TITLES.get(section, section.capitalize()): entries})
    return nav + [{"Glossary": "glossary.md"}] * ("glossary.md" in written)


def read_title(text: str) -> str:
    found = re.search(r"^# (.+)$", text, re.M)
    return found[1].replace("`", "") if found else "Untitled"
