"""FedCAC: which parameters are critical, who collaborates on them, FedAvg and Local as limits."""

from __future__ import annotations

import pytest
import torch

import heterophony as hp
from helpers.support import counts, digits, memory, model, net_with_batch_norm, played, same
from heterophony.algorithms.fedcac import FedCAC, compute_overlaps
from heterophony.algorithms.parts.layers import pack_bits, unpack_bits
from heterophony.core.randomness import seeded

WHOLE = {"participation": 1.0}


class Alone(FedCAC):
    """Everything is critical, and nobody collaborates."""

    def find_critical(self, after, before):
        return torch.ones_like(after, dtype=torch.bool)

    def find_collaborators(self, t, overlap):
        return torch.eye(len(overlap), dtype=torch.bool)


def test_golden_overlap():
    masks = [torch.tensor([int(b) for b in m]).bool() for m in ("11001", "10101")]
    assert abs(compute_overlaps(masks)[0, 1] - 2 / 3) < 1e-12


def test_overlap_is_not_symmetric_where_sizes_differ_and_guards_empty_masks():
    masks = [torch.tensor(m).bool() for m in ([1, 1, 1, 1], [1, 0, 0, 0], [0, 0, 0, 0])]
    found = compute_overlaps(masks)
    assert found[0, 1] == 1 - 3 / 8
    assert found[1, 0] == 1 - 3 / 2
    assert bool(torch.isfinite(found).all())


def test_the_bar_leaves_out_the_diagonal_and_rises_from_the_mean_to_the_maximum():
    overlap = torch.tensor([[1.0, 0.8, 0.4], [0.8, 1.0, 0.3], [0.4, 0.3, 1.0]]).double()
    how = FedCAC(beta=10)
    mean = float(overlap[~torch.eye(3).bool()].mean())
    assert mean < 0.6  # with the diagonal it would be more than that
    first = how.find_collaborators(1, overlap)
    assert first.tolist() == [[True, True, False], [True, True, False], [False, False, True]]
    assert torch.equal(
        how.find_collaborators(10, overlap), first
    )  # the nearest pair reaches the bar
    for t in (11, 300):
        assert torch.equal(how.find_collaborators(t, overlap), torch.eye(3).bool())


@pytest.mark.parametrize(("critical", "kept"), [(0.5, 4), (0.25, 2), (0.12, 0), (1.0, 8)])
def test_the_mask_holds_the_most_sensitive(critical, kept):
    after = torch.arange(1.0, 9.0)
    mask = FedCAC(critical=critical).find_critical(after, after - 0.1)
    assert mask.tolist() == [False] * (8 - kept) + [True] * kept


def test_where_most_never_moved_only_what_did_is_critical():
    """The last convolution of ResNet-10 at 32 pixels: else all of it would be critical."""
    after, before = torch.ones(9), torch.ones(9)
    assert not FedCAC().find_critical(after, before).any()
    before[4] = 0.5
    assert FedCAC().find_critical(after, before).nonzero().tolist() == [[4]]


def test_bits_come_back():
    with seeded("bits"):
        for n in (1, 7, 8, 9, 1000):
            flags = torch.rand(n) > 0.5
            sent = pack_bits(flags)
            assert sent.dtype == torch.uint8
            assert len(sent) == -(-n // 8)
            assert torch.equal(unpack_bits(sent)[:n], flags)
            assert not unpack_bits(sent)[n:].any()


@pytest.mark.parametrize("net", ["digitsnet", net_with_batch_norm])
def test_with_nothing_critical_it_is_fedavg(net):
    a, b = played(FedCAC(critical=0.0), model=net, **WHOLE), played("fedavg", model=net, **WHOLE)
    assert same(model(a), model(b))
    assert counts(a, "G") == counts(b, "G")
    assert counts(a, "P") == counts(b, "P")


@pytest.mark.parametrize("buffers", ["local", "average"])
@pytest.mark.parametrize("net", ["digitsnet", net_with_batch_norm])
def test_with_everything_critical_and_nobody_near_it_is_local(net, buffers):
    """Also BatchNorm's running statistics: they stay the client's own, whatever the run says."""
    how = {"model": net, "buffers": buffers, **WHOLE}
    a, b = played(Alone(), **how), played("local", **how)
    for c in a.plan.federation.clients:
        now = hp.Tensors(a.personal(c).net.state_dict())
        assert same(now, memory(b, c)["net"])
    assert counts(a, "P") == counts(b, "P")


def test_the_merged_model_takes_critical_entries_from_the_group_and_others_from_all():
    """Already after the first round, as t begins at 1."""
    result = played(FedCAC(critical=0.5, beta=1), model="digitsnet", rounds=1, **WHOLE)
    server = result._server
    for c in server.clients:
        sent, custom = result.plan.algorithm.send(server, c), server.memory[f"custom/{c}"]
        bits = unpack_bits(server.memory[f"critical/{c}"]["bits"])
        flat = [torch.cat([v.flatten() for v in t.values()]) for t in (sent, custom, server.model)]
        own = bits[: len(flat[0])]
        assert torch.equal(flat[0][own], flat[1][own])
        assert torch.equal(flat[0][~own], flat[2][~own])
        assert 0 < own.float().mean() <= 0.51


def test_up_is_a_model_and_a_bit_per_parameter():
    size = sum(v.numel() for v in model(played("fedavg", rounds=0)).values())
    result = played("fedcac", digits(clients=2, examples=60), rounds=1, **WHOLE)
    assert result.summary.bytes == {"up": 2 * (4 * size + -(-size // 8)), "down": 2 * 4 * size}
