"""Tables, statistics, page and figures of runs: the right numbers, safe against what runs contain."""

from __future__ import annotations

import csv
import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from helpers.browser import dump_dom
from helpers.made_runs import FIRST, HOSTILE, SECOND, Reader, data_of, played, stored
from heterophony.core.errors import ConfigError, FolderError
from heterophony.report.figures import cd_diagram, run_figures, style
from heterophony.report.figures import style as coinciding
from heterophony.report.page import html, page_data
from heterophony.report.page import page_data as curve_data
from heterophony.results import comparison, runs
from heterophony.results import label_distribution as participation
from heterophony.results.comparison_tables import (
    COLUMNS,
    IN_CSV,
    build_comparison_table,
    build_difference_table,
    build_overview_tables,
    export_comparison,
)
from heterophony.results.table import (
    TABLE_FORMATS,
    escape_latex,
    format_cell,
    format_rows,
    render_csv,
    render_latex,
    render_markdown,
)
from heterophony.runs.summary import summarise


@pytest.fixture
def compared(tmp_path: Path) -> Path:
    """Two algorithms; fedavg with seeds 0 and 1, fedper with seeds 1 and 2."""
    stored(tmp_path / "fedavg-0", played(FIRST))
    stored(tmp_path / "fedavg-1", played(SECOND, seed=1, megabytes=2))
    stored(tmp_path / "fedper-1", played(FIRST, "fedper", seed=1))
    stored(tmp_path / "fedper-2", played(SECOND, "fedper", seed=2))
    return tmp_path


# Finding and naming -------------------------------------------------------------------------


def test_a_folder_of_runs_and_a_run_are_both_found(compared: Path) -> None:
    assert [r.label for r in runs.load_runs([compared])] == [
        "FedAvg, seed 0",
        "FedAvg, seed 1",
        "FedPer, seed 1",
        "FedPer, seed 2",
    ]
    twice = [compared / "fedavg-0", compared / "fedavg-0"]
    assert [r.label for r in runs.load_runs(twice)] == ["FedAvg"]


def test_seeds_come_in_the_order_of_numbers(tmp_path: Path) -> None:
    for seed in (10, 2, 1):
        stored(tmp_path / f"fedavg-{seed}", played(FIRST, seed=seed))
    assert [r.seed for r in runs.load_runs([tmp_path])] == [1, 2, 10]


def test_nothing_to_show_is_said_clearly(tmp_path: Path) -> None:
    stored(tmp_path / "waiting", [])
    with pytest.raises(FolderError, match="does not exist"):
        runs.load_runs([tmp_path / "nowhere"])
    with pytest.raises(FolderError, match="holds no run that has started"):
        runs.load_runs([tmp_path])
    with pytest.raises(FolderError, match="has not started"):
        runs.load_runs([tmp_path / "waiting"])
    with pytest.raises(FolderError, match="not a run folder"):
        runs.load_run(tmp_path)


@pytest.mark.parametrize(("events", "config"), [([{"event": "round"}], ""), (played(FIRST), "a =")])
def test_a_damaged_run_is_said_clearly(tmp_path: Path, events: Any, config: str) -> None:
    with pytest.raises(FolderError, match="is damaged"):
        runs.load_run(stored(tmp_path / "run", events, config))


def test_namesakes_are_told_apart_by_what_differs(tmp_path: Path) -> None:
    for i, threshold in enumerate(("mean", "median")):
        text = f'seed = 0\n[algorithm]\nname = "fedreg"\nthreshold = "{threshold}"\n[engine]\nworkers = {i}'
        stored(tmp_path / str(i), played(FIRST, "fedreg"), text)
    found = runs.load_runs([tmp_path])
    assert [r.series for r in found] == ["FedReG threshold=mean", "FedReG threshold=median"]
    assert [r.seeds for r in comparison.compare_runs(found)] == [[0], [0]]


def test_algorithms_are_shown_as_their_papers_write_them(tmp_path: Path) -> None:
    names = ("fedavg", "pfedme", "scaffold", "lab.ideas:FedNew", "headfirst")
    for name in names:
        stored(tmp_path / name.replace(":", "-"), played(FIRST, name))
    found = sorted(runs.load_runs([tmp_path]), key=lambda run: names.index(run.algorithm))
    assert [r.series for r in found] == ["FedAvg", "pFedMe", "SCAFFOLD", "FedNew", "headfirst"]
    assert [r.algorithm for r in comparison.compare_runs(found)] == list(names)


