"""``hp.load``: from a folder back to Python; numbers without data, models with the data they had."""

from __future__ import annotations

import copy
import io
import json
import pickle
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import heterophony as hp
from helpers.commands import call
from helpers.support import calm, digits, played, same
from heterophony.algorithms import ALGORITHM_CLASSES
from heterophony.core.errors import ConfigError, DataError, FolderError
from heterophony.runs.events import Event

every_algorithm = pytest.mark.parametrize("name", sorted(ALGORITHM_CLASSES))


class Own(nn.Module):
    """A module of a user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(64, 12)
        self.fc = nn.Linear(12, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.body(x.flatten(1)).relu())


@dataclass(frozen=True)
class Mine(hp.Algorithm):
    """FedAvg under another name."""

    part: float = hp.setting(0.5, "how far", low=0, high=1)


class StopError(Exception):
    """Something happened in the middle."""


def stop_at_round_1(event: Event) -> None:
    if event["event"] == "round" and event["t"] == 1:
        raise StopError


def forget(*_: object, **__: object) -> None:
    raise AssertionError("data were read")


def get_logits(result: hp.Result, federation: hp.Federation, client: str) -> torch.Tensor:
    return result.personal(client)(federation.x[:5])


@pytest.fixture(scope="module")
def by_command(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("load") / "run"
    settings = ("algorithm.name=fedper", "rounds=2", "data.clients=4", "training.epochs=1")
    pairs = [word for s in (*settings, "engine.name=serial") for word in ("-c", s)]
    assert call("run", *pairs, "--out", out).exit_code == 0
    return out


# Runs of every origin ---------------------------------------------------------------------------


def test_a_run_of_the_command_line_gives_numbers_without_data_and_then_models(
    by_command, monkeypatch
):
    with monkeypatch.context() as patch:
        patch.setattr("heterophony.config.config.read_source", forget)
        result = hp.load(by_command)
        told = json.loads((by_command / "result.json").read_text())
        assert result.summary.to_dict() == told
        assert result.finished
        assert result.state == "finished"
        assert len(result.curves["P"]) == 3
        assert result.rows()
        assert result._repr_html_()
    test = result.plan.federation.data("3").test
    with torch.inference_mode():
        right = int((result.personal(3)(test.get_all_stored()).argmax(1) == test.labels).sum())
    assert right == result.clients["3"].correct == result.clients[3].correct
    assert isinstance(result.generic(), nn.Module)


def test_a_run_started_from_python_needs_its_federation_for_models_only(tmp_path):
    first = played("fedrep_full", out=tmp_path / "run", head_depth=1, model="digitsnet")
    result = hp.load(tmp_path / "run")
    assert result.summary == first.summary
    with pytest.raises(DataError) as caught:
        result.personal("1")
    assert str(caught.value) == (
        f"{tmp_path / 'run'} was started from Python with data of your own ('arrays'); to use its models, pass it:"
        f" hp.load('{tmp_path / 'run'}', ..., federation=...)"
    )
    again = hp.load(str(tmp_path / "run"), federation=digits())
    for client in ("0", "5"):
        assert torch.equal(get_logits(again, digits(), client), get_logits(first, digits(), client))
    with pytest.raises(DataError, match=r"data_sha256 differs\); pass the federation"):
        hp.load(tmp_path / "run", federation=digits(5)).generic()


def test_a_depth_of_the_head_that_was_chosen_is_known(tmp_path):
    x = torch.rand(24, 3, 32, 32).numpy()
    y = (torch.arange(24) % 2).numpy()
    federation = hp.federate((x, y), clients=2, partition=hp.IID())
    how = {"model": "convnet", "head_depth": 3, "rounds": 1, "participation": 1.0}
    first = played("fedper", federation, out=tmp_path / "run", **how)
    again = hp.load(tmp_path / "run", federation=federation)
    assert again.plan.start_sha256 == first.plan.start_sha256


def test_a_model_and_an_algorithm_of_ones_own_are_passed_again(tmp_path):
    out = tmp_path / "run"
    first = played(Mine(0.25), model=Own, out=out)
    given = {"federation": digits(), "model": Own, "algorithm": Mine(0.25)}
    again = hp.load(out, **given)
    assert torch.equal(get_logits(again, digits(), "2"), get_logits(first, digits(), "2"))
    for missing, said in {
        "model": "was started from Python with a model of your own ('Own'); to use its models, pass it: hp.load(",
        "algorithm": "was started from Python with an algorithm of your own ('Mine'); to use its models, pass it:",
    }.items():
        with pytest.raises(DataError) as caught:
            hp.load(out, **{k: v for k, v in given.items() if k != missing}).generic()
        assert said in str(caught.value)
        assert "\n" not in str(caught.value)


def test_new_weights_of_the_same_module_do_where_all_tensors_are_stored(tmp_path):
    out = tmp_path / "run"
    first = played("fedper", model=Own(), rounds=1, participation=0.5, out=out)
    again = hp.load(out, federation=digits(), model=Own())  # other random weights
    trained, *_ = present = next(e["clients"] for e in first.events if e["event"] == "round")
    absent, *_ = (c for c in first.clients if c not in present)
    assert torch.equal(get_logits(again, digits(), trained), get_logits(first, digits(), trained))
    with pytest.raises(DataError, match="never trained; pass the model with the weights"):
        again.personal(absent)
    with pytest.raises(DataError, match="does not match the run"):
        hp.load(out, federation=digits(), model="mlp").generic()


def test_an_unfinished_run_says_so_and_has_what_there_is(tmp_path):
    out = tmp_path / "run"
    with pytest.raises(StopError):
        played("fedrod", out=out, on_event=stop_at_round_1)
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    result = hp.load(out, federation=digits())
    assert not result.finished
    assert result.state == "round 2 of 3"
    assert [t for t, _ in result.curves["P"]] == [0, 1]
    assert repr(result).startswith("<Result fedrod, unfinished, round 2 of 3: G 0.")
    assert result.P.last == result.curves["P"][-1][1]
    assert result.model_sha256 == ""
    assert result.personal(0)(digits().x[:2]).shape == (2, 10)
    assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == before  # only read


def test_a_run_before_its_first_evaluation_is_loaded(tmp_path):
    out = tmp_path / "run"
    played("fedavg", rounds=1, out=out)
    events = (out / "events.jsonl").read_text().splitlines(keepends=True)
    (out / "events.jsonl").write_text(events[0])
    shutil.rmtree(out / "commits")
    result = hp.load(out, federation=digits())
    assert repr(result) == "<Result fedavg, unfinished, round 0 of 1: nothing measured yet>"
    assert "nothing measured yet" in result._repr_html_()
    assert result.rows() == []
    assert not result.plot().axes[0].lines
    with pytest.raises(FolderError, match="nothing was measured yet"):
        _ = result.P
    with pytest.raises(FolderError, match="has no trained model yet"):
        result.generic()


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(FolderError, match=r"is not a run folder: it has no config\.toml$"):
        hp.load(tmp_path / "nothing")
    played("fedavg", rounds=0, out=tmp_path / "parent" / "a")
    with pytest.raises(FolderError, match=r"holds 1 runs; load one of them, as in hp\.load\('"):
        hp.load(tmp_path / "parent")
    (tmp_path / "parent" / "a" / "events.jsonl").write_text("")
    with pytest.raises(FolderError, match="has not started: it has no events yet"):
        hp.load(tmp_path / "parent" / "a")


@pytest.mark.parametrize("own", [False, True])
def test_of_a_run_on_devices_there_is_the_generic_model(by_command, tmp_path, own):
    """The server's folder of such a run holds no client's memory."""
    out = tmp_path / "run"
    shutil.copytree(by_command, out)
    shutil.rmtree(out / "commits" / "clients")
    place_on_devices(out, own)
    result = hp.load(out)
    assert result.generic()(torch.zeros(2, 1, 8, 8)).shape == (2, 10)
    with pytest.raises(DataError, match="the personal model of client '1' is on its board"):
        result.personal("1")


@pytest.mark.parametrize("own", [False, True])
def test_the_personal_model_of_a_device_is_in_the_folder_of_the_device(by_command, tmp_path, own):
    out, device = tmp_path / "run", tmp_path / "device"
    shutil.copytree(by_command, out)
    place_on_devices(out, own)
    (device / "pi" / "run").mkdir(parents=True)
    (out / "commits" / "clients").rename(device / "pi" / "run" / "clients")
    (device / "pi" / "run" / "folder-id").write_text("ab")
    result, simulated, x = hp.load(out), hp.load(by_command), torch.zeros(2, 1, 8, 8)
    for folder in (device, device / "pi", device / "pi" / "run"):
        assert torch.equal(result.personal("1", board=folder)(x), simulated.personal("1")(x))
    (device / "pi" / "run" / "folder-id").write_text("cd")
    with pytest.raises(
        DataError, match="does not hold client '1' of this run, which is on board 'pi'"
    ):
        result.personal("1", board=device)
    with pytest.raises(DataError, match="nowhere does not exist"):
        result.personal("1", board="nowhere")
    (out / "boards.json").write_text("{}")
    with pytest.raises(FolderError, match="does not record which board holds client '1'"):
        result.personal("1", board=device)


def test_a_model_that_needs_examples_of_a_device_is_refused(tmp_path):
    """FedBABU tunes the head on the client's own examples, which are on the device."""
    out = tmp_path / "run"
    settings = ("-c", "clients=4", "-c", "rounds=1", "-c", "engine=serial")
    call("run", "fedbabu", *settings, "--out", str(out))
    place_on_devices(out, own=True)
    (out / "commits" / "clients").rename(tmp_path / "clients")
    (tmp_path / "folder-id").write_text("ab")
    with pytest.raises(DataError, match="needs examples of client '1'"):
        hp.load(out).personal("1", board=tmp_path)


