"""FedKD: two nets that teach each other, and updates by their largest singular values."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import kl_div, mse_loss

import heterophony as hp
from helpers.support import client_after, memory, model, played, same
from heterophony.algorithms.fedkd import FedKD
from heterophony.algorithms.fml import FML
from heterophony.algorithms.parts import low_rank
from heterophony.core.client import Client
from heterophony.core.errors import ConfigError, DivergedError
from heterophony.core.tensors import Tensors

NETS = ["digitsnet", "mlp@0.1", "smallcnn"]
WHOLE = {"energy_start": 1.0, "energy_end": 1.0}
PLAIN = {"answers": 0.0, "features": 0.0, **WHOLE}


@pytest.mark.parametrize("nets", ["mlp", NETS])
def test_without_its_terms_it_is_local_beside_fedavg(nets):
    fedkd, local = played(FedKD(**PLAIN), model=nets), played("local", model=nets)
    fedavg = played("fedavg", model="mlp" if nets == "mlp" else "mlp@0.1")
    fml = played(FML(alpha=1.0, beta=1.0), model=nets)
    assert same(model(fedkd).below("mentee."), model(fedavg))
    assert same(model(fedkd).below("mentee."), model(fml).below("meme."))
    for client in fedkd.plan.federation.clients:
        ours, alone = (memory(r, client).get("net") for r in (fedkd, local))
        assert (ours is None and alone is None) or same(ours, alone)
    assert fedkd.P.last == local.P.last
    assert fedkd.G.last == fedavg.G.last


# The terms --------------------------------------------------------------------------------------


Total = Callable[[Client, Tensor, Tensor], Tensor]


@cache
def trained() -> hp.Result:
    return played(FedKD(), model=NETS, rounds=1)


def catch_loss(client: Client) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss that FedKD minimises."""
    caught = []
    client.fit = lambda loss: caught.append(loss)
    FedKD().local(client)
    return caught[0]


def run_gradients(total: Total | None = None) -> tuple[float, dict[str, Tensor]]:
    """The loss of a mini-batch after one round, and its gradients."""
    client = client_after(trained())
    x, y = client.data.train.batch(torch.arange(8))
    value = total(client, x, y) if total else catch_loss(client)(x, y)
    named = dict(client.net.named_parameters())
    gradients = torch.autograd.grad(value, list(named.values()))
    return float(value.detach()), dict(zip(named, gradients, strict=True))


def compute_formula(
    client: Client,
    x: Tensor,
    y: Tensor,
    *,
    through_teachers: bool = False,
    through_weights: bool = False,
    features_twice: bool = False,
    mean_over_classes: bool = False,
) -> Tensor:
    """The paper's losses of both nets, each by its own parameters; or with defects of other code."""
    net = client.net
    z, small = net.base(x), net.mentee.base(x)
    own, common = net.head(z), net.mentee.head(small)
    labels = client.loss(own, y) + client.loss(common, y)
    divisor = (labels if through_weights else labels.detach()).clamp(min=1)
    reduction = "mean" if mean_over_classes else "batchmean"
    apart = 0
    for student, teacher in ((own, common), (common, own)):
        goal = (teacher if through_teachers else teacher.detach()).softmax(1)
        apart = apart + kl_div(student.log_softmax(1), goal, reduction=reduction)
    near = mse_loss(net.projection(small.flatten(1)), z.flatten(1))
    return labels + (apart + (1 + features_twice) * near) / divisor


def test_the_loss_is_that_of_the_formula():
    value, gradients = run_gradients()
    expected, wanted = run_gradients(compute_formula)
    assert value == pytest.approx(expected, rel=1e-6)
    for k, v in gradients.items():
        assert torch.allclose(v, wanted[k], atol=1e-6), k


