"""Accuracies that others have printed for Fashion-MNIST with 20 clients, for comparison with ours."""

from __future__ import annotations

from heterophony.algorithms import get_display_name
from heterophony.papers.table import load_table

from .numbers import Board, G, P

# PFLlib, docs/benchmark.html at commit 8afdf11 (www.pfllib.com/benchmark.html): FMNIST, "practical
# label skew", Dirichlet 0.1, the mean of three trials
PFLLIB = {
    "fedavg": 85.85,
    "fedprox": 85.63,
    "fedgen": 84.90,
    "perfedavg": 95.10,
    "pfedme": 97.25,
    "ditto": 97.47,
    "apfl": 97.25,
    "fedfomo": 97.21,
    "fedamp": 97.20,
    "apple": 97.06,
    "fedala": 97.66,
    "fedper": 97.44,
    "fedrep": 97.56,
    "fedrod": 97.52,
    "fedbabu": 97.46,
    "fedcp": 97.89,
    "gpfl": 97.81,
    "feddbe": 97.69,
    "feddistill": 97.43,
    "fedproto": 97.40,
}
TABLE = "fedreb-table5-6-fmnist"  # of the package: 5 of 20 clients, alpha 0.1 and 0.5
COLUMNS = {"0.1": "5 of 20, alpha 0.1", "0.5": "5 of 20, alpha 0.5"}
DATA = "fmnist-small"
HEAD = """\
## Printed numbers beside ours

We know of no printed numbers for these settings: not for digits with 20 clients, and not for Fashion-MNIST with 1,000 images per class at half their side, a small net and
20 rounds. The nearest are for all of Fashion-MNIST with 20 clients and the same α. *PFLlib*: [its benchmark](http://www.pfllib.com/benchmark.html), P of the best round on test examples, a CNN of 4 layers, all clients in every
round, batches of 10, 2,000 rounds of one epoch. *FedReb*: its Table 5.6 (`heterophony reproduce fedreb-table5-6-fmnist`), the best round on test examples, 5 of 20 clients in a round, 100
rounds of five epochs; its P of FedProx at α = 0.5 must be a misprint, as P and G are the same model there. Levels cannot be compared with ours; orders can, with care. A dash: not printed, or not run yet.

"""


def write_printed(board: Board) -> str:
    """Write the table of printed numbers beside ours; ours are dashes until they exist."""
    alphas = list(COLUMNS)
    fedreb = {alpha: read_fedreb(alpha) for alpha in alphas}
    titles = ["algorithm"]
    for alpha in alphas:
        titles += [f"P, α {alpha}: ours", *(["PFLlib"] if alpha == "0.1" else []), "FedReb"]
        titles += ["G: ours", "FedReb"]
    names = [n for n in board.list_names() if n in PFLLIB or any(n in t for t in fedreb.values())]
    lines = [f"| {' | '.join(titles)} |", "|---|" + "--:|" * (len(titles) - 1)]
    for name in names:
        cells = [get_display_name(name)]
        for alpha in alphas:
            known = (DATA, alpha) in board.complete
            means = board.find_row((DATA, alpha), name).means if known else {}
            p, g = fedreb[alpha].get(name, (None, None))
            cells += [percent(means.get(P))]
            cells += [plain(PFLLIB.get(name))] if alpha == "0.1" else []
            cells += [plain(p), percent(means.get(G)), plain(g)]
        lines.append(f"| {' | '.join(cells)} |")
    return HEAD + "\n".join(lines) + "\n"


def read_fedreb(alpha: str) -> dict[str, tuple[float, float]]:
    """Read the printed P and G of FedReb's table, by algorithm."""
    table = load_table(TABLE)
    at = list(table.columns).index(COLUMNS[alpha])
    return {
        row["algorithm"]["name"]: (table.printed["P"][label][at], table.printed["G"][label][at])
        for label, row in table.rows.items()
    }


def percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.2f}"


def plain(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
