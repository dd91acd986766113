"""Published figures drawn from runs: what is drawn are the numbers of the runs, to the bit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean, pstdev, stdev
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from matplotlib.text import Text
from typer.testing import CliRunner

import heterophony as hp
from helpers.support import digits, played
from heterophony.algorithms.fedreg import FedReG
from heterophony.cli import app
from heterophony.core.errors import ConfigError
from heterophony.papers.reproduce import CellRun, ReproductionResult, TableSelection
from heterophony.papers.table import Cell, TableScale, load_table, load_tables, parse_table
from heterophony.papers.verdicts import compare_numbers
from heterophony.report.figures import label_distribution
from heterophony.report.figures import paper_curves as paper_figures
from heterophony.report.figures.paper_curves import count_selections_by_rank
from heterophony.report.figures.style import arrange_panels

HEAD = 'paper = "P"\nwhere = "Table 1"\nwhat = "w"\n'
SHARED = """
[settings]
rounds = 40
data.name = "digits"
data.clients = 100
model.name = "convnet"
algorithm.name = "fedavg"
"""
Values = Mapping[tuple[str, str], Mapping[str, tuple[float, ...]]]


def outcome(text: str, ours: Values, scale: TableScale = TableScale.full) -> ReproductionResult:
    """A table with these numbers of ours, by row and column, for seeds 0, 1, …"""
    table = TableSelection(parse_table("t", HEAD + text), scale, "*", "*", (0, 1))
    by_seed: Any = {
        at: {
            s: {k: v[s] for m, v in cell.items() for k in (m, f"{m} last10")}
            for s in range(len(next(iter(cell.values()))))
        }
        for at, cell in ours.items()
    }
    why = (
        {}
        if scale is TableScale.full
        else {(c.row, c.column): "quick scale" for c in table.selected_cells}
    )
    return ReproductionResult(table, compare_numbers(table.selected_cells, by_seed, why), [], [])


def widths(axes: Axes) -> list[float]:
    """Of all bars, in the order of drawing."""
    return [bar.get_width() for bar in axes.patches]


def plotted(axes: Axes) -> dict[str, tuple[list[float], list[float]]]:
    """Lines by label."""
    return {
        str(line.get_label()): (list(line.get_xdata()), list(line.get_ydata()))
        for line in axes.lines
        if not str(line.get_label()).startswith("_")
    }


def panels(figure: Figure) -> dict[str, Axes]:
    return {axes.get_title(loc="left"): axes for axes in figure.axes if axes.get_visible()}


# Bars ---------------------------------------------------------------------------------------

TWO = (
    SHARED
    + """
