"""The claims of the five works and what was found, as Markdown and as an HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from ..analysis.exports import escape_markdown
from ..core.errors import ConfigError
from ..core.files import write_atomically
from ..papers.claim_data import (
    CASE_TITLES,
    classify_verdict,
    count_verdicts,
    describe_cost,
    describe_found,
    list_cases,
)
from ..papers.claim_verdicts import ClaimVerdict

TITLE = "What holds: the claims of five works"
COLUMNS = ("claim", "printed", "verdict", "found", "to decide, core-hours")
DECIDED_TITLE = "What is decided"
DECIDED_COLUMNS = ("verdict", "claim", "work", "printed", "found")
INTRODUCTION = (
    "Every ordering that a table of these works prints, and every claim in words; what was printed, and"
    " what our runs show. Differences are paired by seed, with 95 % intervals over the seeds; the"
    " difference shown is the smallest of those that a claim compares. Over the rounds it is paired by"
    " seed and round.",
    "A claim *holds* if the intervals of all its differences are on the claimed side, and *does not"
    " hold* if one is on the other side (corrected for their number). It is *undecided* if they include"
    " 0, if rows are missing, or if there is one seed, which decides nothing. It *holds under condition"
    " …* if it does with some settings or by some rule, and not by all; settings without a rule mean: by both rules. The full scale counts before"
    " the medium one, which has fewer images, a smaller net, fewer rounds and, where clients have fewer"
    " images, larger learning rates; *settings as in the text* means: apart from that. Both are judged by the"
    " paper's own rule (such as the best round) and by the mean over the last ten evaluations.",
    "A claim can fail while rows are still missing. Where it names a margin, that counts in place of 0;"
    " where it does not, only the sign is judged. *Equal work* is a control of ours, which no paper"
    " claims. Nothing is corrected for the number of settings, rules or claims. Where a table deals the"
    " data once for all seeds, as FedReG's do, intervals say nothing about other partitions. *Stand-in"
    " data* are CIFAR-10 in place of CIFAR-100 and Tiny ImageNet, at medium scale, where these were not"
    " at hand: such runs are shown, and decide nothing.",
    "Claims about attacks are judged by privacy audits instead: differences are in dB, at equal training"
    " loss, once for an attacker who knows the personal parameters and once for one who does not.",
    "The column *to decide* is what it takes to decide a claim with five seeds, at medium and at full scale,"
    " on cores of 90 GFLOP/s, given the data: estimated from the arithmetic, to a factor of two. –: at"
    " medium scale other data stand in (Tiny ImageNet), which cannot decide the claim.",
)


def format_claims_markdown(found: Sequence[ClaimVerdict]) -> str:
    """Format all claims as Markdown: the decided ones first, then a section per table."""
    lines = [f"# {TITLE}", "", f"**{count_verdicts(found)}.**", ""]
    for paragraph in INTRODUCTION:
        lines += [paragraph, ""]
    if decided := list_decided(found):
        lines += [f"## {DECIDED_TITLE}", "", *format_markdown_table(DECIDED_COLUMNS, decided)]
    for title, group in group_by_table(found):
        rows = [list_texts(one) for one in group]
        lines += [f"## {title}", "", *format_markdown_table(COLUMNS, rows, numbers=1)]
        for one in group:
            if one.cases:
                lines += [f"All runs: *{escape_markdown(one.claim.says)}*", ""]
                lines += format_markdown_table(CASE_TITLES, list_cases(one))
    return "\n".join(lines)


def format_markdown_table(
    titles: Sequence[str], rows: Sequence[Sequence[str]], numbers: int = 0
) -> list[str]:
    """Format a table whose last ``numbers`` columns are aligned to the right; decided verdicts are bold."""
    marks = ["---"] * (len(titles) - numbers) + ["--:"] * numbers
    lines = [f"| {' | '.join(titles)} |", f"|{'|'.join(marks)}|"]
    place = titles.index("verdict")
    for row in rows:
        cells = [escape_markdown(cell) for cell in row]
        if classify_verdict(row[place]) != "undecided":
            cells[place] = f"**{cells[place]}**"
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def list_decided(found: Sequence[ClaimVerdict]) -> list[list[str]]:
    """List the claims that are not undecided, in the columns of ``DECIDED_COLUMNS``."""
    rows = []
    for one in found:
        if classify_verdict(one.verdict) != "undecided":
            says, printed, verdict, shown, _ = list_texts(one)
            work = f"{one.claim.table.paper}, {one.claim.table.where}"
            rows.append([verdict, says, work, printed, shown])
    return rows


def group_by_table(found: Sequence[ClaimVerdict]) -> Iterator[tuple[str, list[ClaimVerdict]]]:
    """Yield the claims of each table, with its title."""
    names = dict.fromkeys(one.claim.table.name for one in found)
    for name in names:
        group = [one for one in found if one.claim.table.name == name]
        table = group[0].claim.table
        yield f"{table.paper}, {table.where}: {table.what}", group


def list_texts(one: ClaimVerdict) -> list[str]:
    """List the cells of a claim's row, in the order of ``COLUMNS``."""
    claim = one.claim
    return [
        claim.says,
        claim.printed,
        one.verdict,
        describe_found(one),
        describe_cost(one),
    ]


