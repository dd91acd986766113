"""Trained models for users: which tensors and data they keep, and how they convert users' examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from ..core.algorithm import Algorithm, build_parts
from ..core.client import Client
from ..core.errors import DataError
from ..core.net import Net
from ..core.randomness import seeded
from ..core.records import DTYPES, Field, Inputs, Record, pad_sequences
from ..core.samples import BYTES_TO_PLUS_MINUS_ONE, ClientData, Samples, Scale
from ..core.tensors import Memory, Tensors, load_into_net
from ..jobs.plan import Plan

LARGEST_FACTOR = 8  # numbers larger than the largest scaled byte by this factor were never scaled


@dataclass(frozen=True)
class ModelInput:
    """Converts a user's examples, in the layout of the run's data set, to network input."""

    shape: tuple[int, ...]  # shape of one example, as stored
    stored: torch.dtype
    scale: Scale

    def convert(self, x: Tensor) -> Tensor:
        """Convert examples to network input: scale uint8 values as in training, keep other numbers unchanged."""
        x = self.arrange_examples(x)
        if torch.compiler.is_compiling():  # an exporter, which cannot look at values
            return self.scale(x) if x.dtype == torch.uint8 else x
        if self.stored == torch.uint8 and not x.is_floating_point():
            return self.scale(self.check_bytes(x))
        if self.stored == torch.uint8:
            self.check_scaled(x)
        elif self.stored.is_floating_point and not x.is_floating_point():
            if x.dtype == torch.uint8 and len(self.shape) == 3:
                raise DataError(
                    "the model was trained on floating-point inputs, but these are uint8; convert them"
                    " in the same way as the training data, as in x.float() / 255"
                )
            x = x.float()
        return x.float() if x.dtype == torch.float64 else x

    def arrange_examples(self, x: Tensor) -> Tensor:
        """Convert a batch of examples to the layout of the data set; raise DataError for a wrong shape."""
        given, shape = tuple(x.shape[1:]), self.shape
        if given == shape or (not self.stored.is_floating_point and self.stored != torch.uint8):
            return x  # sequences of tokens may have any length
        if len(shape) == 3 and given == (*shape[1:], shape[0]):
            return x.movedim(-1, 1)
        if len(shape) == 3 and shape[0] == 1 and given == shape[1:]:
            return x.unsqueeze(1)
        raise DataError(self.describe_mismatch(tuple(x.shape)))

    def describe_mismatch(self, given: tuple[int, ...]) -> str:
        """Return the error message for model input of the wrong shape."""
        layouts = [self.shape]
        if len(self.shape) == 3:
            layouts.append((*self.shape[1:], self.shape[0]))
            if self.shape[0] == 1:
                layouts.append(self.shape[1:])
        alone = "; for a single example pass a batch of one: x[None]" if given in layouts else ""
        accepted = " or ".join("×".join(["N", *map(str, layout)]) for layout in layouts)
        return f"the model expects examples of {accepted}, not {'×'.join(map(str, given))}{alone}"

    def check_bytes(self, x: Tensor) -> Tensor:
        """Convert whole numbers from 0 to 255 to uint8; raise DataError for other values."""
        if x.dtype != torch.uint8 and x.numel() and not 0 <= int(x.min()) <= int(x.max()) <= 255:
            raise DataError(
                f"the model was trained on bytes, but these values range from {int(x.min())} to {int(x.max())};"
                " pass whole numbers from 0 to 255"
            )
        return x.to(torch.uint8)

    def check_scaled(self, x: Tensor) -> None:
        """Raise DataError if numbers are too large to be scaled uint8 values."""
        channels = len(self.scale.mean)
        ends = self.scale(
            torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1).repeat(1, channels, 1, 1)
        )
        limit = LARGEST_FACTOR * float(ends.abs().max())
        largest = float(x.detach().abs().max()) if x.numel() else 0.0
        if largest > limit:
            raise DataError(
                f"the model was trained on bytes, but numbers up to {largest:g} are not scaled as in"
                " training; pass the bytes themselves (torch.uint8)"
            )


def derive_without_cache(name: str, make: Callable[[], Samples]) -> Samples:
    """Compute a client's derived samples, such as a balanced set, without storing them."""
    return make()


class PredictingClient(Client):
    """A copy of a client for a trained model, without references to the plan or to the plan's net and data."""

    def __init__(self, client: Client) -> None:
        self.__dict__.update(client.__dict__)
        self._cache_derived = derive_without_cache
        self.memory, self.received = {}, Tensors()
        del self.net, self.data


