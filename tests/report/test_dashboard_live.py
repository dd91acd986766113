"""The dashboard in a browser: it follows a run through kill -9, and survives its own restart."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from helpers.crash import recorded
from helpers.forked import Forked
from helpers.live_browser import until
from helpers.made_runs import FIRST, SECOND, played, stored
from heterophony.core.files import lock_folder
from heterophony.results import comparison, comparison_tables, runs
from heterophony.results.table import format_rows
from heterophony.runs.folder import RunFolder

REFUSED = "Failed to load resource: net::ERR_CONNECTION_REFUSED"


class Processes:
    """Commands that were started here, and are ended here."""

    def __init__(self) -> None:
        self.started: list[Forked] = []

    def start(self, *words: str) -> Forked:
        process = Forked(*words)
        self.started.append(process)
        return process

    def dashboard(self, folder: Path, port: str = "0") -> tuple[Forked, str]:
        """It, and the address that it prints."""
        process = self.start("dashboard", str(folder), "--port", port)
        return process, process.stdout.readline().strip()

    def end(self) -> None:
        for process in self.started:
            process.kill()
            process.wait()
            process.close()


@pytest.fixture
def processes() -> Iterator[Processes]:
    own = Processes()
    yield own
    own.end()


def stopped(run: Forked, events: Path, at: int) -> None:
    """Hold the run as soon as it has recorded so many events: it cannot end before it is seen."""
    while recorded(events) < at:
        with suppress(subprocess.TimeoutExpired):
            run.wait(0.01)
        assert run.returncode is None
    run.send_signal(signal.SIGSTOP)


def first_row(tab: Any) -> list[str]:
    return tab.locator("#table tbody td").all_inner_texts()


def test_the_page_follows_a_run_through_kill_and_resume_and_its_own_restart(
    tab: Any, processes: Processes, tmp_path: Path
) -> None:
    out = tmp_path / "runs" / "mine"
    dashboard, url = processes.dashboard(tmp_path / "runs")
    tab.goto(url)
    until(tab, "does not exist yet", "#note")

    how = [
        "rounds=20",
        "data.clients=4",
        "model.name=mlp",
        "engine.name=serial",
        "training.epochs=2",
    ]
    pairs = [word for pair in how for word in ("-c", pair)]
    run = processes.start("run", *pairs, "--json", "--out", str(out))
    stopped(run, out / "events.jsonl", 8)
    tab.get_by_role("link", name="mine").click()
    done = sum(e["event"] == "round" for e in RunFolder(out).iterate_events())
    assert 0 < done < 20
    until(tab, f"FedAvg, round {done} of 20", "#legend")
    assert tab.evaluate("() => data.series[0].mean.P.at(-1)[0]") in (done - 1, done)
    run.kill()
    run.wait()
    assert tab.locator("#connection").inner_text() == "live"

    tab.get_by_role("button", name="Switch between light and dark").click()
    theme = tab.evaluate("() => document.documentElement.dataset.theme")
    again = processes.start("resume", str(out), "--json")
    tab.wait_for_function("() => data.series[0].runs[0].state === 'finished'")
    result = json.loads((out / "result.json").read_text())
    told, _ = again.communicate()
    assert json.loads(told)["model_sha256"] == result["model_sha256"]
    clients = tab.evaluate("() => data.series[0].runs[0].P")
    shown = tab.evaluate("() => data.series[0].runs[0].result")
    assert clients == [c["correct"] for c in result.pop("clients").values()]
    assert shown == result
    rows = comparison.compare_runs(runs.load_runs([out]))
    table = comparison_tables.build_comparison_table(rows, names=comparison_tables.ON_PAGES)
    ((_, *cells),) = format_rows(table)
    assert [" ".join(text.split()) for text in first_row(tab)] == cells
    assert tab.evaluate("() => data.series[0].mean.P.at(-1)") == [20, round(result["P"]["last"], 5)]
    assert tab.locator("#curve-P path.curve").get_attribute("d").count("L") == 20
    assert tab.evaluate("() => document.documentElement.dataset.theme") == theme

    dashboard.kill()
    dashboard.communicate()
    until(tab, "reconnecting…", "#connection")
    shutil.rmtree(out)
    stored(out, played(FIRST, "fedper"))
    _, same = processes.dashboard(tmp_path / "runs", url.rsplit(":", 1)[1].strip("/"))
    assert same == url
    until(tab, "FedPer", "#title")
    until(tab, "live", "#connection")
    assert set(tab.complaints) <= {REFUSED}
    assert {u.split("?")[0] for u in tab.asked} == {url, f"{url}events"}


def test_a_run_that_breaks_while_shown_is_said_in_words_and_comes_back(
    tab: Any, processes: Processes, tmp_path: Path
) -> None:
    run = stored(tmp_path / "one", played(FIRST, finished=False))
    _, url = processes.dashboard(run)
    tab.goto(url)
    until(tab, "FedAvg, round 2 of 60", "#legend")
    whole = (run / "events.jsonl").read_text()
    (run / "events.jsonl").write_text("nonsense\n")
    until(tab, "one cannot be shown", "#note")
    until(tab, "FedAvg, round 2 of 60", "#legend")
    os.truncate(run / "events.jsonl", 0)
    until(tab, "one has not started yet", "#note")
    (run / "events.jsonl").write_text(whole.replace('"fedavg"', '"fedper"'))
    until(tab, "FedPer, round 2 of 60", "#legend")
    assert tab.locator("#note").inner_text() == ""
    assert tab.locator("#note").get_attribute("role") == "status"
    assert tab.complaints == []


def test_the_list_fills_itself_and_keeps_the_focus(
    tab: Any, processes: Processes, tmp_path: Path
) -> None:
    _, url = processes.dashboard(tmp_path)
    tab.goto(url)
    until(tab, "There is no run in", "#note")
    stored(tmp_path / "one", played(FIRST))
    link = tab.get_by_role("link", name="one")
    link.focus()
    stored(tmp_path / "mine" / "fedper-0", played(SECOND, "fedper"))
    stored(tmp_path / "mine" / "fedrep-0", played(FIRST, "fedrep", finished=False))
    until(tab, "1 of 2 runs finished")
    assert tab.evaluate("() => document.activeElement.textContent") == "one"
    assert tab.locator("#note").inner_text() == ""
    tab.keyboard.press("Enter")
    until(tab, "FedAvg", "#title")
    tab.get_by_role("link", name="all runs").click()
    tab.get_by_role("link", name="mine", exact=True).click()
    until(tab, "FedRep, round 2 of 60", "#legend")
    assert tab.complaints == []
    assert {u.split("?")[0] for u in tab.asked} == {url, f"{url}events"}


def test_runs_are_sorted_filtered_and_chosen_to_be_compared(
    tab: Any, processes: Processes, tmp_path: Path
) -> None:
    running = stored(tmp_path / "fedper", played(SECOND, "fedper", finished=False))
    stored(tmp_path / "fedavg", played(FIRST))
    for name in ("ditto", "local"):
        stored(tmp_path / "mine" / f"{name}-0", played({**SECOND, "G": None}, name))
    lock = lock_folder(running)
    _, url = processes.dashboard(tmp_path)
    tab.goto(url)
    until(tab, "about 1:27 left")
    names = tab.locator("#run-list tbody th")
    bar = tab.get_by_role("progressbar", name="Rounds of fedper")
    assert [bar.get_attribute(k) for k in ("value", "max")] == ["2", "60"]
    assert tab.get_by_role("img", name="P over the rounds, from 20.00 % to 70.00 %").count() == 1
    os.close(lock)
    tab.get_by_role("button", name="run", exact=True).click()
    assert names.all_inner_texts() == ["fedavg", "fedper", "mine", "ditto-0", "local-0"]
    tab.get_by_role("button", name="G last 10").press("Enter")
    assert names.all_inner_texts()[:3] == ["fedper", "fedavg", "mine"]  # without G: the last
    assert tab.locator("th.col-G").get_attribute("aria-sort") == "descending"
    assert tab.evaluate("document.activeElement.textContent") == "G last 10"

    tab.get_by_role("checkbox", name="Compare fedavg").check()
    tab.get_by_label("Filter", exact=True).fill("local FINISHED")
    assert names.all_inner_texts() == ["mine", "local-0"]
    assert tab.locator("#filter-count").inner_text() == "1 of 4 runs"
    tab.get_by_role("checkbox", name="Compare mine/local-0").press("Space")
    both = tab.get_by_role("checkbox", name="Compare the 2 runs of mine")
    assert both.evaluate("e => [e.checked, e.indeterminate]") == [False, True]
    tab.get_by_role("link", name="Compare 2 runs").click()
    until(tab, "FedAvg", "#legend")
    until(tab, "Local", "#legend")
    until(tab, "live", "#connection")
    tab.get_by_role("link", name="all runs").click()
    assert tab.locator("#chosen").inner_text() == "2 chosen"
    assert names.all_inner_texts() == ["mine", "local-0"]
    tab.get_by_label("Filter", exact=True).fill("nothing")
    assert "No run matches" in tab.locator("#run-list").inner_text()
    tab.get_by_role("button", name="Clear").click()
    assert tab.get_by_role("link", name="Compare").count() == 0
    assert tab.complaints == []


def test_a_waiting_run_turns_into_its_page_by_itself(
    tab: Any, processes: Processes, tmp_path: Path
) -> None:
    run = stored(tmp_path / "one", [])
    _, url = processes.dashboard(run)
    tab.goto(url)
    until(tab, "has not started yet", "#note")
    (run / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in played(FIRST)))
    until(tab, "60.00", "#table")
    assert tab.complaints == []
