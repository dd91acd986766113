"""What a trained model keeps of its client: no more than its prediction reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from ..core.client import Client
from ..core.samples import ClientData, Samples
from ..core.tensors import Tensors


def derive_again(name: str, make: Callable[[], Samples]) -> Samples:
    """Compute derived samples without storing them."""
    return make()


class PredictingClient(Client):
    """A copy of a client that refers neither to the plan nor to its net, tensors and data."""

    def __init__(self, client: Client) -> None:
        self.__dict__.update(client.__dict__)
        self._cache_derived = derive_again
        self.memory, self.received = {}, Tensors()
        del self.net, self.data


class AccessRecorder(dict[str, Any]):
    """A dict that records which of its keys are read."""

    def __init__(self, items: Mapping[str, Any]) -> None:
        super().__init__(items)
        self.used = set[str]()

    def list_used(self) -> list[str]:
        """List the keys that were read, in order."""
        return [k for k in dict.keys(self) if k in self.used]

    def __getitem__(self, key: str) -> Any:
        self.used.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.used.add(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self.used.add(str(key))
        return super().__contains__(key)

    def __iter__(self) -> Iterator[str]:
        self.used.update(dict.keys(self))
        return super().__iter__()

    def keys(self) -> Any:
        self.used.update(dict.keys(self))
        return super().keys()

    def items(self) -> Any:
        self.used.update(dict.keys(self))
        return super().items()

    def values(self) -> Any:
        self.used.update(dict.keys(self))
        return super().values()


class RecordedTensors(AccessRecorder, Tensors):
    """Received tensors that record what is read."""


# The client's data, as little of them as prediction needs ---------------------------------------


class ExamplesWithheldError(Exception):
    """A model asks for data of its client that it does not keep."""


class LabelsOnly(Samples):
    """Samples whose labels are known and whose examples are not kept."""

    def get_stored(self, at: Tensor) -> Tensor:
        raise ExamplesWithheldError

    def get_all_stored(self) -> Tensor:
        raise ExamplesWithheldError


class WithheldSamples(LabelsOnly):
    """Samples of which nothing is kept."""

    def __len__(self) -> int:
        raise ExamplesWithheldError

    @property
    def labels(self) -> Tensor:
        raise ExamplesWithheldError


def withhold_data(data: ClientData) -> ClientData:
    """Return data of which only the scale and the number of classes are known; others raise."""
    nothing = WithheldSamples(torch.empty(0), torch.empty(0), data.test.scale)
    return ClientData(nothing, nothing, data.classes)


def list_reduced_data(data: ClientData) -> Iterator[ClientData]:
    """Iterate over more and more of a client's data: nothing, labels, test examples, everything."""
    yield withhold_data(data)
    labels = [
        LabelsOnly(torch.empty(0), part.labels.clone(), part.scale)
        for part in (data.train, data.test)
    ]
    yield ClientData(labels[0], labels[1], data.classes)
    yield ClientData(labels[0], copy_samples(data.test), data.classes)
    yield ClientData(copy_samples(data.train), copy_samples(data.test), data.classes)


def copy_samples(samples: Samples) -> Samples:
    """Copy the selected examples out of the pool that all clients share."""
    stored, labels = samples.get_all_stored().clone(), samples.labels.clone()
    return Samples(stored, labels, samples.scale, None, samples.image_transform)
