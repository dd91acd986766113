"""Clients that join after training: they do not influence it, and train by the same algorithm."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

import heterophony as hp
from helpers.support import (
    QUICK,
    Recorder,
    blobs,
    digits,
    identical,
    model,
    net_with_batch_norm,
    played,
    same,
)
from heterophony.algorithms import ALGORITHM_CLASSES, get_algorithm_class
from heterophony.algorithms.fedavg2rep import FedAvg2Rep
from heterophony.algorithms.feddyn import FedDyn
from heterophony.algorithms.fedreg import FedReG
from heterophony.cli import app
from heterophony.core.errors import ConfigError
from heterophony.core.samples import Scale
from heterophony.core.tensors import state, tensor_to_bytes
from heterophony.data.federation import Federation
from heterophony.engines import base
from heterophony.jobs.plan import Job
from heterophony.jobs.work import train_locally
from heterophony.report.page.html import render_report
from heterophony.results.comparison_tables import build_new_client_table
from heterophony.results.runs import load_runs
from heterophony.results.table import format_rows

ALGORITHMS = sorted(ALGORITHM_CLASSES)
every_algorithm = pytest.mark.parametrize("name", ALGORITHMS)
# one of each kind: no memory, own head, tuned twice, own model on the server, own data, pooled
KINDS = ["fedavg", "fedrep", "fedbabu", "fedala", "fedamp", "fedreg", "centralized", "local"]
NEW = ("0", "3")


@cache
def held_back() -> hp.Federation:
    """Six clients, two of which join after training."""
    return replace(digits(), new=NEW)


@cache
def without() -> hp.Federation:
    """The same federation without these two clients."""
    whole = digits()
    train, test = (
        {c: v for c, v in rows.items() if c not in NEW} for rows in (whole.train, whole.test)
    )
    return replace(whole, train=train, test=test)


@cache
def late(name: str) -> hp.Result:
    return played(name, held_back())


def event(result: hp.Result) -> dict:
    """The event of the new clients, without its durations."""
    (found,) = [e for e in result.events if e["event"] == "new_clients"]
    return {k: v for k, v in found.items() if k not in ("seconds", "work")}


def learnt(result: hp.Result, client: str, rounds: int = 1) -> hp.Client:
    """The client after training alone for so many rounds."""
    plan, server = result.plan, result._server
    sent, memory = plan.algorithm.send(server, client), {}
    for t in range(plan.rounds, plan.rounds + rounds):
        job = Job(kind="train", t=t, client=client, tensors=sent)
        trained = plan.build_client(job, memory, result._run_folder.client_store)
        train_locally(plan, job, trained)
        memory = {**trained.memory, "net": trained.stays()}
    return trained


def right(result: hp.Result, client: str, answers) -> int:
    """Count the client's test examples that the model classifies correctly."""
    test = result.plan.federation.data(client).test
    with torch.inference_mode():
        return sum(int((answers(x).argmax(1) == y).sum()) for x, y in test.batches(250))


# No influence on training ----------------------------------------------------------------------


@every_algorithm
def test_training_is_that_of_a_federation_without_them(name):
    calm = played(name, without())
    assert identical(calm, late(name))
    assert same(model(calm), model(late(name)))
    assert calm.summary.new_clients is None
    assert list(late(name).clients) == list(without().clients)
    assert late(name).summary.bytes == calm.summary.bytes


@every_algorithm
def test_all_of_them_join_and_are_measured(name):
    new, said = late(name).summary.new_clients, event(late(name))
    assert tuple(new.clients) == NEW
    sizes = digits().sizes("test")
    assert said["test"] == [sizes[c] for c in NEW]
    assert said["t"] == 3
    assert sum(said["P"]) / sum(said["test"]) == new.P
    assert new.before == sum(said["before"]) / sum(said["test"])
    assert (new.G is not None) == get_algorithm_class(name).common
    assert all(r.train == digits().sizes()[c] for c, r in new.clients.items())


@every_algorithm
def test_what_they_use_in_the_end_is_what_was_measured(name):
    said = event(late(name))
    own = [right(late(name), c, late(name).personal(c)) for c in NEW]
    assert own == said["P"]


