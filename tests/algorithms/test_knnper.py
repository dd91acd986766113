"""kNN-Per does what its paper says, as stated here.

FedAvg is trained as it is. Before a client predicts, it stores the features that the received base gives
its training examples, with their classes. Of an example it asks the k nearest stored features (Euclidean
distance); neighbour i counts exp(-d_i² / (scale · width)), and p_knn is the share of each class. The
prediction is λ p_knn + (1 - λ) softmax(model). New clients need no training for that.

The authors' code has this kernel; the paper writes the distance without the square. It chooses λ per client
on held-out examples, and may store a part of the data; here λ is a setting, and all data are stored.
"""

from __future__ import annotations

from dataclasses import replace

import torch

import heterophony as hp
from helpers.support import client_after, digits, played
from heterophony.algorithms.knnper import KNNPer


def predict_by_hand(client: hp.Client, lam: float, k: int, scale: float) -> torch.Tensor:
    """Predict with loops over examples, classes and neighbours, in float64."""
    net, train = client.net.eval(), client.data.train
    with torch.no_grad():
        stored = net.base(train.batch(torch.arange(len(train)))[0]).double()
        z = net.base(client.data.test.batch(torch.arange(len(client.data.test)))[0])
        model = net.head(z).double().softmax(1)
    rows = []
    for example, other in zip(z.double(), model, strict=True):
        squares = [(float(((example - s) ** 2).sum()), i) for i, s in enumerate(stored)]
        votes = torch.zeros(client.data.classes, dtype=torch.float64)
        for square, i in sorted(squares)[:k]:
            votes[train.labels[i]] += torch.tensor(-square / (len(example) * scale)).double().exp()
        rows.append(lam * votes / votes.sum() + (1 - lam) * other)
    return torch.stack(rows)


def test_it_predicts_as_its_formula_says():
    result = played(KNNPer(lam=0.3, neighbours=4, scale=0.5), rounds=2)
    how = result.plan.algorithm
    client = client_after(result)
    expected = predict_by_hand(client, 0.3, 4, 0.5)
    x, _ = client.data.test.batch(torch.arange(len(client.data.test)))
    how.adapt(client)
    with torch.inference_mode():
        assert torch.allclose(how.predict(client, x).exp().double(), expected, atol=1e-5)


def test_the_shared_model_and_g_are_fedavgs():
    a, b = played(KNNPer(lam=0.9)), played("fedavg")
    assert a.model_sha256 == b.model_sha256
    measured = [[e["G"] for e in r.events if e["event"] == "evaluation"] for r in (a, b)]
    assert measured[0] == measured[1]


def test_one_neighbour_alone_answers_with_its_class():
    result = played(KNNPer(lam=1.0, neighbours=1), rounds=1)
    client = client_after(result)
    x, y = client.data.train.batch(torch.arange(len(client.data.train)))
    client.net.eval()
    with torch.inference_mode():
        assert torch.equal(result.plan.algorithm.predict(client, x).argmax(1), y)


def test_a_new_client_has_its_datastore_when_it_arrives():
    federation = replace(digits(), new=("0", "3"))
    result = played(KNNPer(lam=1.0), federation, new_client_rounds=0)
    (event,) = [e for e in result.events if e["event"] == "new_clients"]
    assert event["before"] == event["P"]
    fedavg = played("fedavg", federation, new_client_rounds=0)
    (plain,) = [e for e in fedavg.events if e["event"] == "new_clients"]
    assert event["before"] != plain["before"]


def test_far_neighbours_still_answer():
    how = KNNPer(neighbours=2)
    store = hp.Tensors({"features": torch.full((2, 3), 1e6), "classes": torch.eye(2)})
    assert torch.allclose(how.ask_neighbours(torch.zeros(1, 3), store), torch.full((1, 2), 0.5))
