"""What a trained model accepts: examples in the layouts that data sets have, converted as in training."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.errors import DataError
from ..core.samples import Scale

LARGEST_FACTOR = 8  # numbers over so many times what bytes become were never scaled


@dataclass(frozen=True)
class ModelInput:
    """Converts examples to network input: those of the run's data set, as the user has them."""

    shape: tuple[int, ...]  # of one example, as stored
    stored: torch.dtype
    scale: Scale

    def convert(self, x: Tensor) -> Tensor:
        """Return network input. Bytes are scaled as in a test, other numbers are used unchanged."""
        x = self.arrange(x)
        if torch.compiler.is_compiling():  # an exporter, which cannot look at values
            return self.scale(x) if x.dtype == torch.uint8 else x
        if self.stored == torch.uint8 and not x.is_floating_point():
            return self.scale(self.check_bytes(x))
        if self.stored == torch.uint8:
            self.check_scaled(x)
        elif self.stored.is_floating_point and not x.is_floating_point():
            if x.dtype == torch.uint8 and len(self.shape) == 3:
                raise DataError(
                    "the model was trained on numbers, and these are bytes; convert them as the"
                    " training data were converted, as in x.float() / 255"
                )
            x = x.float()
        return x.float() if x.dtype == torch.float64 else x

    def arrange(self, x: Tensor) -> Tensor:
        """Bring a batch of examples into the stored layout; raise if its shape does not fit."""
        given, shape = tuple(x.shape[1:]), self.shape
        if given == shape or (not self.stored.is_floating_point and self.stored != torch.uint8):
            return x  # sequences of tokens may have any length
        if len(shape) == 3 and given == (*shape[1:], shape[0]):
            return x.movedim(-1, 1)
        if len(shape) == 3 and shape[0] == 1 and given == shape[1:]:
            return x.unsqueeze(1)
        raise DataError(self.describe_misfit(tuple(x.shape)))

    def describe_misfit(self, given: tuple[int, ...]) -> str:
        layouts = [self.shape]
        if len(self.shape) == 3:
            layouts.append((*self.shape[1:], self.shape[0]))
            if self.shape[0] == 1:
                layouts.append(self.shape[1:])
        alone = "; for a single example give a batch of one: x[None]" if given in layouts else ""
        accepted = " or ".join("×".join(["N", *map(str, layout)]) for layout in layouts)
        return f"the model takes examples of {accepted}, not {'×'.join(map(str, given))}{alone}"

    def check_bytes(self, x: Tensor) -> Tensor:
        """Return whole numbers from 0 to 255 as bytes; raise for others."""
        if x.dtype != torch.uint8 and x.numel() and not 0 <= int(x.min()) <= int(x.max()) <= 255:
            raise DataError(
                f"the model was trained on bytes, and {int(x.min())} to {int(x.max())} are none;"
                " give whole numbers from 0 to 255"
            )
        return x.to(torch.uint8)

    def check_scaled(self, x: Tensor) -> None:
        """Refuse numbers that are bytes in another type: scaled ones are not so large."""
        channels = len(self.scale.mean)
        ends = self.scale(
            torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1).repeat(1, channels, 1, 1)
        )
        limit = LARGEST_FACTOR * float(ends.abs().max())
        largest = float(x.detach().abs().max()) if x.numel() else 0.0
        if largest > limit:
            raise DataError(
                f"the model was trained on bytes, and numbers up to {largest:g} were not scaled as they"
                " were; give the bytes themselves (torch.uint8)"
            )
