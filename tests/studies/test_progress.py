"""Progress: bars on a terminal, one line that changes in a notebook, few plain lines in a log."""

from __future__ import annotations

import io
import json
import sys
from types import SimpleNamespace

import pytest
from rich.console import Console

from helpers.commands import TRAINING, call
from helpers.support import played
from heterophony.cli import terminal
from heterophony.core import status_line
from heterophony.core.status_line import LogLines, NotebookLine, format_seconds, show_slow_work
from heterophony.runs.events import Event
from heterophony.studies import hooks
from heterophony.studies.hooks import BarDisplay, LineDisplay, RunStatus, show_progress

START: Event = {"event": "start", "test": [40, 60]}  # type: ignore[typeddict-item]


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def evaluation(t: int, g: list[int] | None, p: list[int] | None) -> Event:
    return {"event": "evaluation", "t": t, "G": g, "P": p}


def train(status: RunStatus, t: int) -> None:
    status({"event": "round", "t": t})  # type: ignore[typeddict-item]


# The status of a run ----------------------------------------------------------------------------


def test_a_status_names_every_phase_and_estimates_the_time_left():
    clock = Clock()
    status = RunStatus("fedavg (seed 0)", 10, clock=clock)
    assert status.describe() == "fedavg (seed 0): round 0/10, G –, P –, starting, 0:00 so far"
    status.name_phase("starting the workers")
    assert "starting the workers" in status.describe()
    clock.now = 20.0
    status(START)
    assert "first evaluation, round 1, 0:20 so far" in status.describe()
    clock.now = 100.0
    status(evaluation(0, [20, 30], [10, 15]))
    train(status, 0)
    assert status.describe() == (
        "fedavg (seed 0): round 1/10, G 50.00, P 25.00, 1:40 so far, 15:00 left"
    )
    clock.now = 110.0  # workers have started: the next rounds are quick
    train(status, 1)
    assert status.describe().endswith("1:50 so far, 1:20 left")
    for t in range(2, 10):
        train(status, t)
    assert "last evaluation" in status.describe()
    status(evaluation(10, None, [40, 60]))
    status({"event": "end"})  # type: ignore[typeddict-item]
    assert status.describe() == "fedavg (seed 0): 10 rounds, G 50.00, P 100.00, 1:50"


def test_a_resumed_run_counts_only_the_rounds_of_this_session():
    clock = Clock()
    status = RunStatus("fedavg", 100, [40, 60], clock=clock)
    for t, now in ((90, 50.0), (91, 60.0)):
        clock.now = now
        train(status, t)
    assert status.estimate_seconds_left() == 80.0


def test_one_line_describes_many_runs():
    display = LineDisplay(notebook=False)
    statuses = [RunStatus(f"run {i}", 10, [1], display.update, Clock()) for i in range(5)]
    for status in statuses:
        display.update(status)
    statuses[0]({"event": "end"})  # type: ignore[typeddict-item]
    train(statuses[1], 4)
    said = display.describe()
    assert said.startswith("1 run finished; run 1: round 5/10, ")
    assert "run 3: round 0/10" in said
    assert "run 4" not in said
    assert display.compute_fraction() == 0.1


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (65.2, "1:05"), (7400, "2:03:20")])
def test_durations_are_short(seconds, text):
    assert format_seconds(seconds) == text


# Logs -------------------------------------------------------------------------------------------


def test_a_short_run_in_a_log_is_one_line_at_its_end(capsys):
    result = played("fedavg")
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    g, p = 100 * result.G.last, 100 * result.P.last
    assert line.startswith(f"FedAvg (seed 0) on cpu: 3 rounds, G {g:.2f}, P {p:.2f}, ")


def test_progress_can_be_silent(capsys):
    played("fedavg", rounds=1, progress=False)
    assert capsys.readouterr().err == ""


def test_a_run_that_is_read_and_not_repeated_says_nothing(tmp_path, capsys):
    played("fedavg", rounds=1, out=tmp_path / "run")
    capsys.readouterr()
    played("fedavg", rounds=1, out=tmp_path / "run", resume=True)
    assert capsys.readouterr().err == ""


def test_a_run_that_fails_has_no_last_line(capsys):
    def fail(event: Event) -> None:
        raise KeyError(event["event"])

    with pytest.raises(KeyError):
        played("fedavg", on_event=fail)
    assert capsys.readouterr().err == ""


