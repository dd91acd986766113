"""FedRoD: the generic part as if there were no own head, and heads made by a hypernetwork."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, linear

import heterophony as hp
from helpers.support import QUICK, digits, memory, model, played, same
from heterophony.algorithms.fedrod import FedRoD
from heterophony.core.settings import ConfigError
from heterophony.jobs.plan import Job
from heterophony.models.convnets import convnet

HEADS = pytest.mark.parametrize("head", ["linear", "hyper"])


@dataclass(frozen=True)
class GenericOnly(hp.Algorithm):
    """FedRoD without any own head."""

    def local(self, client):
        prior = client.data.counts.log()
        client.fit(lambda x, y: cross_entropy(client.net(x) + prior, y))
        return client.shared()


def client_of(algorithm, t=0, who="0", model="digitsnet", federation=None):
    """A client as it is before its first round, and its plan."""
    plan = played(algorithm, federation, model=model, rounds=0).plan
    sent = algorithm.send(plan.create_initial_server(), who)
    return plan.build_client(Job(kind="train", t=t, client=who, tensors=sent), {}, None)


@HEADS
def test_base_and_generic_head_are_bit_for_bit_those_without_an_own_head(head):
    own, without = (played(a, model="digitsnet") for a in (FedRoD(head=head), GenericOnly()))
    assert same(model(own).only("base.*", "head.*"), model(without))
    counts = [[e["G"] for e in r.events if e["event"] == "evaluation"] for r in (own, without)]
    assert counts[0] == counts[1]
    assert [e["P"] for e in own.events if e["event"] == "evaluation"] != counts[0]


def test_the_two_heads_share_all_else():
    a, b = (model(played(FedRoD(head=h))) for h in ("linear", "hyper"))
    assert same(a, b.only("base.*", "head.*"))


def test_where_every_class_counts_once_the_balanced_loss_is_the_plain_one():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        o, y = torch.randn(8, 10), torch.arange(8)
    one, many = torch.ones(10, dtype=torch.int64), torch.full((10,), 37)
    assert torch.equal(cross_entropy(o + one.log(), y), cross_entropy(o, y))
    assert torch.allclose(cross_entropy(o + many.log(), y), cross_entropy(o, y))


def test_a_class_the_client_does_not_hold_has_no_gradient_at_all():
    client = client_of(FedRoD())
    absent = client.data.counts == 0
    assert absent.any()
    before = client.net.head[-1].weight.detach().clone()
    FedRoD().local(client)
    after = client.net.head[-1].weight.detach()
    assert torch.equal(after[absent], before[absent])
    assert not torch.equal(after[~absent], before[~absent])
    assert not torch.equal(client.net.own[-1].weight[absent], before[absent])  # plain loss here


@HEADS
def test_an_own_head_of_zeros_makes_P_the_same_as_G(head):
    client = client_of(FedRoD(head=head))
    x, _ = client.data.test.batch(torch.arange(5))
    last = client.net.own[-1] if head == "linear" else client.net.hyper[-1]
    assert not torch.equal(client_logits(client, head, x), FedRoD(head=head).generic(client, x))
    with torch.no_grad():
        last.weight.zero_()
        last.bias.zero_()
    assert torch.equal(client_logits(client, head, x), FedRoD(head=head).generic(client, x))


def client_logits(client, head, x):
    return FedRoD(head=head).predict(client, x)


def test_P_is_the_sum_of_the_heads_and_the_own_head_begins_as_a_copy():
    client = client_of(FedRoD())
    x, _ = client.data.test.batch(torch.arange(5))
    assert torch.allclose(FedRoD().predict(client, x), 2 * client.net(x))


@HEADS
def test_the_own_loss_does_not_reach_the_base(head):
    """What FL-bench does; then base and generic head would depend on the own one."""
    how = FedRoD(head=head)
    client = client_of(how)
    x, y = client.data.train.batch(torch.arange(8))
    z = client.net.base(x)
    own = client.net.head(z).detach() + how.compute_correction(client, z.detach())
    cross_entropy(own, y).backward()
    moved = {k.split(".")[0] for k, p in client.net.named_parameters() if p.grad is not None}
    assert moved == {"own" if head == "linear" else "hyper"}


def test_G_has_no_counts_in_it():
    """G is head(base(x)) of the server's model, on whatever client."""
    result = played(FedRoD(head="hyper"), model="digitsnet")
    generic, x = result.generic(), result.plan.federation.x[:4]
    net = result.generic().net.eval()
    scaled = result.plan.federation.scale(x)
    assert torch.equal(generic(x), net.head(net.base(scaled)))
    assert same(hp.Tensors(net.state_dict()).only("head.*"), model(result).only("head.*"))