[rows]
a = { algorithm.name = "fedavg" }
b = { algorithm.name = "fedper" }
[columns]
few = { rounds = 20 }
many = { rounds = 40 }
[printed.G]
a = [50.0, 60.5]
b = [40.0, "-"]
[printed.P]
a = [70.0, 80.0]
b = [75.0, "-"]
[std.P]
a = [0.5, "-"]
b = ["-", "-"]
"""
)
OURS: Values = {
    ("a", "few"): {"G": (51.0, 52.0), "P": (60.0, 60.5)},
    ("a", "many"): {"G": (61.0,), "P": (80.1,)},
}


def test_bars_are_the_printed_numbers_and_the_means_of_ours():
    found = panels(paper_figures.draw_paper_figure(outcome(TWO, OURS), []))
    assert list(found) == ["few: G", "many: G", "few: P", "many: P"]
    assert widths(found["few: G"]) == [50.0, 51.5, 40.0]  # b was not run
    assert widths(found["many: G"]) == [60.5, 61.0]
    assert widths(found["few: P"]) == [70.0, 60.25, 75.0]
    texts = [t.get_text() for t in found["few: P"].texts]
    assert texts == ["70.0", "60.2", "75.0"]


def test_deviations_are_those_of_the_seeds_and_of_the_paper():
    axes = panels(paper_figures.draw_paper_figure(outcome(TWO, OURS), []))["few: P"]
    spans = [c.get_segments()[0][:, 0].tolist() for c in axes.collections]
    std = stdev([60.0, 60.5])
    assert spans == [[69.5, 70.5], [60.25 - std, 60.25 + std]]


def test_the_colour_of_a_bar_is_its_verdict():
    figure = paper_figures.draw_paper_figure(outcome(TWO, OURS), [])
    legend = figure.legends[0]
    assert [t.get_text() for t in legend.get_texts()] == [
        "printed",
        "ours: within noise",
        "ours: worse",
        "ours: undecided",
    ]
    filled = panels(figure)["few: P"].patches[1]
    assert filled.get_facecolor() == legend.get_patches()[2].get_facecolor()


def test_at_quick_scale_only_ours_is_drawn_and_the_title_says_so():
    figure = paper_figures.draw_paper_figure(outcome(TWO, OURS, TableScale.quick), [])
    assert widths(panels(figure)["few: G"]) == [51.5]
    assert figure.get_suptitle().replace("\n", " ") == (
        "P, Table 1: w Ours, quick scale (digits, digitsnet): not comparable with the printed"
    )
    assert figure.legends == []


def test_only_the_measures_that_are_asked_for_are_drawn():
    figure = paper_figures.draw_paper_figure(outcome('draws = ["P"]\n' + TWO, OURS), [])
    assert list(panels(figure)) == ["few", "many"]
    assert widths(panels(figure)["many"]) == [80.0, 80.1]


@pytest.mark.parametrize(
    ("columns", "shape"), [(1, [2]), (2, [2, 2]), (4, [4, 4]), (5, [3, 3, 2, 2]), (9, [3] * 6)]
)
def test_panels_stand_in_rows_and_every_place_is_there_once(columns, shape):
    names = [str(i) for i in range(columns)]
    rows = arrange_panels(names, ["G", "P"], 4)
    assert [len(row) for row in rows] == shape
    assert sorted(p for row in rows for p in row) == [(m, c) for m in "GP" for c in names]


# Lines and heat maps ------------------------------------------------------------------------

OVER_CLIENTS = (
    'figure = "clients"\n'
    + SHARED
    + """
[rows]
a = {}
b = { algorithm.name = "fedper" }
[columns]
"100 clients" = { data.clients = 100 }
"30 clients" = { data.clients = 30 }
[printed.score]
a = [3.5, 3.6]
b = [3.7, 3.8]
"""
)


def test_lines_go_over_the_number_of_clients_of_the_runs():
    ours = {("a", "100 clients"): {"score": (3.0, 3.5)}, ("a", "30 clients"): {"score": (2.0, 2.0)}}
    (axes,) = paper_figures.draw_paper_figure(outcome(OVER_CLIENTS, ours), []).axes
    assert plotted(axes) == {
        "a": ([30, 100], [2.0, 3.25]),
        "a, printed": ([30, 100], [3.6, 3.5]),
        "b, printed": ([30, 100], [3.8, 3.7]),
    }
    assert [t.get_text() for t in axes.texts] == ["a", "b"]
    (axes,) = paper_figures.draw_paper_figure(
        outcome(OVER_CLIENTS, ours, TableScale.quick), []
    ).axes
    assert plotted(axes) == {"a": ([6, 20], [2.0, 3.25])}


SWEEP = (
    'figure = "sweep"\ndraws = ["P"]\n'
    + SHARED
    + """
