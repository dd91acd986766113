"""Validation examples: held out of training, measured beside the test, and used to choose a round."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import heterophony as hp
from helpers.support import blobs, counts, digits, identical, played, replies
from heterophony.algorithms.fedreg import FedReG
from heterophony.cli import app
from heterophony.config.reading import read_config
from heterophony.core.errors import ConfigError, DataError
from heterophony.core.randomness import make_generator
from heterophony.core.samples import Scale
from heterophony.data.federation import Federation
from heterophony.data.partitioning import draw_held_out, partition_source
from heterophony.data.partitions import Share, Terms
from heterophony.data.source import Source
from heterophony.report.page.html import render_label_page
from heterophony.report.page.page_data import build_page_data
from heterophony.results.comparison import compare_runs
from heterophony.results.comparison_tables import build_comparison_table, export_comparison
from heterophony.results.label_distribution import compute_label_distribution
from heterophony.results.runs import load_runs
from heterophony.runs.curves import ValidationChoice, compute_curves
from heterophony.runs.summary import summarise

quick = settings(derandomize=True, deadline=None, max_examples=20)
# no memory, own head, tuned before it is measured, own data, pooled, nobody's
KINDS = ["fedavg", "fedrep", "fedbabu", "fedreg", "centralized", "local"]
GOLDEN = {  # data_sha256, and sha256 of config.toml, before there were validation examples
    "dirichlet": "711c78973cfd7ade95fa6205f9f551736223651d5d6dab03304b75d0b16867f6",
    "classes": "aac12627e889e0fe1b932f2e42964eb4e95a186ec2471713f1069e7059463e15",
    "iid": "3327822f20817431e92ba851e0445aafebb663cbcc9bee6672b2dc1ededcc1ee",
    "quantity": "789fb98c31791254d282aa934374126618b0f78c4646bf470e6147d1280c09c0",
    "shards": "7fbdff138beebc6e85b4d721e0a8c8f525b534f9192460ec6fa0b9fb7545090e",
}


def source(n: int = 300, classes: int = 5, official: int | None = 200) -> Source:
    """Examples that are all different, with users and an official split."""
    x, y = np.arange(n, dtype=np.float32)[:, None], np.arange(n) % classes
    names = tuple(str(c) for c in range(classes))
    return Source("made", x, y, Scale(), names, official, np.arange(n) % 7, tuple("abcdefg"))


def held_back(examples: int, fraction: float) -> int:
    return min(max(1, math.floor(fraction * examples + 1e-9)), examples - 1)


@cache
def split(fraction: float = 0.25, new: tuple[str, ...] = ()) -> hp.Federation:
    """The small federation of all tests, a quarter of its training examples held out."""
    from heterophony.data.partitioning import hold_out_validation

    return replace(hold_out_validation(digits(), fraction, 1), new=new)


@cache
def run(name: str) -> hp.Result:
    return played(name, split())


def sizes(part: str) -> list[int]:
    return list(split().sizes(part).values())


# Without ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", GOLDEN)
def test_without_a_split_data_are_as_before_there_was_one(kind):
    training = [
        "training.batch=20",
        "training.lr=0.01",
        "training.momentum=0.9",
    ]  # the defaults of then
    config = read_config(None, [f"data.partition.kind={kind}", "data.clients=10", *training])
    assert config.build_federation().sha256 == GOLDEN[kind]
    assert "valid" not in config.to_toml()
    assert not config.build_federation().validation


def test_without_a_split_no_event_and_no_file_speaks_of_it():
    result = played("fedavg")
    start = next(e for e in result.events if e["event"] == "start")
    assert "validation" not in start
    measured = [e for e in result.events if e["event"] == "evaluation"]
    assert {tuple(e) for e in measured} == {("event", "t", "G", "P", "loss")}
    assert result.G.chosen is result.P.chosen is None
    assert "valid" not in result._run_folder.partition_file.read_text()
    assert "valid" not in result._run_folder.config_file.read_text()


# Who holds what -----------------------------------------------------------------------------


RULES = {
    "dirichlet": hp.Dirichlet(0.5, min_size=4),
    "classes": hp.Classes(per_client=2, min_size=4),
    "shards": hp.Shards(per_client=1),
    "overlapping": hp.Shards(per_client=2, mode="overlapping"),
    "per client": hp.PerClientDirichlet(0.5, train=20, test=5, repeat_test=True),
    "iid": hp.IID(),
    "quantity": hp.Quantity(min_size=4),
    "natural": hp.Natural(),
}


@pytest.mark.parametrize("way", ["merged", "official"])
@pytest.mark.parametrize("kind", RULES)
@quick
@given(fraction=st.floats(0.01, 0.99), seed=st.integers(0, 2**32 - 1))
def test_held_out_is_so_much_of_each_clients_training_and_nothing_else(kind, way, fraction, seed):
    how = (source(), RULES[kind], Terms(5, split=way, seed=seed))
    whole, part = partition_source(*how), partition_source(*how, validation_fraction=fraction)
    assert part.clients == whole.clients == tuple(part.validation)
    for c in whole.clients:
        before, train, out = (f[c].tolist() for f in (whole.train, part.train, part.validation))
        assert len(out) == held_back(len(before), fraction)
        assert not set(train) & set(out)
        assert train == [r for r in before if r not in set(out)]
        assert out == [r for r in before if r in set(out)]
        assert torch.equal(part.test[c], whole.test[c])
        assert not set(out) & set(part.test[c].tolist())
    again = partition_source(*how, validation_fraction=fraction)
    assert again.sha256 == part.sha256 != whole.sha256


@quick
@given(
    held=st.lists(st.integers(0, 9), min_size=1, max_size=30),
    fraction=st.floats(0.001, 0.999),
    seed=st.integers(0, 2**32),
)
def test_an_example_that_is_there_twice_is_on_one_side_and_counts_once(held, fraction, seed):
    out = draw_held_out(torch.tensor(held), fraction, make_generator(seed)).tolist()
    assert len(out) == len(set(out)) == held_back(len(set(held)), fraction)
    assert set(out) <= set(held)


def test_shares_are_rounded_down_and_one_stays():
    draws = [
        draw_held_out(torch.arange(n), f, make_generator(0))
        for n, f in ((100, 0.29), (2, 0.9), (1, 0.9))
    ]
    assert [len(d) for d in draws] == [29, 1, 0]


def test_the_partitions_own_seed_decides_who_validates():
    held, free = hp.IID(seed=7), hp.IID()
    fixed = [
        partition_source(source(), held, Terms(5, seed=s), validation_fraction=0.2).sha256
        for s in (0, 1)
    ]
    varied = [
        partition_source(source(), free, Terms(5, seed=s), validation_fraction=0.2).sha256
        for s in (0, 1)
    ]
    assert fixed[0] == fixed[1]
    assert varied[0] != varied[1]


def test_clients_with_data_of_their_own_hold_out_of_their_training_part():
    own = blobs([12, 2, 9])
    whole, part = hp.federate(own), hp.federate(own, validation_fraction=0.5)
    assert part.sizes("validation") == {"0": 4, "1": 0, "2": 3}
    assert part.sizes() == {"0": 5, "1": 1, "2": 3}
    assert part.sizes("test") == whole.sizes("test")


def test_where_nobody_has_two_examples_it_is_said():
    with pytest.raises(DataError, match="every client has at most one training example"):
        hp.federate(blobs([2, 2]), validation_fraction=0.5)


@pytest.mark.parametrize("fraction", [-0.1, 1.0, float("nan")])
def test_a_share_out_of_range_is_said(fraction):
    with pytest.raises(
        ConfigError, match=r"data\.validation_fraction: must be .*at least 0 and below 1"
    ):
        hp.federate("digits", validation_fraction=fraction)


def test_the_configuration_says_it_and_reads_it_back(tmp_path):
    config = read_config(
        None, ["data.validation_fraction=0.2", "data.clients=5", "engine.accelerator=cpu"]
    )
    (tmp_path / "config.toml").write_text(config.to_toml())
    assert "validation_fraction = 0.2" in config.to_toml()
    assert read_config(tmp_path / "config.toml") == config
    same = hp.federate("digits", clients=5, validation_fraction=0.2)
    assert config.build_federation().sha256 == same.sha256


@pytest.mark.parametrize("ending", [".json", ".npz"])
def test_a_partition_in_a_file_keeps_them(tmp_path, ending):
    part = partition_source(source(), hp.IID(), Terms(4), validation_fraction=0.2)
    file = hp.FromFile(str(tmp_path / f"who{ending}"))
    part.save_partition(Path(file.path))
    assert partition_source(source(), file, Terms(4, seed=9)).sha256 == part.sha256
    with pytest.raises(ConfigError, match="the partition itself lists validation examples"):
        partition_source(source(), file, Terms(4, seed=9), validation_fraction=0.2)


@pytest.mark.parametrize("ending", [".json", ".npz"])
def test_of_a_file_without_them_a_share_is_held_out(tmp_path, ending):
    whole = partition_source(source(), hp.IID(), Terms(4))
    file = hp.FromFile(str(tmp_path / f"who{ending}"))
    whole.save_partition(Path(file.path))
    part = partition_source(source(), file, Terms(4), validation_fraction=0.2)
    assert (
        part.sha256
        == partition_source(source(), hp.IID(), Terms(4), validation_fraction=0.2).sha256
    )


def test_a_file_in_which_a_client_trains_on_its_validation_is_refused(tmp_path):
    who = {"0": {"train": [0, 1], "validation": [1], "test": [2]}}
    (tmp_path / "who.json").write_text(json.dumps(who))
    with pytest.raises(DataError, match="client 0 has row 1 more than once"):
        partition_source(source(), hp.FromFile(str(tmp_path / "who.json")), Terms(1))


def test_a_rule_of_ones_own_may_say_who_validates():
    class Mine:
        def allot(self, source, terms):
            return [Share(np.arange(5), np.arange(5, 7), validation=np.arange(7, 10))]

    federation = partition_source(source(), Mine(), Terms(1))
    assert federation.validation["0"].tolist() == [7, 8, 9]


@pytest.mark.parametrize("new", [(), ("2",)])
def test_saved_and_opened_they_are_the_same(tmp_path, new):
    split(new=new).save(tmp_path)
    opened = Federation.open(tmp_path)
    assert opened.sha256 == split(new=new).sha256
    for c in digits().clients:
        assert torch.equal(opened.validation[c], split().validation[c])


def test_they_are_seen_as_test_examples_are():
    x = (np.arange(60 * 3 * 32 * 32) % 251).astype(np.uint8).reshape(60, 3, 32, 32)
    how = {"clients": 2, "partition": hp.IID(), "feature_skew": hp.Rotation(30)}
    f = hp.federate((x, np.arange(60) % 3), **how, transform="fedavg2rep", validation_fraction=0.2)
    seen = f.samples("1", "validation")
    assert (seen.scale, seen.image_transform) == (f.transform.test, None)
    mine = f.x[f.validation["1"]]
    turned = f.skew.apply(mine, f.scale.unit, "1", "validation")
    assert torch.equal(seen.get_all_stored(), turned)


# What a run counts --------------------------------------------------------------------------


def right(result: hp.Result, client: str, answers) -> int:
    held_out = result.plan.federation.samples(client, "validation")
    with torch.inference_mode():
        return sum(int((answers(x).argmax(1) == y).sum()) for x, y in held_out.batches(250))


@pytest.mark.parametrize("name", KINDS)
def test_what_is_counted_is_what_the_models_answer(name):
    result, federation = run(name), split()
    start = next(e for e in result.events if e["event"] == "start")
    assert start["validation"] == sizes("validation")
    assert start["train"] == sizes("train")
    own = [right(result, c, result.personal(c)) for c in federation.clients]
    assert counts(result, "P_valid")[-1] == own
    if result.plan.algorithm.common:
        generic = [right(result, c, result.generic()) for c in federation.clients]
        assert counts(result, "G_valid")[-1] == generic
    else:
        assert counts(result, "G_valid") == [None] * 4


@pytest.mark.parametrize("name", KINDS)
def test_to_hold_them_out_is_to_train_without_them(name):
    """The same run as with data that never had these examples: nothing learns from them."""
    without = replace(split(), validation={})
    assert identical(run(name), played(name, without))


def test_a_client_counts_by_what_it_trains_on(monkeypatch):
    result, sent = replies(monkeypatch, "fedavg", split())
    trained = {r.client: (r.samples, r.weight) for each in sent for r in each}
    assert trained == {c: (n, n) for c, n in split().sizes().items() if c in trained}
    assert all(result.clients[c].train == n for c, n in split().sizes().items())


def test_fedreg_balances_only_what_is_left_to_train():
    """Every image is another one, and copies are exact: so each can be recognised."""
    x = np.arange(120, dtype=np.uint8)[:, None, None].repeat(8, 1).repeat(8, 2)
    how = {"clients": 3, "partition": hp.Dirichlet(0.5, min_size=8)}
    federation = hp.federate((x, np.arange(120) % 4), **how, validation_fraction=0.4)
    seen: dict[str, set[int]] = {}

    class Watched(FedReG):
        def local(self, client):
            once = client.once

            def note(derive):
                made = once(derive)
                seen[client.id] = set(made.get_all_stored()[:, 0, 0, 0].tolist())
                return made

            client.once = note
            return super().local(client)

    played(Watched(augment="copy"), federation, participation=1.0, rounds=1)
    assert sorted(seen) == ["0", "1", "2"]
    for c, images in seen.items():
        assert images <= set(federation.train[c].tolist())
        assert not images & set(federation.validation[c].tolist())


@pytest.mark.parametrize("name", KINDS)
def test_the_pool_counts_the_same(name):
    pooled = played(name, split(), engine="pool", workers=2)
    assert identical(run(name), pooled)
    for what in ("G_valid", "P_valid"):
        assert counts(pooled, what) == counts(run(name), what)
    assert (pooled.G, pooled.P) == (run(name).G, run(name).P)


def test_a_run_that_was_cut_off_goes_on_with_the_same(tmp_path):
    class StopError(Exception):
        pass

    def stop(event):
        if event["event"] == "round" and event["t"] == 1:
            raise StopError

    with pytest.raises(StopError):
        played("fedrep", split(), out=tmp_path / "run", on_event=stop)
    again = played("fedrep", split(), out=tmp_path / "run", resume=True)
    assert identical(run("fedrep"), again)
    assert counts(again, "P_valid") == counts(run("fedrep"), "P_valid")
    assert again.P == run("fedrep").P


def test_who_holds_out_nothing_is_counted_as_nothing():
    result = played("fedavg", hp.federate(blobs([12, 2, 9]), validation_fraction=0.5), rounds=1)
    assert [e["validation"] for e in result.events if e["event"] == "start"] == [[4, 0, 3]]
    assert all(e[1] == 0 for e in counts(result, "P_valid"))


def test_new_clients_hold_out_like_everybody_and_are_measured_on_their_test_data_alone():
    result = played("fedavg", split(new=("1",)))
    (said,) = [e for e in result.events if e["event"] == "new_clients"]
    assert said["train"] == [split().sizes()["1"]]
    assert said["test"] == [split().sizes("test")["1"]]
    assert not any("valid" in k for k in said)
    assert all(len(e) == 5 for e in counts(result, "P_valid"))


# What they choose ---------------------------------------------------------------------------


def told(evaluations: list[tuple], validation: list[int] | None = (4, 4)) -> list[dict]:
    """The events of a run of two clients, as (G, P, G_valid, P_valid) per evaluation."""
    about = {"algorithm": "fedavg", "seed": 0, "rounds": 3, "version": "0"}
    start = {"event": "start", **about, "clients": ["0", "1"], "train": [9, 9], "test": [5, 5]}
    start |= {"shared_parameters": 1, "data_sha256": "d"}
    names = ("G", "P", "G_valid", "P_valid") if validation else ("G", "P")
    start |= {"validation": list(validation)} if validation else {}
    measured = [
        {"event": "evaluation", "t": t, **dict(zip(names, e, strict=True))}
        for t, e in enumerate(evaluations)
    ]
    end = {"event": "end", "model_sha256": "m", "seconds": 0.0}
    return [start, *measured, {**end, "work": {"train": 0.0, "evaluate": 0.0}}]


def test_chosen_is_the_first_round_with_the_highest_pooled_validation_accuracy():
    events = told(
        [
            ([1, 1], [1, 0], [0, 1], [1, 1]),
            ([2, 3], [4, 4], [3, 2], [4, 0]),
            ([5, 5], [3, 2], [1, 3], [2, 3]),  # the best test of G is not where it validates best
            ([1, 4], [5, 5], [4, 1], [1, 4]),  # as good as before, but later
        ]
    )
    found = summarise(events)
    assert found.G.chosen == ValidationChoice(1, 5 / 8, 5 / 10)
    assert found.P.chosen == ValidationChoice(2, 5 / 8, 5 / 10)
    assert (found.G.best_round, found.P.best_round) == (2, 3)
    assert found.to_dict()["P"]["chosen"] == {"round": 2, "validation": 5 / 8, "test": 5 / 10}
    assert compute_curves(events)["P_valid"] == [(0, 2 / 8), (1, 4 / 8), (2, 5 / 8), (3, 5 / 8)]


def test_what_is_not_measured_cannot_be_chosen():
    events = told([(None, None, None, None), (None, [1, 2], None, [1, 0]), (None,) * 4])
    found = summarise(events)
    assert found.G is None
    assert found.P.chosen == ValidationChoice(1, 1 / 8, 3 / 10)


def test_runs_of_before_have_no_choice():
    found = summarise(told([([1, 1], [1, 0]), ([2, 3], [4, 4])], validation=None))
    assert found.G.chosen is found.P.chosen is None
    assert found.to_dict()["G"]["chosen"] is None


def test_a_real_run_chooses_by_its_events(tmp_path):
    result = run("fedrep")
    valid, test = ([sum(e) for e in counts(result, k)] for k in ("P_valid", "P"))
    t = valid.index(max(valid))
    share = valid[t] / sum(sizes("validation"))
    assert result.P.chosen == ValidationChoice(t, share, test[t] / sum(sizes("test")))
    saved = json.loads(result._run_folder.result_file.read_text())["P"]["chosen"]
    assert saved == {"round": t, "validation": share, "test": result.P.chosen.test}


# For people ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def both(tmp_path_factory) -> Path:
    """A run with a split and one without."""
    folder = tmp_path_factory.mktemp("validation")
    played("fedavg", split(), out=folder / "split")
    played("fedper", out=folder / "plain")
    return folder


def test_tables_exports_and_the_page_have_a_column_where_a_run_has_it(both, tmp_path):
    runs = {r.algorithm: r for r in load_runs([both])}
    rows = compare_runs([runs["fedavg"], runs["fedper"]])
    titles = {c.name: c.title for c in build_comparison_table(rows).columns}
    assert (titles["G.chosen"], titles["P.chosen"]) == (
        "G at best validation",
        "P at best validation",
    )
    chosen = runs["fedavg"].summary.P.chosen.test
    spread = rows[0].to_dict()["over_seeds"]["P.chosen"]
    assert spread == {"mean": chosen, "std": 0.0, "ci95": None}
    page = build_page_data([runs["fedavg"], runs["fedper"]])["table"]
    at = page["titles"].index("P at best validation")
    assert page["titles"][at - 1] == "G at best validation"
    assert [r["cells"][at] for r in page["rows"]] == [f"{100 * chosen:.2f}", "–"]
    export_comparison([runs["fedavg"], runs["fedper"]], tmp_path / "table.csv")
    lines = list(csv.DictReader((tmp_path / "table.csv").read_text().splitlines()))
    numbers = [line["P.chosen mean %"] for line in lines]
    assert (float(numbers[0]), numbers[1]) == (pytest.approx(100 * chosen), "")
    plain = build_comparison_table(compare_runs([runs["fedper"]]))
    assert not any("chosen" in column.name for column in plain.columns)


def said(*words: str | Path) -> str:
    done = CliRunner().invoke(app, [str(w) for w in words], env={"COLUMNS": "300"})
    assert done.exit_code == 0, done.output
    return done.stdout


QUICK = ["-c", "rounds=1", "-c", "data.clients=4", "-c", "training.epochs=1"]
QUICK += ["-c", "engine.name=serial"]
SPLIT = ["-c", "data.validation_fraction=0.25"]


def test_run_shows_it_only_with_a_split(tmp_path):
    lines = said("run", *QUICK, *SPLIT, "--out", tmp_path / "a").splitlines()
    saved = json.loads((tmp_path / "a" / "result.json").read_text())
    assert lines[1].endswith("at best validation")
    for line, k in zip(lines[3:], "GP", strict=True):
        at = saved[k]["chosen"]
        assert line.rstrip().endswith(f"{100 * at['test']:.2f} (round {at['round']})")
    assert "validation" not in said("run", *QUICK, "--out", tmp_path / "b")


def test_run_shows_nothing_for_new_clients_and_where_there_is_no_common_model(tmp_path):
    more = ["-c", "data.new_clients=0.25", "-c", "algorithm.name=local"]
    lines = said("run", *QUICK, *SPLIT, *more, "--out", tmp_path / "a").splitlines()
    assert [line.rstrip().endswith("–") for line in lines[3:]] == [True, False, True, True, True]


def test_compare_shows_it_only_with_a_split(tmp_path):
    shown = said("compare", "fedavg", "local", *QUICK, *SPLIT, "--out", tmp_path / "a")
    assert "G at best validation" in shown
    assert "P at best validation" in shown
    plain = said("compare", "fedavg", "local", *QUICK, "--out", tmp_path / "b")
    assert "validation" not in plain


def test_who_holds_what_is_shown_in_three_sizes():
    listed = json.loads(said("data", "partition", *QUICK, *SPLIT, "--json"))
    federation = read_config(
        None, ["data.clients=4", "data.validation_fraction=0.25"]
    ).build_federation()
    for part in ("train", "validation", "test"):
        assert [c[part] for c in listed] == list(federation.sizes(part).values())
    head = said("data", "partition", *QUICK, *SPLIT).splitlines()[1].split()
    assert head[:4] == ["client", "train", "validation", "test"]
    assert "validation" not in said("data", "partition", *QUICK)


def test_the_page_of_holdings_has_them(tmp_path):
    page = render_label_page(compute_label_distribution(split(), hp.Algorithm()))
    total = sum(sizes("validation"))
    assert f"{sum(sizes('train'))} training, {total} validation and" in page
    assert '"titles":["client","training","validation","test",' in page
    assert "validation" not in render_label_page(
        compute_label_distribution(digits(), hp.Algorithm())
    )