# The hypernetwork -------------------------------------------------------------------------------


def size(tensors) -> int:
    return sum(v.numel() for v in tensors)


@pytest.mark.parametrize(
    ("depth", "extra"), [(1, 64_042), (2, 352 + 33 * 3_850), (3, 352 + 33 * 16_010)]
)
def test_the_hypernetwork_has_the_size_of_the_spec(depth, extra):
    how = FedRoD(head="hyper")
    net = how.build(convnet((3, 32, 32), 10, depth))
    shared = size(net.get_parameter(k) for k in how.shared(net, 0))
    assert shared == size(net.parameters()) == 797_962 + extra
    if depth == 1:
        assert round(shared / 797_962, 4) == 1.0803


def test_its_traffic_is_counted_and_nothing_stays():
    plain, hyper = played("fedavg"), played(FedRoD(head="hyper"))
    extra = 11 * 32 + 33 * 101 * 10  # mlp has 100 features
    rounds = [e for e in hyper.events if e["event"] == "round"]
    jobs = sum(len(e["clients"]) for e in rounds)
    for way in ("up", "down"):
        assert hyper.summary.bytes[way] - plain.summary.bytes[way] == 4 * extra * jobs
    assert all(set(memory(hyper, c)) <= {"momentum/main"} for c in hyper.clients)


def test_the_head_is_made_from_the_label_shares_weights_first():
    how = FedRoD(head="hyper")
    client = client_of(how)
    counts = client.data.counts
    made = client.net.hyper(counts.float() / counts.sum())
    z = client.net.base(client.data.test.batch(torch.arange(3))[0])
    wide = z.shape[1]
    by_hand = linear(z, made[: 10 * wide].reshape(10, wide), made[10 * wide :])
    assert torch.equal(how.compute_correction(client, z), by_hand)
    first, second = (client_of(how, who=c).data.counts for c in ("0", "1"))
    assert not torch.equal(first, second)
    a, b = (how.compute_correction(client_of(how, who=c), z) for c in ("0", "1"))
    assert not torch.equal(a, b)


def test_the_hypernetwork_is_averaged_by_samples_and_trained_in_every_round():
    """Not only when a client is selected first, as in FL-bench."""
    how, seen = FedRoD(head="hyper"), []
    for rounds in range(4):
        seen.append(model(played(how, rounds=rounds, participation=1.0)).only("hyper.*"))
    assert all(not same(a, b) for a, b in pairwise(seen))


def test_one_step_of_the_hypernetwork_by_hand():
    one = hp.Training(steps=1, batch=400, lr=0.1, momentum=0.0, drop_last=False)
    federation, how = digits(clients=1, examples=60), FedRoD(head="hyper")
    result = played(how, federation, rounds=1, training=one, participation=1.0)
    net = result.plan.template
    data = federation.data("0")
    counts = data.counts
    with torch.no_grad():
        x, y = data.train.batch(torch.arange(len(data.train)))
        z = net.base(x)
        o = net.head(z)
    made = net.hyper(counts.float() / counts.sum())
    own = linear(z, made[:-10].view(10, -1), made[-10:])
    cross_entropy(o + own, y).backward()
    moved = model(result).only("hyper.*")
    for k, p in net.named_parameters():
        if k.startswith("hyper."):
            assert torch.allclose(moved[k], p.detach() - 0.1 * p.grad, atol=1e-6)
    net.zero_grad()


def test_a_client_never_selected_has_an_own_head_made_for_it():
    class First:
        def chosen(self, t, clients, seed):
            return [clients[0]]

    linear_, hyper = (
        played(FedRoD(head=h), participation=First(), training=QUICK, model="digitsnet")
        for h in ("linear", "hyper")
    )
    start = nn.Sequential(*linear_.plan.template.own).state_dict()
    kept = linear_.personal("3").net.own.state_dict()
    assert all(torch.equal(kept[k], start[k]) for k in start)
    own = hp.Tensors(hyper.personal("3").net.state_dict()).only("hyper.*")
    assert same(own, model(hyper).only("hyper.*"))


def test_other_heads_are_refused():
    with pytest.raises(ConfigError, match="head: must be one of linear, hyper"):
        FedRoD(head="deep")
