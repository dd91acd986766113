"""A client's examples on the device of its job: they are copied there as they are stored, and stay."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from .compute import ON_CPU, Compute
from .image_transforms import ImageDraws
from .samples import ClientData, Samples

RESIDENT_BYTES = 1 << 30  # of one client's examples; of more, each batch is copied when it is used
Key = tuple[Hashable, ...]  # names examples of one federation


@dataclass(frozen=True, eq=False)
class DeviceSamples(Samples):
    """Samples whose batches are on a device. Positions are drawn on the CPU, as everywhere."""

    source: Samples = Samples(torch.empty(0), torch.empty(0))
    compute: Compute = ON_CPU
    key: Key | None = None  # of the cache; without it they leave the device with the job

    @property
    def device(self) -> torch.device:
        return self.compute.device

    @cached_property
    def labels(self) -> Tensor:
        return copy_to_device(self.source.labels, self.device)

    @cached_property
    def resident(self) -> Tensor | None:
        """All selected examples on the device, as stored; None if they are too many."""
        each = self.x[:1].nbytes
        if each * len(self) > RESIDENT_BYTES:
            return None
        if self.key is None:
            return self.copy_all()
        return self.compute.resident.get((str(self.device), *self.key), self.copy_all)

    def copy_all(self) -> Tensor:
        return copy_to_device(self.source.get_all_stored(), self.device)

    def select_examples(self, at: Tensor) -> Samples:
        return place_samples(self.source.select_examples(at.cpu()), self.compute)

    def get_stored(self, at: Tensor) -> Tensor:
        if self.resident is None:
            return copy_to_device(self.source.get_stored(at.cpu()), self.device)
        return self.resident[at.to(self.device)]

    def get_all_stored(self) -> Tensor:
        if self.resident is None:
            return self.copy_all()
        return self.resident

    def batch(self, at: Tensor, draws: ImageDraws | None = None) -> tuple[Tensor, Tensor]:
        x = self.get_stored(at)
        if self.image_transform is not None and draws is not None:
            at = at.cpu()
            x = self.image_transform(x, draws(at if self.rows is None else self.rows[at]))
        return self.convert(x), self.labels[at.to(self.device)]


def copy_to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to a device; to a CUDA device from pinned memory, without waiting for it."""
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def place_samples(samples: Samples, compute: Compute, key: Key | None = None) -> Samples:
    """Return the samples on the device of the job; on the CPU, the same object.

    With a ``key`` they stay there for later jobs, as long as there is room for them.
    """
    if compute.is_cpu:
        return samples
    return DeviceSamples(
        samples.x,
        samples.y,
        samples.scale,
        samples.rows,
        samples.image_transform,
        source=samples,
        compute=compute,
        key=key,
    )


def place_data(data: ClientData, compute: Compute, client: str) -> ClientData:
    """Return the client's data on the device of the job; on the CPU, the same object."""
    if compute.is_cpu:
        return data
    train = place_samples(data.train, compute, (client, "train"))
    test = place_samples(data.test, compute, (client, "test"))
    return ClientData(train, test, data.classes)


def get_stored_data(data: ClientData) -> ClientData:
    """Return the same data where they are stored: on the CPU."""
    train, test = (
        part.source if isinstance(part, DeviceSamples) else part for part in (data.train, data.test)
    )
    return data if train is data.train else ClientData(train, test, data.classes)
