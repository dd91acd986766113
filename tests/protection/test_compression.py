"""Top-k and quantisation: sent and remembered are what moved, exactly; bytes; damaged replies."""

from __future__ import annotations

import pytest
import torch

import heterophony as hp
from helpers.support import played
from heterophony.boards.reply_checks import ReplyValidator
from heterophony.core.errors import CodecError, ConfigError
from heterophony.core.tensors import Tensors
from heterophony.jobs.plan import Job
from heterophony.protection.base import Departure
from heterophony.protection.compression import UNIT, to_units

COMPRESSIONS = [hp.TopK(ratio=0.1), hp.Quantize(bits=8), hp.Quantize(bits=1)]
RECEIVED = Tensors(
    {"base.w": torch.randn(7, 11), "head.b": torch.zeros(3), "x/count": torch.ones(2)}
)


def departing(received: Tensors = RECEIVED) -> Departure:
    return Departure(client="0", t=0, received=received, announced=Tensors(), weight=1.0, seed=0,
                     secret=b"")  # fmt: skip


def moved(t: int) -> Tensors:
    """What a client has after training: small and large changes, and an extra tensor."""
    draw = torch.Generator().manual_seed(t)
    away = {k: v + torch.randn(v.shape, generator=draw) ** 5 for k, v in RECEIVED.items()}
    return Tensors(away | {"x/kept": torch.tensor(5)})


@pytest.mark.parametrize("compression", COMPRESSIONS, ids=repr)
def test_sent_and_remembered_are_what_moved(compression):
    kept, sent_units, moved_units = Tensors(), {}, {}
    for t in range(5):
        up = moved(t)
        wire, kept, _ = compression.leave(up, kept, departing())
        back = compression.arrive(wire, RECEIVED)
        for k, v in RECEIVED.items():
            parts = {p: wire[f"protection/{p}/{k}"] for p in compression.list_parts()}
            sent = compression.count_units(parts, v.numel())
            sent_units[k] = sent_units.get(k, 0) + sent
            move = to_units((up[k].double() - v.double()).reshape(-1), k)
            moved_units[k] = moved_units.get(k, 0) + move
            assert torch.equal(sent_units[k] + kept[k], moved_units[k])  # whole numbers: exact
            arrived = (v.double() + (sent.double() * UNIT).reshape(v.shape)).float()
            assert torch.equal(back[k], arrived)
        assert torch.equal(back["x/kept"], up["x/kept"])
        assert back.keys() == up.keys()


def test_what_is_sent_is_small():
    up = moved(0)
    sizes = [c.leave(up, Tensors(), departing())[0].without("x/kept").nbytes for c in COMPRESSIONS]
    numel = [77, 3, 2]
    assert sizes == [8 * (8 + 1 + 1), sum(numel) + 4 * 3, 10 + 1 + 1 + 4 * 3]


def test_ratios_are_for_names():
    top = hp.TopK(ratio=1.0, ratios={"base.*": 0.5})
    wire = top.leave(moved(0), Tensors(), departing())[0]
    assert wire["protection/values/base.w"].numel() == 39
    assert "head.b" in wire


def test_top_k_sends_the_largest():
    up = Tensors({"w": torch.tensor([0.0, -3.0, 1.0, 2.0])})
    top = hp.TopK(ratio=0.5)
    wire, kept, _ = top.leave(up, Tensors(), departing(up.zeros()))
    assert wire["protection/positions/w"].tolist() == [1, 3]
    assert wire["protection/values/w"].tolist() == [-3.0, 2.0]
    assert (kept["w"].double() * UNIT).tolist() == [0.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("protection/positions/w", torch.tensor([1, 4], dtype=torch.int32)),
        ("protection/positions/w", torch.tensor([1, 1], dtype=torch.int32)),
        ("protection/positions/w", torch.tensor([-1, 1], dtype=torch.int32)),
        ("protection/positions/w", torch.tensor([1, 2])),
        ("protection/values/w", torch.tensor([1.0, torch.inf])),
        ("protection/values/w", torch.tensor([1.0])),
        ("protection/values/other", torch.tensor([1.0])),
    ],
)
def test_what_no_client_sends_is_refused(name, value):
    up = Tensors({"w": torch.tensor([0.0, -3.0, 1.0, 2.0])})
    wire = hp.TopK(ratio=0.5).leave(up, Tensors(), departing(up.zeros()))[0]
    with pytest.raises(CodecError):
        hp.TopK(ratio=0.5).arrive(wire | {name: value}, up.zeros())


def test_bad_settings_are_clear():
    with pytest.raises(ConfigError, match="ratio: must be above 0 and at most 1, not 0"):
        hp.TopK(ratio=0)
    with pytest.raises(ConfigError, match="bits: must be one of 1, 8, 32, not 4"):
        hp.Quantize(bits=4)


def test_devices_are_checked_in_the_form_that_is_sent_and_limited_in_what_it_stands_for():
    plan = played("fedavg", rounds=0, protection=[hp.TopK(ratio=0.1)]).plan
    validator, client = ReplyValidator(plan), plan.federation.clients[0]
    job = Job(kind="train", t=0, client=client, tensors=plan.create_initial_server().model)
    wire = validator.get_form("0").largest.tensors
    validator.check_tensors(wire, job)
    name = "protection/values/base.1.weight"
    with pytest.raises(CodecError, match="the update has norm"):
        validator.check_tensors(wire | {name: torch.full_like(wire[name], 1e6)}, job)
    with pytest.raises(CodecError, match="is not expected"):
        validator.check_tensors(wire | {"base.1.weight": job.tensors["base.1.weight"]}, job)
    with pytest.raises(CodecError, match=r"expected torch\.float32"):
        validator.check_tensors(wire | {name: wire[name][:-1]}, job)
    shifted = wire["protection/positions/base.1.weight"] + 10**6
    with pytest.raises(
        CodecError, match="positions of a sparse tensor must increase and be below its size"
    ):
        validator.check_tensors(wire | {"protection/positions/base.1.weight": shifted}, job)