@pytest.mark.parametrize(
    "defect", ["through_teachers", "through_weights", "features_twice", "mean_over_classes"]
)
@pytest.mark.filterwarnings("ignore:reduction")
def test_terms_of_other_code_would_be_noticed(defect):
    """The authors' code has the first three, HtFLlib all four."""

    def wrong(client, x, y):
        return compute_formula(client, x, y, **{defect: True})

    right, found = run_gradients()[1], run_gradients(wrong)[1]
    assert any(not torch.allclose(v, found[k], atol=1e-5) for k, v in right.items())


def test_the_sum_of_losses_counts_as_one_at_least():
    client = client_after(trained())
    loss = catch_loss(client)
    client.loss = lambda out, y: out.sum() * 0 + 0.001
    x, y = client.data.train.batch(torch.arange(8))
    net = client.net
    z, small = net.base(x), net.mentee.base(x)
    own, common = net.head(z), net.mentee.head(small)
    apart = sum(
        kl_div(a.log_softmax(1), b.softmax(1), reduction="batchmean")
        for a, b in ((own, common), (common, own))
    )
    expected = 0.002 + apart + mse_loss(net.projection(small.flatten(1)), z.flatten(1))
    assert loss(x, y).item() == pytest.approx(expected.item(), rel=1e-5)


# The compression --------------------------------------------------------------------------------


def make_matrix(values: list[float], height: int = 12, width: int = 9) -> Tensor:
    """A matrix with these singular values."""
    torch.manual_seed(0)
    left, right = (torch.linalg.qr(torch.randn(n, len(values)))[0] for n in (height, width))
    return left @ torch.diag(torch.tensor(values)) @ right.T


def restore(rows: Tensor) -> Tensor:
    return low_rank.restore_matrix(rows, (12, 9))


@pytest.mark.parametrize(
    ("values", "energy", "rank"),
    [
        ([3.0, 1.0], 0.89, 1),  # 9 of 10 is more than 89 %
        ([3.0, 1.0], 0.95, 2),
        ([1.0, 1.0, 1.0, 1.0], 0.6, 3),
        ([1.0, 1.0, 1.0, 1.0], 0.95, 4),
    ],
)
def test_as_many_singular_values_are_sent_as_have_more_than_the_share(values, energy, rank):
    matrix = make_matrix(values)
    rows = low_rank.compress_matrix(matrix, energy)
    assert rows.shape == (rank, 12 + 9)
    if rank == len(values):
        assert torch.allclose(restore(rows), matrix, atol=1e-6)
    lost = float((restore(rows) - matrix).square().sum())
    assert lost == pytest.approx(sum(v * v for v in values[rank:]), abs=1e-5)


def test_a_matrix_that_would_not_be_smaller_is_sent_as_it_is():
    torch.manual_seed(0)
    matrix = torch.randn(12, 9)
    rows = low_rank.compress_matrix(matrix, 0.99)
    assert rows.shape == (6, 21)  # 126 numbers for 108
    assert torch.equal(restore(rows), matrix)
    assert low_rank.compress_matrix(torch.zeros(12, 9), 0.95).shape == (0, 21)
    assert torch.equal(restore(torch.zeros(0, 21)), torch.zeros(12, 9))


def test_a_kernel_is_a_matrix_with_a_row_per_output():
    before = Tensors({"conv": torch.zeros(12, 1, 3, 3), "bias": torch.zeros(12)})
    moved = make_matrix([2.0, 0.1]).view(12, 1, 3, 3).contiguous(memory_format=torch.channels_last)
    after = Tensors({"conv": moved, "bias": torch.ones(12)})
    sent = low_rank.compress_moves(after, before, 0.9)
    assert {k: tuple(v.shape) for k, v in sent.items()} == {"bias": (12,), "low_rank/conv": (1, 21)}
    whole = low_rank.restore_moves(sent, before)
    assert whole["conv"].shape == moved.shape
    assert torch.allclose(whole["conv"], moved, atol=0.2)


