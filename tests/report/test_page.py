"""The page in a real browser: drawings, controls, keyboard, screen readers, printing, saving."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any
from xml.etree import ElementTree

import pytest

import heterophony as hp
from helpers.made_runs import HOSTILE, played, stored
from heterophony.algorithms import get_display_name
from heterophony.report.page import html, page_data
from heterophony.results import comparison, runs
from heterophony.results import overview as costs
from heterophony.results.comparison_tables import COLUMNS, PERCENTAGES, export_comparison
from heterophony.results.statistics import compute_confidence_interval
from heterophony.runs.curves import compute_curves
from heterophony.runs.summary import summarise

Open = Callable[..., Any]
RISING = [[1, 0], [1, 1], [2, 1], [2, 3], [3, 3], [3, 4], [4, 4], [4, 5], [3, 5], [4, 5], [4, 6]]
SLOW = [[0, 0], [0, 1], [0, 1], [1, 1], [2, 1], [1, 1], [2, 2], [2, 3], [2, 2], [3, 3], [2, 3]]
RIGHT = {  # (algorithm, seed): right answers of the two clients, of ten in all
    ("fedavg", 0): {"G": RISING, "P": RISING},
    ("fedavg", 1): {"G": SLOW, "P": RISING},
    ("fedper", 0): {"G": SLOW, "P": [*RISING[:-1], [4, 4]]},
    ("fedper", 1): {"G": SLOW, "P": SLOW},
    ("local", 0): {"G": None, "P": SLOW[:4] + RISING[4:]},
}
EVENTS = {
    (name, seed): played(right, name, seed, megabytes=1 + seed)
    for (name, seed), right in RIGHT.items()
}
for event in EVENTS["local", 0]:
    if event["event"] == "round":
        event["clock"] = 10.0 * (event["t"] + 1)
CONFIG = (
    'seed = {seed}\n[data]\nname = "digits"\n[algorithm]\nname = "{name}"\n[training]\nlr = 0.1\n'
)


def percent(value: float) -> str:
    return f"{100 * value:.2f} %"


def evaluated(name: str, seed: int, measure: str) -> list[tuple[int, float]]:
    return compute_curves(EVENTS[name, seed])[measure]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[runs.Run]:
    folder = tmp_path_factory.mktemp("runs")
    for (name, seed), events in EVENTS.items():
        own = "mu = 0.5\n" if name == "fedper" else ""
        text = CONFIG.format(name=name, seed=seed).replace("[training]", f"{own}[training]")
        stored(folder / f"{name}-{seed}", events, text)
    return runs.load_runs([folder])


@pytest.fixture
def visit(chromium: Any, tmp_path: Path) -> Iterator[Open]:
    """Opens a page of runs. At the end, check that it had no errors and sent no requests."""
    problems: list[str] = []
    asked: list[str] = []
    context: list[Any] = []

    def opened(of: list[runs.Run], **how: Any) -> Any:
        path = tmp_path / "page.html"
        html.write_report(of, path)
        context.append(chromium.new_context(viewport={"width": 1280, "height": 900}, **how))
        tab = context[-1].new_page()
        tab.on("console", lambda message: problems.append(message.text))
        tab.on("pageerror", lambda error: problems.append(str(error)))
        tab.on("dialog", lambda dialog: problems.append(dialog.message))
        tab.on("request", lambda request: asked.append(request.url))
        tab.goto(path.as_uri())
        return tab

    yield opened
    for each in context:
        each.close()
    assert problems == []
    assert {url for url in asked if not url.startswith("blob:")} == {
        (tmp_path / "page.html").as_uri()
    }


@pytest.fixture
def tab(visit: Open, found: list[runs.Run]) -> Any:
    return visit(found)


def table_of(tab: Any, place: str) -> dict[str, list[str]]:
    """A table's cells by the first of their row."""
    each = "rows => rows.map(row => [...row.children].map(cell => cell.textContent.trim()))"
    cells = tab.locator(f"{place} tbody tr").evaluate_all(each)
    return {first: rest for first, *rest in cells}


def paths(tab: Any, measure: str, kind: str = ":not(.seed)") -> list[str]:
    drawn = tab.locator(f"#curve-{measure} path.curve{kind}")
    return drawn.evaluate_all("all => all.map(e => e.getAttribute('d'))")


