"""Example-level privacy: clipped gradients, noise, accounting per client, and what it refuses."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

import heterophony as hp
from helpers.support import QUICK, digits, identical, model, net_with_batch_norm, played
from heterophony.core import files as secret_file
from heterophony.core.client import Client
from heterophony.core.errors import ConfigError
from heterophony.jobs.client_store import FolderClientStore
from heterophony.jobs.plan import Job
from heterophony.protection.accounting import compute_epsilon
from heterophony.protection.private_client import SingleGradients, single_gradients

SHORT = {"rounds": 2, "evaluate_every": 2, "participation": 1.0}
FEW = digits(clients=2, examples=80)


@pytest.fixture(autouse=True)
def one_secret(monkeypatch):
    monkeypatch.setattr(secret_file, "draw_secret", lambda: bytes(range(32)))


def test_single_gradients_are_clipped_and_added():
    net = nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    x, y = torch.randn(5, 6), torch.tensor([0, 1, 2, 0, 1])
    expected = {k: torch.zeros_like(p) for k, p in net.named_parameters()}
    for i in range(5):  # one example after the other
        net.zero_grad()
        nn.functional.cross_entropy(net(x[i : i + 1]), y[i : i + 1]).backward()
        norm = torch.cat([p.grad.flatten() for p in net.parameters()]).norm()
        for k, p in net.named_parameters():
            expected[k] += p.grad * min(1.0, 0.5 / float(norm))
    net.zero_grad()
    with single_gradients(net) as gradients:
        nn.functional.cross_entropy(net(x), y).backward()
        found = gradients.add_clipped(hp.Tensors(net.named_parameters()), 0.5)
    assert isinstance(gradients, SingleGradients)
    assert all(torch.allclose(found[k], v, atol=1e-6) for k, v in expected.items())
    assert not any(hasattr(p, "grad_sample") for p in net.parameters())


def test_every_client_is_accounted_for_over_a_resume(tmp_path):
    class StopError(Exception):
        pass

    def stop(event):
        if event["event"] == "round" and event["t"] == 1:
            raise StopError

    how = {"protection": [hp.ExampleDP(noise=2.0, delta=1e-3)], **SHORT}
    with pytest.raises(StopError):
        played("ditto", FEW, out=tmp_path / "run", resume=True, on_event=stop, **how)
    result = played("ditto", FEW, out=tmp_path / "run", resume=True, **how)
    assert identical(result, played("ditto", FEW, **how))
    spent = [e["epsilon"] for e in result.events if e["event"] == "round"]
    rounds = [e for e in result.events if e["event"] == "round"]
    assert all(e["loss"] == {} for e in rounds)
    for t, epsilon in enumerate(spent):
        each = []
        for n in FEW.sizes().values():
            steps = (1 + 1) * (n // QUICK.batch) * (t + 1)  # Ditto trains two models
            each.append(compute_epsilon(2.0, QUICK.batch / n, steps, 1e-3))
        assert epsilon == max(each)
    assert (result.summary.epsilon, result.summary.privacy["unit"]) == (spent[-1], "example")


def test_without_noise_and_clipping_it_is_gradient_descent():
    """With every example in every step, the private gradient is that of the whole batch."""
    quiet, whole = hp.ExampleDP(noise=0.0, clip=1e6), hp.Training(epochs=2, batch=64, lr=0.1)
    private, plain = (
        played("fedper", FEW, protection=p, training=whole, model="digitsnet", **SHORT)
        for p in ([quiet], [])
    )
    moved, expected = model(private), model(plain)
    assert all(torch.allclose(moved[k], v, atol=1e-5) for k, v in expected.items())
    assert private.summary.epsilon is None  # without noise there is no bound


@pytest.mark.parametrize(
    ("name", "how", "message"),
    [
        ("fedavg", {"model": net_with_batch_norm}, "the model has BatchNorm"),
        ("fedreg", {}, r"uses client\.data\.\w+ outside of fit"),
        ("fedproto", {}, "nothing that FedProto sends is a change"),
        ("pfedme", {}, "uses a mini-batch several times"),
        ("feddecomp", {}, "computes weights from other parameters"),
        ("fedcp", {}, "loss of an example depends on the other examples of its batch"),
    ],
)
def test_what_it_does_not_cover_is_a_clear_error(name, how, message):
    with pytest.raises(ConfigError, match=message):
        played(name, FEW, protection=[hp.ExampleDP()], rounds=1, **how)


def by_class(out, y):
    """Every class counts the same: an example's weight depends on the others' labels."""
    each = nn.functional.cross_entropy(out, y, reduction="none")
    return (each / (y[:, None] == y).sum(1)).mean()


def near_the_mean(out, y):
    return nn.functional.cross_entropy(out, y) + 0.01 * (out - out.mean(0)).square().mean()


def summed(out, y):
    """With one example less, the gradient of each of the others is scaled in another way."""
    return nn.functional.cross_entropy(out, y, reduction="sum")


def smoothed(out, y):
    return nn.functional.cross_entropy(out, y, label_smoothing=0.1)


def flatten_in(*layers: nn.Module) -> hp.Net:
    return hp.Net(nn.Sequential(nn.Flatten(), nn.Linear(64, 16), *layers), nn.Linear(16, 10))


@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize("loss", [by_class, near_the_mean, summed, smoothed])
def test_a_loss_that_couples_examples_is_found_by_trying(loss, dropout):
    net = flatten_in(nn.ReLU(), *[nn.Dropout(0.5)] * dropout)
    how = {"model": net, "loss": loss, "protection": [hp.ExampleDP()], "rounds": 1}
    # with dropout, a smaller batch cannot be compared: it has other draws
    if loss is smoothed or (loss is summed and dropout):
        assert played("fedavg", FEW, **how).summary.epsilon
        return
    with pytest.raises(ConfigError) as caught:
        played("fedavg", FEW, **how)
    assert str(caught.value) == (
        "protection.example_dp: the loss of an example depends on the other examples of its batch, so"
        " that one example changes more than its own clipped gradient; choose another algorithm or"
        " loss, or client_dp"
    )


def test_without_its_discrepancy_fedcp_is_accepted():
    assert played("fedcp", FEW, lam=0.0, protection=[hp.ExampleDP()], rounds=1).summary.epsilon


def test_a_layer_that_sees_other_rows_than_examples_is_refused():
    class Pixels(nn.Module):
        """Every pixel is a row."""

        def forward(self, x):
            return x.reshape(-1, 1)

    class Image(nn.Module):
        def forward(self, z):
            return z.reshape(-1, 64)

    base = nn.Sequential(Pixels(), nn.Linear(1, 1), Image())
    how = {"model": hp.Net(base, nn.Linear(64, 10)), "protection": [hp.ExampleDP()]}
    with pytest.raises(ConfigError, match="a layer is called with 192 rows for 3 examples"):
        played("fedavg", FEW, rounds=1, **how)


def test_the_trial_leaves_every_bit_as_it_was(monkeypatch):
    net = flatten_in(nn.ReLU(), nn.Dropout(0.5))
    how = {"model": net, "protection": [hp.ExampleDP()], "rounds": 1}
    tried = played("ditto", FEW, **how)
    monkeypatch.setattr("heterophony.protection.private_client.check_uncoupled", lambda *_: None)
    assert identical(tried, played("ditto", FEW, **how))


def test_frozen_layers_are_neither_trained_nor_sent():
    net = flatten_in(nn.ReLU())
    net.base.requires_grad_(False)
    how = {"model": net, "protection": [hp.ExampleDP()], "rounds": 1, "participation": 1.0}
    result = played("fedavg", FEW, **how)
    assert set(model(result)) == {"head.weight", "head.bias"}
    assert torch.equal(result.personal("0").net.base[1].weight, net.base[1].weight)


def test_examples_are_drawn_by_the_secret(tmp_path):
    """Who knows the seed does not know which examples a step uses, nor its noise."""
    plan = played("fedavg", FEW, protection=[hp.ExampleDP()], rounds=0).plan
    sent = plan.algorithm.send(plan.create_initial_server(), "0")
    job, store = (
        Job(kind="train", t=0, client="0", tensors=sent),
        FolderClientStore(tmp_path / "a", tmp_path),
    )
    moves = []
    for secret in (b"s", b"t"):
        build = plan.protections[0].choose_client(secret)
        client = plan.build_client(job, {}, store, build)
        assert isinstance(client, Client)
        client.fit()
        received = client.received["base.1.weight"]
        moves.append(client.shared()["base.1.weight"] - received)
        client.net.load_state_dict({**client.net.state_dict(), **client.received})
        client.memory.clear()
        client.fit()  # another pass of the same name
        moves.append(client.shared()["base.1.weight"] - received)
    assert all(not torch.equal(a, b) for a, b in itertools.combinations(moves, 2))
