"""Write docs/reference/comparison.md from the committed leaderboard."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from heterophony.algorithms import ALGORITHM_CLASSES, get_display_name
from heterophony.papers.leaderboard import RankedEntry, Ranking
from heterophony.results.statistics import PairedComparison, RankComparison

from .behind import write_behind
from .numbers import Board, G, P, compare_with, get_name, rank_over_settings
from .plan import ALPHAS, DATA, SEEDS, TRIALS, TUNE_SEED, TUNED_ALPHA, DataPlan
from .printed import write_printed

HEAD = """\
# All algorithms, tuned alike and ranked

Written by `scripts/leaderboard` from the entries of a [leaderboard](../how-to/leaderboard.md), [results/leaderboard](../../results/leaderboard): every entry has its configuration
and the `model_sha256` of each seed, so anyone can repeat it. These are short runs of small nets. They show which methods learn quickly on a small budget, not which win after hundreds of rounds: [what these settings can show](#what-these-settings-can-show).

**Data.** 20 clients, Dirichlet α = 0.1 and 0.5, three quarters of each client's examples to train on. {data}

**Equal budgets.** [`heterophony tune`](../how-to/tune.md) tried {trials} combinations for every algorithm: six learning rates from 0.01 to 0.4; or three from 0.02 to 0.1 and
two values of the setting that matters most; or, for Per-FedAvg and pFedMe, their own rates; or, for APPLE, three rates with and without momentum. Budgets are equal in the number of trials, not in their range: in {edge} of {searches} searches with three rates the largest was
the best, so these methods may gain from larger rates. The combination with the highest P on validation examples is used: a fifth of each client's
training examples, with seed {tune_seed}, which no final run has. Test examples chose nothing. Settings were tuned at α = {alpha} and used for both. One local epoch in a round, momentum 0.9
where an algorithm's local steps have momentum and the search does not choose it, and defaults for everything else. The [chosen settings](#chosen-settings) are below.

**Numbers.** G (the generic model) and P (each client's own) are accuracies in %, over all clients' test examples, as the mean of the last ten rounds. *Worst tenth* is P of the two worst clients
after the last round. ± is half of the 95 % interval over {seeds} seeds. Each seed has its own partition, initial model and choice of clients, the same for all algorithms. So *P − Local* and
*G − FedAvg* are paired: the mean difference with its 95 % interval. *Rank* is the average over seeds; on these data, two average ranks differ if they are further apart than the
critical difference (Nemenyi, 5 %). *MB* is all traffic, both ways. *Work* is the number of training examples that clients processed, relative to
FedAvg; fine-tuning before a measurement does not count (ten epochs of FedBABU, one of FedAvg-FT). There are no seconds, because other programs ran on the same cores. Intervals are not corrected for
their number: if nothing differed, one in twenty would still exclude zero.
"""
NOTES = """\
`fedbn` is `fedavg` here, as neither net has BatchNorm. `local` never communicates, and `centralized` trains on all data in one place: they are baselines. FedBABU's P is measured in
every tenth round only, after its fine-tuning, so its P is the mean of those measurements. `fixhead` is a method of this project; its length was chosen on validation examples of this Fashion-MNIST, beyond the six trials.

**pFedGate's P is transductive**: a client's gates are computed from all of its test examples together, without labels. **CFL splits by stale updates**: it compares the last update of every client, and with half
of the clients in a round (digits) or a quarter (Fashion-MNIST) most of these are of earlier rounds. In its paper all clients take part in each round, and in its authors' code nothing is split in the first 20, as many as the runs
on Fashion-MNIST have (`wait`, here 0). **APPLE** diverges easily with momentum, so its search tries both with and without momentum; the settings that it chose on Fashion-MNIST diverged with other seeds.
"""
NEAR_CHANCE = 0.2  # with ten classes
ALTERNATIVE = "Average ranks of P and G of all algorithms, with the critical difference of P"
COMMANDS = """\
## Commands

<!-- not run: it takes hours -->
```sh
scripts/leaderboard
```
tunes, runs, adds entries and writes this page; it continues after an interruption. To show the entries, and to repeat a seed of one and compare its hash:
```sh
heterophony leaderboard show results/leaderboard -o board.html
heterophony leaderboard check results/leaderboard {entry}
```
"""


def write_page(board: Board) -> str:
    """Write the whole page."""
    parts = [
        write_head(board),
        write_missing(board),
        write_rule(board),
        write_overall(board),
        *(write_setting(board, data, alpha) for data in DATA for alpha in ALPHAS),
        write_chosen(board),
        write_behind(board),
        write_printed(board),
        COMMANDS.format(entry=next(iter(board.tables.values())).rows[0].entry.folder.name),
    ]
    return "\n".join(part for part in parts if part)


def write_head(board: Board) -> str:
    """Write the settings of the runs, and how to read the numbers."""
    sentences = [describe_data(data) for data in DATA]
    at_edge = list(list_edge_choices(board))
    head = HEAD.format(
        data=" ".join(sentences),
        trials=TRIALS,
        tune_seed=TUNE_SEED,
        alpha=TUNED_ALPHA,
        seeds=len(SEEDS),
        edge=sum(at_edge),
        searches=len(at_edge),
    )
    return f"{head}\n{NOTES}"


def list_edge_choices(board: Board) -> Iterator[bool]:
    """Yield, for each search with three learning rates, whether the largest was chosen."""
    for searches in board.tuning.values():
        for found in searches.values():
            rates = {trial[0].get("training.lr") for trial in found["trials"]}
            if len(rates) == 3 and None not in rates:
                yield found["chosen"]["training.lr"] == max(rates)


def describe_data(data: DataPlan) -> str:
    settings = dict(pair.split("=") for pair in data.settings)
    share = {"0.5": "half", "0.25": "a quarter"}[settings["participation.rate"]]
    return (
        f"{data.about}: `{settings['model.name']}`, batches of {settings['training.batch']},"
        f" {data.rounds} rounds, {share} of the clients in each."
    )


def write_missing(board: Board) -> str:
    """Describe which settings and algorithms have no entries yet."""
    notes = []
    for data in DATA:
        for alpha in ALPHAS:
            table = board.tables.get((data.name, alpha))
            there = {get_name(row.entry) for row in table.rows} if table else set()
            lacking = [name for name in ALGORITHM_CLASSES if name not in there]
            if lacking:
                words = "all algorithms" if not there else ", ".join(f"`{n}`" for n in lacking)
                notes.append(f"- {data.title}, α = {alpha}: {words}")
    if not notes:
        return ""
    return "**Not run yet**; `scripts/leaderboard` continues:\n\n" + "\n".join(notes) + "\n"


# What the settings can show ---------------------------------------------------------------------

LEAST_SHARE, LEAST_GAP = 0.8, 10  # of FedAvg's G in that of centralised training; in points
RULE = """\
## What these settings can show

A setting tells methods apart if FedAvg has learned (its G is at least {share} of centralised training's), and if there is something to gain from others (centralised training is at least {gap} points above Local). {verdict}
Where FedAvg has hardly learned, *G − FedAvg* compares with an untrained model; where Local is as good as centralised training, P cannot tell methods apart. One example: FedDecomp is near the bottom of all four tables, which have one local
epoch in each of 20 or 30 rounds; its paper has five in each of 300.
"""


def write_rule(board: Board) -> str:
    """Describe which settings tell methods apart, with the numbers of the rule."""
    rows, able = [], list[str]()
    for key in board.complete:
        fedavg, best, local = (
            100 * board.find_row(key, name).means[measure]
            for name, measure in (("fedavg", G), ("centralized", G), ("local", P))
        )
        meets = fedavg / best >= LEAST_SHARE and best - local >= LEAST_GAP
        able += [title_of(*key)] * meets
        numbers = [fedavg, best, local]
        told = [f"{fedavg / best:.2f}", f"{best - local:+.1f}".replace("-", "−")]
        rows.append([title_of(*key), *map(number, numbers), *told, "yes" if meets else "no"])
    titles = ["", "G of FedAvg", "centralised", "P of Local", "FedAvg ÷ centralised"]
    titles += ["centralised − Local", "tells methods apart"]
    verdict = f"{len(able)} of these {len(rows)} does{': ' * bool(able)}{', '.join(able)}."
    text = RULE.format(share=LEAST_SHARE, gap=LEAST_GAP, verdict=verdict)
    return f"{text}\n{table_of(titles, rows, 1)}"


# Ranks ------------------------------------------------------------------------------------------


def write_overall(board: Board) -> str:
    """Write the average ranks over all settings that were run; a single setting has them in its own table."""
    (names, p), (g_names, g) = (rank_over_settings(board, measure) for measure in (P, G))
    text = (
        f"## Average ranks\n\n![{ALTERNATIVE}](../images/ranks.svg)\n\nOver"
        f" {count(len(board.complete), 'setting')}, each by its means over the seeds. The critical difference of P is"
        f" {p.critical_difference:.1f} among {len(names)} algorithms: {count_near(p)} are not significantly different from the first, and form one group."
        f" That of G is {g.critical_difference:.1f} among the {len(g_names)} that have a generic model ({count_near(g)} in the first group).\n"
    )
    if len(board.complete) == 1:
        return text
    of_p, of_g = (dict(zip(n, r.average_ranks, strict=True)) for n, r in ((names, p), (g_names, g)))
    titles = ["", "algorithm", "P", "G", *(f"P, {title_of(*key)}" for key in board.complete)]
    rows = []
    for place, name in enumerate(sorted(names, key=lambda n: of_p[n]), 1):
        own = [board.find_row(key, name).ranks[P] for key in board.complete]
        numbers = [of_p[name], of_g.get(name), *own]
        rows.append([str(place), link(name), *(number(value) for value in numbers)])
    return f"{text}\n{table_of(titles, rows, 2)}"


def write_setting(board: Board, data: DataPlan, alpha: str) -> str:
    """Write the table of one setting, the best average rank of P first."""
    table = board.tables.get((data.name, alpha))
    if table is None:
        return ""
    names = {get_name(row.entry) for row in table.rows}
    titles = ["", "algorithm", "P", "rank", "P − Local", "worst tenth", "G", "rank", "G − FedAvg"]
    titles += ["MB", "work"]
    rows = []
    for place, row in enumerate(table.rows, 1):
        local = board.find_row((data.name, alpha), "local") if "local" in names else None
        fedavg = board.find_row((data.name, alpha), "fedavg") if "fedavg" in names else None
        rows.append([str(place), link(get_name(row.entry)), *write_cells(row, local, fedavg)])
    told = " ".join(filter(None, (describe_ranks(table), describe_unlearned(table))))
    return f"## {data.title}, α = {alpha}\n\n{told}\n\n{table_of(titles, rows, 2)}"


def write_cells(
    row: RankedEntry, local: RankedEntry | None, fedavg: RankedEntry | None
) -> list[str]:
    """Write the numbers of an entry."""
    travelled = row.means["MB_up"] + row.means["MB_down"]
    return [
        interval(row, P),
        number(row.ranks[P]),
        difference(compare_with(row, local, P) if local and local is not row else None),
        interval(row, "worst10"),
        interval(row, G),
        number(row.ranks[G]),
        difference(compare_with(row, fedavg, G) if fedavg and fedavg is not row else None),
        f"{travelled:.1f}",
        f"{row.means['work']:.2f}" if "work" in row.means else "–",
    ]


def describe_ranks(table: Ranking) -> str:
    """Describe how far apart ranks must be, and how many entries are not significantly different from the first."""
    words = []
    for measure, letter in ((P, "P"), (G, "G")):
        found = table.comparisons[measure]
        if found is not None:
            words.append(
                f"Ranks of {letter} differ if they are {found.critical_difference:.1f} apart:"
                f" {count_near(found)} of {len(found.average_ranks)} are not significantly different from the first."
            )
    return " ".join(words)


def count_near(found: RankComparison) -> int:
    """Count the algorithms that are not significantly different from the first, including it."""
    best = min(found.average_ranks)
    return sum(rank - best < found.critical_difference for rank in found.average_ranks)


def describe_unlearned(table: Ranking) -> str:
    """Describe how many algorithms have hardly started to learn after the last round."""
    few = [row for row in table.rows if row.means[P] < NEAR_CHANCE]
    if not few:
        return ""
    return (
        f"After so few rounds, P of {len(few)} of {len(table.rows)} is below {100 * NEAR_CHANCE:.0f} %, where"
        " chance is about 10 %: they have hardly started to learn. This table shows which method starts fast, not which is best in the end."
    )


# Chosen settings --------------------------------------------------------------------------------


def write_chosen(board: Board) -> str:
    """Write the settings that the searches chose, and the rounds that they used."""
    names = sorted({name for tuned in board.tuning.values() for name in tuned})
    data = [d for d in DATA if d.name in board.tuning]
    titles = ["algorithm", *(d.title for d in data), *(f"rounds, {d.title}" for d in data)]
    rows = [
        [
            link(name),
            *(format_chosen(board.tuning[d.name].get(name)) for d in data),
            *(format_rounds(board.tuning[d.name].get(name)) for d in data),
        ]
        for name in names
    ]
    return (
        "## Chosen settings\n\nAll combinations with their validation accuracies are in"
        " [tuning.json](../../results/leaderboard/tuning.json). *Rounds* are those that all trials used; fewer where"
        " trials were stopped early or diverged.\n\n"
        + table_of(titles, rows, 1)
        + write_others(board)
    )


def write_others(board: Board) -> str:
    """Describe which entries do not have the best combination, because a seed diverged with it."""
    lines = []
    for (data, alpha), table in board.tables.items():
        for row in table.rows:
            if row.entry.remark:
                keys = board.tuning[data][get_name(row.entry)]["chosen"]
                used = {key: get_setting(row.entry.config, key) for key in keys}
                lines.append(
                    f"- {link(get_name(row.entry))} on {title_of(data, alpha)}: {format_settings(used)}"
                )
    if not lines:
        return ""
    told = "Where a seed of the final runs diverged, all seeds have the next best combination in which none did:"
    return f"\n{told}\n\n" + "\n".join(lines) + "\n"


def get_setting(config: Mapping[str, Any], key: str) -> object:
    section, _, setting = key.partition(".")
    return config[section][setting]


def format_chosen(tuned: Mapping[str, Any] | None) -> str:
    return "–" if tuned is None else format_settings(tuned["chosen"])


def format_settings(chosen: Mapping[str, object]) -> str:
    return ", ".join(
        f"`{key.removeprefix('algorithm.').removeprefix('training.')}={v}`"
        for key, v in chosen.items()
    )


def format_rounds(tuned: Mapping[str, Any] | None) -> str:
    return "–" if tuned is None else str(tuned["rounds"])


# Cells ------------------------------------------------------------------------------------------


def count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def title_of(data: str, alpha: str) -> str:
    return f"{next(d.title for d in DATA if d.name == data)} {alpha}"


def link(name: str) -> str:
    return f"[{get_display_name(name)}](algorithms.md#{name})"


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def interval(row: RankedEntry, measure: str) -> str:
    """Format a mean with half of its 95 % interval."""
    if measure not in row.means:
        return "–"
    found = row.intervals[measure]
    half = f" ± {50 * (found[1] - found[0]):.1f}" if found else ""
    return f"{100 * row.means[measure]:.1f}{half}"


def difference(compared: PairedComparison | None) -> str:
    """Format a paired difference with half of its 95 % interval, bold if that excludes zero."""
    if compared is None or compared.interval is None:
        return "–"
    half = (compared.interval.high - compared.interval.low) / 2
    text = f"{100 * compared.mean:+.1f} ± {100 * half:.1f}".replace("-", "−")
    return f"**{text}**" if abs(compared.mean) > half else text


def table_of(titles: Sequence[str], rows: Sequence[Sequence[str]], text: int) -> str:
    """Write a Markdown table whose first ``text`` columns are words."""
    marks = ["---"] * text + ["--:"] * (len(titles) - text)
    lines = [titles, marks, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