def walk_to(tab: Any, place: str, steps: int, key: str = "ArrowRight") -> dict[str, list[str]]:
    tab.locator(f"{place} svg").focus()
    for _ in range(steps):
        tab.keyboard.press(key)
    return table_of(tab, "#tip")


# Drawn --------------------------------------------------------------------------------------


def test_a_series_is_a_path_with_a_point_per_evaluation(tab: Any) -> None:
    assert [d.count("L") + 1 if d else 0 for d in paths(tab, "P")] == [11, 11, 11]
    assert [d.count("L") + 1 if d else 0 for d in paths(tab, "G")] == [11, 11, 0]
    assert len(paths(tab, "P", ".seed")) == 4  # local has one seed


def test_the_table_has_the_values_of_the_result(tab: Any) -> None:
    result = summarise(EVENTS["local", 0]).to_dict()
    shown = table_of(tab, "#table")
    titles = tab.locator("#table thead th").all_text_contents()[1:]
    told = dict(zip(titles, shown["Local"], strict=True))
    P = result["P"]
    assert told["P best"] == f"{100 * P['best']:.2f}"
    assert told["P last"] == f"{100 * P['last']:.2f}"
    assert told["P last 10"] == f"{100 * P['last10']['mean']:.2f} ± {100 * P['last10']['std']:.2f}"
    assert (told["G best"], told["seconds"], told["simulated s"]) == ("–", "15.0", "100.0")
    means = [summarise(EVENTS["fedavg", seed]).G.best for seed in (0, 1)]
    assert shown["FedAvg"][titles.index("G best")].split(" ± ")[0] == f"{100 * fmean(means):.2f}"


RARE = ("below_local", "G.chosen", "P.chosen", "simulated")


@pytest.mark.parametrize(("left_out", "tables"), [((), 2), (RARE, 1)])
def test_all_columns_of_the_comparison_fit(
    visit: Open,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    left_out: tuple[str, ...],
    tables: int,
) -> None:
    usual = {key: 0.98 if key in PERCENTAGES else 12345.6 for key in COLUMNS if key not in left_out}
    usual |= {"G.loss": 2.31, "P.loss": 2.31, "work": 1.25}

    def measure(summary: Any) -> dict[str, float]:
        return {key: value * (1 - 0.02 * summary.seed) for key, value in usual.items()}

    monkeypatch.setattr(comparison, "extract_measures", measure)
    for seed in range(10):
        for name in ("fedavg", "fedyogi"):
            stored(tmp_path / f"{name}-{seed}", played(RIGHT["fedavg", 0], name, seed))
    tab = visit(runs.load_runs([tmp_path]))
    shown = tab.locator("#table, #cost-table:not([hidden])")
    widths = shown.evaluate_all("all => all.map(e => [e.scrollWidth, e.clientWidth])")
    assert len(widths) == tables
    assert all(0 < needed <= there for needed, there in widths)
    titles = shown.locator("thead th:not(:first-child)").all_text_contents()
    assert sorted(titles) == sorted(["seed", *(COLUMNS[key].title for key in usual)])
    if tables > 1:
        assert table_of(tab, "#cost-table")["FedAvg"][0].startswith("11234.5 ± 7")


def test_the_scatter_places_every_series_at_its_G_and_P(tab: Any, found: list[runs.Run]) -> None:
    for of in ("last10", "best"):
        tab.locator("#scatter-value").select_option(of)
        texts = tab.locator("#scatter text").evaluate_all(
            "all => all.map(e => [e.textContent, +e.getAttribute('x'), +e.getAttribute('y'),"
            " e.getAttribute('text-anchor')])"
        )
        ticks = [t for t in texts if re.fullmatch(r"[\d.]+ %", t[0])]
        across = [(float(t[0][:-2]) / 100, t[1]) for t in ticks if t[3] == "middle"]
        up = [(float(t[0][:-2]) / 100, t[2] - 4) for t in ticks if t[3] == "end"]

        def place(v: float, axis: list[tuple[float, float]]) -> float:
            (a, left), (b, right) = axis[0], axis[-1]
            return left + (v - a) / (b - a) * (right - left)

        marks = tab.locator("#scatter .mark").evaluate_all(
            "all => all.map(e => [+e.getAttribute('cx'), +e.getAttribute('cy')])"
        )
        rows = [r.spreads for r in comparison.compare_runs(found)[:2]]
        values = [(r[f"G.{of}"].mean, r[f"P.{of}"].mean) for r in rows]
        expected = [(place(G, across), place(P, up)) for G, P in values]
        assert [pytest.approx(e, abs=0.06) for e in expected] == [tuple(m) for m in marks]
    assert tab.locator("#scatter .seed-mark").count() == 4
    assert "Local (P " in tab.locator("#scatter-without-g").text_content()
    assert {t[0] for t in texts} >= {"FedAvg", "FedPer"}


