"""Masked sums: the sum is exactly that of whole numbers, in any order; overflow is an error."""

from __future__ import annotations

import itertools

import pytest
import torch

import heterophony as hp
from helpers.support import played
from heterophony.core.algorithm import Reply
from heterophony.core.errors import ConfigError, DivergedError
from heterophony.core.tensors import Tensors
from heterophony.protection.base import Departure, Gathering
from heterophony.protection.masked_sum import MASKED, add_masked

RECEIVED = Tensors({"w": torch.randn(20)})
CLIENTS = [str(i) for i in range(6)]
COHORT = ["1", "3", "4"]


def leaving(masked: hp.MaskedSum, client: str, cohort: list[str], up: Tensors) -> Tensors:
    told = masked.announce(client, cohort, CLIENTS)
    how = Departure(client=client, t=2, received=RECEIVED, announced=told, weight=2.0, seed=0,
                    secret=b"")  # fmt: skip
    return masked.leave(up, Tensors(), how).tensors


def test_the_sum_is_exactly_the_sum_in_any_order():
    masked = hp.MaskedSum(bits=30)
    ups = {c: RECEIVED.map(lambda v: v + torch.randn(v.shape)) for c in COHORT}
    sent = {c: leaving(masked, c, COHORT, up)[f"{MASKED}w"] for c, up in ups.items()}
    plain = {c: masked.encode((up["w"].double() - RECEIVED["w"].double()) * 2.0, 3, "w") for c, up in ups.items()}  # fmt: skip
    whole = sum(plain.values())
    for order in itertools.permutations(COHORT):
        assert torch.equal(add_masked([sent[c] for c in order]), whole)
    for c in COHORT:  # and a single one is no more than noise
        assert int((sent[c] == plain[c]).sum()) == 0
    replies = [Reply(c, "train", Tensors({f"{MASKED}w": sent[c]}), 2, 2.0) for c in COHORT]
    how = Gathering(t=2, received=dict.fromkeys(COHORT, RECEIVED), expected=None,
                    empty_reply=replies[0], secret=b"")  # fmt: skip
    mean = whole.double() / (2.0**30 * 6.0)
    for reply in masked.gather(replies, how).replies:
        assert torch.equal(reply.tensors["w"], (RECEIVED["w"].double() + mean).float())
    with pytest.raises(ConfigError, match="client 4 sent no reply in round 2"):
        masked.gather(replies[:2], how)


def test_overflow_is_an_error():
    up = RECEIVED.map(lambda v: v + 2.0**20)
    with pytest.raises(DivergedError, match="'w' is too large for 48 binary digits"):
        leaving(hp.MaskedSum(bits=48), "1", COHORT, up)


def test_a_run_with_masks_is_the_run_without_but_for_rounding():
    masked, plain = (played("fedavg", protection=p) for p in ([hp.MaskedSum(bits=40)], []))
    a, b = (r._server.model for r in (masked, plain))
    assert all(torch.allclose(a[k], b[k], atol=1e-6) for k in b)
    assert masked.summary.bytes["up"] == 2 * plain.summary.bytes["up"]  # 64 bits for 32


@pytest.mark.parametrize("name", ["fedamp", "fedcac", "fednova", "fedpac"])
def test_algorithms_that_need_single_replies_are_refused(name):
    with pytest.raises(ConfigError, match=r"masked_sum: the merge of .* depends on more than"):
        played(name, protection=[hp.MaskedSum()], weights="uniform")


def test_weights_that_replies_bring_are_noticed_whatever_the_weights_are():
    with pytest.raises(ConfigError, match="masked_sum: the merge of FedReG depends on more"):
        played("fedreg", protection=[hp.MaskedSum()])
