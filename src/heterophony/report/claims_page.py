"""The claims of the five works and what was found, as Markdown and as an HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from ..analysis.exports import escape_markdown
from ..core.errors import ConfigError
from ..core.files import write_atomically
from ..papers.claim_data import classify_verdict, count_verdicts, describe_cost, describe_found
from ..papers.claim_verdicts import ClaimVerdict

TITLE = "What holds: the claims of five works"
COLUMNS = ("claim", "printed", "verdict", "found", "to decide, core-hours")
INTRODUCTION = (
    "Every ordering that a table of these works prints, and every claim in words; what was printed, and"
    " what our runs show. Differences are paired by seed, with 95 % intervals over the seeds; the"
    " difference shown is the smallest of those that a claim compares. Over the rounds it is paired by"
    " seed and round.",
    "A claim *holds* if the intervals of all its differences are on the claimed side, and *does not"
    " hold* if one is on the other side (corrected for their number). It is *undecided* if they include"
    " 0, if rows are missing, or if there is one seed, which decides nothing. It *holds under condition"
    " …* if it does with some settings or by some rule, and not by all. The full scale counts before"
    " the medium one, which has fewer images, a smaller net and fewer rounds. Both are judged by the"
    " paper's own rule (such as the best round) and by the mean over the last ten evaluations.",
    "The last column is what it takes to decide a claim with five seeds, at medium and at full scale,"
    " on cores of 90 GFLOP/s, given the data: estimated from the arithmetic, to a factor of two. –: at"
    " medium scale other data stand in (Tiny ImageNet), which cannot decide the claim.",
)


def format_claims_markdown(found: Sequence[ClaimVerdict]) -> str:
    """Format all claims as Markdown, a section per table."""
    lines = [f"# {TITLE}", "", f"**{count_verdicts(found)}.**", ""]
    for paragraph in INTRODUCTION:
        lines += [paragraph, ""]
    for title, group in group_by_table(found):
        lines += [f"## {title}", ""]
        lines += [f"| {' | '.join(COLUMNS)} |", "|---|---|---|---|--:|"]
        for one in group:
            cells = [escape_markdown(cell) for cell in list_texts(one)]
            cells[2] = (
                f"**{cells[2]}**" if classify_verdict(one.verdict) != "undecided" else cells[2]
            )
            cells[3] = "<br>".join(map(escape_markdown, describe_found(one)))
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


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
        "; ".join(describe_found(one)),
        describe_cost(one),
    ]


STYLE = """
:root { color-scheme: light dark; --line: #8884; --muted: #8889; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 78rem; padding: 0 1rem; }
table { border-collapse: collapse; table-layout: fixed; width: 100%; margin-bottom: 2rem; }
th:nth-child(1) { width: 26%; } th:nth-child(2) { width: 18%; } th:nth-child(3) { width: 14%; } th:nth-child(5) { width: 12%; }
th, td { text-align: left; vertical-align: top; padding: .4rem .6rem; border-bottom: 1px solid var(--line); }
th { font-weight: 600; } th:last-child, td:last-child { text-align: right; overflow-wrap: anywhere; }
td.found { font-size: 13px; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
.verdict { font-weight: 600; } .undecided { font-weight: 400; opacity: .7; }
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
    for title, group in group_by_table(found):
        heads = "".join(f"<th>{escape(name)}</th>" for name in COLUMNS)
        rows = "".join(map(format_html_row, group))
        body.append(f"<h2>{escape(title)}</h2><table><tr>{heads}</tr>{rows}</table>")
    head = f'<meta charset="utf-8"><title>{escape(TITLE)}</title><style>{STYLE}</style>'
    view = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    return f'<!doctype html><html lang="en"><head>{head}{view}</head><body>{"".join(body)}</body></html>\n'


def format_html_row(one: ClaimVerdict) -> str:
    says, printed, verdict, _, cost = map(escape, list_texts(one))
    kind = CLASSES[classify_verdict(one.verdict)]
    lines = "<br>".join(map(escape, describe_found(one)))
    cells = f'<td>{says}</td><td>{printed}</td><td class="verdict {kind}">{verdict}</td>'
    return f'<tr>{cells}<td class="found">{lines}</td><td>{cost}</td></tr>'


FORMATS = {".html": format_claims_html, ".md": format_claims_markdown}


def save_claims(found: Sequence[ClaimVerdict], path: Path) -> None:
    """Write the page in the format of its suffix."""
    if path.suffix not in FORMATS:
        raise ConfigError(f"-o {path}: must end in {' or '.join(FORMATS)}")
    write_atomically(path, FORMATS[path.suffix](found).encode())
