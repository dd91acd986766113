"""FedTGP: prototypes that the server trains, with a margin that follows the clients' classes."""

from __future__ import annotations

import torch

from helpers.support import played, same
from heterophony.algorithms.fedtgp import FedTGP, add_classes, generate_prototypes
from heterophony.algorithms.local import Local
from heterophony.core.algorithm import Reply, Server
from heterophony.core.tensors import Tensors


def test_without_weight_clients_train_as_in_local():
    ours, local = played(FedTGP(lam=0.0, server_epochs=1)), played(Local())
    measured = [[e["P"] for e in r.events if e["event"] == "evaluation"] for r in (ours, local)]
    assert measured[0] == measured[1]
    assert ours.G is None


def test_the_margin_is_the_largest_distance_to_a_nearest_class():
    z = torch.tensor([[0.0, 0.0], [0.0, 2.0], [3.0, 0.0], [0.0, 5.0]])
    y = torch.tensor([0, 0, 1, 2])  # means (0, 1), (3, 0), (0, 5): nearest √10, √10 and 4
    assert FedTGP().compute_margin(z, y) == 4.0
    assert FedTGP(margin=1.5).compute_margin(z, y) == 1.5
    assert FedTGP(margin=7.0).compute_margin(z[:2], y[:2]) == 7.0  # a single class


def merge(how: FedTGP, *sent: dict[str, torch.Tensor], server: Server | None = None) -> Server:
    torch.manual_seed(0)
    replies = [Reply(str(i), "train", Tensors(s), 9, 9) for i, s in enumerate(sent)]
    return how.merge(server or Server(0, {"0": 9, "1": 9}, Tensors()), replies)


def test_the_server_takes_a_step_on_its_formula():
    sent = {"mean/1": torch.tensor([1.0, 0.0, 2.0]), "mean/4": torch.tensor([0.0, 1.0, 1.0])}
    before = merge(FedTGP(server_epochs=0), sent).memory["generator"]
    after = merge(FedTGP(server_epochs=1, server_batch=4, server_lr=0.1), sent).memory["generator"]
    w = before.map(lambda v: v.clone().requires_grad_())
    z, made = torch.stack(list(sent.values())), generate_prototypes(w)
    delta = float((z[0] - z[1]).norm())
    losses = []
    for i in range(2):
        near, far = ((z[i] - made[j]).norm() for j in (i, 1 - i))
        losses.append(
            (near + delta).neg().sub((torch.stack([-near - delta, -far])).logsumexp(0)).neg()
        )
    torch.stack(losses).mean().backward()
    for k, v in w.items():
        assert torch.allclose(after[k], (v - 0.1 * v.grad).detach(), atol=1e-6), k


def test_equal_features_and_prototypes_have_a_gradient():
    """The authors' root of a difference of products is not a number there."""
    w = add_classes(Tensors(), [0, 1], 3)
    same_place = generate_prototypes(w).detach()
    sent = {"mean/0": same_place[0], "mean/1": same_place[1]}
    server = Server(1, {"0": 9}, Tensors(), {"generator": w})
    after = merge(FedTGP(server_epochs=3), sent, server=server)
    assert all(bool(torch.isfinite(v).all()) for v in after.memory["generator"].values())
    x, p = (v.clone().requires_grad_() for v in (same_place, same_place))
    products = (x**2).sum(1, keepdim=True) - 2 * x @ p.T + (p**2).sum(1)
    products.diagonal().sub(products.diagonal().detach()).sqrt().sum().backward()
    assert not bool(torch.isfinite(p.grad).all())  # the defect


def test_a_class_has_a_prototype_once_it_was_sent():
    one = merge(FedTGP(server_epochs=1), {"mean/3": torch.ones(2)})
    assert set(one.memory["prototypes"]) == {"mean/3"}
    two = merge(FedTGP(server_epochs=1), {"mean/0": torch.zeros(2)}, server=one)
    assert set(two.memory["prototypes"]) == {"mean/0", "mean/3"}
    kept = merge(FedTGP(server_epochs=0), {"mean/3": torch.ones(2)}, server=two)
    assert same(kept.memory["generator"], two.memory["generator"])