def keep_by_the_authors_loop(matrix: Tensor, energy: float) -> Tensor:
    """It is in HtFLlib, too: it compares sums that lack the last value, and keeps none if none of these is enough."""
    u, s, v = np.linalg.svd(matrix.numpy(), full_matrices=False)
    kept = 0
    for n in range(len(s)):
        if np.sum(np.square(s[:n])) > energy * np.sum(np.square(s)):
            kept = n
            break
    return torch.from_numpy(u[:, :kept] * s[:kept] @ v[:kept])


def restore_by_two_dots(matrix: Tensor) -> Tensor:
    """It multiplies by the vector of singular values: one row, which every row of the update becomes."""
    u, s, v = np.linalg.svd(matrix.numpy(), full_matrices=False)
    return torch.from_numpy(np.zeros(matrix.shape, np.float32) + np.dot(np.dot(u, s), v))


def compress_every_kernel(kernel: Tensor) -> int:
    """HtFLlib takes each of the small windows for a matrix: how many numbers that is at least."""
    out, inputs, high, wide = kernel.shape
    return out * inputs * (high + wide)


def test_compressions_of_other_code_would_be_noticed():
    flat = make_matrix([1.0] * 9)
    right = restore(low_rank.compress_matrix(flat, 0.95))
    assert torch.allclose(right, flat, atol=1e-6)
    assert not keep_by_the_authors_loop(flat, 0.95).any()  # the update is lost
    low = make_matrix([2.0, 1.0], 12, 12)
    right = low_rank.restore_matrix(low_rank.compress_matrix(low, 0.95), low.shape)
    assert torch.allclose(right, low, atol=1e-6)
    assert not torch.allclose(restore_by_two_dots(low), low, atol=0.1)
    kernel = make_matrix([2.0, 1.0], 32, 288).view(32, 32, 3, 3)
    assert low_rank.compress_matrix(kernel.flatten(1), 0.95).numel() == 2 * 320
    assert compress_every_kernel(kernel) == 6144  # with one of three singular values


def test_updates_are_compressed_not_weights():
    """HtFLlib cuts the singular values of the weights: a client that does not move destroys the net."""
    result = played(FedKD(), model="mlp", training=hp.Training(lr=0.0, momentum=0.0))
    first = played(FedKD(), model="mlp", rounds=0)
    assert same(model(result), model(first))
    weight = model(first)["mentee.base.1.weight"]
    assert not torch.allclose(keep_by_the_authors_loop(weight, 0.95), weight, atol=0.01)


def test_the_share_grows_from_the_first_round_to_the_last():
    client, fedkd = client_after(played(FedKD(), rounds=0)), FedKD()
    client.rounds = 4
    found = []
    for client.t in (0, 1, 2, 3, 9):
        found.append(fedkd.compute_energy(client))
    assert found == pytest.approx([0.95, 0.96, 0.97, 0.98, 0.98])
    client.rounds, client.t = 1, 0
    assert fedkd.compute_energy(client) == 0.95


def test_fewer_bytes_are_sent_the_smaller_the_share():
    sent = []
    for energy in ({"energy_start": 0.5, "energy_end": 0.5}, {}, WHOLE):
        events = played(FedKD(**energy), rounds=2).events
        sent.append(sum(e["bytes_up"] for e in events if e["event"] == "round"))
    assert sent[0] < sent[1] < sent[2]


# Where it runs ----------------------------------------------------------------------------------


def test_protections_of_whole_updates_are_refused():
    with pytest.raises(ConfigError, match=r"protection\.median: FedKD compresses what it sends"):
        played("fedkd", protection=[hp.Median()])
    assert played(FedKD(**WHOLE), protection=[hp.Median()], rounds=1).G is not None


def test_clients_that_diverge_are_one_line():
    with pytest.raises(DivergedError, match=r"lower training\.lr"):
        played("fedkd", training=hp.Training(lr=1e30, momentum=0.0, steps=1))
    rows = low_rank.compress_matrix(torch.full((12, 9), torch.nan), 0.95)
    assert rows.isnan().any()