def place_on_devices(out, own):
    """Change the folder of a simulation to that of a run on devices; with own data if asked."""
    names = [str(i) for i in range(4)]
    record = {"board_of_client": dict.fromkeys(names, "pi"), "folder_ids": {"pi": "ab"}}
    (out / "boards.json").write_text(json.dumps({**record, "clients": {"0": {"type": "uint8"}}}))
    if own:
        text = (out / "config.toml").read_text()
        about = '[data]\nname = "own"\nclients = 4\nshape = [1, 8, 8]\nclasses = 10\n\n[model]'
        (out / "config.toml").write_text(
            re.sub(r"\[data\].*\[model\]", about, text, flags=re.DOTALL)
        )


# Models that leave ------------------------------------------------------------------------------


def list_models(result: hp.Result) -> list[nn.Module]:
    common = [result.generic()] if result.plan.algorithm.common else []
    return [result.personal(1), *common]


@every_algorithm
def test_models_are_pickled_saved_and_copied(name):
    x = digits().x[:5]
    for model in list_models(calm(name)):
        logits, content = model(x), io.BytesIO()
        assert torch.equal(pickle.loads(pickle.dumps(model))(x), logits)
        torch.save(model, content)
        content.seek(0)
        assert torch.equal(torch.load(content, weights_only=False)(x), logits)
        assert torch.equal(copy.deepcopy(model)(x), logits)