def test_two_algorithms_of_one_display_name_are_two_series(tmp_path: Path) -> None:
    for folder, name in (("a", "fedavg"), ("b", "lab.ideas:FedAvg")):
        stored(tmp_path / folder, played(FIRST, name))
    found = runs.load_runs([tmp_path])
    assert [r.series for r in found] == ["FedAvg (fedavg)", "FedAvg (lab.ideas:FedAvg)"]


def test_a_run_done_twice_is_not_another_seed(tmp_path: Path) -> None:
    for name in ("one", "two"):
        stored(tmp_path / name, played(FIRST))
    found = runs.load_runs([tmp_path])
    assert [r.label for r in found] == ["FedAvg, seed 0", "FedAvg, seed 0, run 2"]
    assert [r.seeds for r in comparison.compare_runs(found)] == [[0], [0]]


# Tables -------------------------------------------------------------------------------------


def test_seeds_are_aggregated(compared: Path) -> None:
    found = comparison.compare_runs(runs.load_runs([compared]))[0]
    row = found.to_dict()
    assert (row["algorithm"], row["seeds"], row["state"]) == ("fedavg", [0, 1], "finished")
    assert row["G"]["best"] == pytest.approx(0.8)  # 0.6 and 1.0
    assert row["G"]["last"] == pytest.approx(0.5)  # 0.4 and 0.6
    assert row["G"]["last10"]["mean"] == pytest.approx(0.65)  # (.6 .4) and (1 .6)
    assert row["P"]["last"] == pytest.approx(0.85)  # 0.7 and 1.0
    for key, mean, std in (("G.best", 0.8, 0.2), ("G.last10", 0.65, 0.15), ("worst10", 0.75, 0.25)):
        spread, half = row["over_seeds"][key], 12.7062 * std  # Student's, of two values
        assert (spread["mean"], spread["std"]) == pytest.approx((mean, std))
        ends = [max(mean - half, 0.0), min(mean + half, 1.0)]
        assert spread["ci95"] == pytest.approx(ends, abs=1e-4)
    assert row["std"] == pytest.approx(0.125)  # 0.25 and 0
    assert (row["MB_up"], row["MB_down"], row["seconds"]) == (3.0, 6.0, 3.0)
    assert format_cell(found.get_cell("G.best"), COLUMNS["G.best"]) == "80.00 ± 20.00"
    assert format_cell(found.get_cell("MB_up"), COLUMNS["MB_up"]) == "3.0 ± 1.0"


def test_one_seed_is_as_in_its_result(tmp_path: Path) -> None:
    events = played(FIRST)
    (found,) = comparison.compare_runs(runs.load_runs([stored(tmp_path / "run", events)]))
    row = found.to_dict()
    result = summarise(events).to_dict()
    for measure in "GP":
        assert row[measure] == {k: result[measure][k] for k in ("best", "last", "last10")}
    assert format_cell(found.get_cell("G.last10"), COLUMNS["G.last10"]) == "50.00 ± 10.00"
    assert format_cell(found.get_cell("G.best"), COLUMNS["G.best"]) == "60.00"
    assert row["difference"] is None


def test_the_last_ten_do_not_count_the_untrained_model() -> None:
    curve = [[0, 0], [2, 2], [3, 3], *[[4, 4]] * 10]
    for rounds, last10 in ((0, 0.0), (1, 0.4), (2, 0.5), (10, 0.74), (12, 0.8)):
        found = summarise(played({"G": None, "P": curve[: rounds + 1]}))
        assert found.P.last10.mean == pytest.approx(last10)


def test_differences_are_over_common_seeds(compared: Path) -> None:
    rows = comparison.compare_runs(runs.load_runs([compared]))
    first, second = (row.to_dict() for row in rows)
    assert first["difference"] is None
    assert second["difference"]["to"] == "FedAvg"
    assert second["difference"]["seeds"] == [1]  # FIRST minus SECOND
    alone = {"std": 0.0, "ci95": None, "p": 1.0, "p_holm": 1.0}  # one pair shows nothing
    assert second["difference"]["G.best"] == {"mean": pytest.approx(-0.4), **alone}
    assert second["difference"]["P.last"] == {"mean": pytest.approx(-0.3), **alone}
    assert format_rows(build_difference_table(rows))[0][:3] == ["FedPer", "1", "−40.00"]