def test_names_in_the_scatter_cover_neither_marks_nor_each_other(
    visit: Open, tmp_path: Path
) -> None:
    for i in range(9):
        right = {"G": [[0, 0], [2, 1 + i % 2]], "P": [[0, 0], [3, 2 + i // 5]]}
        stored(tmp_path / "crowd" / str(i), played(right, f"algorithm{i}"))
    tab = visit(runs.load_runs([tmp_path / "crowd"]))
    boxes = [e.bounding_box() for e in tab.locator("#scatter text.label").all()]
    assert 4 <= len(boxes) <= 9
    for i, a in enumerate(boxes):
        for b in boxes[:i]:
            apart = (
                a["x"] + a["width"] <= b["x"] + 1
                or b["x"] + b["width"] <= a["x"] + 1
                or a["y"] + a["height"] <= b["y"] + 4
                or b["y"] + b["height"] <= a["y"] + 4
            )
            assert apart


def test_only_settings_that_differ_are_open(tab: Any) -> None:
    assert table_of(tab, "#settings-differing") == {
        "FedAvg": ["fedavg", ""],
        "FedPer": ["fedper", "mu = 0.5"],
        "Local": ["local", ""],
    }
    assert not tab.locator("#settings").is_visible()
    tab.locator("details summary").click()
    assert table_of(tab, "#settings")["training.lr"] == ["0.1"]


def test_a_round_over_the_boards_is_drawn(visit: Open, tmp_path: Path) -> None:
    events = played(RIGHT["fedavg", 0], "fedavg")
    for event in events:
        if event["event"] == "round":
            spans = [["receive", "0", 0.0, 0.1], ["train", "0", 0.1, 0.5]]
            event["boards"] = {"pi-2": {"train": 0.4, "spans": spans}, "pi-1": {"spans": []}}
    stored(tmp_path / "run", events)
    tab = visit(runs.load_runs([tmp_path / "run"]))
    assert tab.locator("#board-rounds").is_visible()
    assert tab.locator("#gantt rect.lane").count() == 2
    assert tab.locator("#gantt rect.activity.a1").count() == 2  # of the legend, and of pi-2
    assert list(table_of(tab, "#board-rounds-table")) == ["pi-2"]  # the other has no numbers


# Chosen by the reader -----------------------------------------------------------------------


def test_a_legend_entry_hides_and_shows_its_series(tab: Any) -> None:
    whole = paths(tab, "P")
    button = tab.get_by_role("button", name="FedPer (2 seeds)")
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert (len(paths(tab, "P")), len(paths(tab, "P", ".seed"))) == (2, 2)
    assert tab.locator("#scatter .mark").count() == 1
    assert "FedPer" not in tab.locator("#curve-P svg").get_attribute("aria-label")
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    assert paths(tab, "P") == whole


def test_smoothing_changes_the_line_and_never_the_measured_value(tab: Any) -> None:
    line, told = paths(tab, "G")[0], walk_to(tab, "#curve-G", 5)["FedAvg"]
    mean = [fmean(v) for v in zip(*([v for _, v in evaluated("fedavg", s, "G")] for s in (0, 1)), strict=True)]  # fmt: skip
    assert told[0].startswith(f"{percent(mean[5])} ± ")
    tab.locator("#smoothing").fill("3")
    assert tab.locator("#smoothing-value").text_content() == "mean over the last 3 evaluations"
    assert paths(tab, "G")[0] != line
    assert paths(tab, "G")[0].count("L") == 10
    tab.locator("#curve-G svg").focus()
    tab.keyboard.press("ArrowLeft")
    tab.keyboard.press("ArrowRight")
    G, smooth, P, _ = table_of(tab, "#tip")["FedAvg"]
    assert told == [G, P]
    assert smooth == percent(fmean(mean[3:6]))
    tab.locator("#smoothing").press("Home")
    assert tab.locator("#smoothing-value").text_content() == "off"
    assert paths(tab, "G")[0] == line


def test_coinciding_curves_are_all_seen_and_said(visit: Open, tmp_path: Path) -> None:
    for name, right in (("fedavg", RISING), ("ditto", RISING), ("fedper", SLOW)):
        stored(tmp_path / name, played({"G": right, "P": SLOW}, name))
    tab = visit(runs.load_runs([tmp_path / name for name in ("fedavg", "ditto", "fedper")]))
    stripes = "all => all.map(e => [e.getAttribute('class'), e.getAttribute('stroke-dasharray')])"
    assert tab.locator("#curve-G .stripe").evaluate_all(stripes) == [["stripe c0", "9 9"]]
    assert tab.locator("#curve-P .stripe").evaluate_all(stripes) == [
        ["stripe c0", "9 18"],
        ["stripe c1", "9 18"],
    ]
    said = tab.locator("#curve-P svg").get_attribute("aria-label")
    assert said.endswith("FedAvg and Ditto and FedPer coincide from round 0 to 10")
    walk_to(tab, "#curve-P", 1)
    radii = "all => all.map(e => +e.getAttribute('r'))"
    assert tab.locator("#curve-P .cursor circle").evaluate_all(radii) == [10.5, 7.5, 4.5]
    assert tab.locator("#scatter .mark").evaluate_all(radii) == [9, 5.5, 5.5]


def test_a_tip_has_the_spread_over_the_seeds_and_covers_no_curve(tab: Any) -> None:
    for measure in "GP":
        told = walk_to(tab, f"#curve-{measure}", 4)
        assert not tab.evaluate(
            """(place) => {
              const [tip, box] = [document.getElementById("tip"), document.querySelector(place)].map((e) => e.getBoundingClientRect());
              return tip.top < box.bottom && box.top < tip.bottom && tip.left < box.right && box.left < tip.right;
            }""",
            f"#curve-{measure} svg",
        )
    both = [evaluated("fedavg", seed, "G")[8][1] for seed in (0, 1)]
    assert told["FedAvg"][0] == f"{percent(fmean(both))} ± {100 * pstdev(both):.2f}"
    assert " ± " not in told["Local"][1]
    assert "standard deviation over the seeds" in tab.locator("#tip").text_content()


def test_differences_are_to_the_chosen_series_by_seed_and_round(tab: Any) -> None:
    def points(value: float) -> str:
        return f"{100 * value:+.2f}".replace("-", "−") if value else "0.00"

    tab.locator("#reference").select_option(label="difference to FedAvg")
    told = walk_to(tab, "#curve-P", 6)
    gaps = {
        name: [evaluated(name, s, "P")[6][1] - evaluated("fedavg", s, "P")[6][1] for s in seeds]
        for name, seeds in (("fedper", (0, 1)), ("local", (0,)))
    }
    interval = compute_confidence_interval(gaps["fedper"])
    half = 100 * (interval.high - interval.low) / 2
    assert told["FedPer"][1] == f"{points(fmean(gaps['fedper']))} ± {half:.2f}"
    assert "±: 95 % interval over the seeds" in tab.locator("#tip").text_content()
    assert tab.locator("#curve-P path.band").count() == 1  # FedPer's: Local has one seed
    assert told["Local"] == ["–", points(gaps["local"][0])]
    assert told["FedAvg"] == ["0.00", "0.00"]
    caption = "P, difference to FedAvg in percentage points"
    assert tab.locator("#curve-P figcaption span").text_content() == caption
    tab.evaluate("show(data)")
    assert tab.locator("#curve-P figcaption span").text_content() == caption
    tab.locator("#reference").select_option(label="difference to Local")
    assert paths(tab, "G") == ["", "", ""]  # Local has no generic model
    tab.locator("#reference").select_option(label="accuracy")
    assert tab.locator("path.band").count() == 0
    assert "percentage" not in tab.locator("#curve-P figcaption").text_content()


def test_a_series_without_a_common_seed_has_no_difference(visit: Open, tmp_path: Path) -> None:
    for name, seed in (("fedavg", 0), ("fedper", 1)):
        stored(tmp_path / name, played(RIGHT[name, seed], name, seed))
    tab = visit(runs.load_runs([tmp_path / "fedavg", tmp_path / "fedper"]))
    tab.locator("#reference").select_option(label="difference to FedAvg")
    assert tab.locator("#unpaired-note").text_content().endswith("one of FedAvg: FedPer.")
    assert paths(tab, "P")[1] == ""


def test_clients_count_the_same_beside_examples(visit: Open, tab: Any, tmp_path: Path) -> None:
    tab.locator("#counting").select_option("clients")
    assert tab.locator("#curve-P figcaption span").text_content().endswith("(mean over clients)")
    curves = compute_curves(EVENTS["local", 0], "mean")["P"]
    assert walk_to(tab, "#curve-P", 3)["Local"][1] == percent(curves[3][1])
    titles = tab.locator("#client-means thead th").all_text_contents()[1:]
    both = dict(zip(titles, table_of(tab, "#client-means")["Local"], strict=True))
    shown = tab.locator("#table thead th").all_text_contents()[1:]
    pooled = table_of(tab, "#table")["Local"][shown.index("P last 10")]
    last10 = [v for _, v in curves[1:]]
    assert both["P last 10, pooled"] == pooled
    assert both["G last 10, mean over clients"] == "–"
    assert (
        both["P last 10, mean over clients"]
        == f"{100 * fmean(last10):.2f} ± {100 * pstdev(last10):.2f}"
    )
    equal = played(RIGHT["local", 0], "local")
    equal[0]["test"] = [6, 6]
    stored(tmp_path / "one", equal)
    alone = visit(
        runs.load_runs([tmp_path / "one"])
    )  # both averages are the same: nothing to choose
    assert not alone.locator("#counting").is_visible()
    assert not alone.locator("#client-means").is_visible()


@pytest.mark.parametrize("measure", ["P", "G"])
@pytest.mark.parametrize("target", [40, 70, 85])
def test_what_it_takes_is_up_to_the_first_evaluation_there(
    tab: Any, measure: str, target: int
) -> None:
    tab.locator("#target-measure").select_option(measure)
    tab.locator("#target").fill(str(target))
    shown = table_of(tab, "#target-table")
    for name, seeds in {"fedavg": (0, 1), "fedper": (0, 1), "local": (0,)}.items():
        told, there = shown[get_display_name(name)], []
        for seed in seeds:
            curve = evaluated(name, seed, measure)
            rounds = [e for e in EVENTS[name, seed] if e["event"] == "round"]
            if first := [t for t, v in curve if v >= target / 100]:
                spent = rounds[: first[0]]
                megabytes = sum(e["bytes_up"] + e["bytes_down"] for e in spent) / 1e6
                there.append((first[0], megabytes, sum(e["seconds"] for e in spent)))
        assert told[0] == f"{len(there)} of {len(seeds)}"
        if there:
            means = [fmean(column) for column in zip(*there, strict=True)]
            assert [float(text) for text in told[1:4]] == means
            assert told[4] == (f"{10 * means[0]:.1f}" if name == "local" else "–")
        else:
            why = "no generic model" if (name, measure) == ("local", "G") else "not reached"
            assert told[1:] == [why, "–", "–", "–"]


def test_the_accuracy_to_reach_is_proposed_until_one_is_chosen(tab: Any) -> None:
    assert tab.locator("#target").input_value() == "95.0"  # of fedavg's 100 %
    tab.locator("#target").fill("50")
    tab.evaluate("show(data)")
    assert tab.locator("#target").input_value() == "50"
    assert "3 of 3 series reach P ≥ 50 %" in tab.locator("#target-summary").text_content()
    tab.locator("#target-measure").select_option("G")
    assert tab.locator("#target").input_value() == "71.2"  # of 75 %


# Live ---------------------------------------------------------------------------------------


def test_new_data_change_the_numbers_and_nothing_the_reader_chose(
    visit: Open, found: list[runs.Run], tmp_path: Path
) -> None:
    def after(rounds: int) -> list[runs.Run]:
        folder = tmp_path / f"after {rounds}"
        begun = {k: v[: rounds + 1] for k, v in RIGHT["fedavg", 0].items()}
        stored(folder, played(begun, "fedrod", finished=False))
        return runs.load_runs([*(r.folder for r in found), folder])

    tab = visit(after(3))
    assert "FedRoD, round 3 of 60" in tab.locator("#legend").text_content()
    tab.locator("#legend button").nth(3).click()
    tab.locator("#smoothing").fill("4")
    tab.locator("#theme").click()
    tab.locator("details summary").click()
    assert [d.count("L") for d in paths(tab, "P")] == [10, 10, 10]
    tab.locator("#legend button").nth(3).focus()
    tab.evaluate("scrollTo(0, 700)")
    tab.evaluate("newData => show(newData)", page_data.build_page_data(after(6)))
    button = tab.locator("#legend button").nth(3)
    assert button.text_content() == "FedRoD, round 6 of 60"
    assert button.get_attribute("aria-pressed") == "false"
    assert button.evaluate("e => e === document.activeElement")
    assert tab.evaluate("[scrollY, smoothing, document.documentElement.dataset.theme]") == [
        700, 4, "dark"]  # fmt: skip
    assert tab.locator("#settings").is_visible()
    assert len(paths(tab, "P")) == 3
    button.click()
    assert [d.count("L") for d in paths(tab, "P")] == [10, 10, 10, 6]


def test_a_tip_stays_when_new_data_come(tab: Any) -> None:
    box = tab.locator("#curve-P svg").bounding_box()
    tab.mouse.move(box["x"] + box["width"] - 9, box["y"] + 100)
    told = table_of(tab, "#tip")
    assert told["Local"] == ["–", percent(summarise(EVENTS["local", 0]).P.last)]
    tab.evaluate("show(data)")
    assert tab.locator("#tip").is_visible()
    assert table_of(tab, "#tip") == told


# Keyboard, readers --------------------------------------------------------------------------


def test_arrow_keys_walk_through_every_kind_of_drawing(tab: Any) -> None:
    for steps in (0, 4):
        told = walk_to(tab, "#curve-P", steps)
    assert told["Local"][1] == percent(evaluated("local", 0, "P")[4][1])
    assert next(iter(walk_to(tab, "#scatter", 1))) == "FedPer"  # the lowest G first
    assert next(iter(walk_to(tab, "#scatter", 1))) == "FedAvg"
    assert walk_to(tab, "#strips figure:first-child", 2)["P"] == ["100.00 % (6 of 6)"]
    walk_to(tab, "#participation figure:first-child", 1)
    assert tab.locator("#tip").text_content() == "client a: 5 rounds"
    walk_to(tab, "#label-distribution", 2)
    assert tab.locator("#tip").text_content() == "client b: 9 of class cat"
    tab.keyboard.press("Escape")
    assert not tab.locator("#tip").is_visible()


def test_the_tab_key_passes_through_all_of_the_page(tab: Any) -> None:
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.className") == "skip"
    tab.keyboard.press("Enter")
    assert tab.evaluate("document.activeElement.id") == "main"
    seen = []
    for _ in range(200):
        tab.keyboard.press("Tab")
        seen.append(tab.evaluate("document.activeElement.dataset.key ?? document.activeElement.id"))
        if tab.evaluate("document.activeElement.tagName") == "SUMMARY":
            break
    assert len(seen) < 60
    drawings = tab.locator("svg").evaluate_all("all => all.map(e => e.dataset.key)")
    assert {*drawings, "smoothing", "scatter-value", "target-measure", "target", "save-table"} <= {
        *seen
    }
    outline = tab.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


def test_every_drawing_says_its_numbers_in_words(tab: Any) -> None:
    labels = tab.locator("svg[role=img]").evaluate_all(
        "all => Object.fromEntries(all.map(e => [e.dataset.key, e.ariaLabel]))"
    )
    assert len(labels) == tab.locator("svg").count()
    assert labels["curve-G"] == (
        "G over the rounds: FedAvg ends at 75.00 %, FedPer ends at 50.00 %"
    )
    assert labels["scatter"].startswith("G against P: FedAvg G ")
    assert labels["strip Local 0"].endswith("P from 100.00 % to 100.00 %, mean 100.00 %")
    assert labels["participation 0"].endswith("from 5 to 5")
    assert labels["label-distribution"].endswith("12 to 18 examples and 1 to 2 classes per client")
    assert tab.locator("header, main, nav[aria-label]").count() == 3
    unnamed = "all => all.filter(e => !(e.ariaLabel || e.labels?.length || e.textContent.trim()))"
    assert tab.locator("button, input, select, a").evaluate_all(unnamed + ".length") == 0


CONTRAST = """() => {
  const channels = (c) => c.match(/[\\d.]+/g).map(Number);
  const light = (c) => channels(c).slice(0, 3).map((v) => v / 255)
    .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const own = (e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
  const grounds = (e) => {
    if (e.closest("svg")) return [getComputedStyle(document.body).backgroundColor];
    for (; e; e = e.parentElement) {
      const c = getComputedStyle(e).backgroundColor;
      if ((channels(c)[3] ?? 1) > 0) return [c];
    }
    return [];
  };
  const texts = [...document.querySelectorAll("body *")].filter((e) => own(e) && e.checkVisibility());
  return texts.flatMap((e) => grounds(e).map((ground) => {
    const style = getComputedStyle(e);
    const [a, b] = [e.tagName === "text" ? style.fill : style.color, ground].map(light);
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  }));
}"""


def test_text_stands_out_in_light_and_dark(visit: Open, found: list[runs.Run]) -> None:
    grounds = set()
    for scheme in ("light", "dark"):
        tab = visit(found, color_scheme=scheme)
        for _ in range(2):  # as the system has it, and as the button says
            contrast = tab.evaluate(CONTRAST)
            assert len(contrast) > 100
            assert min(contrast) >= 4.5
            grounds.add(tab.evaluate("getComputedStyle(document.body).backgroundColor"))
            tab.locator("#theme").click()
    assert len(grounds) == 2


# Printed and saved --------------------------------------------------------------------------


def test_paper_is_light_and_has_no_controls(visit: Open, found: list[runs.Run]) -> None:
    tab = visit(found, color_scheme="dark")
    tab.emulate_media(media="print")
    controls = ".skip, nav, #theme, .controls, .save, .more, .how, #tip"
    assert tab.locator(controls).count() > 10
    assert tab.locator(controls).evaluate_all("all => all.some(e => e.checkVisibility())") is False
    assert tab.locator("#legend button").first.is_visible()
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert tab.pdf(format="A4").startswith(b"%PDF")


def test_a_drawing_is_saved_as_a_file_of_its_own(
    visit: Open, found: list[runs.Run], tmp_path: Path
) -> None:
    tab = visit(found, accept_downloads=True)
    for place, name in {"#curve-G": "g-the-generic-model.svg", "#label-distribution": None}.items():
        with tab.expect_download() as download:
            tab.locator(f"{place} .save").click()
        assert download.value.suggested_filename == (name or download.value.suggested_filename)
        download.value.save_as(tmp_path / "saved.svg")
        root = ElementTree.parse(tmp_path / "saved.svg").getroot()
        parts = list(root.iter())
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert not [e for e in parts if {"class", "style", "tabindex"} & e.attrib.keys()]
        assert not [v for e in parts for v in e.attrib.values() if "var(" in v]
        if name:
            strokes = {e.get("stroke") for e in parts if e.tag.endswith("path")}
            assert strokes == {"rgb(0, 114, 178)", "rgb(213, 94, 0)", "rgb(0, 158, 115)"}
            assert {"FedAvg", "FedPer", "Local"} <= {e.text for e in parts}


def test_the_comparison_is_saved_as_the_command_writes_it(
    visit: Open, found: list[runs.Run], tmp_path: Path
) -> None:
    tab = visit(found, accept_downloads=True)
    with tab.expect_download() as download:
        tab.locator("#save-table").click()
    download.value.save_as(tmp_path / "saved.csv")
    text = (tmp_path / "saved.csv").read_text()
    export_comparison(found, tmp_path / "written.csv")
    assert text == (tmp_path / "written.csv").read_text()
    assert [row[:2] for row in csv.reader(text.splitlines())] == [
        ["algorithm", "name"],
        ["fedavg", "FedAvg"],
        ["fedper", "FedPer"],
        ["local", "Local"],
    ]


# Hard cases ---------------------------------------------------------------------------------


def test_hostile_names_do_no_harm(visit: Open, tmp_path: Path) -> None:
    config = (
        f"seed = 0\n[data]\nname = '{HOSTILE}'\n[training]\nlr = nan\nnote = '$css {HOSTILE}'\n"
    )
    events = played(RIGHT["fedavg", 0], HOSTILE + "\x01", clients=(HOSTILE, "b"))
    stored(tmp_path / "one", events, config)
    stored(tmp_path / "two", played(RIGHT["fedper", 0], "fedper", clients=(HOSTILE, "b")))
    tab = visit(runs.load_runs([tmp_path / "one", tmp_path / "two"]), accept_downloads=True)
    assert tab.locator("img").count() == 0
    assert tab.locator("script").count() == 2
    assert HOSTILE in tab.locator("#legend").text_content()
    assert next(iter(walk_to(tab, "#curve-P", 1))).startswith(HOSTILE)
    with tab.expect_download() as download:
        tab.locator("#curve-G .save").click()
    download.value.save_as(tmp_path / "saved.svg")
    parts = ElementTree.parse(tmp_path / "saved.svg").iter()
    assert not [e for e in parts if e.tag.split("}")[1] in ("script", "img", "foreignObject")]


def test_a_run_that_has_only_begun_is_drawn(visit: Open, tmp_path: Path) -> None:
    stored(tmp_path / "one", played(RIGHT["fedavg", 0], finished=False)[:1])
    tab = visit(runs.load_runs([tmp_path / "one"]))
    assert tab.locator("#curve-G svg").get_attribute("aria-label").endswith("nothing measured")
    assert [*table_of(tab, "#target-table").values()] == [
        ["0 of 1", "nothing measured yet", "–", "–"]
    ]
    tab.locator("#curve-G svg").press("ArrowRight")
    assert not tab.locator("#tip").is_visible()


def test_fifty_runs_of_a_hundred_clients_stay_small_and_light(visit: Open, tmp_path: Path) -> None:
    clients = [f"client{i}" for i in range(100)]
    for k in range(50):
        rights = [[(i * t + k) % 21 for i in range(100)] for t in range(101)]
        events = played({"G": rights, "P": rights}, f"algorithm{k}")
        events[0] |= {"clients": clients, "train": [60] * 100, "test": [20] * 100,
                      "classes": [str(c) for c in range(10)], "labels": [[6] * 10] * 100}  # fmt: skip
        for e in events:
            if e["event"] == "round":
                e["clients"] = [clients[(k * e["t"] + 7 * j) % 100] for j in range(20)]
        stored(tmp_path / "many" / str(k), events)
    fifty = runs.load_runs([tmp_path / "many"])
    text = html.render_report(fifty)
    assert len(text.encode()) < 2_000_000
    assert json.loads(re.findall(r'id="data">(.*?)</script>', text)[0])["stride"] == 1
    tab = visit(fifty)
    assert [d.count("L") for d in paths(tab, "P")] == [100] * 50
    assert tab.locator("*").count() < 8_000
    assert tab.locator("#strips figure").count() == 12
    assert tab.locator("#participation figure").count() == 12
    tab.locator("#strips-more").click()
    assert tab.locator("#strips figure").count() == 50
    assert tab.locator("#strips-more").text_content() == "Show only the first 12"
    tab.get_by_role("button", name="none").click()
    assert paths(tab, "P") == []
    tab.get_by_role("button", name="all", exact=True).click()
    assert len(paths(tab, "P")) == 50


def test_costs_are_those_of_the_rounds_before_the_measurement() -> None:
    events = [e for e in EVENTS["local", 0] if e["event"] != "evaluation"]
    assert costs.compute_cumulative_costs(events, [0, 4, 10]) == {
        "t": [0, 4, 10],
        "MB": [0.0, 12.0, 30.0],
        "seconds": [0.0, 6.0, 15.0],
        "simulated": [0.0, 40.0, 100.0],
    }
    assert "simulated" not in costs.compute_cumulative_costs(EVENTS["fedavg", 0], [0])


def test_confusions_are_drawn_and_listed_for_each_client(visit: Open, tmp_path: Path) -> None:
    clients = hp.federate("digits", clients=3, partition="iid")
    result = hp.run("fedper", clients, rounds=1, model="mlp", metrics=["confusion"], progress=False,
                    engine="serial", out=tmp_path / "run")  # fmt: skip
    tab = visit(runs.load_runs([tmp_path / "run"]))
    assert tab.locator("#confusion").is_visible()
    assert "Confusion of classes" in tab.locator("#sections a").all_text_contents()
    for client in (None, "1"):
        if client is not None:
            tab.select_option("#confusion-client", client)
        counts = result.confusion("P", client)
        assert tab.locator("#confusion-matrix rect[class^=h]").count() == (counts > 0).sum()
        numbers = tab.locator("#confusion-matrix .cell-number").all_text_contents()
        assert sum(map(int, numbers)) == counts.sum()
        shown = table_of(tab, "#confusion-table")
        accuracies = result.class_accuracy("P", client).values()
        assert [cells[0] for cells in shown.values()] == [
            "–" if a is None else f"{100 * a:.2f} %" for a in accuracies
        ]
        assert [int(cells[1]) for cells in shown.values()] == counts.sum(axis=1).tolist()


def test_pages_without_confusions_do_not_show_the_section(tab: Any) -> None:
    assert not tab.locator("#confusion").is_visible()