class AccessRecorder(dict[str, Any]):
    """A dict that records which keys a prediction reads."""

    def __init__(self, items: Mapping[str, Any]) -> None:
        super().__init__(items)
        self.used = set[str]()

    def list_used(self) -> list[str]:
        """List the keys that were read, in the order of the dict."""
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
    """A client's received tensors, which record which of them a prediction reads."""


# The client's data that a prediction needs ------------------------------------------------------


class ExamplesWithheldError(Exception):
    """Raised if a model needs data of its client that are not available."""


class LabelsOnly(Samples):
    """Samples with labels only; access to examples raises an error."""

    def get_stored(self, at: Tensor) -> Tensor:
        raise ExamplesWithheldError

    def get_all_stored(self) -> Tensor:
        raise ExamplesWithheldError


class WithheldSamples(LabelsOnly):
    """Samples without examples and labels; any access raises an error."""

    def __len__(self) -> int:
        raise ExamplesWithheldError

    @property
    def labels(self) -> Tensor:
        raise ExamplesWithheldError


def withhold_data(data: ClientData) -> ClientData:
    """Return a client's data without examples and labels; access to them raises an error."""
    nothing = WithheldSamples(torch.empty(0), torch.empty(0), data.test.scale)
    return ClientData(nothing, nothing, data.classes)


def list_reduced_data(data: ClientData) -> Iterator[ClientData]:
    """Yield increasingly large parts of a client's data: nothing, labels, test examples, everything."""
    yield withhold_data(data)
    labels = [
        LabelsOnly(torch.empty(0), part.labels.clone(), part.scale)
        for part in (data.train, data.test)
    ]
    yield ClientData(labels[0], labels[1], data.classes)
    yield ClientData(labels[0], copy_samples(data.test), data.classes)
    yield ClientData(copy_samples(data.train), copy_samples(data.test), data.classes)


def copy_samples(samples: Samples) -> Samples:
    """Copy a client's samples, so that they do not refer to the data of all clients."""
    stored, labels = samples.get_all_stored().clone(), samples.labels.clone()
    return Samples(stored, labels, samples.scale, None, samples.image_transform)


def convert_record(record: Record, given: Any) -> Inputs:
    """Convert a user's arrays to the input of a net with several inputs.

    Sequences may be lists of different lengths, or padded, with a mask.
    """
    if isinstance(given, Mapping):
        named = dict(given)
    else:
        names = [f.name for f in record.fields]
        masks = dict.fromkeys(f.mask for f in record.fields if f.mask)
        parts = given if isinstance(given, tuple) else (given,)
        if not len(names) <= len(parts) <= len(names) + len(masks):
            raise DataError(f"the model expects {record.describe()}, not {len(parts)} arrays")
        named = dict(zip([*names, *masks], parts, strict=False))
    inputs, found = dict[str, Tensor](), dict[str, Tensor]()
    for field in record.fields:
        if field.name not in named:
            raise DataError(f"the model expects {record.describe()}; '{field.name}' is missing")
        inputs[field.name], mask = convert_field(field, named[field.name])
        if field.mask and mask is not None:
            found[field.mask] = torch.as_tensor(named.get(field.mask, mask))
    return record.arrange(inputs, found)


def convert_field(field: Field, values: Any) -> tuple[Tensor, Tensor | None]:
    """Convert one array of a user's examples; if it holds sequences, also return their mask."""
    if not field.is_sequence:
        how = ModelInput(field.shape, DTYPES[field.dtype], BYTES_TO_PLUS_MINUS_ONE)
        return how.convert(torch.as_tensor(values)), None
    if isinstance(values, list | tuple):
        values, mask = pad_sequences([torch.as_tensor(v) for v in values])
    else:
        values = torch.as_tensor(values)
        mask = torch.ones(values.shape[:2], dtype=torch.bool, device=values.device)
    return field.convert(values.float() if values.dtype == torch.float64 else values), mask