def test_other_data_makes_no_pair(tmp_path: Path) -> None:
    other = played(SECOND, "fedper")
    other[0]["data_sha256"] = "other"
    folders = [stored(tmp_path / "a", played(FIRST)), stored(tmp_path / "b", other)]
    assert comparison.compare_runs(runs.load_runs(folders))[1].differences is None


def test_without_a_common_model_there_is_no_G(tmp_path: Path) -> None:
    local = stored(tmp_path / "a", played({**FIRST, "G": None}, "local"))
    found = runs.load_runs([local, stored(tmp_path / "b", played(FIRST))])
    rows = comparison.compare_runs(found)
    first, second = (row.to_dict() for row in rows)
    assert first["G"] is None
    assert format_cell(rows[0].get_cell("G.best"), COLUMNS["G.best"]) == "–"
    assert set(second["difference"]) == {"to", "seeds", "P.best", "P.last", "P.last10"}
    assert data_of(html.render_report(found))["series"][0]["runs"][0]["G"] is None
    run_figures.draw_comparison(found)


def test_P_that_is_measured_seldom_is_shown_where_it_was(tmp_path: Path) -> None:
    seldom = {"G": [*FIRST["G"], [3, 3]], "P": [[1, 1], None, [4, 6], None]}
    begun = stored(tmp_path / "a", played(seldom, "fedbabu", finished=False))
    every = {k: [*v, v[-1]] for k, v in FIRST.items()}
    whole = stored(tmp_path / "b", played({**seldom, "P": [*seldom["P"][:3], [2, 3]]}, "fedbabu"))
    found = runs.load_runs([begun, whole, stored(tmp_path / "c", played(every))])
    assert found[0].curves["P"] == [(0, 0.2), (2, 1.0)]
    assert [t for t, _ in found[0].curves["G"]] == [0, 1, 2, 3]
    sofar = found[0].current_summary
    assert (sofar.P.last, sofar.clients["b"].correct) == (1.0, 6)
    assert sofar.clients["b"].generic == 2 / 6  # of the same evaluation
    assert comparison.compare_runs(found)[1].to_dict()["P"] == {
        "best": 1.0,
        "last": 0.5,
        "last10": {"mean": pytest.approx(0.75), "std": pytest.approx(0.25)},
    }
    first, second, _ = (s["runs"][0] for s in data_of(html.render_report(found))["series"])
    assert (first["P"], first["G"]) == ([4, 6], [2, 2])
    assert (second["P"], second["G"]) == ([2, 3], [3, 3])
    assert first["curves"]["P"] == [[0, 0.2], [2, 1.0]]
    run_figures.draw_comparison(found)


# Statistics ---------------------------------------------------------------------------------


def repeated(folder: Path, seeds: int, data: str = "digits", **rights: int | None) -> Path:
    """Algorithms that answer so many of ten right, by ``name=right``, more with every seed."""
    for name, right in rights.items():
        for seed in range(seeds):
            many = [[min(4, right), max(0, right - 4)]] if right is not None else None
            own = many or [[4, 2 + seed % 3]]
            events = played({"G": many, "P": own}, name, seed)
            events[0]["data_sha256"] = f"{data}{seed}"
            config = f'seed = {seed}\n[data]\nname = "{data}"\n'
            stored(folder / f"{data}-{name}-{seed}", events, config)
    return folder


def test_differences_have_an_interval_and_p_is_corrected_for_the_rows(tmp_path: Path) -> None:
    found = runs.load_runs([repeated(tmp_path, 3, fedavg=5, fedper=7, ditto=4)])
    _, fedavg, fedper = rows = comparison.compare_runs(found)  # in the order of their folders
    assert [row.name for row in rows] == ["Ditto", "FedAvg", "FedPer"]
    for row, mean in ((fedavg, 0.1), (fedper, 0.3)):
        gap = row.get_difference("P.last10")
        assert [gap.mean, *gap.ci95] == pytest.approx([mean] * 3)  # three times the same
        assert (gap.p, gap.p_holm) == (0.25, 0.5)
    (table,) = build_overview_tables(found)
    at = [column.title for column in table.columns].index("ΔP last 10")
    first, _, last = (line[at] for line in format_rows(table))
    assert (first, last) == ("–", "+30.00 (+30.00 … +30.00)")


def test_too_few_seeds_are_said_to_be_too_few(tmp_path: Path) -> None:
    table = comparison.compare_runs(runs.load_runs([repeated(tmp_path, 3, fedavg=5, fedper=7)]))
    (said,) = comparison.list_conclusions(table)  # of G and P the same
    assert said.startswith("G last 10 and P last 10: 3 pairs of runs with the same seed and data")
    assert "too few for p < 0.05: at least 6." in said
    assert "cannot give less than p = 0.25" in said


