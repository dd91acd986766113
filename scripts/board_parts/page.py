"""Write the comparison from the committed leaderboard: its front page, and a page for each setting."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from heterophony.algorithms import ALGORITHM_CLASSES, get_display_name
from heterophony.papers.evidence import measure_last_rise
from heterophony.results.statistics import PairedComparison

from .behind import write_behind
from .numbers import Board, G, P, Table, count_points, get_setting
from .plan import LEFT_OUT, PERSONAL_PILOTS, RATES, SEEDS, SETTINGS, STAGES, TRIALS, TUNE_SEED

LEAST_SHARE, LEAST_GAP, LEAST_ROOM, LARGEST_RISE = 0.8, 10, 3, 0.5
HEAD = """\
# Algorithms compared

Written by `scripts/leaderboard` from the entries of a [leaderboard](../how-to/leaderboard.md), [results/leaderboard](../../results/leaderboard): every entry has its configuration
and the `model_sha256` of each seed, so anyone can repeat it.

![{alternative}](../images/ranks.svg)

{meaning}

## Settings, and what they can show

{settings}

A rule decides whether a setting can tell methods apart. Pilot runs with untuned rates (seed 0) of FedAvg, Local, centralised training and three or four personal methods chose the settings by it. The exception for clients with few classes and the limit of {rise} points were set after these pilots and before any final run; the rest was fixed before.
The table has the numbers of the final runs:

- **Learned.** G of FedAvg is at least {share} of centralised training's, with the same net and the same examples.
- **Settled.** Over the last fifth of the rounds, FedAvg's G and P of {pilots} move by less than {rise} points, or by no more than their noise.
- **Something to gain.** Centralised training is at least {gap} points above Local. Where clients have few classes this cannot be: their own task is easier than everybody's, and Local is above centralised training. There, the best of the same
  three methods must be at least {room} points above Local.

{rule}
## How methods were tuned

Every method had {trials} trials: ten learning rates from {low} to {high} in factors of two, each without momentum and with 0.9. Where one setting of its own decides most, its two values were crossed with these so that each pair is tried equally often, in {trials} trials too.
Per-FedAvg and pFedMe search their own two rates. A trial runs {first} of the rounds; the best {kept} run again for {second} of them, and the best of these is used. Scores are P on validation examples, with seed {tune_seed}, which no final run has. Clients train on as many examples as in the final runs and hold
three times as many for validation, which few examples per client would not allow otherwise. Test examples chose nothing; but all seeds divide the same images, so an image may be a validation example of the search and a test example of a final run.
The best rate was the smallest or the largest in {edge} of {searches} searches. {narrow} Local training has five epochs of batches of ten, as many as or more than the papers of FedReG, FedAvg2Rep, PFAKD and FedDecomp use; all other settings are defaults. If a seed of a final run diverges, all seeds use the next best trial.

{left_out}
"""
ORDER_HEAD = """\
## Ranks over data sets

Ranks of P and G by the means over seeds, averaged first over the settings of a data set, then over the {blocks} data sets, which are the independent blocks; seeds are not. {verdict}
"""
SETTING_HEAD = """\
# Comparison: {title}

A page of [the comparison](comparison.md): {about}

![P and G over the rounds](../images/comparison-{name}.svg)

{groups}

