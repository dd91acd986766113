"""FedFomo: weights by loss and distance, a step towards better models, and whose models are sent."""

from __future__ import annotations

import pytest
import torch
from torch.func import functional_call
from torch.nn.functional import cross_entropy

import heterophony as hp
from helpers.support import Turns, digits, memory, model, played, replies, same
from heterophony.algorithms.fedfomo import FedFomo, mix_on_device
from heterophony.algorithms.parts.download_choice import choose_downloads
from heterophony.algorithms.parts.held_out import split_examples
from heterophony.core.algorithm import Reply, Server
from heterophony.core.randomness import seeded
from heterophony.jobs.plan import Job

WHOLE = {"participation": 1.0}
EYE = torch.eye(4)


def client_after(result: hp.Result, id: str) -> hp.Client:
    """A client as it is before the round that would follow."""
    sent = result.plan.algorithm.send(result._server, id)
    job = Job(kind="train", t=result.summary.rounds, client=id, tensors=sent)
    return result.plan.build_client(job, memory(result, id), result._run_folder.client_store)


def test_gains_are_the_papers_and_the_client_begins_at_their_mixture():
    result = played(FedFomo(downloads=3), digits(alpha=100.0), rounds=1, **WHOLE)
    client, starts = client_after(result, "1"), []
    net, own = client.net, hp.weights(client.net)
    kept, held = split_examples(client.data.train, 0.2)
    x, y = held.batch(torch.arange(len(held)))
    net.eval()

    def loss(w):
        with torch.no_grad():
            return cross_entropy(functional_call(net, dict(w), (x,)), y)

    others = [client.received.below(f"other/{i}/") for i in range(3)]
    want = torch.stack([(loss(own) - loss(o)) / (o - own).square().sqrt() for o in others])
    fit = client.fit
    client.fit = lambda data: (starts.append(hp.weights(net)), fit(data=data))[1]
    gains = result.plan.algorithm.local(client)["fomo/gains"]
    assert torch.allclose(gains, want, atol=1e-6)
    assert (want > 0).any()
    shares = want.clamp(min=0) / want.clamp(min=0).sum()
    mixed = mix_on_device(others, shares)
    assert all(torch.allclose(v, mixed[k], atol=1e-6) for k, v in starts[0].items())
    assert len(kept) + len(held) == len(client.data.train)


def test_where_no_other_model_is_better_the_own_one_is_trained():
    result = played(FedFomo(downloads=2), rounds=1, **WHOLE)
    client, starts = client_after(result, "0"), []
    own = hp.weights(client.net)
    worse = {k: 100 * torch.ones_like(v) for k, v in client.received.items() if "/" in k}
    client.received = client.received | worse
    client.fit = lambda data: starts.append(hp.weights(client.net))
    gains = result.plan.algorithm.local(client)["fomo/gains"]
    assert (gains < 0).all()
    assert same(starts[0], own)


def test_held_out_examples_are_spread_the_same_in_every_round_and_not_trained_on():
    data = digits().data("0").train
    kept, held = split_examples(data, 0.2)
    assert len(held) == len(data) // 5
    assert torch.equal(held.rows, data.rows[4::5])
    assert set(kept.rows.tolist()) | set(held.rows.tolist()) == set(data.rows.tolist())
    assert not set(kept.rows.tolist()) & set(held.rows.tolist())
    whole, same_again = split_examples(data, 0.0)
    assert whole is same_again is data
    two = data.select_examples(torch.arange(2))
    assert [len(s) for s in split_examples(two, 0.2)] == [1, 1]
    one = data.select_examples(torch.arange(1))
    assert [len(s) for s in split_examples(one, 0.2)] == [1, 1]


def test_liking_adds_up_and_only_of_those_who_took_part():
    how = FedFomo(downloads=2, explore=0.0)
    server = Server(0, dict.fromkeys("abc", 1), hp.Tensors({"w": torch.zeros(1)}))

    def said(c, *gains):
        return Reply(c, "train", hp.Tensors({"w": torch.ones(1), "fomo/gains": torch.tensor(gains)}),
                     1, 1)  # fmt: skip

    server = how.merge(server, [said(c, 0.0, 0.0) for c in "abc"])
    assert server.memory["chosen"]["at"].tolist() == [[1, 2], [0, 2], [0, 1]]
    server = how.merge(server, [said("a", -1.0, 3.0), said("c", 0.5, 0.25)])
    assert server.memory["liking"]["P"].tolist() == [[1, -1, 3], [0, 1, 0], [0.5, 0.25, 1]]
    assert server.memory["chosen"]["at"].tolist() == [[2, 1], [0, 2], [0, 1]]
    server = how.merge(server, [said("a", -1.0, 3.0)])
    assert server.memory["liking"]["P"][0].tolist() == [1, 2, 2]  # gains are in the order sent


@pytest.mark.parametrize("chance", [0.0, 1.0])
def test_nobody_receives_its_own_model_or_one_that_does_not_exist(chance):
    with seeded("chosen"):
        chosen = choose_downloads(EYE, [True, False, True, True], 3, chance)
    assert [sorted(row) for row in chosen.tolist()] == [
        [-1, 2, 3],
        [0, 2, 3],
        [-1, 0, 3],
        [-1, 0, 2],
    ]


def test_up_goes_a_model_and_gains_and_down_the_own_one_and_the_chosen(monkeypatch):
    result, rounds = replies(
        monkeypatch, FedFomo(downloads=2), digits(clients=4), rounds=2, **WHOLE
    )
    size = 4 * sum(v.numel() for v in model(result).values())
    events = [e for e in result.events if e["event"] == "round"]
    assert [e["bytes_up"] for e in events] == [4 * (size + 8)] * 2
    assert [e["bytes_down"] for e in events] == [4 * size, 4 * 3 * size]
    assert all(not r.tensors["fomo/gains"].any() for r in rounds[0])


def test_p_is_of_the_model_trained_last_and_there_is_no_g():
    result = played(FedFomo(), participation=Turns([0, 1], [1, 2], [1, 2]))
    assert result.G is None
    for c in ("0", "1", "3"):
        own = result._server.memory.get(f"model/{c}", model(result))
        assert same(hp.weights(result.personal(c).net), own)