def test_one_pair_cannot_tell_a_difference_from_chance(compared: Path) -> None:
    (said,) = comparison.list_conclusions(comparison.compare_runs(runs.load_runs([compared])))
    assert "one pair of runs" in said
    assert said.endswith("p < 0.05 needs at least 6 seeds.")


def test_enough_seeds_are_told_as_who_is_higher_and_who_is_lower(tmp_path: Path) -> None:
    repeated(tmp_path, 7, a=5, b=7, c=4, local=None)
    said = comparison.list_conclusions(comparison.compare_runs(runs.load_runs([tmp_path])))
    assert said[0] == "G last 10: higher than a: b (p = 0.031); lower than a: c (p = 0.031)."
    assert said[1].startswith("P last 10: higher than a: b (p = 0.047), Local (p = 0.047); lower")


def test_seeds_that_do_not_agree_show_no_difference(tmp_path: Path) -> None:
    repeated(tmp_path, 7, a=7, local=None)  # 6, 7, 8, 6, 7, 8, 6 against 7
    (said,) = comparison.list_conclusions(comparison.compare_runs(runs.load_runs([tmp_path])))
    expected = "no difference from a is shown, which does not mean that there is none."
    assert said == f"P last 10: {expected}"


def test_the_page_has_the_statistics(tmp_path: Path, compared: Path) -> None:
    found = runs.load_runs([repeated(tmp_path / "three", 3, fedavg=5, fedper=7)])
    shown = data_of(html.render_report(found))["statistics"]
    assert shown["conclusions"] == comparison.list_conclusions(comparison.compare_runs(found))
    assert [m["title"] for m in shown["tables"]] == ["G last 10", "P last 10"]
    first, second = (row["cells"][2:] for row in shown["tables"][1]["rows"])
    assert first == ["50.00 (50.00 … 50.00)", "–", "–"]
    assert second == ["70.00 (70.00 … 70.00)", "+20.00 (+20.00 … +20.00)", "0.25"]
    assert page_data.build_page_data(found[:1])["statistics"] is None  # one run alone
    _, pair = page_data.build_page_data(runs.load_runs([compared]))["statistics"]["tables"][0][
        "rows"
    ]
    assert pair["cells"][3:] == ["−30.00", "–"]


def test_best_is_never_shown_without_last_10(compared: Path) -> None:
    table = build_comparison_table(comparison.compare_runs(runs.load_runs([compared])))
    texts = [render(table) for render in TABLE_FORMATS.values()]
    for words in ([c.title for c in COLUMNS.values()], *(text.splitlines() for text in texts)):
        head = " ".join(words).replace(".best", " best").replace(".last10", " last 10")
        for k in "GP":
            best, last10 = (head.count(f"{k} {part}") for part in ("best", "last 10"))
            assert best == last10 > 0
    data = data_of(html.render_report(runs.load_runs([compared])))
    assert {"G last 10", "P last 10"} <= set(data["table"]["titles"]) & {
        *data["differences"]["titles"]
    }


def test_ranks_are_over_the_seeds_that_all_have(tmp_path: Path) -> None:
    repeated(tmp_path, 6, a=5, b=7, c=4)
    found = runs.load_runs([tmp_path])
    contest = cd_diagram.collect_common_blocks(found)
    assert (contest.names, len(contest.blocks)) == (("a", "b", "c"), 6)
    assert contest.compute_ranks("P.last10").average_ranks == (2.0, 1.0, 3.0)
    assert contest.compute_ranks("P.last10").groups == ((1, 0), (0, 2))  # CD is 1.35
    assert len(cd_diagram.draw_cd_diagram(found).axes) == 2


def test_ranks_meet_across_data_sets_and_settings_may_follow_the_data(tmp_path: Path) -> None:
    for data, a in (("digits", 5), ("fmnist", 8)):
        repeated(tmp_path, 1, data, a=a, b=7, c=4)
    found = runs.load_runs([tmp_path])
    assert len(runs.group_by_series(found)) == 6
    contest = cd_diagram.collect_common_blocks(found)
    assert (contest.names, len(contest.blocks)) == (("a", "b", "c"), 2)
    assert contest.compute_ranks("P.last10").average_ranks == (1.5, 1.5, 3.0)


