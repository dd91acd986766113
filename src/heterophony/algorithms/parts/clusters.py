"""Clusters of clients (CFL, IFCA), new initial models, and held-out examples to compare models (FedFomo)."""

from collections.abc import Sequence
from itertools import combinations

import torch
from torch import Tensor, nn

from ...core.algorithm import Client
from ...core.samples import Samples
from ...core.tensors import Tensors, answer, match_memory_format, params


def compute_cosines(updates: Sequence[Tensors]) -> Tensor:
    """Compute the cosine of every pair of updates; a zero update has cosine 0 with all others."""
    n, norms = len(updates), [float(u.square().double().sqrt()) for u in updates]
    cosines = torch.eye(n, dtype=torch.float64)
    for i, j in combinations(range(n), 2):
        whole = norms[i] * norms[j]
        cosines[i, j] = cosines[j, i] = float(updates[i].dot(updates[j])) / whole if whole else 0.0
    return cosines


def bisect_clients(cosines: Tensor) -> tuple[list[int], float]:
    """Split a client cluster in two; return the part without the first client, and the largest cosine across.

    Parts are joined in order of decreasing cosine until two are left: no other split makes the
    largest cosine between the two parts smaller.
    """
    n = len(cosines)
    part = list(range(n))
    pairs = sorted(combinations(range(n), 2), key=lambda ij: -float(cosines[ij]))
    for i, j in pairs:
        if len(set(part)) == 2:
            break
        joined, gone = sorted((part[i], part[j]))
        part = [joined if p == gone else p for p in part]
    across = max(float(cosines[i, j]) for i, j in pairs if part[i] != part[j])
    return [i for i in range(n) if part[i] != part[0]], min(1.0, max(-1.0, across))


def reset_layers(module: nn.Module) -> nn.Module:
    """Reset every layer of a module to new initial parameters; frozen parameters are unchanged."""
    kept = [(v, v.clone()) for m in module.modules() for v in list_frozen(m)]
    for m in module.modules():
        draw = getattr(m, "reset_parameters", None)
        if callable(draw):
            draw()
    for v, before in kept:
        v.data.copy_(before)
    return module


def list_frozen(layer: nn.Module) -> list[Tensor]:
    """List a layer's own frozen parameters and, if all of its parameters are frozen, its buffers."""
    own = list(layer.parameters(recurse=False))
    frozen = [p for p in own if not p.requires_grad]
    whole = bool(own) and len(frozen) == len(own)
    return [*frozen, *(layer.buffers(recurse=False) if whole else ())]


def hold_out_examples(samples: Samples, fraction: float) -> tuple[Samples, Samples]:
    """Split a client's examples into those to train on and those to hold out, which are spread evenly.

    The split is the same in every round. With fraction 0, or a single example, both parts have all
    examples.
    """
    steps = torch.arange(len(samples) + 1, dtype=torch.float64) * fraction + 1e-9
    chosen = steps.floor().diff() > 0
    if fraction and len(samples) > 1 and not chosen.any():
        chosen[-1] = True
    if not chosen.any() or chosen.all():
        return samples, samples
    at = torch.arange(len(samples))
    return samples.select_examples(at[~chosen]), samples.select_examples(at[chosen])


@torch.no_grad()
def compute_loss(client: Client, tensors: Tensors, samples: Samples) -> Tensor:
    """Compute the mean loss of a client's net with other tensors over these samples, in evaluation mode."""
    net, own = client.net.eval(), client.net.state_dict()
    tensors = Tensors({k: match_memory_format(v, own[k]) for k, v in tensors.items()})
    batches = samples.batches(250)
    sums = [client.loss(answer(net, tensors, x), y) * len(y) for x, y in batches]
    return torch.stack(sums).sum() / len(samples)


def compute_gains(
    client: Client, before: Tensors, candidates: Sequence[Tensors], samples: Samples, norm: str
) -> Tensor:
    """Compute how much each candidate model lowers the loss of ``before``, per unit of distance.

    The distance is the ``norm`` of the difference, "l1" or "l2". The gain is 0 for a candidate that
    equals ``before``, or is empty.
    """
    loss, learned = compute_loss(client, before, samples), list(params(client.net))
    gains = loss.new_zeros(len(candidates))
    for i, candidate in enumerate(candidates):
        moved = candidate.only(*learned) - before
        far = moved.map(torch.abs).sum() if norm == "l1" else moved.square().sqrt()
        if far > 0:
            gains[i] = (loss - compute_loss(client, candidate, samples)) / far
    return gains