@pytest.mark.parametrize("name", KINDS)
def test_the_pool_gives_the_serial_bits(name):
    pooled = played(name, held_back(), engine="pool", workers=2)
    assert identical(late(name), pooled)
    assert event(late(name)) == event(pooled)


@pytest.mark.parametrize("name", ["fedreg", "fedbn"])
def test_batch_norm_gives_the_same_bits_on_both_engines(name):
    how = {"model": net_with_batch_norm, "rounds": 2, "new_client_rounds": 2}
    one = played(name, held_back(), **how)
    assert event(one) == event(played(name, held_back(), engine="pool", workers=2, **how))


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("at", ["evaluation", "new_clients", "end"])
def test_it_resumes_to_the_same_bits(name, at, tmp_path):
    class StopError(Exception):
        pass

    def stop(event):
        if event["event"] == at and event["t"] == 3:
            raise StopError

    out = tmp_path / "run"
    with pytest.raises(StopError):
        played(name, held_back(), out=out, on_event=stop)
    again = played(name, held_back(), out=out, resume=True)
    assert identical(late(name), again)
    assert event(late(name)) == event(again)


def test_a_job_that_was_lost_half_way_is_repeated_as_if_for_the_first_time(tmp_path):
    class LostError(Exception):
        pass

    def lose(event):
        if event["event"] == "evaluation" and event["t"] == 3:
            raise LostError

    out = tmp_path / "run"
    with pytest.raises(LostError):
        played("fedrep", held_back(), out=out, on_event=lose)
    assert (out / "commits" / "clients" / "0" / "0000003").is_file()  # its memory is still there
    assert event(played("fedrep", held_back(), out=out, resume=True)) == event(late("fedrep"))


@every_algorithm
def test_nothing_of_theirs_is_in_any_job_or_reply_of_training(name, monkeypatch):
    kept: list[Recorder] = []

    def record(plan, place, *_):
        kept.append(Recorder(plan, place))
        return kept[-1]

    monkeypatch.setattr(base, "Serial", record)
    result = played(name, held_back())
    log = kept[0].log
    assert not {job.client for job, _ in log if job.kind != "join"} & set(NEW)
    assert [job.client for job, _ in log if job.kind == "join"] == list(NEW)
    place = result._run_folder.client_store
    memories = [place.load_memory(c, before=4) for c in NEW]
    common = {tensor_to_bytes(v) for v in result._server.model.values()}
    common |= {tensor_to_bytes(v) for v in state(result.plan.template).values()}
    own = {
        tensor_to_bytes(v)
        for m in memories
        for t in m.values()
        for v in t.values()
        if len(v.unique()) > 1
    }
    assert bool(own - common) == (not result.plan.algorithm.pooled)
    sent = [t for job, reply in log for t in (job.tensors, reply.tensors)]
    assert not any(tensor_to_bytes(v) in own - common for t in sent for v in t.values())
    assert not any(place.list_rounds(c) not in ([], [3]) for c in NEW)


# The algorithm's own training -----------------------------------------------------------------


def test_with_fedavg_they_train_what_they_are_sent_once():
    result = late("fedavg")
    said = event(result)
    assert said["before"] == said["G"]
    trained = [learnt(result, c) for c in NEW]
    assert said["P"] == [right(result, c.id, c.net.eval()) for c in trained]
    for c in trained:
        assert same(state(result.personal(c.id).net), state(c.net))


def test_with_fedrep_they_arrive_with_the_first_head_and_train_their_own():
    result = late("fedrep")
    first = state(result.plan.template).only("head.*")
    for c in NEW:
        trained, kept = (
            learnt(result, c),
            result._run_folder.client_store.load_memory(c, before=4)["net"],
        )
        assert same(kept, state(trained.net))
        assert not any(torch.equal(kept[k], v) for k, v in first.items())
    arrived = result.plan.build_client(
        Job(
            kind="evaluate",
            t=3,
            client="0",
            tensors=result.plan.algorithm.send(result._server, "0"),
        ),
        {},
        None,
    )
    assert same(state(arrived.net).only("head.*"), first)
    assert right(result, "0", arrived.net.eval()) == event(result)["before"][0]


