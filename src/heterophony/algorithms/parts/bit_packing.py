"""Pack one flag per parameter into bytes, as FedCAC sends them beside a model."""

import numpy as np
import torch
from torch import Tensor


def pack_bits(flags: Tensor) -> Tensor:
    """Pack a flat tensor of flags into bytes, the first flag in the lowest bit."""
    return torch.from_numpy(np.packbits(flags.numpy(), bitorder="little"))


def unpack_bits(packed: Tensor) -> Tensor:
    """Return the flags again, followed by up to seven that are not set."""
    return torch.from_numpy(np.unpackbits(packed.numpy(), bitorder="little")).bool()
