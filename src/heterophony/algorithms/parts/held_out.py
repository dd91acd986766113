"""Examples that decide between models: losses on a part of the training data, or on all of it."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ...core.client import Client
from ...core.samples import Samples
from ...core.tensors import Tensors, answer, match_memory_format, params


def split_examples(samples: Samples, fraction: float) -> tuple[Samples, Samples]:
    """Split into examples to train on and examples to hold out, spread evenly over the data.

    The split is the same in every round. With fraction 0, or a single example, both are the whole.
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
    """Compute the mean loss of the net with these tensors over all samples, in evaluation mode."""
    net, own = client.net.eval(), client.net.state_dict()
    tensors = Tensors({k: match_memory_format(v, own[k]) for k, v in tensors.items()})
    batches = samples.batches(250)
    sums = [client.loss(answer(net, tensors, x), y) * len(y) for x, y in batches]
    return torch.stack(sums).sum() / len(samples)


def compute_gains(
    client: Client, before: Tensors, candidates: Sequence[Tensors], samples: Samples, norm: str
) -> Tensor:
    """Compute how much smaller each candidate's loss is than that of ``before``, per distance.

    The distance is the ``norm`` of the difference, "l1" or "l2". The gain is 0 for a candidate that
    is the same, or empty.
    """
    loss, learned = compute_loss(client, before, samples), list(params(client.net))
    gains = loss.new_zeros(len(candidates))
    for i, candidate in enumerate(candidates):
        moved = candidate.only(*learned) - before
        far = moved.map(torch.abs).sum() if norm == "l1" else moved.square().sqrt()
        if far > 0:
            gains[i] = (loss - compute_loss(client, candidate, samples)) / far
    return gains