@pytest.mark.parametrize("name", ["fedavg", "fedreg", "feddecomp", "pfedme", "gpfl"])
def test_models_are_exported(name):
    for model in list_models(calm(name)):
        batch = torch.export.Dim.AUTO
        program = torch.export.export(model, (digits().x[:4],), dynamic_shapes=({0: batch},))
        x = digits().x[:7]
        assert torch.allclose(program.module()(x), model(x), atol=1e-6)


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")  # within torch's own exporter
def test_a_model_is_exported_to_onnx(tmp_path):
    from onnx.reference import ReferenceEvaluator

    model, x = calm("fedreg").personal(1), digits().x[:4]
    torch.onnx.export(model, (x,), tmp_path / "m.onnx", verbose=False)
    evaluator = ReferenceEvaluator(str(tmp_path / "m.onnx"))
    (found,) = evaluator.run(None, {evaluator.input_names[0]: x.numpy()})
    assert torch.allclose(torch.from_numpy(found), model(x), atol=1e-5)


def test_a_model_keeps_its_clients_data_only_where_it_predicts_with_them():
    rows = digits().samples("1", "train").get_all_stored()
    for name in ("fedavg", "fedreg", "pfedme", "gpfl"):
        content = pickle.dumps(calm(name).personal(1))
        assert not any(row.numpy().tobytes() in content for row in rows)
    tested = digits().samples("1", "test").get_all_stored()
    assert tested.numpy().tobytes() in pickle.dumps(calm("pfedgate").personal(1))


