"""Trackers get every round exactly once, also after a resume, and do not change the run."""

from __future__ import annotations

import json
import shutil
import struct
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

import heterophony as hp
from helpers.commands import TRAINING
from helpers.support import CALM, calm, played
from heterophony.cli import app
from heterophony.core.errors import ConfigError
from heterophony.runs.curves import compute_curves
from heterophony.trackers import CLASSES, select_trackers

SETTINGS = ("rounds=2", "data.clients=4", "training.epochs=1", *TRAINING, "engine.name=serial")
QUICK = [w for s in SETTINGS for w in ("-c", s)]


def needs(package: str) -> pytest.MarkDecorator:
    """Skip where the tracker's package is not installed."""
    there = find_spec(package) is not None
    return pytest.mark.skipif(not there, reason=f"{package} is not installed")


EACH = [pytest.param(name, marks=needs(name)) for name in sorted(CLASSES)]


@pytest.fixture(autouse=True)
def offline(tmp_path, monkeypatch):
    """No test uses a network, and MLflow writes to the test's folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    for name, value in {
        "DO_NOT_TRACK": "true",
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_TRACKING_URI": (tmp_path / "store").as_uri(),
        "WANDB_ERROR_REPORTING": "false",
        "WANDB_MODE": "offline",
    }.items():
        monkeypatch.setenv(name, value)


class Told:
    """A tracker that keeps what it receives."""

    def __init__(self) -> None:
        self.points, self.ends, self.runs = [], [], []

    def begin(self, run):
        self.runs.append(run)
        self.points = []

    def log(self, point):
        self.points.append(point)

    def end(self, summary):
        self.ends.append(summary)

    def curve(self, name):
        return [(p.step, p.values[name]) for p in self.points if name in p.values]


class Fails(Told):
    """A tracker that fails at some point."""

    def __init__(self, at: str, after: int = 0) -> None:
        super().__init__()
        self.at, self.after = at, after

    def __getattribute__(self, name):
        if name in ("begin", "log", "end") and name == self.at:
            if self.after == 0:
                raise OSError("the network is unreachable\nand much more")
            self.after -= 1
        return super().__getattribute__(name)


class StopHereError(Exception):
    pass


def stopping(kind: str, t: int):
    """Stop the run when such an event is recorded, before it is committed."""

    def stop(event):
        if (event["event"], event.get("t")) == (kind, t):
            raise StopHereError

    return stop


def stopped_and_resumed(out: Path, track) -> hp.Result:
    """A run that was stopped and resumed twice: its trackers begin three times."""
    for kind, t in (("round", 1), ("evaluation", 2)):
        with pytest.raises(StopHereError):
            played("fedavg", out=out, resume=True, track=track, on_event=stopping(kind, t))
    return played("fedavg", out=out, resume=True, track=track)


def expected(events) -> dict[str, list[int]]:
    """The steps that each accuracy of the run must have, once."""
    return {
        f"accuracy/{k}": [t for t, _ in line] for k, line in compute_curves(events).items() if line
    }


# The protocol ---------------------------------------------------------------------------------


def test_a_tracker_is_told_the_curves_of_the_result(tmp_path):
    told = Told()
    result = played("fedavg", out=tmp_path / "mine", track=[told])
    lines = compute_curves(result.events)
    assert {k: told.curve(f"accuracy/{k}") for k in lines} == lines
    rounds = [e for e in result.events if e["event"] == "round"]
    assert told.curve("bytes/up")[-1] == (3, result.summary.bytes["up"])
    assert told.curve("bytes/down") == [
        (t + 1, sum(e["bytes_down"] for e in rounds[: t + 1])) for t in range(3)
    ]
    assert told.curve("loss/main") == [(e["t"] + 1, e["loss"]["main"]) for e in rounds]
    assert told.curve("accuracy/P_worst10")[-1] == (3, result.fairness["P"].worst10)
    assert told.points[-1].clients["P"] == [c.accuracy for c in result.clients.values()]
    assert told.ends == [result.summary]
    (run,) = told.runs
    assert (run.name, run.folder) == ("mine", tmp_path / "mine")
    assert run.config["training.lr"] == 0.05
    assert run.config["algorithm.name"] == "fedavg"


@pytest.mark.parametrize("name", EACH)
def test_a_tracker_does_not_change_the_result(name, tmp_path):
    result = played("fedavg", out=tmp_path / "run", track=[name], **CALM)
    assert result.model_sha256 == calm("fedavg").model_sha256


@pytest.mark.parametrize(("at", "after"), [("begin", 0), ("log", 0), ("log", 3), ("end", 0)])
def test_a_tracker_that_fails_is_dropped_with_one_line_and_the_run_goes_on(at, after):
    bad, good = Fails(at, after), Told()
    with pytest.warns(UserWarning, match="Fails stopped tracking") as seen:
        result = played("fedavg", track=[bad, good], **CALM)
    (warning,) = seen
    said = "Fails stopped tracking: the network is unreachable; the run continues"
    assert str(warning.message).startswith(said)
    assert "\n" not in str(warning.message)
    assert result.model_sha256 == calm("fedavg").model_sha256
    assert len(good.points) == 7  # evaluations after 0 to 3 rounds, and three rounds
    assert len(bad.points) == (after if at == "log" else 7 if at == "end" else 0)
    assert good.ends == [result.summary]
    assert bad.ends == ([None] if at == "log" else [])


def test_a_run_that_ends_with_an_error_tells_its_trackers():
    told = Told()
    with pytest.raises(StopHereError):
        played("fedavg", track=[told], on_event=stopping("round", 1))
    assert told.ends == [None]


def test_after_a_resume_a_tracker_is_told_everything_that_is_recorded(tmp_path):
    whole, told = Told(), Told()
    played("fedavg", track=[whole])
    stopped_and_resumed(tmp_path / "run", [told])

    def without_seconds(points):
        return [(p.step, {**p.values, "seconds": 0}, p.clients) for p in points]

    assert without_seconds(told.points) == without_seconds(whole.points)


def test_a_finished_run_can_be_tracked_afterwards(tmp_path):
    played("fedavg", out=tmp_path / "run")
    told = Told()
    result = played("fedavg", out=tmp_path / "run", resume=True, track=[told])
    assert len(told.points) == 7
    assert told.ends == [result.summary]


def test_algorithms_without_a_common_model_and_clocks_are_told_as_they_are():
    told = Told()
    devices = hp.Speeds(sample_seconds=0.5)
    result = played("local", track=[told], speeds=devices, faults=hp.Faults(dropout=0.3))
    assert told.curve("accuracy/G") == []
    assert told.curve("simulated_seconds")[-1] == (3, result.summary.simulated_seconds)


def test_what_is_no_tracker_is_refused():
    for wrong in (3, Told):
        with pytest.raises(ConfigError, match="names, or objects with begin, log and end"):
            played("fedavg", track=[wrong])


def test_a_name_given_twice_or_alone_is_one_tracker(monkeypatch):
    monkeypatch.setattr("heterophony.trackers.load_tracker", lambda name: Told())
    assert [name for name, _ in select_trackers(["wandb", "wandb"])] == ["wandb"]
    assert [name for name, _ in select_trackers("wandb")] == ["wandb"]


# The command line -----------------------------------------------------------------------------


def called(*words) -> object:
    return CliRunner().invoke(app, [str(w) for w in words])


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_a_tracker_that_is_not_installed_is_one_line_before_anything_is_written(
    name, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, f"heterophony.trackers.{name}", None)
    done = called("run", *QUICK, "--track", name, "--out", tmp_path / "run")
    assert done.exit_code == 3
    assert done.stderr == (
        f"error: --track {name} needs {name}; install it with pip install 'heterophony[{name}]'\n"
    )
    assert not (tmp_path / "run").exists()


def test_an_unknown_tracker_is_answered_with_a_near_one():
    done = called("compare", "fedavg", *QUICK, "--track", "tensorbord")
    assert done.exit_code == 3
    assert done.stderr == "error: --track: unknown name 'tensorbord'; did you mean 'tensorboard'?\n"


@needs("tensorboard")
def test_run_resume_and_compare_take_trackers(tmp_path):
    for words in (
        ("run", *QUICK, "--out", tmp_path / "a"),
        ("compare", "fedavg", "local", *QUICK, "--out", tmp_path / "b"),
    ):
        done = called(*words, "--track", "tensorboard", "--json")
        assert done.exit_code == 0, done.stderr
        json.loads(done.stdout)
    folders = [tmp_path / "a", tmp_path / "b/fedavg-0", tmp_path / "b/local-0"]
    assert [len(list((f / "tensorboard").iterdir())) for f in folders] == [1, 1, 1]
    shutil.rmtree(tmp_path / "a/tensorboard")
    assert called("resume", tmp_path / "a", "--track", "tensorboard").exit_code == 0
    assert len(list((tmp_path / "a/tensorboard").iterdir())) == 1


def test_a_failing_tracker_is_one_line_on_stderr(tmp_path, monkeypatch):
    monkeypatch.setattr("heterophony.trackers.load_tracker", lambda name: Fails("log"))
    done = called("run", *QUICK, "--track", "wandb", "--out", tmp_path / "run", "--json")
    assert done.exit_code == 0
    json.loads(done.stdout)
    (line,) = [s for s in done.stderr.splitlines() if "tracking" in s]
    assert line.startswith("wandb stopped tracking: the network is unreachable; the run continues")


# TensorBoard ----------------------------------------------------------------------------------


def board(folder: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    everything = {"scalars": 0, "histograms": 0, "tensors": 0}
    return EventAccumulator(str(folder / "tensorboard"), size_guidance=everything).Reload()


@needs("tensorboard")
def test_tensorboard_has_every_round_once_after_resumes(tmp_path):
    result = stopped_and_resumed(tmp_path / "run", ["tensorboard"])
    read = board(tmp_path / "run")
    for name, steps in expected(result.events).items():
        assert [s.step for s in read.Scalars(name)] == steps
    assert [s.step for s in read.Scalars("bytes/up")] == [1, 2, 3]
    assert [h.step for h in read.Histograms("clients/P")] == [0, 1, 2, 3]
    assert read.Histograms("clients/P")[-1].histogram_value.num == len(result.clients)
    assert [(s.step, s.value) for s in read.Scalars("last10/P")] == [
        (3, pytest.approx(result.P.last10.mean, abs=1e-7))
    ]
    files = list((tmp_path / "run/tensorboard").iterdir())
    assert len(files) == 1  # readers of single files meet no point twice either


@needs("tensorboard")
def test_tensorboard_compares_runs_by_their_settings(tmp_path):
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    played("fedavg", out=tmp_path / "run", track=["tensorboard"])
    metadata = board(tmp_path / "run").summary_metadata
    begun = HParamsPluginData.FromString(
        metadata["_hparams_/session_start_info"].plugin_data.content
    ).session_start_info
    assert begun.hparams["training.lr"].number_value == 0.05
    assert begun.hparams["algorithm.name"].string_value == "fedavg"


# MLflow ---------------------------------------------------------------------------------------


@needs("mlflow")
def test_mlflow_has_every_round_once_in_one_run_after_resumes(tmp_path):
    from mlflow import MlflowClient

    result = stopped_and_resumed(tmp_path / "run", ["mlflow"])
    client = MlflowClient()
    experiment = client.get_experiment_by_name("heterophony")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_id == json.loads((tmp_path / "run/mlflow.json").read_text())["id"]
    assert (run.info.run_name, run.info.status) == ("run", "FINISHED")
    for name, steps in expected(result.events).items():
        assert [m.step for m in client.get_metric_history(run.info.run_id, name)] == steps
    for name in run.data.metrics:
        points = Counter(m.step for m in client.get_metric_history(run.info.run_id, name))
        assert set(points.values()) == {1}, name
    assert run.data.params["training.lr"] == "0.05"
    assert run.data.metrics["best/P"] == result.P.best
    assert run.data.tags["model_sha256"] == result.model_sha256


@needs("mlflow")
def test_mlflow_begins_a_run_of_its_own_in_another_store(tmp_path, monkeypatch):
    from mlflow import MlflowClient

    played("fedavg", out=tmp_path / "run", track=["mlflow"])
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "other").as_uri())
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    played("fedavg", out=tmp_path / "run", resume=True, track=["mlflow"])
    client = MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    assert len(client.get_metric_history(run.info.run_id, "accuracy/P")) == 4


@needs("mlflow")
@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")  # a warning of MLflow's own
def test_mlflow_has_every_round_in_its_own_database_too(tmp_path, monkeypatch):
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    played("fedavg", out=tmp_path / "run", track=["mlflow"])
    client = MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("heterophony").experiment_id])
    history = client.get_metric_history(run.info.run_id, "accuracy/P")
    assert [point.step for point in history] == [0, 1, 2, 3]


@needs("mlflow")
def test_mlflow_without_a_place_to_write_is_one_line(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
    monkeypatch.setattr("heterophony.trackers.mlflow.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="set MLFLOW_TRACKING_URI to a server, or pip install"):
        select_trackers(["mlflow"])


# Weights & Biases -----------------------------------------------------------------------------


def rows(file: Path) -> list[dict[str, object]]:
    """The rows in an offline run's file: a LevelDB log of protobuf records."""
    import wandb
    from wandb.proto.wandb_internal_pb2 import Record

    wandb.teardown()  # waits for the process that writes the file
    content, at, parts, found = file.read_bytes(), 7, b"", []
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:  # the rest of a block that no header fits into
            at += 32768 - at % 32768
            continue
        size, kind = struct.unpack("<HB", content[at + 4 : at + 7])
        parts += content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            record, parts = Record.FromString(parts), b""
            if record.HasField("history"):
                items = record.history.item
                found.append({i.key or "/".join(i.nested_key): i.value_json for i in items})
    return found


