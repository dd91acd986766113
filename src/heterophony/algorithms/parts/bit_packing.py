"""What FedCAC sends beside a model: one bit per parameter, eight to a byte."""

import torch
from torch import Tensor
from torch.nn.functional import pad


def pack_bits(flags: Tensor) -> Tensor:
    """A flat row of flags as bytes, the first flag in the lowest bit."""
    whole = pad(flags.to(torch.uint8), (0, -len(flags) % 8)).view(-1, 8)
    return (whole << torch.arange(8, dtype=torch.uint8)).sum(1, dtype=torch.uint8)


def unpack_bits(packed: Tensor) -> Tensor:
    """The flags again, and up to seven more that are not set."""
    return (packed[:, None] >> torch.arange(8, dtype=torch.uint8) & 1).bool().flatten()