{table}
**Columns.** *P* (each client's own model) and *G* (the generic model) are accuracies in % over all test examples, averaged over the last ten evaluations; ± is half of the 95 % interval over {seeds} seeds, each with its own partition and initial net, the same for all methods.
*P − Local* and *G − FedAvg* are paired by seed; their intervals, and those that make the groups, are corrected for the number of rows (Bonferroni), and bold ones exclude zero. A *group* holds all that are not significantly below its first; a method whose seeds differ widely can be in a group far above its mean. *Worst tenth* is the mean P of the worst tenth of
the clients, *deviation* that over clients. *Below Local* and *below FT* are the shares of clients with a lower P than with Local and with FedAvg-FT. *New clients*: P of the tenth of the clients that join after training, each of which trains for one round (five epochs). *To 90 %*: rounds and MB (all traffic, both ways) until P reaches {target:.1f} %,
0.9 of the best; a dash: not in every seed. *Work*: training examples, relative to FedAvg.{seconds}
"""
TITLES = [
    *(
        "algorithm",
        "group",
        "P",
        "P − Local",
        "worst tenth",
        "deviation",
        "below Local",
        "below FT",
    ),
    *("new clients", "G", "G − FedAvg", "rounds to 90 %", "MB to 90 %", "work"),
]
COMMANDS = """\
## Commands

<!-- not run: it takes hours -->
```sh
scripts/leaderboard
```
tunes, runs, adds entries and writes these pages; it continues after an interruption. To show the entries, and to repeat a seed of one and compare its hash:
```sh
heterophony leaderboard show results/leaderboard -o board.html
heterophony leaderboard check results/leaderboard {entry}
```
"""


def write_pages(board: Board) -> dict[str, str]:
    """Write all pages by name: ``comparison``, and ``comparison-SETTING`` for each table."""
    pages = {f"comparison-{name}": write_setting(table) for name, table in board.tables.items()}
    return {"comparison": write_front(board), **pages}


# The front page -----------------------------------------------------------------------------------


def write_front(board: Board) -> str:
    """Write the front page: the figure and its meaning, the settings, the search, and the ranks."""
    at_edge, searches, narrow = count_edges(board)
    head = HEAD.format(
        alternative=f"Rank of P of {len(board.common)} algorithms in each of {len(board.tables)} settings, and their average",
        meaning=write_meaning(board),
        settings=write_settings(board),
        rule=write_rule(board),
        share=LEAST_SHARE,
        gap=LEAST_GAP,
        room=LEAST_ROOM,
        rise=LARGEST_RISE,
        pilots=join_words([get_display_name(n) for n in PERSONAL_PILOTS]),
        trials=TRIALS,
        low=RATES[0],
        high=RATES[-1],
        first=describe_share(STAGES[0][0]),
        kept={3: "three", 4: "four"}[STAGES[1][1]],
        second=describe_share(STAGES[1][0]),
        tune_seed=TUNE_SEED,
        edge=at_edge,
        searches=searches,
        narrow=narrow,
        left_out=write_left_out(board),
    )
    entry = next(iter(board.tables.values())).entries["fedavg"].folder.name
    parts = [head, write_order(board), write_behind(board), COMMANDS.format(entry=entry)]
    return "\n".join(part for part in parts if part)


def write_meaning(board: Board) -> str:
    """Say in five sentences what the figure shows."""
    tables = list(board.tables.values())
    firsts = [sum(table.groups[n] == 1 for n in board.common) for table in tables]
    winners = [get_display_name(n) for n in board.common if all(t.groups[n] == 1 for t in tables)]
    names, _ = board.rank(P)
    beaten = [
        get_display_name(n)
        for n in board.common
        if n not in ("local", "centralized") and any(exceeds(t.compare("local", n)) for t in tables)
    ]
    led = (
        f"{join_words(winners)} {'is' if len(winners) == 1 else 'are'}"
        if winners
        else "No method is"
    )
    return " ".join(
        [
            f"Each dot is the rank of a method's personal models (P) in one of {len(tables)} settings, among the {len(names)} methods that ran in all of them.",
            f"A filled dot is in the first group of its setting: not significantly below the best, and {join_words([str(n) for n in firsts])} of them are.",
            f"{led} in the first group of every setting.",
            f"In some setting, clients that train alone (Local) are significantly better than {join_words(beaten) if beaten else 'none of them'}.",
            "These are small nets with few examples per client: they say what helps there, and nothing about large nets or much data.",
        ]
    )


def exceeds(compared: PairedComparison | None) -> bool:
    """Return True if a difference is significantly positive."""
    return compared is not None and compared.interval is not None and compared.interval.low > 0


def write_settings(board: Board) -> str:
    lines = [
        f"- [{table.setting.title}](comparison-{name}.md): {table.setting.describe()}"
        f" {len(table.entries)} of {len(table.setting.algorithms)} methods."
        for name, table in board.tables.items()
    ]
    lines += [
        f"- {setting.title}, not run yet: {setting.describe()}"
        for setting in SETTINGS
        if setting.name not in board.tables
    ]
    return "\n".join(lines)


def write_rule(board: Board) -> str:
    """Write the table of the rule, and which settings meet it."""
    rows, able = [], list[str]()
    for table in board.tables.values():
        cells, unmet = judge_setting(table)
        verdict = f"no: not {' and not '.join(unmet)}" if unmet else "yes"
        rows.append([table.setting.title, *cells, verdict])
        able += [] if unmet else [table.setting.title]
    titles = [
        "",
        "G of FedAvg",
        "centralised",
        "÷",
        "largest move",
        "P of Local",
        "centralised − Local",
    ]
    titles += ["best of three − Local", "tells methods apart"]
    verdict = (
        f"{len(able)} of {len(rows)} meet the rule: {', '.join(able)}."
        if able
        else "None meets the rule."
    )
    if len(able) < len(rows):
        verdict += " Where curves have not settled, the order may still change with more rounds."
    return f"{write_table(titles, rows, 1)}\n{verdict}\n"


def judge_setting(table: Table) -> tuple[list[str], list[str]]:
    """Compute the numbers of the rule, and list the conditions that they do not meet."""
    fedavg, pooled = 100 * table.mean("fedavg", G), 100 * table.mean("centralized", G)
    local = 100 * table.mean("local", P)
    room = max(100 * table.mean(n, P) for n in PERSONAL_PILOTS if n in table.entries) - local
    moves = [measure_move(table, "fedavg", "G")]
    moves += [measure_move(table, n, "P") for n in PERSONAL_PILOTS if n in table.entries]
    largest, settled = max(moves, key=lambda m: (not m[1], abs(m[0])))
    gains = pooled - local >= LEAST_GAP or (local > pooled - LEAST_GAP and room >= LEAST_ROOM)
    cells = [f"{fedavg:.1f}", f"{pooled:.1f}", f"{fedavg / pooled:.2f}", signed(largest)]
    cells += [f"{local:.1f}", signed(pooled - local), signed(room)]
    met = {"learned": fedavg / pooled >= LEAST_SHARE, "settled": settled, "enough to gain": gains}
    return cells, [word for word, holds in met.items() if not holds]


def measure_move(table: Table, name: str, measure: str) -> tuple[float, bool]:
    """Return by how many points a curve moves over the last fifth, and whether it has settled."""
    curves = [seed.curves[measure] for seed in table.entries[name].seeds.values()]
    moved, is_noise = measure_last_rise(curves, table.setting.rounds)
    return moved, is_noise or abs(moved) < LARGEST_RISE


def count_edges(board: Board) -> tuple[int, int, str]:
    """Count the searches that chose a rate at the end of its range; describe those that chose the largest."""
    at_edge = searches = largest = 0
    for table in {t.setting.searched_in: t for t in board.tables.values()}.values():
        for trials in table.trials.values():
            rate = trials[0][0].get("training.lr")
            if rate is not None:
                searches, at_edge = searches + 1, at_edge + (rate in (RATES[0], RATES[-1]))
                largest += rate == RATES[-1]
    return (
        at_edge,
        searches,
        f"({largest} of them the largest: these methods may gain from larger ones.)",
    )


def write_left_out(board: Board) -> str:
    """Describe which methods have no entry, and why."""
    lines = [
        "**Not there**: `fedbn` and `heterofl` would repeat `fedavg`, as no net has BatchNorm and all clients have one net;"
        f" {join_words([f'`{n}`' for n in LEFT_OUT[2:]])} need a pretrained net ([fine-tuning](../explanation/fine-tuning-results.md))."
    ]
    for table in board.tables.values():
        lacking = [n for n in ALGORITHM_CLASSES if n not in table.entries and n not in LEFT_OUT]
        if lacking and len(lacking) < len(ALGORITHM_CLASSES) // 3:
            lines.append(
                f"Not run in {table.setting.title}: {join_words([f'`{n}`' for n in lacking])}."
            )
    return " ".join(lines) + (
        " `fixhead` and `gausshead` are methods of this project; the length of FixHead was chosen on validation examples of Fashion-MNIST and CIFAR-10 before."
        " pFedGate's P is transductive: a client's gates are computed from all of its test examples together, without labels."
    )


def write_order(board: Board) -> str:
    """Write the average ranks over data sets."""
    names, p = board.rank(P)
    g_names, g = board.rank(G)
    if p is None or g is None:
        return ""
    near = sum(r - min(p.average_ranks) < p.critical_difference for r in p.average_ranks)
    verdict = (
        f"Average ranks of P differ if they are {p.critical_difference:.1f} apart (Nemenyi, 5 %): {near} of {len(names)} are not significantly different from the first."
        f" Those of G differ if they are {g.critical_difference:.1f} apart."
    )
    of_p, of_g = (
        dict(zip(names, p.average_ranks, strict=True)),
        dict(zip(g_names, g.average_ranks, strict=True)),
    )
    titles = ["", "algorithm", "P", "G", *(f"P, {t.setting.title}" for t in board.tables.values())]
    rows = []
    for place, name in enumerate(sorted(names, key=lambda n: of_p[n]), 1):
        own = [f"{100 * t.mean(name, P):.1f}" for t in board.tables.values()]
        rows.append([str(place), link(name), f"{of_p[name]:.1f}", number(of_g.get(name)), *own])
    head = ORDER_HEAD.format(blocks=len(board.blocks), verdict=verdict)
    return f"{head}\n{write_table(titles, rows, 2)}"


# A setting ----------------------------------------------------------------------------------------


def write_setting(table: Table) -> str:
    """Write the page of a setting."""
    titles = [*TITLES, "seconds"] if table.seconds else TITLES
    rows = [write_row(table, name) for name in table.names]
    seconds = (
        " *Seconds*: one run with seed 0 on an otherwise idle machine, one core."
        if table.seconds
        else ""
    )
    head = SETTING_HEAD.format(
        title=table.setting.title,
        about=table.setting.describe(),
        name=table.setting.name,
        groups=describe_groups(table),
        table=write_table(titles, rows, 1),
        seeds=len(SEEDS),
        target=100 * table.target,
        seconds=seconds + describe_rare_evaluations(table),
    )
    return f"{head}\n{write_chosen(table)}"


def describe_rare_evaluations(table: Table) -> str:
    """Name the methods whose P is measured in fewer rounds than that of the others."""
    points = {name: count_points(table, name) for name in table.names}
    rare = [name for name, count in points.items() if count < max(points.values())]
    if not rare:
        return ""
    words = [f"{get_display_name(name)} ({points[name]})" for name in rare]
    return f" P of {join_words(words)} is measured in fewer rounds (their number in brackets), because models are fine-tuned before each."


def describe_groups(table: Table) -> str:
    """Describe how many methods are in each group."""
    sizes = [list(table.groups.values()).count(i + 1) for i in range(max(table.groups.values()))]
    return f"{sizes[0]} of {len(table.entries)} rows cannot be told apart from the first, {get_display_name(table.names[0])}. The groups have {join_words([str(n) for n in sizes])} members."


def write_row(table: Table, name: str) -> list[str]:
    """Write the numbers of an algorithm."""
    below = [table.share_below(name, other) for other in ("local", "fedavg_ft")]
    generic = table.values(name, G)
    cells = [
        link(name),
        str(table.groups[name]),
        f"{100 * table.mean(name, P):.1f} ± {100 * table.half(name, P):.1f}",
        difference(table.compare(name, "local")),
        f"{100 * table.mean(name, 'worst10'):.1f}",
        f"{100 * table.mean(name, 'std'):.1f}",
        *("–" if share is None else f"{100 * share:.0f}" for share in below),
        f"{100 * table.mean(name, 'new_clients'):.1f}"
        if table.values(name, "new_clients")
        else "–",
        f"{100 * fmean(generic):.1f} ± {100 * table.half(name, G):.1f}" if generic else "–",
        difference(table.compare(name, "fedavg", G)),
        number(table.rounds_to_target(name), ".0f"),
        number(table.traffic_to_target(name)),
        number(table.mean(name, "work") if table.values(name, "work") else None, ".2f"),
    ]
    return [*cells, number(table.seconds.get(name))] if table.seconds else cells


def write_chosen(table: Table) -> str:
    """Write the settings of all entries; an asterisk marks those that are not the best of their search."""
    rows = []
    for name in sorted(table.entries):
        entry = table.entries[name]
        used = {key: get_setting(entry.config, key) for key in table.trials[name][0][0]}
        text = ", ".join(f"`{k.rpartition('.')[2]}={v}`" for k, v in used.items())
        rows.append([link(name) + " \\*" * bool(entry.remark), text])
    note = "All trials with their validation accuracies are in [tuning.json](../../results/leaderboard/tuning.json)."
    if any(entry.remark for entry in table.entries.values()):
        note += " \\*: with better ones of its search, a seed of the final runs diverged."
    title = next(s.title for s in SETTINGS if s.name == table.setting.searched_in)
    if table.setting.searched_in != table.setting.name:
        note += f" They were searched in {title}."
    return f"## Chosen settings\n\n{note}\n\n{write_table(['algorithm', 'settings'], rows, 2)}"


# Cells ------------------------------------------------------------------------------------------


def describe_share(share: float) -> str:
    return {0.25: "a quarter", 0.5: "half", 0.75: "three quarters"}[share]


def join_words(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def link(name: str) -> str:
    return f"[{get_display_name(name)}](algorithms.md#{name})"


def number(value: float | None, form: str = ".1f") -> str:
    return "–" if value is None else f"{value:{form}}"


def signed(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−")


def difference(compared: PairedComparison | None) -> str:
    """Format a paired difference with half of its interval, bold if that excludes zero."""
    if compared is None or compared.interval is None:
        return "–"
    half = (compared.interval.high - compared.interval.low) / 2
    text = f"{signed(100 * compared.mean)} ± {100 * half:.1f}"
    return f"**{text}**" if abs(compared.mean) > half else text


def write_table(titles: Sequence[str], rows: Sequence[Sequence[str]], text: int) -> str:
    """Write a Markdown table whose first ``text`` columns are words."""
    marks = ["---"] * text + ["--:"] * (len(titles) - text)
    return "\n".join(f"| {' | '.join(line)} |" for line in [titles, marks, *rows]) + "\n"
