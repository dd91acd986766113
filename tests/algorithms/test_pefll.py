"""PeFLL does what its paper says, as stated here.

The server has a hypernetwork as in pFedHN and a layer that embeds a client's data: v = E p + e, with p the frequencies of its labels.
Client k gets θ = h(v), trains it, and replies with it and p. Hypernetwork and embedding are trained together by the chain rule, as in
pFedHN. The model of a client that never took part is made of its own p, without training: it is sent the hypernetwork for that.

In the authors' code the embedding is such a layer, or a convolutional net of images and labels; the mean over examples is then sent by the
client, the model comes back, and the gradient of the embedding goes the same way, in a second exchange. Only a function that is linear in
sums over examples can be trained by the server in one exchange. They also shift and scale embeddings by numbers of the first one; here not.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

import heterophony as hp
from helpers.support import blobs, client_after, digits, played, replies, same
from heterophony.algorithms.parts.hypernetworks import make_model
from heterophony.algorithms.pefll import PeFLL, embed_client

SMALL = {"hidden": 5, "layers": 1, "embedding": 3}
ALL = {"participation": 1.0}


def test_a_round_is_a_step_of_torchs_own_sgd(monkeypatch):
    """Embedding and hypernetwork as modules, by `backward` and `torch.optim.SGD`."""
    how = PeFLL(**SMALL, server_lr=0.3, server_momentum=0.0)
    first = played(how, rounds=1, **ALL)
    result, rounds = replies(monkeypatch, how, rounds=2, **ALL)
    w, names = first._server.memory["hypernetwork"], sorted(first._server.model)
    shapes = ["embed", "mlp.0", *(f"made/{k}" for k in names)]
    layers = []
    for shape in shapes:
        between = "/" if shape.startswith("made") else "."
        layer = nn.Linear(*w[f"{shape}{between}weight"].T.shape)
        layer.load_state_dict({k: w[f"{shape}{between}{k}"] for k in ("weight", "bias")})
        layers.append(layer)
    optimiser = torch.optim.SGD([p for layer in layers for p in layer.parameters()], lr=0.3)
    loss = 0
    for r in rounds[1]:
        counts = result.plan.federation.data(r.client).counts
        features = layers[1](layers[0](counts / counts.sum()))
        made = torch.cat([layer(features) for layer in layers[2:]])
        trained = torch.cat([r.tensors[k].flatten() for k in names])
        loss = loss + made @ (made.detach() - trained) / len(rounds[1])
    loss.backward()
    optimiser.step()
    after = result._server.memory["hypernetwork"]
    for shape, layer in zip(shapes, layers, strict=True):
        between = "/" if shape.startswith("made") else "."
        for k, p in layer.named_parameters():
            assert torch.allclose(after[f"{shape}{between}{k}"], p, atol=1e-5), shape


def test_a_client_makes_the_model_that_the_server_would_make():
    """With the hypernetwork it is sent once, and after its first round its model."""
    federation = replace(digits(), new=("0", "3"))
    result = played(PeFLL(), federation, rounds=2, **ALL)
    server, how = result._server, result.plan.algorithm
    w = server.memory["hypernetwork"]
    client = client_after(result, "0", kept={})
    assert any(k.startswith("pefll/") for k in client.received)
    assert not any(k.startswith("pefll/") for k in how.send(server, "1"))
    how.adapt(client)
    counts = client.data.counts
    expected = make_model(w, embed_client(w, counts.float() / counts.sum()), server.model)
    assert same(hp.weights(client.net), expected)


def test_a_new_client_is_served_in_one_pass():
    result = played(PeFLL(), replace(digits(), new=("0", "3")), rounds=4, **ALL)
    (event,) = [e for e in result.events if e["event"] == "new_clients"]
    assert event["before"] == event["P"]
    client, x = client_after(result, "0", kept={}), torch.rand(4, 1, 8, 8)
    client.net.eval()
    with torch.inference_mode():
        generic = client.net(x)
        assert not torch.equal(result.plan.algorithm.predict(client, x), generic)


def test_clients_of_equal_frequencies_have_one_model():
    parts = [(x, y, x, y) for x, y in blobs([30, 60, 40])]  # a third of each class; 40 is not
    result = played(PeFLL(), hp.federate(parts), rounds=3, **ALL)
    sent = [result.plan.algorithm.send(result._server, c) for c in "012"]
    assert same(sent[0], sent[1])
    assert not same(sent[0], sent[2])


def test_what_goes_up_is_the_model_and_the_frequencies(monkeypatch):
    _, ((*sent,),) = replies(monkeypatch, PeFLL(), rounds=1, **ALL)
    for r in sent:
        assert abs(float(r.tensors["pefll/frequencies"].sum()) - 1) < 1e-6
        assert [k for k in r.tensors if "/" in k] == ["pefll/frequencies"]