class Model(nn.Module):
    """A trained model, which accepts examples in the layout of the data set and returns logits."""

    def __init__(self, plan: Plan, client: Client, generic: bool) -> None:
        super().__init__()
        self.net, pool = client.net.eval(), plan.federation.x
        self._input = ModelInput(tuple(pool.shape[1:]), pool.dtype, client.data.test.scale)
        self._columns, self._record = plan.federation.columns, plan.federation.record
        self._algorithm, self._generic = plan.algorithm, generic
        self._client: Client = PredictingClient(client)
        self._keep_what_is_needed(client, make_example(plan, client))
        # a parametrised net cannot be pickled: it is built again, and its tensors are loaded
        self._build_net: Callable[[], Net] | None = None
        if any(is_parametrized(m) for m in self.net.modules()):
            self._build_net = partial(build_net, plan.model, plan.algorithm, plan.federation.shape)
        self.eval()

    def forward(self, x: Any = None, *more: Any, **named: Any) -> Tensor:
        memory, received = dict(self.memory.read()), self.received.read()[""]
        return self._predict(self._convert(x, more, named), self._client.data, memory, received)

    def _convert(self, x: Any, more: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        """Convert a user's examples to network input."""
        if self._record is not None:
            if named:
                return convert_record(self._record, named if x is None else {"x": x, **named})
            return convert_record(self._record, (x, *more) if more else x)
        if more or named:
            raise TypeError("this model takes one input")
        if self._columns.accepts(x):  # rows of a table: encoded as in training
            x = torch.from_numpy(self._columns.encode(x))
        return self._input.convert(torch.as_tensor(x))

    def _predict(
        self, x: Tensor, data: ClientData, memory: dict[str, Tensors], received: Tensors
    ) -> Tensor:
        """Predict for network input, with the given client state."""
        client = copy(self._client)
        client.net, client.data, client.memory, client.received = self.net, data, memory, received
        return (self._algorithm.generic if self._generic else self._algorithm.predict)(client, x)

    @torch.no_grad()
    def _keep_what_is_needed(self, client: Client, x: Tensor) -> None:
        """Keep the tensors and data that prediction uses: for most algorithms, only the net.

        A saved model must not contain the client's data unless prediction needs them.
        """
        memory, received = AccessRecorder(client.memory), RecordedTensors(client.received)
        expected = self._predict(x, client.data, memory, received)
        self.memory = TensorGroups({k: client.memory[k] for k in memory.list_used()})
        named = {k: client.received[k] for k in received.list_used()}
        self.received = TensorGroups({"": Tensors(named)})
        for data in list_reduced_data(client.data):
            try:
                logits = self._predict(x, data, memory, received)
            except ExamplesWithheldError:
                continue
            if torch.allclose(logits, expected, rtol=0, atol=0, equal_nan=True):
                break
        self._client.data = data

    def __getstate__(self) -> dict[str, Any]:
        content = dict(self.__dict__)
        if self._build_net is not None:
            modules = dict(self._modules)
            content["_tensors"], content["_modules"] = Tensors(self.net.state_dict()), modules
            del modules["net"]
        return content

    def __setstate__(self, content: dict[str, Any]) -> None:
        tensors = content.pop("_tensors", None)
        super().__setstate__(content)  # type: ignore[no-untyped-call]
        if self._build_net is not None:
            net = self._build_net()
            load_into_net(net, tensors)
            self.net = net.train(self.training)


def make_example(plan: Plan, client: Client) -> Tensor:
    """Return one of the client's examples as a batch, or zeros if its examples are on a board."""
    with suppress(ExamplesWithheldError):
        if len(client.data.test):
            return client.data.test.batch(torch.arange(1))[0]
    pool = plan.federation.x
    return client.data.test.scale(torch.zeros(1, *pool.shape[1:], dtype=pool.dtype))


def build_net(model: Callable[[], Net], algorithm: Algorithm, shape: tuple[int, ...]) -> Net:
    """Build the net of a plan again, with arbitrary weights."""
    with seeded(0, "init"):  # leaves torch's generator as it was
        net = model()
        net.shape = shape
        net = build_parts(algorithm, net)
    return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


class TensorGroups(nn.Module):
    """Groups of named tensors, stored as a model's buffers so that they are moved, saved and loaded with it."""

    def __init__(self, groups: Memory) -> None:
        super().__init__()
        self.names = {group: list(tensors) for group, tensors in groups.items()}
        for group, tensors in groups.items():
            for name, tensor in tensors.items():
                self.register_buffer(make_buffer_name(group, name), tensor.detach().clone())

    def read(self) -> Memory:
        """Return the tensors by group and name."""
        return {
            group: Tensors({n: self.get_buffer(make_buffer_name(group, n)) for n in names})
            for group, names in self.names.items()
        }


def make_buffer_name(group: str, name: str) -> str:
    """Return the buffer's name for a tensor of a group; torch allows no dots in it."""
    return f"{group}|{name}".replace(".", ":")