def test_without_a_common_model_of_all_there_is_no_panel_of_G(tmp_path: Path) -> None:
    found = runs.load_runs([repeated(tmp_path, 2, a=5, b=7, local=None)])
    (axes,) = cd_diagram.draw_cd_diagram(found).axes
    assert axes.texts[0].get_text() == "P last 10: personalised models"


def test_ranks_say_what_is_missing(tmp_path: Path, compared: Path) -> None:
    with pytest.raises(ConfigError, match=r"at least 3 finished series, but there are 2 \(FedAvg,"):
        cd_diagram.draw_cd_diagram(runs.load_runs([compared]))
    stored(compared / "ditto-1", played(FIRST, "ditto", seed=1))
    with pytest.raises(ConfigError, match="there is 1; Ditto lacks seed 0; compare with more"):
        cd_diagram.draw_cd_diagram(runs.load_runs([compared]))
    with pytest.raises(ConfigError, match="there is 1; compare with more --seeds"):
        cd_diagram.draw_cd_diagram(runs.load_runs([repeated(tmp_path / "one", 1, a=5, b=7, c=4)]))


def test_many_names_of_ranks_do_not_lie_upon_each_other(tmp_path: Path) -> None:
    many = {f"algorithm{i:02}": i % 10 for i in range(14)}
    figure = cd_diagram.draw_cd_diagram(runs.load_runs([repeated(tmp_path, 2, **many)]))
    figure.draw_without_rendering()
    for axes in figure.axes:
        named = [t for t in axes.texts if "algorithm" in t.get_text()]
        boxes = [t.get_window_extent() for t in named]
        assert len(boxes) == 14
        assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))
        assert all(figure.bbox.x0 <= b.x0 and b.x1 <= figure.bbox.x1 for b in boxes)


# The page -----------------------------------------------------------------------------------


def test_the_page_holds_the_numbers_of_the_result(tmp_path: Path) -> None:
    events = played(FIRST)
    result = json.loads(json.dumps(summarise(events).to_dict()))
    html.write_report(runs.load_runs([stored(tmp_path / "run", events)]), tmp_path / "page.html")
    data = data_of((tmp_path / "page.html").read_text())
    (run,) = data["series"][0]["runs"]
    federation = data["federations"][run["federation"]]
    clients = result.pop("clients")
    assert run["result"] == result
    assert federation["clients"] == list(clients)
    for i, client in enumerate(clients.values()):
        tested = federation["test"][i]
        assert (run["P"][i] / tested, run["G"][i] / tested) == (
            client["accuracy"],
            client["generic"],
        )
        assert (federation["train"][i], tested) == (client["train"], client["total"])
        assert run["participations"][i] == client["participations"]
    assert data["series"][0]["mean"]["G"] == [[0, 0.2], [1, 0.6], [2, 0.4]]
    assert data["label_distribution"]["counts"] == [[12, 0], [9, 9]]


def test_the_page_holds_the_table(compared: Path) -> None:
    found = runs.load_runs([compared])
    data = data_of(html.render_report(found))
    assert data["title"] == "FedAvg and FedPer on digits"
    shown = {row["cells"][0]: row["cells"][2:] for row in data["table"]["rows"]}
    assert shown == {
        row.name: [format_cell(row.get_cell(k), COLUMNS[k]) for k in data["table"]["columns"][2:]]
        for row in comparison.compare_runs(found)
    }
    assert data["differences"]["rows"][0]["cells"][1] == "1"
    assert data["series"][0]["mean"]["G"][1] == [1, 0.8]


def hostile_page(folder: Path) -> str:
    config = f"seed = 0\n[data]\nname = '{HOSTILE}'\n[local]\nlr = nan\nnote = '$css {HOSTILE}'\n"
    events = played(FIRST, clients=(HOSTILE, "b"))
    return html.render_report(runs.load_runs([stored(folder / "run", events, config)]))


def test_hostile_names_are_inert(tmp_path: Path) -> None:
    text = hostile_page(tmp_path)
    read = Reader(text)
    assert [tag for tag, _ in read.tags].count("script") == 2
    assert "img" not in [tag for tag, _ in read.tags]
    data = json.loads(read.scripts[0])
    assert data["federations"][0]["clients"] == [HOSTILE, "b"]
    assert {"key": "local.note", "values": [f"$css {HOSTILE}"]} in data["settings"]
    assert "alert" not in read.scripts[1]
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write", text)