[rows]
"E = 2" = { rounds = 2 }
"E = 10" = { rounds = 10 }
[columns]
A = {}
B = { model.name = "mlp" }
"""
)


def test_a_sweep_goes_over_the_numbers_of_the_rows():
    ours = {
        ("E = 10", "A"): {"G": (1.0,), "P": (70.0,)},
        ("E = 2", "A"): {"G": (1.0,), "P": (60.0,)},
        ("E = 2", "B"): {"G": (1.0,), "P": (50.0,)},
    }
    (axes,) = paper_figures.draw_paper_figure(outcome(SWEEP, ours), []).axes
    assert plotted(axes) == {"A": ([2.0, 10.0], [60.0, 70.0]), "B": ([2.0], [50.0])}
    assert (axes.get_xlabel(), axes.get_xscale()) == ("E", "linear")


def test_a_sweep_over_powers_has_a_logarithmic_axis():
    text = SWEEP.replace("E = 2", "beta = 0.1").replace("E = 10", "beta = 5")
    ours = {("beta = 0.1", "A"): {"P": (60.0,)}, ("beta = 5", "A"): {"P": (70.0,)}}
    (axes,) = paper_figures.draw_paper_figure(outcome(text, ours), []).axes
    assert plotted(axes)["A"] == ([0.1, 5.0], [60.0, 70.0])
    assert (axes.get_xlabel(), axes.get_xscale()) == ("beta", "log")
    assert [axes.xaxis.get_major_formatter()(x) for x in axes.get_xticks()] == ["0.1", "5"]


def test_names_of_lines_that_end_side_by_side_do_not_overlap_although_they_have_two_lines():
    names = ("a data set with a long name, and its net", "another set with a long name, its net")
    text = SWEEP.replace("A = {}", f'"{names[0]}" = {{}}').replace("B = {", f'"{names[1]}" = {{')
    ours = {("E = 2", n): {"P": (60.0,)} for n in names} | {
        ("E = 10", n): {"P": (70.0 + i,)} for i, n in enumerate(names)
    }
    figure = paper_figures.draw_paper_figure(outcome(text, ours), [])
    FigureCanvasAgg(figure).draw()
    below, above = figure.axes[0].texts
    assert {t.get_text().count("\n") for t in (below, above)} == {1}
    assert Text.get_window_extent(below).y1 <= Text.get_window_extent(above).y0


GRID = (
    'figure = "grid"\n'
    + SHARED
    + """
