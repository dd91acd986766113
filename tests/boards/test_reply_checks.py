"""Replies from boards: what any algorithm really sends is taken, whatever else is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import pytest
import torch

from helpers.support import QUICK, Recorder, digits
from heterophony.algorithms import ALGORITHM_CLASSES, get_algorithm_class
from heterophony.boards.board_data import RemoteFederation, make_remote_federation
from heterophony.boards.protocol.job_codec import encode_reply
from heterophony.boards.protocol.messages import ClientSummary
from heterophony.boards.reply_checks import MAX_REPLY_HEADER_BYTES, ReplyValidator
from heterophony.core.algorithm import Reply
from heterophony.core.errors import CodecError, DataError
from heterophony.core.tensors import Tensors
from heterophony.jobs.client_store import FolderClientStore
from heterophony.jobs.plan import Job, Plan
from heterophony.models import get_default_head_depth
from heterophony.models.convnets import digitsnet
from heterophony.population.participation import Uniform
from heterophony.runs.loop import run_round

NAMES = sorted(set(ALGORITHM_CLASSES) - {"centralized"})  # which has no clients


def far() -> RemoteFederation:
    """The same clients as a server knows them."""
    near = digits()
    counts = near.count_labels().tolist()
    held = {
        c: ClientSummary(
            name=c,
            train=near.sizes()[c],
            test=near.sizes("test")[c],
            validation=0,
            labels=tuple(counts[i]),
            data_sha256=f"{i:064x}",
            shape=near.shape,
            classes=near.classes,
        )
        for i, c in enumerate(near.clients)
    }
    return make_remote_federation(near.name, held, near.labels)


@cache
def exchanged(
    name: str, apart: bool = True, shares: bool = False
) -> tuple[Plan, list[tuple[Job, Reply]]]:
    """Two rounds of an algorithm, on boards or not: all jobs and replies."""
    how = get_algorithm_class(name)()
    build = partial(digitsnet, digits().shape, digits().classes)
    made = partial(build, how.head_depth or get_default_head_depth(digitsnet))
    plan = Plan(
        algorithm=how,
        model=made,
        federation=digits(),
        rounds=2,
        participation=Uniform(rate=1.0),
        training=QUICK,
        clients_on_boards=apart,
    )
    plan = replace(plan, share_personal=shares)
    log: list[tuple[Job, Reply]] = []
    server = replace(plan.create_initial_server(), statistics=plan.buffer_names)
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        place = FolderClientStore(Path(folder) / "clients", Path(folder) / "scratch")
        with Recorder(plan, place) as engine:
            for _ in range(2):
                server, _, _ = run_round(plan, engine, server)
            log = engine.log
    return plan, log


def expected(name: str, shares: bool = False) -> ReplyValidator:
    plan, _ = exchanged(name, shares=shares)
    return ReplyValidator(replace(plan, federation=far()))


@pytest.mark.parametrize("name", NAMES)
def test_whatever_an_algorithm_sends_is_taken_as_it_is(name):
    check = expected(name).check_reply
    _, log = exchanged(name)
    assert {job.kind for job, _ in log} == {"train", "evaluate"}
    for job, reply in log:
        assert check(reply, job) == reply


@pytest.mark.parametrize("name", NAMES)
def test_nothing_that_stays_is_in_a_reply(name):
    plan, log = exchanged(name)
    kept = set(plan.template.state_dict()) - set(plan.list_names(plan.template, 0, "shared"))
    for _, reply in log:
        assert not reply.aside
        assert not kept & set(reply.tensors)


@pytest.mark.parametrize("name", NAMES)
def test_g_on_boards_is_that_of_a_simulation_or_not_told(name):
    here, there = (
        {(j.t, j.client): r.metrics.get("G") for j, r in exchanged(name, apart)[1]}
        for apart in (False, True)
    )
    told = set(there.values()) != {None}
    assert there == (here if told else dict.fromkeys(here))
    if name in ("fedavg", "fedreg", "fedrod", "ditto"):
        assert told
    if name in ("fedper", "fedrep"):
        assert not told  # it would take an average of what stays


ASKED = [
    ("fedper", True),
    ("fedrep", True),
    ("lgfedavg", False),
    ("ditto", False),
    ("fedavg", False),
]


@pytest.mark.parametrize(("name", "needed"), ASKED)
def test_what_stays_travels_aside_where_the_run_asks_for_it_and_g_rests_on_it(name, needed):
    here, there = exchanged(name, apart=False)[1], exchanged(name, shares=True)[1]
    assert [r.metrics.get("G") for _, r in there] == [r.metrics.get("G") for _, r in here]
    check = expected(name, shares=True).check_reply
    for job, reply in there:
        assert bool(reply.aside) == (needed and job.kind == "train")
        assert check(reply, job) == reply


ASIDES = {
    "missing": lambda aside: Tensors(),
    "one less": lambda aside: Tensors(dict(list(aside.items())[1:])),
    "one more": lambda aside: Tensors({**aside, "base.weight": torch.zeros(3)}),
    "another shape": lambda aside: Tensors({k: v[:1] for k, v in aside.items()}),
    "another type": lambda aside: Tensors({k: v.double() for k, v in aside.items()}),
    "NaN": lambda aside: Tensors({k: v * math.nan for k, v in aside.items()}),
}


@pytest.mark.parametrize("attack", ASIDES)
def test_what_travels_aside_has_exactly_its_form(attack):
    job, good = exchanged("fedper", shares=True)[1][0]
    with pytest.raises(CodecError, match="tensor"):
        expected("fedper", shares=True).check_reply(
            replace(good, aside=ASIDES[attack](good.aside)), job
        )
    with pytest.raises(CodecError, match="must stay on the board"):
        expected("fedper").check_reply(good, job)


def altered(reply: Reply, name: str, value: torch.Tensor) -> Reply:
    return replace(reply, tensors=Tensors({**reply.tensors, name: value}))


def first(tensors: Tensors) -> tuple[str, torch.Tensor]:
    return next((k, v) for k, v in tensors.items() if v.is_floating_point() and v.dim())


ATTACKS = {
    "NaN": lambda r: altered(r, first(r.tensors)[0], first(r.tensors)[1] * math.nan),
    "infinity": lambda r: altered(r, first(r.tensors)[0], first(r.tensors)[1] + math.inf),
    "another shape": lambda r: altered(r, first(r.tensors)[0], torch.zeros(3)),
    "another type": lambda r: altered(r, first(r.tensors)[0], first(r.tensors)[1].double()),
    "one more": lambda r: altered(r, "own.weight", torch.zeros(3)),
    "one less": lambda r: replace(r, tensors=Tensors(dict(list(r.tensors.items())[1:]))),
    "nothing": lambda r: replace(r, tensors=Tensors()),
    "huge": lambda r: altered(r, first(r.tensors)[0], first(r.tensors)[1] + 1e9),
    "many examples": lambda r: replace(r, samples=10**9),
    "no examples": lambda r: replace(r, samples=0),
    "negative examples": lambda r: replace(r, samples=-5),
    "absurd work": lambda r: replace(r, examples=10**15),
    "what stays": lambda r: replace(r, aside=Tensors({"own.weight": torch.zeros(3)})),
    "another client": lambda r: replace(r, client="5"),
    "another kind": lambda r: replace(r, kind="evaluate"),
    "another turn": lambda r: replace(r, turn=1),
    "unknown metric": lambda r: replace(r, metrics={**r.metrics, "x" * 1000: 1.0}),
    "metric NaN": lambda r: replace(r, metrics={**r.metrics, "loss/main": math.nan}),
    "more right than there are": lambda r: replace(r, metrics={**r.metrics, "P_local": 1e6}),
    "half right": lambda r: replace(r, metrics={**r.metrics, "P_local": 0.5}),
}


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("name", ["fedavg", "fedreg", "fedpac", "scaffold"])
def test_a_wrong_reply_is_refused_in_words(name, attack):
    job, good = exchanged(name)[1][0]
    bad = ATTACKS[attack](good)
    with pytest.raises(CodecError) as refused:
        expected(name).check_reply(bad, job)
    assert len(str(refused.value)) < 200


def only(*names: str) -> Callable[[Reply], Reply]:
    return lambda r: replace(r, metrics={k: v for k, v in r.metrics.items() if k in names})


EVALUATIONS = {
    "no metric": (only(), "metric 'G' is missing"),
    "only G": (only("G"), "metric 'P' is missing"),
    "only P": (only("P"), "metric 'G' is missing"),
    "a huge number": (lambda r: replace(r, metrics={**r.metrics, "P/f1": 1e200}), "over 1e\\+100"),
    "no perplexity": (
        lambda r: replace(r, metrics={**r.metrics, "P/perplexity": 0.0}),
        "above 0",
    ),
}


@pytest.mark.parametrize("attack", EVALUATIONS)
def test_an_evaluation_has_all_its_measures(attack):
    job, good = next((j, r) for j, r in exchanged("fedavg")[1] if j.kind == "evaluate")
    spoil, words = EVALUATIONS[attack]
    with pytest.raises(CodecError, match=words):
        expected("fedavg").check_reply(spoil(good), job)


def test_what_is_not_measured_cannot_be_told():
    """On boards FedPer has no generic model."""
    job, good = next((j, r) for j, r in exchanged("fedper")[1] if j.kind == "evaluate")
    assert "G" not in good.metrics
    with pytest.raises(CodecError, match="metric 'G' is not measured in this evaluation"):
        expected("fedper").check_reply(replace(good, metrics={**good.metrics, "G": 1}), job)


def test_the_last_evaluation_has_the_digest_of_the_memory():
    job, good = next((j, r) for j, r in exchanged("fedavg")[1] if j.kind == "evaluate")
    last = replace(job, t=2)
    with pytest.raises(CodecError, match="no digest of the memory"):
        expected("fedavg").check_reply(replace(good, kept=""), last)
    assert expected("fedavg").check_reply(replace(good, kept="ab" * 32), last)


def test_an_absurd_loss_is_refused():
    job, good = exchanged("fedavg")[1][0]
    with pytest.raises(CodecError, match="metric 'loss/main' is 1e\\+299"):
        expected("fedavg").check_reply(
            replace(good, metrics={**good.metrics, "loss/main": 1e299}), job
        )


@pytest.mark.parametrize("name", ["fedpac", "fedproto"])
def test_what_goes_with_an_update_has_a_bound_too(name):
    """What only comes up: counts, sums and means over examples."""
    job, good = next((j, r) for j, r in exchanged(name)[1] if j.kind == "train")
    beside = {k: v for k, v in good.tensors.items() if k not in job.tensors}
    assert beside
    bad = altered(good, first(beside)[0], first(beside)[1] + 1e12)
    with pytest.raises(CodecError, match="the extra tensors have norm"):
        expected(name).check_reply(bad, job)


@pytest.mark.parametrize("name", ["fedavg", "fedproto", "fedper"])
def test_a_reply_has_no_more_bytes_than_its_job_can_give(name):
    for job, reply in exchanged(name, shares=True)[1]:
        size = len(encode_reply(reply, share_personal=True))
        limit = expected(name, shares=True).limit_reply_bytes(job)
        assert size <= limit <= size + 2 * MAX_REPLY_HEADER_BYTES
        if job.kind == "evaluate":
            assert limit == MAX_REPLY_HEADER_BYTES


ROWS = {
    "too many rows": (lambda v: v.new_zeros(1 + v.shape[1], v.shape[1]), "rows, more than its"),
    "longer rows": (lambda v: v.new_zeros(len(v), v.shape[1] + 1), "expected rows of"),
    "another type": (lambda v: v.double(), "expected rows of"),
    "no rows at all": (lambda v: v.new_zeros(()), "expected rows of"),
    "huge": (lambda v: v + 1e12, "the extra tensors have norm"),
}


@pytest.mark.parametrize("attack", ROWS)
def test_rows_that_vary_have_their_length_and_a_limit(attack):
    job, good = exchanged("fedkd")[1][0]
    name = next(k for k in good.tensors if k.startswith("low_rank/mentee.base"))
    spoil, words = ROWS[attack]
    with pytest.raises(CodecError, match=words):
        expected("fedkd").check_reply(altered(good, name, spoil(good.tensors[name])), job)


def test_any_number_of_rows_up_to_the_whole_is_taken_and_fetched():
    job, good = exchanged("fedkd")[1][0]
    check, most = expected("fedkd"), dict(good.tensors)
    for name, v in good.tensors.items():
        if name.startswith("low_rank/"):
            whole = job.tensors[name.removeprefix("low_rank/")].numel()
            most[name] = v.new_zeros(-(-whole // v.shape[1]), v.shape[1])
    for tensors in (most, {k: v[:0] if "/" in k else v for k, v in most.items()}):
        reply = replace(good, tensors=Tensors(tensors))
        assert check.check_reply(reply, job) == reply
        assert len(encode_reply(reply, share_personal=True)) <= check.limit_reply_bytes(job)
        server = check.plan.algorithm.merge(check.plan.create_initial_server(), [reply])
        assert server.model.keys() == job.tensors.keys()


def test_a_board_cannot_say_what_it_counts():
    job, reply = exchanged("fedavg")[1][0]
    assert expected("fedavg").check_reply(replace(reply, weight=1e9), job) == reply


def test_a_roster_is_a_federation_without_data():
    near, there = digits(), far()
    assert there.clients == near.clients
    assert there.sizes() == near.sizes()
    assert there.count_labels().tolist() == near.count_labels().tolist()
    assert there.shape == near.shape
    assert there.classes == near.classes
    assert there.include_new_clients().sizes("test") == near.sizes("test")
    assert len(there.sha256) == 64
    with pytest.raises(DataError, match="the data of client 0 are on its board"):
        there.data("0")