def test_with_fedbabu_they_tune_a_head_on_the_common_base():
    result = late("fedbabu")
    base = model(result).only("base.*")
    heads = [state(result.personal(c).net).only("head.*") for c in NEW]
    assert not same(*heads)
    for c in NEW:
        assert same(state(result.personal(c).net).only("base.*"), base)


def test_fedamp_sends_them_the_common_start_and_fedpac_the_first_head():
    amp = late("fedamp")
    assert same(amp.plan.algorithm.send(amp._server, "0"), amp.plan.create_initial_server().model)
    pac = late("fedpac")
    sent = pac.plan.algorithm.send(pac._server, "0")
    assert same(sent.only("head.*"), pac.plan.create_initial_server().model.only("head.*"))


def test_where_one_trains_for_everybody_they_take_the_common_model():
    said = event(late("centralized"))
    assert said["before"] == said["P"] == said["G"]
    assert said["rounds"] == 0


def test_what_stays_goes_on_over_their_rounds_and_what_is_sent_is_the_same():
    result = played("fedper", held_back(), new_client_rounds=3)
    for c in NEW:
        assert same(
            result._run_folder.client_store.load_memory(c, before=4)["net"],
            state(learnt(result, c, rounds=3).net),
        )
    assert event(result)["rounds"] == 3
    assert result.model_sha256 == late("fedper").model_sha256


@pytest.mark.parametrize("name", ["fedavg", "fedper", "fedbabu"])
def test_without_rounds_they_use_what_they_are_sent_tuned_where_that_is_the_rule(name):
    result = played(name, held_back(), new_client_rounds=0)
    said = event(result)
    assert (said["P"] == said["before"]) == (name != "fedbabu")
    assert said["P"] == [right(result, c, result.personal(c)) for c in NEW]


@pytest.mark.parametrize(
    "how",
    [
        FedDyn(alpha_scaled=True),
        FedReG(threshold_scope="client_size"),
        FedAvg2Rep(warmup_rounds=1),
    ],
    ids=["feddyn", "fedreg", "fedavg2rep"],
)
def test_settings_that_need_sizes_or_rounds_know_only_those_who_trained(how):
    result = played(how, held_back())
    assert result._server.clients == without().clients
    assert identical(result, played(how, without()))
    assert result.summary.new_clients is not None


def test_feddyn_tells_them_the_usual_size_of_those_who_trained():
    result = played(FedDyn(alpha_scaled=True), held_back())
    sizes = without().sizes()
    usual = result.plan.algorithm.send(result._server, "0")["feddyn/usual"]
    assert float(usual) == sum(sizes.values()) / len(sizes)


# Selection ------------------------------------------------------------------------------------


@given(st.integers(2, 40), st.floats(0, 1), st.integers(0, 99))
def test_a_share_is_rounded_down_but_never_to_nobody_and_one_stays(clients, share, seed):
    rows = {str(i): torch.tensor([i]) for i in range(clients)}
    x, y = torch.zeros(clients, 2), torch.zeros(clients, dtype=torch.int64)
    whole = Federation("f", x, y, Scale(), ("a",), rows, rows)
    dealt = whole.set_aside_new_clients(share, seed)
    expected = 0 if share == 0 else min(max(1, int(share * clients + 1e-9)), clients - 1)
    assert len(dealt.new) == expected
    assert sorted([*dealt.clients, *dealt.new], key=int) == list(rows)
    assert dealt.new == whole.set_aside_new_clients(share, seed).new
    assert dealt.include_new_clients().sha256 == whole.sha256
    assert (dealt.sha256 == whole.sha256) == (not dealt.new)
    assert list(dealt.sizes()) == list(dealt.clients)
    assert len(dealt.count_labels()) == len(dealt.clients)


def test_another_seed_draws_others():
    drawn = {digits().set_aside_new_clients(0.5, seed).new for seed in range(8)}
    assert len(drawn) > 1


