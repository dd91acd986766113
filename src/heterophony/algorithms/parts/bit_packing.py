"""Pack one flag per parameter into bytes, as FedCAC sends them beside a model."""

import numpy as np
import torch
from torch import Tensor


def pack_bits(flags: Tensor) -> Tensor:
    """Pack a flat tensor of flags into bytes, the first flag in the lowest bit."""
    rows = torch.cat([flags, flags.new_zeros(-len(flags) % 8)]).view(-1, 8)
    values = flags.new_tensor([1 << i for i in range(8)], dtype=torch.uint8)
    return (rows * values).sum(1, dtype=torch.uint8)


def unpack_bits(packed: Tensor) -> Tensor:
    """Return the flags again, followed by up to seven that are not set."""
    return torch.from_numpy(np.unpackbits(packed.numpy(), bitorder="little")).bool()