@needs("wandb")
def test_wandb_offline_has_every_round_once_after_resumes(tmp_path):
    result = stopped_and_resumed(tmp_path / "run", ["wandb"])
    name = json.loads((tmp_path / "run/wandb.json").read_text())["id"]
    (file,) = (tmp_path / "run/wandb").glob("*offline-run-*/*.wandb")
    assert file.name == f"run-{name}.wandb"
    found = rows(file)
    assert [int(r["_step"]) for r in found] == [0, 1, 2, 3]
    shown = [(int(r["_step"]), float(r["accuracy/P"])) for r in found]
    assert shown == compute_curves(result.events)["P"]
    assert [k for k in found[0] if k.startswith("clients/P")]


@needs("wandb")
def test_wandb_keeps_what_an_earlier_part_wrote_until_it_can_begin(tmp_path, monkeypatch):
    import wandb

    def refuses(**how):
        raise wandb.errors.UsageError("log in first")

    played("fedavg", out=tmp_path / "run", track=["wandb"])
    with monkeypatch.context() as patch:
        patch.setattr(wandb, "init", refuses)
        with pytest.warns(UserWarning, match="wandb stopped tracking: log in first; the run"):
            played("fedavg", out=tmp_path / "run", resume=True, track=["wandb"])
    (file,) = (tmp_path / "run/wandb").glob("*offline-run-*/*.wandb")
    assert len(rows(file)) == 4
    played("fedavg", out=tmp_path / "run", resume=True, track=["wandb"])
    (file,) = (tmp_path / "run/wandb").glob("*offline-run-*/*.wandb")
    assert len(rows(file)) == 4