def test_the_state_of_a_model_is_all_that_it_predicts_with():
    result = calm("pfedme")  # its personal parameters are not those of the net
    own, other = result.personal(1), result.personal(2)
    other.load_state_dict(own.state_dict())
    x = digits().x[:5]
    assert torch.equal(other(x), own(x))


# Numbers and their display ----------------------------------------------------------------------


def test_rows_hold_every_client_and_round():
    result = calm("fedavg")
    rows = result.rows()
    assert list(rows[0]) == [
        "round",
        "client",
        "test",
        "G_correct",
        "G",
        "P_correct",
        "P",
        "G_loss",
        "P_loss",
    ]
    assert [(r["round"], r["client"]) for r in rows] == [(t, str(c)) for t in range(4) for c in range(6)]  # fmt: skip
    last = [r for r in rows if r["round"] == 3]
    assert [r["P"] for r in last] == [c.accuracy for c in result.clients.values()]
    assert [r["G_correct"] for r in last] == result.events[-2]["G"]
    assert played("local", rounds=1).rows()[0]["G"] is None


def test_a_frame_needs_pandas(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError) as caught:
        calm("fedavg").to_frame()
    assert str(caught.value) == (
        "result.to_frame() needs pandas; install it with pip install 'heterophony[pandas]',"
        " or use result.rows()"
    )


def test_a_frame_has_the_rows(monkeypatch):
    """With pandas itself if it is installed."""
    try:
        import pandas  # noqa: F401
    except ImportError:
        made = {}

        class Frame:
            def __init__(self, rows: list[dict[str, object]]) -> None:
                made["rows"], self.columns = rows, list(rows[0])

            def astype(self, kinds: dict[str, str]) -> Frame:
                assert kinds == {"G_correct": "Int64", "P_correct": "Int64"}
                return self

        monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=Frame))
        calm("fedavg").to_frame()
        assert made["rows"] == calm("fedavg").rows()
    else:
        frame = calm("fedavg").to_frame()
        assert len(frame) == 24
        assert frame["P_correct"].tolist() == [r["P_correct"] for r in calm("fedavg").rows()]


def test_the_figure_has_the_curves_and_displays_itself():
    result = calm("fedavg")
    figure = result.plot()
    lines = {line.get_label()[0]: line for line in figure.axes[0].lines}
    for measure in "GP":
        assert list(zip(*lines[measure].get_data(), strict=True)) == result.curves[measure]
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert [line.get_label()[0] for line in calm("local").plot().axes[0].lines] == ["P"]


def test_texts_are_short():
    result = played(Mine(0.25), rounds=1)
    assert repr(Mine(0.25)) == "Mine(part=0.25)"
    assert repr(Mine()) == "Mine()"
    assert repr(hp.Algorithm()) == "Algorithm()"
    federation = repr(digits())
    assert federation == (
        "<Federation arrays: 6 clients, 313 training examples of 1×8×8, 10 classes>"
    )
    assert repr(result.plan) == f"<Plan Mine(part=0.25), 1 round, seed 0: {federation}>"
    assert repr(result.clients).endswith(", … 3 more>")
    with pytest.raises(KeyError):
        result.clients[9]
    html = result._repr_html_()
    assert html.startswith("<p><b>mine, finished, seed 0</b>, 6 clients</p><table>")
    assert html.count("<tr>") == 3


def test_a_repr_of_ones_own_is_kept():
    @dataclass(frozen=True)
    class Named(hp.Algorithm):
        def __repr__(self) -> str:
            return "mine"

    assert repr(Named()) == "mine"


def test_loading_is_the_same_as_having_run():
    result = calm("fedrod")
    again = hp.load(result.folder, federation=digits())
    assert again.summary == result.summary
    assert same(again._server.model, result._server.model)
