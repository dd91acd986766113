"""Figures and pages of label distributions: the right numbers, all clients, safe against names."""

from __future__ import annotations

import re

import numpy as np
import pytest
from matplotlib.collections import PathCollection

import heterophony as hp
from helpers.browser import dump_dom
from helpers.made_runs import Reader, data_of
from helpers.support import digits, played
from heterophony.algorithms.fedreg import FedReG
from heterophony.algorithms.parts.rebalancing import rebalance
from heterophony.core.randomness import seeded
from heterophony.report.figures import label_distribution, run_figures
from heterophony.report.page import html
from heterophony.report.page import html as label_page
from heterophony.results.label_distribution import (
    BalancedSizes,
    LabelDistribution,
    compute_label_distribution,
)

HOSTILE = "</title><script>alert(1)</script>"
SIZES = [(1, 2), (10, 10), (20, 10), (200, 10), (20, 47), (100, 100), (200, 200)]


def make_distribution(
    clients: int, classes: int, name: str = "set", balanced: bool = True
) -> LabelDistribution:
    counts = np.random.default_rng(0).integers(0, 50, (clients, classes))
    counts[:, 0] = 0  # a class that nobody holds
    counts[0, 1] = 400
    half = counts.sum(axis=1) // 2
    return LabelDistribution(
        name,
        tuple(f"c{i}" for i in range(clients)),
        tuple(str(i) for i in range(classes)),
        counts,
        np.arange(clients),
        BalancedSizes("the mean", half, half) if balanced else None,
    )


# Numbers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("threshold", ["mean", "max", "median", "second_min", "min"])
@pytest.mark.parametrize("scope", ["class_nonzero", "client_size"])
def test_the_sizes_after_rebalancing_are_those_of_the_sets_that_are_made(
    threshold, scope, monkeypatch
):
    made = {}

    class Watched(FedReG):
        def local(self, client):
            once = client.once

            def note(derive):
                data = once(derive)
                made[client.id] = len(data)
                return data

            client.once = note
            return super().local(client)

    how = {"threshold": threshold, "threshold_scope": scope, "augment": "copy"}
    known = compute_label_distribution(digits(), FedReG(**how)).balanced
    assert known is not None
    training = hp.Training(epochs=0, steps=1, batch=8)
    played(Watched(**how), rounds=1, participation=1.0, training=training)
    assert [made[c] for c in digits().clients] == known.train_sizes.tolist()


def test_what_is_kept_and_what_is_added_are_told_apart():
    federation = digits()
    known = compute_label_distribution(federation, FedReG(threshold="median")).balanced
    assert known is not None
    assert known.target_rule == "the median of the client's class counts"
    for i, client in enumerate(federation.clients):
        data = federation.data(client)
        target = max(1, int(np.median(data.counts[data.counts > 0].numpy())))
        with seeded("any"):
            made = rebalance(data.train, target, "copy")
        assert known.train_sizes[i] == len(made)
        assert known.num_kept[i] == data.counts.clamp(max=target).sum()


@pytest.mark.parametrize(
    "algorithm", [hp.Algorithm(), FedReG(variant="no_balancing"), FedReG(variant="c")]
)
def test_who_does_not_rebalance_has_no_such_sizes(algorithm):
    found = compute_label_distribution(digits(), algorithm)
    assert found.balanced is None
    assert found.label_counts.tolist() == digits().count_labels().tolist()
    assert found.train_sizes.tolist() == list(digits().sizes().values())
    assert found.test_sizes.tolist() == list(digits().sizes("test").values())


# Figures ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("clients", "classes"), SIZES)
def test_the_heat_map_has_every_client_and_class(clients, classes):
    _, axes, *_ = label_distribution.draw_label_distribution(
        make_distribution(clients, classes), "heat"
    ).axes
    assert axes.get_xlim() == (0, clients)
    assert axes.get_ylim() == (classes, 0)


@pytest.mark.parametrize(("clients", "classes"), SIZES)
def test_the_area_of_a_bubble_is_the_number_of_examples(clients, classes):
    what = make_distribution(clients, classes)
    axes, *_ = label_distribution.draw_label_distribution(what, "bubbles").axes
    assert axes.get_xlim() == (0, clients)
    assert axes.get_ylim() == (classes, 0)
    discs = next(c for c in axes.collections if isinstance(c, PathCollection))
    drawn = {(int(x), int(y)): s for (x, y), s in zip(discs.get_offsets(), discs.get_sizes())}  # noqa: B905
    counts = {(i, j): int(n) for (i, j), n in np.ndenumerate(what.label_counts) if n}
    assert drawn.keys() == counts.keys()
    unit = drawn[0, 1] / 400
    assert all(drawn[k] == pytest.approx(unit * n) for k, n in counts.items())


@pytest.mark.parametrize(
    ("most", "shown"), [(1, [1]), (7, [1, 2, 5]), (4296, [100, 400, 1000, 2000])]
)
def test_the_legend_of_areas_has_round_numbers(most, shown):
    assert label_distribution.choose_legend_counts(most) == shown


@pytest.mark.parametrize("balanced", [True, False])
def test_sizes_are_bars_before_and_after(balanced):
    what = make_distribution(5, 4, balanced=balanced)
    (axes,) = label_distribution.draw_label_distribution(what, "sizes").axes
    bars = [[b.get_height() for b in c] for c in axes.containers]
    assert bars[0] == what.train_sizes.tolist()
    assert len(bars) == (3 if balanced else 1)
    if what.balanced:
        assert bars[1:] == [what.balanced.num_kept.tolist(), what.balanced.num_copies.tolist()]