def test_the_library_draws_them_for_dealt_and_for_own_data():
    own = hp.federate(blobs([8, 9, 10, 11]), new_clients=0.5, seed=2)
    assert len(own.new) == 2
    assert own.include_new_clients().sha256 == hp.federate(blobs([8, 9, 10, 11]), seed=2).sha256
    dealt = hp.federate("digits", clients=5, partition=hp.IID(), new_clients=0.2)
    assert len(dealt.clients) == 4


def test_a_saved_federation_opens_with_the_same_newcomers(tmp_path):
    held_back().save(tmp_path)
    opened = Federation.open(tmp_path)
    assert opened.new == NEW
    assert opened.sha256 == held_back().sha256


def test_one_client_alone_cannot_be_kept_out():
    with pytest.raises(ConfigError, match=r"data\.new_clients: the only client would be a new one"):
        hp.federate(blobs([8]), new_clients=0.5)
    with pytest.raises(ConfigError, match=r"data\.new_clients: must be at least 0 and at most 1"):
        hp.federate(blobs([8, 9]), new_clients=2.0)
    with pytest.raises(ConfigError, match=r"evaluation\.new_client_rounds: must be at least 0"):
        played("fedavg", held_back(), new_client_rounds=-1)


def test_participation_counts_only_those_who_are_there():
    with pytest.raises(ConfigError, match="there are only 4"):
        played("fedavg", held_back(), participation=5)


# Output ---------------------------------------------------------------------------------------


def test_the_page_has_a_table_of_them_and_none_where_there_are_none(tmp_path):
    played("fedper", held_back(), out=tmp_path / "a")
    played("fedamp", held_back(), out=tmp_path / "b")
    runs = load_runs([tmp_path / "a", tmp_path / "b"])
    new = [r.summary.new_clients for r in runs]
    shown = format_rows(build_new_client_table(runs))
    assert [row[0] for row in shown] == ["FedPer", "FedAMP"]
    for row, n in zip(shown, new, strict=True):
        g = "–" if n.G is None else f"{100 * n.G:.2f}"
        accuracies = [f"{100 * v:.2f}" for v in (n.before, n.P, n.fairness.worst10)]
        assert row[2:] == ["2", "1", g, *accuracies]
    assert '"new_clients":{"title"' in render_report(runs)
    played("fedper", without(), out=tmp_path / "c")
    assert build_new_client_table(load_runs([tmp_path / "c"])) is None
    assert '"new_clients":null' in render_report(load_runs([tmp_path / "c"]))


def test_the_commands_show_them(tmp_path):
    settings = ["rounds=2", "data.clients=4", "data.new_clients=0.25", "training.epochs=1"]
    settings += ["engine.name=serial", "participation.rate=1"]
    words = [word for s in settings for word in ("-c", s)]

    def shown(*command: str) -> Result:
        return CliRunner().invoke(app, [*command, *words], env={"COLUMNS": "200"})

    lines = shown("run", "--out", str(tmp_path / "one")).stdout.splitlines()[5:]
    named = [line[:26].strip() for line in lines]
    assert named == ["G, new clients", "P, new clients on arrival", "P, new clients at the end"]
    both = shown("compare", "fedavg", "fedper", "--out", str(tmp_path / "both"))
    assert "P new" in both.stdout.splitlines()[1]
    assert "joined after training" in both.stderr
    dealt = shown("data", "partition")
    assert dealt.stderr.count("join after training: ") == 1
    assert len(json.loads(shown("data", "partition", "--json").stdout)) == 4


def test_result_json_tells_of_each(tmp_path):
    played("fedper", held_back(), out=tmp_path / "a")
    found = json.loads((tmp_path / "a" / "result.json").read_text())["new_clients"]
    assert list(found) == ["rounds", "before", "P", "G", "fairness", "clients"]
    assert list(found["clients"]) == list(NEW)
    assert found["clients"]["3"]["total"] == digits().sizes("test")["3"]


def test_their_time_is_part_of_the_runs():
    result = late("fedavg")
    assert result.plan.training == QUICK
    timed = [e for e in result.events if "seconds" in e]
    assert {e["event"] for e in timed} == {"round", "new_clients", "end"}
    assert result.summary.seconds == round(sum(e["seconds"] for e in timed), 3)
