"""The core models of APPLE on a client: those of the others as constants, its own as the net."""

import torch
from torch import Tensor

from ...core.client import Client
from ...core.tensors import Tensors, weights


def compute_shares(client: Client) -> Tensor:
    """Compute p0, every client's share of all examples; the client's own is the first."""
    sizes = client.received["apple/samples"]
    counts = torch.cat([sizes.new_tensor([float(len(client.data.train))]), sizes])
    return counts / counts.sum()


def stack_cores(client: Client) -> Tensors:
    """Stack the others' core models, a row each; a client that was never seen has the initial one."""
    initial = client.memory.get("initial", weights(client.net))
    count = len(client.received["apple/samples"])
    rows = [initial | client.received.below(f"core/{i}/") for i in range(count)]
    return Tensors({k: torch.stack([row[k].flatten() for row in rows]) for k in initial if rows})


def add_cores(own: Tensors, others: Tensors, p: Tensor) -> Tensors:
    """Return the weighted sum of all core models, with gradients for the own one and for p."""
    if not others:
        return own.map(lambda w: p[0] * w)
    return own.map(lambda w, rows: p[0] * w + (p[1:] @ rows).view(w.shape), others)