STYLE = """
:root { color-scheme: light dark; --line: #8884; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 78rem; padding: 0 1rem; }
.wide { overflow-x: auto; margin-bottom: 1rem; }
table { border-collapse: collapse; width: 100%; min-width: 44rem; }
th, td { text-align: left; vertical-align: top; padding: .4rem .6rem; border-bottom: 1px solid var(--line); }
th { font-weight: 600; } .number { text-align: right; }
th.claim { width: 26%; } th.printed, th.verdict { width: 18%; } th.found { width: 26%; }
td.found, details { font-size: 13px; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
details { margin: .3rem .6rem; } summary { cursor: pointer; }
.kind { font-weight: 600; } .undecided { font-weight: 400; opacity: .7; }
.holds { color: #1a7f37; } .condition { color: #9a6700; } .fails { color: #cf222e; }
@media (prefers-color-scheme: dark) { .holds { color: #3fb950; } .condition { color: #d29922; } .fails { color: #f85149; } }
"""
CLASSES = {
    "holds": "holds",
    "holds under condition": "condition",
    "does not hold": "fails",
    "undecided": "undecided",
}


def format_claims_html(found: Sequence[ClaimVerdict]) -> str:
    """Format all claims as a page that needs no other file."""
    body = [
        f"<h1>{escape(TITLE)}</h1>",
        f"<p><strong>{escape(count_verdicts(found))}.</strong></p>",
    ]
    body += [f"<p>{escape(text.replace('*', ''))}</p>" for text in INTRODUCTION]
    if decided := list_decided(found):
        body.append(f"<h2>{DECIDED_TITLE}</h2>{format_html_table(DECIDED_COLUMNS, decided)}")
    for title, group in group_by_table(found):
        rows = [list_texts(one) for one in group]
        body.append(f"<h2>{escape(title)}</h2>{format_html_table(COLUMNS, rows, numbers=1)}")
        for one in group:
            if one.cases:
                cases = format_html_table(CASE_TITLES, list_cases(one))
                summary = f"<summary>All runs: {escape(one.claim.says)}</summary>"
                body.append(f"<details>{summary}{cases}</details>")
    head = f'<meta charset="utf-8"><title>{escape(TITLE)}</title><style>{STYLE}</style>'
    view = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    return f'<!doctype html><html lang="en"><head>{head}{view}</head><body>{"".join(body)}</body></html>\n'


def format_html_table(
    titles: Sequence[str], rows: Sequence[Sequence[str]], numbers: int = 0
) -> str:
    """Format a table whose last ``numbers`` columns are aligned to the right; verdicts have colours."""
    names = [*titles[: len(titles) - numbers], *["number"] * numbers]
    heads = zip(names, titles, strict=True)
    lines = ["".join(f'<th class="{name.split()[0]}">{escape(t)}</th>' for name, t in heads)]
    for row in rows:
        cells = zip(names, row, strict=True)
        lines.append("".join(format_html_cell(name, text) for name, text in cells))
    return f'<div class="wide"><table>{"".join(f"<tr>{line}</tr>" for line in lines)}</table></div>'


def format_html_cell(column: str, text: str) -> str:
    kind = f" kind {CLASSES[classify_verdict(text)]}" if column == "verdict" else ""
    return f'<td class="{column.split()[0]}{kind}">{escape(text)}</td>'


FORMATS = {".html": format_claims_html, ".md": format_claims_markdown}


def save_claims(found: Sequence[ClaimVerdict], path: Path) -> None:
    """Write the page in the format of its suffix."""
    if path.suffix not in FORMATS:
        raise ConfigError(f"-o {path}: must end in {' or '.join(FORMATS)}")
    write_atomically(path, FORMATS[path.suffix](found).encode())
