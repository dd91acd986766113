"""Merge the last layer of a shared head class by class: clients without examples of a class do not count."""

from collections.abc import Sequence

import torch
from torch import Tensor

from heterophony.core.algorithm import Reply, Server
from heterophony.core.tensors import Tensors, mix


def merge_class_rows(server: Server, replies: Sequence[Reply], counts: str) -> Tensors:
    """Return the head's last layer, each row weighted by the replies' examples of its class.

    ``counts`` names the tensor in which a reply has its examples by class. A class that nobody
    holds keeps its row.
    """
    held = torch.stack([r.tensors[counts] for r in replies]).double()
    last = list_last_layer(server.model, held.shape[1])
    rows = [merge_row(server, replies, held[:, c], last, c) for c in range(held.shape[1])]
    return Tensors({k: torch.stack([row[k] for row in rows]) for k in last})


def merge_row(
    server: Server, replies: Sequence[Reply], held: Tensor, names: Sequence[str], c: int
) -> Tensors:
    """Merge row ``c`` of the named tensors from the replies that hold its class."""
    total = float(held.sum())
    if not total:
        return Tensors({k: server.model[k][c] for k in names})
    shares = {r: float(n) / total for r, n in enumerate(held) if n}
    rows = [Tensors({k: replies[r].tensors[k][c] for k in names}) for r in shares]
    return mix(rows, list(shares.values()))


def list_last_layer(model: Tensors, classes: int) -> list[str]:
    """List the tensors of the head's last layer, which have a row for each class."""
    layers = {k.rpartition(".")[0] for k in model.only("head.*")}
    last = max(layers, key=split_numbers)
    return [k for k in model if k.rpartition(".")[0] == last and len(model[k]) == classes]


def split_numbers(layer: str) -> list[tuple[int, str]]:
    """Return a key that sorts ``head.10`` after ``head.9``: by number, not by character."""
    return [(int(p), "") if p.isdigit() else (-1, p) for p in layer.split(".")]