def test_a_thread_prints_in_long_silences(monkeypatch, capsys):
    """Waiting is replaced: time passes three times, then the work is done."""
    lines = LogLines(lambda: "still training", 2.0)
    waited: list[float] = []

    def wait(seconds: float) -> bool:
        waited.append(seconds)
        return len(waited) > 3

    monkeypatch.setattr(lines._stopped, "wait", wait)
    lines.start()
    lines._thread.join()
    assert waited == [2.0, *[status_line.LOG_SECONDS] * 3]
    assert capsys.readouterr().err == "still training\n" * 3


def test_slow_work_is_named_and_quick_work_is_not(monkeypatch, capsys):
    with show_slow_work("reading digits"):
        pass
    assert capsys.readouterr().err == ""
    made: list[LogLines] = []
    monkeypatch.setattr(LogLines, "start", lambda lines: made.append(lines))
    with show_slow_work("reading digits"):
        made[0].print_line()
    assert capsys.readouterr().err == "reading digits, 0:00 so far\n"
    assert made[0]._stopped.is_set()


def test_the_command_line_prints_a_line_and_keeps_json_clean(tmp_path):
    settings = ("rounds=1", "data.clients=2", *TRAINING, "engine.name=serial")
    pairs = [word for s in settings for word in ("-c", s)]
    done = call("run", *pairs, "--out", tmp_path / "run", "--json")
    assert json.loads(done.stdout)["rounds"] == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("FedAvg (seed 0) on cpu: 1 round, G ")


def test_a_counter_in_a_log_says_the_time_left(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(terminal, "time", SimpleNamespace(monotonic=clock))
    with terminal.show_counter("inverting gradients", 8) as counter:
        assert counter.describe() == "inverting gradients: 0/8, 0:00 so far, ? left"
        clock.now = 20.0
        counter()
        counter()
        assert counter.describe() == "inverting gradients: 2/8, 0:20 so far, 1:00 left"


# Terminals and notebooks ------------------------------------------------------------------------


def use_console(monkeypatch, **how) -> io.StringIO:
    """Show progress on this console."""
    screen = io.StringIO()
    console = Console(file=screen, width=120, **how)
    for module in (status_line, hooks):
        monkeypatch.setattr(module, "STDERR", console)
    return screen


def test_a_terminal_has_a_bar(monkeypatch):
    screen = use_console(monkeypatch, force_terminal=True, force_jupyter=False)
    with show_progress() as shown:
        assert isinstance(shown.display, BarDisplay)
        status = shown.begin_run("fedavg (seed 0)", 2)
        status(START)
        assert shown.display.progress.tasks[0].fields["phase"] == "first evaluation, round 1"
        status(evaluation(0, None, [10, 15]))
        train(status, 0)
    said = screen.getvalue()
    assert "fedavg (seed 0)" in said
    assert "round 1/2" in said
    assert "G –  P 25.00" in said


def test_a_notebook_has_one_line_that_changes(monkeypatch):
    use_console(monkeypatch, force_jupyter=True)
    shown: list[tuple[str, dict[str, str]]] = []

    def display(content: dict[str, str], raw: bool, display_id: bool) -> SimpleNamespace:
        assert raw
        assert display_id
        shown.append(("new", content))
        return SimpleNamespace(update=lambda content, raw: shown.append(("changed", content)))

    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    result = played("fedavg")
    assert [kind for kind, _ in shown][:2] == ["new", "changed"]
    assert [kind for kind, _ in shown].count("new") == 1
    assert shown[-1][1]["text/plain"].startswith("FedAvg (seed 0) on cpu: 3 rounds, G ")
    assert f"P {100 * result.P.last:.2f}" in shown[-1][1]["text/html"]
    assert '<progress value="1.0000" max="1"></progress>' in shown[-1][1]["text/html"]


def test_a_notebooks_line_changes_twice_a_second_at_most(monkeypatch):
    shown: list[object] = []

    def display(content: object, raw: bool, display_id: bool) -> SimpleNamespace:
        return SimpleNamespace(update=lambda content, raw: shown.append(content))

    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    clock = Clock()
    line = NotebookLine(lambda: "<b>", lambda: 0.5, clock)
    line.start()
    for now in (0.1, 0.4, 0.6, 0.7, 1.2):
        clock.now = now
        line.update()
    assert len(shown) == 2
    assert shown[0] == {
        "text/plain": "<b>",
        "text/html": '<progress value="0.5000" max="1"></progress> &lt;b&gt;',
    }


def test_progress_does_not_change_a_bit():
    assert played("fedavg").model_sha256 == played("fedavg", progress=False).model_sha256
