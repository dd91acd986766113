"""FedTGP: Zhang et al., Trainable global prototypes with adaptive-margin contrastive learning, AAAI 2024.

As in the authors' code, the margin is the largest distance between a class mean and its nearest
neighbour. Distances are computed without matrix products; in the authors' code they may be roots of
negative numbers. A class has a trainable prototype from the round in which a client first sends it;
in the authors' code all classes have one from the start.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, one_hot

from ..core.algorithm import Reply, Server, setting
from ..core.tensors import Tensors, weights
from .parts import prototypes


@dataclass(frozen=True)
class FedTGP(prototypes.PrototypeAlgorithm):
    """Train prototypes on the server to be far apart; keep features close to them."""

    paper = "Zhang et al., AAAI 2024"
    margin: float = setting(100.0, "largest margin between classes, τ", low=0)
    server_epochs: int = setting(100, "epochs of the server over the prototypes of a round", low=0)
    server_lr: float = setting(0.01, "learning rate of the server", above=0)
    server_batch: int = setting(10, "prototypes in a mini-batch of the server", low=1)

    def merge(self, server: Server, replies: Sequence[Reply]) -> Server:
        if not any(r.tensors for r in replies):
            return server
        z, y = prototypes.collect_prototypes(replies)
        w = add_classes(server.memory.get("generator", Tensors()), y.tolist(), z.shape[1])
        classes = sorted(int(c) for c in w.below("class/"))
        place, margin = {c: i for i, c in enumerate(classes)}, self.compute_margin(z, y)

        def loss(w: Tensors, z: Tensor, y: Tensor) -> Tensor:
            at = torch.tensor([place[c] for c in y.tolist()])
            far = torch.cdist(
                z, generate_prototypes(w), compute_mode="donot_use_mm_for_euclid_dist"
            )
            return cross_entropy(-far - margin * one_hot(at, len(classes)), at)

        how = prototypes.PrototypeTraining(self.server_epochs, self.server_batch, self.server_lr)
        w = prototypes.train_on_prototypes(w, loss, (z, y), how)
        made = zip(classes, generate_prototypes(w), strict=True)
        new = Tensors({f"{prototypes.PREFIX}{c}": v.clone() for c, v in made})
        return server.update(generator=w, prototypes=new)

    def compute_margin(self, z: Tensor, y: Tensor) -> float:
        """Compute FedTGP's margin: the largest distance of a class mean from its nearest one, at most τ."""
        means = torch.stack([z[y == c].mean(0) for c in y.unique()])
        if len(means) < 2:
            return self.margin
        apart = torch.cdist(means, means, compute_mode="donot_use_mm_for_euclid_dist")
        nearest = apart.fill_diagonal_(torch.inf).min(1).values
        return min(float(nearest.max()), self.margin)


def add_classes(w: Tensors, classes: Sequence[int], width: int) -> Tensors:
    """Return the generator of prototypes, with a new embedding for every class it lacks."""
    if not w:
        layers = {"inner": nn.Linear(width, width), "outer": nn.Linear(width, width)}
        w = weights(nn.ModuleDict(layers))
    new = [f"class/{c}" for c in sorted(set(classes)) if f"class/{c}" not in w]
    return w | {k: torch.randn(width) for k in new}


def generate_prototypes(w: Tensors) -> Tensor:
    """Generate the prototypes of all known classes, in the order of their numbers."""
    known = w.below("class/")
    embedded = torch.stack([known[c] for c in sorted(known, key=int)])
    hidden = linear(embedded, w["inner.weight"], w["inner.bias"]).relu()
    return linear(hidden, w["outer.weight"], w["outer.bias"])