[rows]
"R_l = 0.2" = { rounds = 2 }
"R_l = 1.0" = { rounds = 10 }
[columns]
"X, R_c = 0.4" = {}
"X, R_c = 0.8" = { training.batch = 3 }
"Y, R_c = 0.4" = { training.batch = 4 }
"Y, R_c = 0.8" = { training.batch = 5 }
[printed.P]
"R_l = 0.2" = [84.7, 84.9, 10.0, 11.0]
"R_l = 1.0" = [84.8, 85.1, 12.0, "-"]
"""
)


def test_a_grid_has_a_heat_map_for_each_data_set():
    ours = {
        ("R_l = 0.2", "X, R_c = 0.4"): {"P": (80.0, 81.0)},
        ("R_l = 1.0", "X, R_c = 0.8"): {"P": (83.0,)},
    }
    found = panels(paper_figures.draw_paper_figure(outcome(GRID, ours), []))
    assert list(found) == ["X: P", "Y: P"]
    (mesh,) = [c for c in found["X: P"].collections if isinstance(c, QuadMesh)]
    assert np.ma.filled(mesh.get_array(), -1).tolist() == [[80.5, -1], [-1, 83.0]]
    words = [t.get_text() for t in found["X: P"].texts]
    assert words == ["80.5\n(84.7)", "(84.9)", "(84.8)", "83.0\n(85.1)"]
    assert [t.get_text() for t in found["Y: P"].texts] == ["(10.0)", "(11.0)", "(12.0)"]
    ticks = [[t.get_text() for t in labels] for labels in (
        found["X: P"].get_xticklabels(), found["X: P"].get_yticklabels())]  # fmt: skip
    assert ticks == [["0.4", "0.8"], ["0.2", "1.0"]]
    assert (found["X: P"].get_xlabel(), found["X: P"].get_ylabel()) == ("R_c", "R_l")


def test_a_heat_map_names_all_data_sets_that_its_runs_stand_for():
    table = TableSelection(load_table("pfakd-grid-gpfl"), TableScale.quick, "*", "*", (42,))
    cells = table.selected_cells
    result = ReproductionResult(table, compare_numbers(cells, {}, {}, table.stand_ins), [], [])
    titles = [t.replace("\n", " ") for t in panels(paper_figures.draw_paper_figure(result, []))]
    assert "digits, digitsnet in place of Fashion-MNIST, CIFAR-10: P" in titles


# Rounds -------------------------------------------------------------------------------------


def events(G: list[int], draws: list[list[str]], apart: list[float]) -> list[dict[str, Any]]:
    """A run of two clients with ten test examples each; the second is right half as often."""
    out: list[dict[str, Any]] = [{"event": "start", "clients": ["x", "y"], "test": [10, 10]}]
    for t, right in enumerate(G):
        out.append({"event": "evaluation", "t": t, "G": [right, right], "P": [right, right // 2]})
        if t < len(draws):
            told = {"model_difference": apart[t]}
            out.append(
                {"event": "round", "t": t, "clients": draws[t], "P_local": [], "measures": told}
            )
    return out


def told(kind: str) -> tuple[ReproductionResult, list[tuple[CellRun, list[dict[str, Any]]]]]:
    """Two seeds of row a, none of row b."""
    ours = {("a", "few"): {"G": (1.0, 1.0), "P": (1.0, 1.0)}}
    text = TWO[: TWO.index("[printed.G]")]
    made = outcome(f'figure = "{kind}"\n' + text, ours)
    cell = made.table.distinct_cells[0]
    return made, [
        (CellRun(cell, 0), events([1, 2, 8], [["x", "x"], ["x", "y"]], [3.0, 2.0])),
        (CellRun(cell, 1), events([1, 4, 6], [["y", "y"], ["y", "y"]], [4.0, 1.0])),
    ]


def test_curves_are_means_over_the_seeds_with_their_deviation():
    G, P = paper_figures.draw_paper_figure(*told("curves")).axes
    assert plotted(G) == {"a": ([0, 1, 2], [0.1, fmean([0.2, 0.4]), fmean([0.8, 0.6])])}
    assert plotted(P) == {"a": ([0, 1, 2], [0.05, fmean([0.15, 0.3]), fmean([0.6, 0.45])])}
    assert [axes.get_title(loc="left") for axes in (G, P)] == ["few", "few"]
    band = G.collections[0].get_paths()[0].vertices
    mean, std = fmean([0.8, 0.6]), pstdev([0.8, 0.6])
    assert band[band[:, 0] == 2][:, 1].max() == mean + std


def test_the_distance_of_clients_is_what_the_algorithm_recorded():
    (axes,) = paper_figures.draw_paper_figure(*told("difference")).axes
    assert plotted(axes) == {"a": ([1, 2], [3.5, 1.5])}


def test_who_is_drawn_twice_in_a_round_counts_twice():
    likely, often, G = paper_figures.draw_paper_figure(*told("participation")).axes
    assert plotted(likely) == {"a": ([1, 2], [0.5, 0.5])}
    assert plotted(often) == {"a": ([1, 2], [fmean([3, 4]), fmean([1, 0])])}
    assert plotted(G) == {"a": ([0, 1, 2], [0.1, fmean([0.2, 0.4]), fmean([0.8, 0.6])])}


def test_probabilities_are_those_that_a_run_draws_by():
    skewed = {"count": 2, "skew": {"gamma": 0.002}}
    config = {"data": {"clients": 6}, "participation": skewed}
    cell_run = CellRun(Cell("a", "few", config, {}, None), 1)
    likely = cell_run.compute_selection_probabilities(6)
    assert sum(likely) == pytest.approx(1)
    assert max(likely) > 0.99
    result = played("fedavg", rounds=3, participation=hp.Skewed(count=2, gamma=0.002), seed=1)
    asked = {c for e in result.events if e["event"] == "round" for c in e["clients"]}
    assert asked == {result.plan.federation.clients[likely.index(max(likely))]}


def test_draws_of_a_real_run_are_all_counted():
    result = played("fedavg", rounds=4)
    curve = count_selections_by_rank(result.events)
    asked = [e["clients"] for e in result.events if e["event"] == "round"]
    assert sum(n for _, n in curve) == sum(map(len, asked)) == 12
    assert [rank for rank, _ in curve] == [1, 2, 3, 4, 5, 6]
    assert [n for _, n in curve] == sorted((n for _, n in curve), reverse=True)


# Files --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bars", "curves"])
def test_the_same_outcome_gives_the_same_bytes(kind, tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        paper_figures.save_paper_figure(*told(kind), tmp_path / name)
    for suffix in ("svg", "png"):
        one, two = ((tmp_path / n / f"figure.{suffix}").read_bytes() for n in ("one", "two"))
        assert one == two
        assert len(one) > 1000


@pytest.mark.parametrize("found", [e for e in load_tables() if e.cells], ids=lambda e: e.name)
def test_every_table_can_be_drawn_before_anything_was_run(found):
    table = TableSelection(found, TableScale.full, "*", "*", (0,))
    figure = paper_figures.draw_paper_figure(
        ReproductionResult(table, compare_numbers(table.selected_cells, {}, {}), [], []), []
    )
    assert figure.get_suptitle().replace("\n", " ").startswith(f"{found.paper}, {found.where}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('figure = "bar"\n', "figure: must be one of bars, clients.* not 'bar'"),
        ('draws = ["Q"]\n', "draws: unknown name 'Q'"),
    ],
)
def test_a_figure_that_does_not_exist_is_an_error(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_table("t", HEAD + text + TWO)


# Augmented samples --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def copies() -> label_distribution.AugmentedCopies:
    return label_distribution.make_augmented_copies(digits(), FedReG(), 0, None, 3)


@pytest.mark.parametrize("way", ["simple", "auto"])
def test_the_copies_are_those_that_a_run_trains_on(way, copies, monkeypatch):
    from heterophony.core.client import Client

    made, once = {}, Client.once

    def note(self, derive):
        made[self.id] = once(self, derive)
        return made[self.id]

    monkeypatch.setattr(Client, "once", note)
    played(FedReG(augment=way), rounds=1, participation=1.0)
    trained = made[copies.client]
    for copied in copies.classes:
        label = digits().labels.index(copied.label)
        mine = trained.get_all_stored()[trained.labels == label]
        assert len(mine) == copied.num_examples + copied.num_copies
        shown = copied.images[way]
        assert mine[copied.num_examples : copied.num_examples + len(shown)].equal(shown)


def test_beside_them_stand_the_images_they_were_made_of(copies):
    train = digits().data(copies.client).train
    for copied in copies.classes:
        label = digits().labels.index(copied.label)
        mine = train.get_all_stored()[train.labels == label]
        assert len(mine) == copied.num_examples
        for image in copied.images[label_distribution.ORIGINAL]:
            assert any(image.equal(other) for other in mine)


def test_every_image_is_drawn_in_its_row(copies):
    figure = label_distribution.draw_augmented_copies(copies, "digits")
    shown = [axes.images[0].get_array() for axes in figure.axes if axes.images]
    expected = [image for c in copies.classes for images in c.images.values() for image in images]
    assert len(shown) == len(expected)
    for pixels, image in zip(shown, expected, strict=True):
        assert np.array_equal(pixels, (image.float() / copies.max_value)[0].numpy())


def test_a_client_that_is_not_there_is_named_with_the_nearest():
    with pytest.raises(ConfigError, match="--client: unknown name '55'"):
        label_distribution.make_augmented_copies(digits(), FedReG(), 0, "55", 3)


def test_balanced_clients_have_no_copies():
    train = replace(digits(), train={c: r[:1] for c, r in digits().train.items()})
    with pytest.raises(ConfigError, match="nothing is copied"):
        label_distribution.make_augmented_copies(train, FedReG(), 0, None, 3)


def test_one_command_draws_them(tmp_path):
    out = tmp_path / "samples.png"
    words = ["data", "augment", "-c", "data.clients=5", "--client", "2", "-o", str(out)]
    found = CliRunner().invoke(app, words)
    assert found.exit_code == 0, found.output
    assert "client 2, balanced to the mean of the client's class counts" in found.stderr
    assert out.read_bytes().startswith(b"\x89PNG")
