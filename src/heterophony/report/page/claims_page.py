"""The page of published claims and their verdicts, in Markdown and HTML."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from ...core.errors import ConfigError
from ...core.files import write_atomically
from ...papers.claim_data import (
    FindingVerdict,
    build_case_table,
    build_claim_table,
    build_decided_table,
    list_verdicts,
    summarise_findings,
)
from ...papers.claim_verdicts import ClaimVerdict
from ...results.table import escape_html_text, escape_markdown, render_html, render_markdown

TITLE = "What holds: the claims of five works"
EMPHASIS = re.compile(r"\*([^*]+)\*")  # in Markdown
DECIDED_TITLE = "What is decided"
JUDGED_TITLE = "How claims are judged"
INTRODUCTION = (
    "This page lists every claim of these works: the orderings in their tables (which row is best, what"
    " falls or rises with a setting) and the claims in their texts, each with the printed numbers and the"
    " results of our runs. A *finding* is a group of claims that rest on the same comparison of the same settings, because a"
    " paper repeats its thesis; a claim and its parts are one finding, too. Findings are counted, claims are"
    " listed."
)
EXPLANATION = (
    "Differences are paired by seed, with intervals over the seeds. If a claim has several differences, the"
    " smallest is shown. Differences over the rounds are paired by seed and round.",
    "Only runs of a paper's own setting, the full scale, can show that a claim *holds* or *does not hold*. The"
    " medium scale has fewer images, a smaller net, fewer rounds and, if clients have fewer images, larger"
    " learning rates. There, a claim is *seen at medium scale* or *not seen at medium scale*, which proves"
    " nothing about the paper's setting. In the only comparison that was run at both scales with equal work,"
    " FedReG's G against FedAvg's, the two scales differ even in sign.",
    "A claim *holds* (at medium scale: is *seen*) if the intervals of all its differences are on the claimed side."
    " It *does not hold* (is *not seen*) if one of them is on the other side, even if rows are missing. It is *undecided* if intervals include 0, if"
    " rows are missing, or if there is only one seed. If a claim names a margin, the margin replaces 0."
    " *Under condition …* means: with some settings, but not with all.",
    "The paper's own rule (such as the best round) decides. The mean over the last ten evaluations is shown"
    " as well, and the page says so if it would decide differently. The level is 95 %, with a Bonferroni correction:"
    " intervals that refute a claim are corrected for the number of comparisons of the finding, settings and"
    " rules; intervals that confirm it for the number of settings and rules, because all comparisons must be"
    " confirmed. There is no correction for the number of findings.",
    "*Not yet trained*: below full scale, a cell counts only if FedAvg has learned with its settings. This"
    " means that its G has settled (the line through the last fifth of the rounds neither rises nor falls"
    " beyond noise) and reaches 0.8 of the accuracy of the same net after centralised training on the same"
    " images with the same number of epochs. Otherwise the claim is not yet trained, whatever its interval is"
    " (`heterophony reproduce centralised --scale medium`).",
    "*Equal work* is our own control, which no paper claims: it is shown, but decides nothing. If a table"
    " uses one partition for all seeds, as FedReG's tables do, intervals say nothing about other partitions."
    " *Stand-in data*: at medium scale, CIFAR-10 replaces CIFAR-100 and Tiny ImageNet if these were not"
    " available. Such runs are shown, but decide nothing.",
    "Claims about attacks are judged by privacy audits instead. Differences are in dB, at equal training"
    " loss. A few rounds of training are enough to reach this loss; the condition *not yet trained* does not"
    " apply. There are three attackers: two do not know the personal parameters, and use newly drawn ones"
    " (*fresh*) or the initial ones (*initial*) for every algorithm; the third knows them (*known*).",
    "The column *to decide* estimates the cost of deciding a claim with five seeds, at medium and at full"
    " scale, on cores of 90 GFLOP/s with the data at hand; it is accurate to a factor of two. A – means that"
    " at medium scale other data stand in (for Tiny ImageNet), which cannot decide the claim.",
)


def format_claims_markdown(found: Sequence[FindingVerdict], table: str | None = None) -> str:
    """Format the page of claims as Markdown: decided findings first, then every table or one table."""
    blocks = [f"# {TITLE}", f"**{summarise_findings(found)}.**", INTRODUCTION]
    if (decided := build_decided_table(found)).rows:
        blocks += [f"## {DECIDED_TITLE}", render_markdown(decided).rstrip()]
    blocks += [f"## {JUDGED_TITLE}", *EXPLANATION]
    for title, group in group_by_table(list_verdicts(found, table)):
        blocks += [f"## {title}", render_markdown(build_claim_table(group)).rstrip()]
        for one in group:
            if one.cases:
                blocks.append(f"All runs: *{escape_markdown(one.claim.says)}*")
                blocks.append(render_markdown(build_case_table(one)).rstrip())
    return "\n\n".join(blocks) + "\n"


def group_by_table(found: Sequence[ClaimVerdict]) -> Iterator[tuple[str, list[ClaimVerdict]]]:
    """Yield the title of each published table, and the verdicts on its claims."""
    names = dict.fromkeys(one.claim.table.name for one in found)
    for name in names:
        group = [one for one in found if one.claim.table.name == name]
        table = group[0].claim.table
        yield f"{table.paper}, {table.where}: {table.what}", group


STYLE = """
:root { color-scheme: light dark; --line: #8884; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 78rem; padding: 0 1rem; }
.wide { overflow-x: auto; margin-bottom: 1rem; }
table { border-collapse: collapse; width: 100%; min-width: 44rem; table-layout: fixed; }
p { max-width: 60rem; } code { font-size: .93em; overflow-wrap: anywhere; }
th, td { box-sizing: border-box; text-align: left; vertical-align: top; padding: .4rem .6rem; border-bottom: 1px solid var(--line); }
th { font-weight: 600; } .number { text-align: right; white-space: nowrap; } th.number { white-space: normal; }
th.claim { width: 25%; } th.claims { width: 50%; } th.printed { width: 18%; }
th.verdict { width: 16%; } th.number { width: 15%; }
td.claims br { display: block; content: ""; margin-top: .4rem; }
td.found, td.words, details { font-size: 13px; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
details { margin: .3rem .6rem; } summary { cursor: pointer; }
.mark { font-weight: 600; } .open { font-weight: 400; opacity: .7; }
.good { color: #1a7f37; } .limited { color: #9a6700; } .bad { color: #cf222e; }
@media (prefers-color-scheme: dark) { .good { color: #3fb950; } .limited { color: #d29922; } .bad { color: #f85149; } }
"""


def format_claims_html(found: Sequence[FindingVerdict], table: str | None = None) -> str:
    """Format the page of claims as self-contained HTML, for every table or one table."""
    body = [
        f"<h1>{escape(TITLE)}</h1>",
        f"<p><strong>{escape(summarise_findings(found))}.</strong></p>",
        format_html_paragraph(INTRODUCTION),
    ]
    if (decided := build_decided_table(found)).rows:
        body.append(f"<h2>{DECIDED_TITLE}</h2>{render_html(decided)}")
    body += [f"<h2>{JUDGED_TITLE}</h2>", *map(format_html_paragraph, EXPLANATION)]
    for title, group in group_by_table(list_verdicts(found, table)):
        body.append(f"<h2>{escape(title)}</h2>{render_html(build_claim_table(group))}")
        for one in group:
            if one.cases:
                summary = f"<summary>All runs: {escape_html_text(one.claim.says)}</summary>"
                body.append(f"<details>{summary}{render_html(build_case_table(one))}</details>")
    head = f'<meta charset="utf-8"><title>{escape(TITLE)}</title><style>{STYLE}</style>'
    view = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    return f'<!doctype html><html lang="en"><head>{head}{view}</head><body>{"".join(body)}</body></html>\n'


def format_html_paragraph(text: str) -> str:
    """Format a Markdown paragraph as HTML; only emphasis and code are converted."""
    marked = EMPHASIS.sub(r"<em>\1</em>", escape_html_text(text))
    return f"<p>{marked}</p>"


FORMATS = {".html": format_claims_html, ".md": format_claims_markdown}


def save_claims(found: Sequence[FindingVerdict], path: Path, table: str | None = None) -> None:
    """Write the page of claims, for every table or one table, in the format of the path's suffix."""
    if path.suffix not in FORMATS:
        raise ConfigError(f"-o {path}: must end in {' or '.join(FORMATS)}")
    write_atomically(path, FORMATS[path.suffix](found, table).encode())
