"""The pages of the site: GitHub's Markdown adapted, and a page for any algorithm."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from heterophony.algorithms import ALGORITHM_CLASSES

ROOT = Path(__file__).parents[1]
RULES = sorted((ROOT / "docs" / "rules").glob("*.md"))


@pytest.fixture(autouse=True)
def scripts(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    yield
    for name in [n for n in sys.modules if n == "pages" or n.startswith("pages.")]:
        del sys.modules[name]


def adapt(text: str, formulas: bool = True) -> str:
    from pages.markdown import adapt_page

    return adapt_page(text, lambda link: f"<{link}>", formulas)


def test_lists_and_tables_get_the_blank_line_that_the_site_needs():
    assert (
        adapt("Two:\n- one\n- two\n  more\n\nText\n") == "Two:\n\n- one\n- two\n    more\n\nText\n"
    )
    assert adapt("A table\n| a |\n|---|\n| b |\n") == "A table\n\n| a |\n|---|\n| b |\n"


def test_what_belongs_to_an_item_is_indented_by_four():
    text = "1. Write\n   ```python\n   x = 1\n   ```\n2. Run\n"
    assert adapt(text) == "1. Write\n    ```python\n    x = 1\n    ```\n2. Run\n"
    assert adapt("- few\n\n  | a |\n  |---|\n") == "- few\n\n    | a |\n    |---|\n"


def test_indented_commands_become_code_that_can_be_copied():
    text = "## Run\n    heterophony run    # here\n\nText\n"
    assert adapt(text).split("\n") == ["## Run", "", "```sh", "heterophony run    # here", "```", "", "Text", ""]  # fmt: skip


def test_links_and_formulas_of_code_are_left_alone():
    text = "[a](b.md) $x$\n```sh\n[c](d.md) $y$\n```\n"
    out = adapt(text)
    assert "[a](<b.md>)" in out
    assert "<math" in out
    assert "[c](d.md) $y$" in out


def test_prices_and_variables_in_code_are_no_formulas():
    assert "math" not in adapt("It costs $5, or 6 $, and `$HOME/x$`\n")


def test_a_number_and_its_interval_stay_on_one_line():
    assert "92.1\u00a0±\u00a04.3" in adapt("| a |\n|--:|\n| 92.1 ± 4.3 |\n")
    assert "1 ± 2" in adapt("```\n1 ± 2\n```\n")  # code is left alone


@pytest.mark.parametrize("path", RULES, ids=lambda path: path.stem)
def test_every_rule_is_written_without_a_leftover(path):
    out = adapt(path.read_text())
    assert "$" not in out
    assert out.count("<math ") == out.count("</math>") > 0
    assert "\\" not in "".join(part.rpartition(">")[2] for part in out.split("<"))


def test_links_to_generated_pages_are_on_the_site_alone(tmp_path):
    from pages import assemble

    listed = "<!-- site links: Exit codes exit-codes, Python API python -->"
    out = assemble.adapt("docs/index.md", "index.md", f"# A\n\n{listed}\n", {}, tmp_path)
    assert "[Exit codes](reference/exit-codes.md) · [Python API](reference/python.md)" in out


def test_a_path_in_a_docstring_is_a_link_and_no_column_is_empty():
    from pages import reference

    page = reference.write_python_page()
    assert "see [how-to/tasks](../how-to/tasks.md)" in page
    commands = reference.write_commands_page()
    assert "| argument or option | meaning |" in commands.partition("## resume")[2][:300]


def test_no_rule_is_without_an_algorithm():
    rules = {path.stem for path in (ROOT / "docs" / "rules").glob("*.md")}
    assert rules - set(ALGORITHM_CLASSES) == set()


SAID = {  # where a method or its measurement differs from what a reader expects
    "docs/rules/apple.md": "In the authors' code $s = 1$ (`scale_lr = false`), and a rate must be $N$ times larger",
    "docs/rules/cfl.md": "In the first `wait` rounds nothing is split: 0 by default, 20 in the authors' code.",
    "docs/rules/fedcp.md": "in the authors' code each client draws its first $u_k$ at random",
    "docs/rules/feddbe.md": "the default of 50 pulls twice as strongly as theirs",
    "docs/rules/feddistill.md": "its term is a cross entropy, too, since April 2024",
    "docs/rules/fedfomo.md": "it compares all models with this one, and its own trained model is a candidate",
    "docs/rules/fedgen.md": "teachers are weighted by their label counts",
    "docs/rules/fixhead.md": "a personalisation stage fine-tunes each client's model, and both accuracies are reported",
    "docs/rules/pfedgate.md": "**P is transductive**",
    "docs/reference/comparison.md": "pFedGate's P is transductive",
}


@pytest.mark.parametrize("page", SAID)
def test_pages_say_where_methods_differ_from_their_authors_code(page):
    assert SAID[page] in (ROOT / page).read_text(encoding="utf-8")


def test_an_algorithm_without_a_rule_measurements_or_tests_has_a_page(monkeypatch, tmp_path):
    from pages import algorithm_pages

    for folder in ("RULES", "BOARD", "TESTS"):
        monkeypatch.setattr(algorithm_pages, folder, tmp_path / folder)
    algorithm_pages.read_entries.cache_clear()
    algorithm_pages.read_test_names.cache_clear()
    page = algorithm_pages.write_algorithm_pages()["fedprox"]
    assert page.startswith("# FedProx\n\nAdd a proximal term")
    assert "| `mu` | `0.001` | at least 0 | strength of the proximal term |" in page
    assert "## The rule" not in page
    assert "## Measured" not in page