@pytest.mark.parametrize(("clients", "panels"), [(1, 1), (5, 8), (40, 12)])
def test_histograms_are_of_the_first_clients_to_one_scale(clients, panels):
    what = make_distribution(clients, 4)
    figure = label_distribution.draw_label_distribution(what, "histograms")
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert (len(figure.axes), len(shown)) == (panels, min(12, clients))
    bars = [[bar.get_height() for bar in axes.patches] for axes in shown]
    assert bars == what.label_counts[:12].tolist()
    assert len({axes.get_ylim() for axes in shown}) == 1
    title = figure.get_suptitle()
    assert title == what.title + (": the first 12" if clients > 12 else "")


@pytest.mark.parametrize("clients", [3, 40])
@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_all_pictures_fit_one_figure_and_save_the_same_bytes_again(clients, suffix, tmp_path):
    for name in ("one", "two"):
        run_figures.save_figure(
            label_distribution.draw_label_distribution(make_distribution(clients, 3)),
            tmp_path / (name + suffix),
        )
    one, two = ((tmp_path / (name + suffix)).read_bytes() for name in ("one", "two"))
    assert one == two


def test_long_names_are_cut_and_many_names_are_thinned():
    names = tuple(f"a writer with number {i}" for i in range(300))
    what = LabelDistribution("x", names, ("0", "1"), np.ones((300, 2), int), np.ones(300, int))
    axes, *_ = label_distribution.draw_label_distribution(what, "bubbles").axes
    shown = [label.get_text() for label in axes.get_xticklabels()]
    assert shown[0] == "a writer with n…"
    assert len(shown) == 60


def test_a_name_is_drawn_as_it_is_and_not_as_a_formula(tmp_path):
    what = LabelDistribution(
        "x", ("$x_$", "\x1b[31m"), ("0",), np.ones((2, 1), int), np.ones(2, int)
    )
    figure = label_distribution.draw_label_distribution(what, "heat")
    run_figures.save_figure(figure, tmp_path / "labels.svg")  # an unfinished formula is an error
    text = (tmp_path / "labels.svg").read_text()
    assert "<!-- $x_$ -->" in text
    assert "\x1b" not in text


# The page -----------------------------------------------------------------------------------


@pytest.mark.parametrize("balanced", [True, False])
def test_a_browser_draws_every_number_of_the_page(balanced, tmp_path):
    what = make_distribution(4, 3, balanced=balanced)
    body = dump_dom(tmp_path, label_page.render_label_page(what))
    some = np.count_nonzero(what.label_counts)
    heatmap, bubbles, sizes = re.findall(r"<svg.*?</svg>", body)
    shades = "".join(re.findall(r'<path class="h\d" d="(.*?)"', heatmap))
    assert shades.count("M") == some
    discs, *legend = re.findall(r'<path class="disc" d="(.*?)"', bubbles)
    assert discs.count("M") == some
    assert len(legend) == 3
    bars = re.findall(r'<path class="bar \w+" d="(.*?)"', sizes)
    assert [d.count("M") for d in bars] == ([4, 4, 4] if balanced else [4])
    assert all(f">{client}</text>" in drawing for client in what.clients
               for drawing in (heatmap, bubbles, sizes))  # fmt: skip
    assert body.count('<th scope="row">') == 4
    assert ("of it augmented" in body) == balanced


def test_the_page_holds_the_numbers_that_the_figures_show():
    what = make_distribution(4, 3)
    data = data_of(label_page.render_label_page(what))
    assert data["counts"] == what.label_counts.tolist()
    (own,), (kept, copies) = data["stacks"]
    assert own["values"] == what.train_sizes.tolist()
    assert what.balanced is not None
    assert kept["values"] == what.balanced.num_kept.tolist()
    assert copies["values"] == what.balanced.num_copies.tolist()
    assert data["table"]["rows"][0]["cells"][:3] == ["c0", str(what.train_sizes[0]), "0"]


def test_a_cell_says_its_number_to_the_mouse_and_to_the_arrow_keys(tab, tmp_path):
    what = make_distribution(4, 3)
    label_page.write_label_page(what, tmp_path / "page.html")
    tab.goto((tmp_path / "page.html").as_uri())
    tab.locator("#heatmap svg").press("ArrowRight")
    tab.locator("#heatmap svg").press("ArrowDown")
    assert tab.locator("#tip").text_content() == "client c0: 400 of class 1"
    tab.locator("#bubbles svg").press("ArrowRight")  # the same cells, one client further
    assert tab.locator("#tip").text_content() == f"client c1: {what.label_counts[1, 1]} of class 1"
    tab.locator("#heatmap svg").hover(position={"x": 80, "y": 36})
    assert tab.locator("#tip").text_content() == "client c0: 400 of class 1"
    tab.locator("#sizes svg").press("ArrowRight")
    assert "augmented copies" in tab.locator("#tip").text_content()
    assert tab.complaints == []


def test_hostile_names_are_inert_in_the_page(tmp_path):
    what = LabelDistribution(HOSTILE, (HOSTILE,), (HOSTILE,), np.array([[3]]), np.array([1]))
    page = label_page.render_label_page(what)
    assert [tag for tag, _ in Reader(page).tags].count("script") == 2
    assert "alert" not in Reader(page).scripts[1]
    assert "<script>alert" not in dump_dom(tmp_path, page)


def test_the_page_asks_nobody_for_anything_and_runs_only_its_own_script():
    page = label_page.render_label_page(make_distribution(3, 2))
    assert "default-src 'none'; style-src 'sha256-" in page
    assert html.compute_csp_hash(Reader(page).scripts[1]) in page
    assert not re.search(r"https?://(?!www.w3.org/2000/svg)|src=|@import|url\(|fetch\(", page)


def test_a_page_of_many_clients_and_classes_stays_small():
    assert len(label_page.render_label_page(make_distribution(200, 200))) < 300_000