def test_the_page_asks_nobody_for_anything(compared: Path) -> None:
    text = html.render_report(runs.load_runs([compared]))
    assert set(re.findall(r"https?://[^\"' ]*", text)) <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|WebSocket", text)
    tags = Reader(text).tags
    assert not [t for t, attributes in tags if "src" in attributes]
    assert [a["href"] for _, a in tags if "href" in a] == ["#main"]
    (policy,) = (a["content"] for _, a in tags if a.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert html.compute_csp_hash(Reader(text).scripts[1]) in policy


def test_an_unfinished_run_is_shown_as_far_as_it_got(tmp_path: Path) -> None:
    stored(tmp_path / "fedavg-0", played(FIRST))
    stored(tmp_path / "fedavg-1", played(SECOND, seed=1, finished=False))
    stored(tmp_path / "fedavg-2", played(SECOND, seed=2, finished=False)[:1])
    found = runs.load_runs([tmp_path])
    assert [r.label for r in found] == [
        "FedAvg, seed 0",
        "FedAvg, seed 1, round 2 of 60",
        "FedAvg, seed 2, round 0 of 60",
    ]
    assert found[1].summary is None
    finished, begun = comparison.compare_runs(found)  # the third has measured nothing yet
    assert finished.seeds == [0]
    assert (begun.state, begun.differences) == ("round 2 of 60", None)
    assert begun.spreads["G.last"].mean == pytest.approx(0.6)
    data = data_of(html.render_report(found))
    assert [s["name"] for s in data["series"]] == ["FedAvg", found[1].label, found[2].label]
    run_figures.draw_comparison(found)


def test_a_long_comparison_stays_small(tmp_path: Path) -> None:
    folders = []
    long = {"G": [[i % 5, i % 7] for i in range(3001)], "P": [[i % 5, i % 7] for i in range(3001)]}
    for seed in range(8):
        folders.append(stored(tmp_path / str(seed), played(long, seed=seed)))
    text = html.render_report(runs.load_runs(folders))
    assert len(text.encode()) < 2_000_000
    assert data_of(text)["stride"] == 4  # pooled, and as means over clients
    points = data_of(text)["series"][0]["mean"]["P"]
    assert points[-1][0] == 3000
    assert len(points) < 3001


def test_thinning_keeps_the_last_point() -> None:
    curve = [(t, t / 10) for t in range(10)]
    assert curve_data.thin_curve(curve, 10) == [[t, v] for t, v in curve]
    assert [t for t, _ in curve_data.thin_curve(curve, 4)] == [0, 3, 6, 9]
    assert curve_data.thin_curve([], 4) == []


def test_a_browser_draws_the_statistics(tmp_path: Path) -> None:
    found = runs.load_runs([repeated(tmp_path / "runs", 3, fedavg=5, fedper=7)])
    body = dump_dom(tmp_path, html.render_report(found))
    section = body.split('<section id="statistics"')[1].split("</section>")[0]
    assert " hidden" not in section.split(">")[0]
    assert section.count("too few for p &lt; 0.05: at least 6.") == 1
    assert section.count("<caption>") == 2
    assert section.count("<td>+20.00 (+20.00 … +20.00)</td><td>0.25</td>") == 2


def test_a_browser_draws_it_all(tmp_path: Path) -> None:
    body = dump_dom(tmp_path, hostile_page(tmp_path))
    assert body.count('class="curve ') == 2
    assert body.count('class="dots ') == 2
    assert body.count('class="bar ') == 2
    assert "<td>60.00</td>" in body
    rounds = re.findall(r'y="300" text-anchor="middle">([^<]*)<', body)
    assert rounds == ["0", "1", "2"] * 2  # no halves of rounds
    assert "&lt;script&gt;alert(1)" in body
    assert "<script>alert" not in body
    assert "<img" not in body


# Figures ------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_figures_save_the_same_bytes_again(compared: Path, suffix: str) -> None:
    found = runs.load_runs([compared])
    for name in ("one", "two"):
        run_figures.save_figure(run_figures.draw_comparison(found), compared / (name + suffix))
    one, two = ((compared / (name + suffix)).read_bytes() for name in ("one", "two"))
    assert one == two
    assert one.startswith(b"\x89PNG" if suffix == ".png" else b"<?xml")


@pytest.mark.parametrize("evaluations", [1, 2, 3])
def test_rounds_are_whole_numbers_on_the_axis(tmp_path: Path, evaluations: int) -> None:
    right = {k: v[:evaluations] for k, v in FIRST.items()}
    found = runs.load_runs([stored(tmp_path / "run", played(right))])
    figure = run_figures.draw_comparison(found)
    figure.draw_without_rendering()
    for axes in figure.axes[:2]:
        low, high = axes.get_xlim()
        ticks = [t for t in axes.get_xticks() if low <= t <= high]
        assert ticks == list(range(evaluations))


def test_many_series_get_a_legend(tmp_path: Path) -> None:
    folders = [stored(tmp_path / f"{i}", played(FIRST, f"algorithm{i}")) for i in range(11)]
    assert run_figures.draw_comparison(runs.load_runs(folders)).legends


def test_an_unknown_picture_format_is_refused(compared: Path, tmp_path: Path) -> None:
    figure = run_figures.draw_comparison(runs.load_runs([compared]))
    with pytest.raises(ConfigError, match=r"as \.png, \.svg, \.pdf, a page as \.html"):
        run_figures.save_figure(figure, tmp_path / "map.bmp")


def test_names_move_apart_around_their_middle() -> None:
    assert style.spread_label_heights([0.5, 0.5], 0.1) == pytest.approx([0.45, 0.55])
    assert style.spread_label_heights([0.1, 0.9], 0.1) == pytest.approx([0.1, 0.9])
    assert style.spread_label_heights([0.99, 1.0], 0.1) == pytest.approx([0.9, 1.0])


# Participation -------------------------------------------------------------------------------


def attended(folder: Path, rounds: list[dict[str, Any]], name: str = "fedavg") -> Path:
    """A run in which these clients were asked and took part."""
    events = played(FIRST, name)
    for event, who in zip([e for e in events if e["event"] == "round"], rounds, strict=True):
        event.update(who)
    return stored(folder, events)


def test_rounds_trained_and_rounds_without_a_reply_are_counted_per_client(tmp_path: Path) -> None:
    rounds = [{"asked": ["a", "b"], "clients": ["b"]}, {"asked": ["b"], "clients": ["b"]}]
    found = runs.load_runs([attended(tmp_path / "one", rounds)])
    (seen,) = participation.collect_participation(found)
    assert seen.matrix.tolist() == [
        [participation.NO_REPLY, participation.TRAINED],
        [participation.NOT_SELECTED, participation.TRAINED],
    ]
    (told,) = page_data.build_page_data(found)["participation"]
    assert told == {
        "labels": ("FedAvg",),
        "federation": 0,
        "rounds_selected": [1, 2],
        "rounds_trained": [0, 2],
    }
    assert run_figures.draw_participation(found).legends, "the colours are explained"


def test_without_word_of_who_was_asked_all_who_took_part_were(tmp_path: Path) -> None:
    found = runs.load_runs([stored(tmp_path / "one", played(FIRST))])
    (seen,) = participation.collect_participation(found)
    assert seen.rounds_selected.tolist() == seen.rounds_trained.tolist() == [1, 1]
    assert not run_figures.draw_participation(found).legends


def test_where_data_are_pooled_everybody_takes_part(tmp_path: Path) -> None:
    found = runs.load_runs([attended(tmp_path / "one", [{"clients": ["*"]}] * 2)])
    assert participation.collect_participation(found)[0].rounds_trained.tolist() == [2, 2]


def test_equal_participation_is_listed_once_and_different_ones_are_not_drawn_together(
    tmp_path: Path,
) -> None:
    same, other = [{"clients": ["a"]}] * 2, [{"clients": ["b"]}] * 2
    for name, rounds in (("one", same), ("two", same), ("three", other)):
        attended(tmp_path / name, rounds, name)
    found = runs.load_runs([tmp_path / name for name in ("one", "two", "three")])
    assert [seen.run_labels for seen in participation.collect_participation(found)] == [
        ("one", "two"),
        ("three",),
    ]
    run_figures.draw_participation(found[:2])
    with pytest.raises(ConfigError, match="different clients took part in 'one' and 'three'"):
        run_figures.draw_participation(found)


# Tables for other programs ------------------------------------------------------------------


def read_csv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines()))


def test_the_table_as_csv_has_every_number_in_full_and_in_percent(
    compared: Path, tmp_path: Path
) -> None:
    found, path = runs.load_runs([compared]), tmp_path / "t.csv"
    export_comparison(found, path)
    for told, row in zip(read_csv(path.read_text()), comparison.compare_runs(found), strict=True):
        assert (told["algorithm"], told["name"]) == (row.algorithm, row.name)
        assert told["seeds"] == " ".join(map(str, row.seeds))
        for key, spread in row.spreads.items():
            unit, scale = (" %", 100) if COLUMNS[key].kind == "percent" else ("", 1)
            names = [f"{key} {part}{unit}" for part in ("mean", "std", "low95", "high95")]
            numbers = [spread.mean, spread.std, *spread.ci95]
            assert [float(told[name]) for name in names] == [
                pytest.approx(scale * number, rel=1e-11) for number in numbers
            ]
    assert read_csv(path.read_text())[0]["G.last mean %"] == "50.0"  # no 50.000000000000007


def test_one_seed_has_no_deviation(tmp_path: Path) -> None:
    stored(tmp_path / "one", played(FIRST))
    table = comparison.compare_runs(runs.load_runs([tmp_path]))
    (told,) = read_csv(render_csv(build_comparison_table(table, names=IN_CSV)))
    assert told["P.best mean %"] == "100.0"
    assert {v for k, v in told.items() if " std" in k or "95" in k} == {""}


def test_the_table_as_markdown_and_latex_says_what_the_page_says(tmp_path: Path) -> None:
    table = comparison.compare_runs(runs.load_runs([repeated(tmp_path, 6, fedavg=5, fedper=7)]))
    written = build_comparison_table(table)
    shown = [cells[1:] for cells in format_rows(written)]
    markdown, latex = render_markdown(written), render_latex(written)
    for text in (markdown.replace("**", ""), latex):
        plain = re.sub(r"\\textbf\{(.*?)\}", r"\1", text).replace(r"$\pm$", "±")
        for cells in shown:
            assert " | ".join(cells) in plain or " & ".join(cells) in plain
    assert "| G last 10 (%) |" in markdown
    assert r"& G last 10 (\%) &" in latex
    bold = [line.count("**") // 2 for line in markdown.splitlines()[2:4]]
    assert bold == [0, len(table[1].leads)] == [0, latex.count(r"\textbf")]


def test_columns_are_chosen_by_their_keys(compared: Path, tmp_path: Path) -> None:
    found, keys = runs.load_runs([compared]), ["P.last10", "G.last10"]
    for suffix, head in (
        (".tex", r"  algorithm & P last 10 (\%) & G last 10 (\%) \\"),
        (".md", "| algorithm | P last 10 (%) | G last 10 (%) |"),
        (".csv", "algorithm,name,seeds,P.last10 mean %,P.last10 std %,P.last10 low95 %"),
    ):
        export_comparison(found, tmp_path / f"t{suffix}", keys)
        assert any(
            line.startswith(head) for line in (tmp_path / f"t{suffix}").read_text().splitlines()
        )
    with pytest.raises(
        ConfigError, match=r"--columns: unknown name 'G.last11'; did you mean 'G.last"
    ):
        export_comparison(found, tmp_path / "t.tex", ["G.last11"])


def test_names_cannot_break_a_table() -> None:
    assert escape_latex(r"a_b & 50% {x} \y") == r"a\_b \& 50\% \{x\} \textbackslash{}y"


def test_coinciding_lines_of_a_figure_alternate_in_colour(tmp_path: Path) -> None:
    names = ("fedavg", "ditto", "fedper")
    for name, right in zip(names, (FIRST, FIRST, SECOND), strict=True):
        stored(tmp_path / name, played(right, name))
    figure = run_figures.draw_comparison(runs.load_runs([tmp_path / name for name in names]))
    stripes = [line for line in figure.axes[0].lines if line.get_label() == "_stripe"]
    assert [line.get_color() for line in stripes] == [style.PALETTE[0]]
    assert stripes[0].get_xydata().tolist() == [[0, 0.2], [1, 0.6], [2, 0.4]]
    marks = [line for line in figure.axes[2].lines if line.get_marker() == "o"]
    assert [line.get_markersize() for line in marks] == [14, 9, 9]


def test_lines_coincide_only_where_they_are_near() -> None:
    lines = [
        coinciding.DrawnLine([0, 1, 2, 3], heights, "") for heights in ([0, 0, 0, 1], [0, 0, 0, 0])
    ]
    assert coinciding.find_coinciding(lines, 0.1) == [((0, 1), 0, 2)]
    elsewhere = coinciding.DrawnLine([0, 2, 4], [0, 0, 0], "")  # other rounds are not compared
    assert coinciding.find_coinciding([lines[0], elsewhere], 0.1) == []
