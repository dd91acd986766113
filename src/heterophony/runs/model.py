"""The trained model of a run: a module of its own that can be pickled, saved and exported."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from copy import copy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from ..core.algorithm import Algorithm, build_parts
from ..core.client import Client
from ..core.net import Net
from ..core.randomness import seeded
from ..core.samples import ClientData
from ..core.tensors import Memory, Tensors, load_into_net
from ..jobs.plan import Plan
from .model_input import ModelInput
from .prediction_needs import (
    AccessRecorder,
    ExamplesWithheldError,
    PredictingClient,
    RecordedTensors,
    list_reduced_data,
)


class Model(nn.Module):
    """A trained model. It takes examples as the data set has them, and returns logits."""

    def __init__(self, plan: Plan, client: Client, generic: bool) -> None:
        super().__init__()
        self.net, pool = client.net.eval(), plan.federation.x
        self._input = ModelInput(tuple(pool.shape[1:]), pool.dtype, client.data.test.scale)
        self._algorithm, self._generic = plan.algorithm, generic
        self._client: Client = PredictingClient(client)
        self._keep_what_is_needed(client, make_example(plan, client))
        # a parametrised net cannot be pickled: it is built again, and its tensors are loaded
        self._build_net: Callable[[], Net] | None = None
        if any(is_parametrized(m) for m in self.net.modules()):
            self._build_net = partial(build_net, plan.model, plan.algorithm, plan.federation.shape)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        x = self._input.convert(torch.as_tensor(x))
        memory, received = dict(self.memory.read()), self.received.read()[""]
        return self._predict(x, self._client.data, memory, received)

    def _predict(
        self, x: Tensor, data: ClientData, memory: dict[str, Tensors], received: Tensors
    ) -> Tensor:
        client = copy(self._client)
        client.net, client.data, client.memory, client.received = self.net, data, memory, received
        return (self._algorithm.generic if self._generic else self._algorithm.predict)(client, x)

    @torch.no_grad()
    def _keep_what_is_needed(self, client: Client, x: Tensor) -> None:
        """Keep only what prediction uses: for most algorithms, nothing but the net.

        A model that is saved must not contain the client's data without a need.
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
    """Return a batch of one example; of zeros if the client's examples are elsewhere."""
    with suppress(ExamplesWithheldError):
        if len(client.data.test):
            return client.data.test.batch(torch.arange(1))[0]
    pool = plan.federation.x
    return client.data.test.scale(torch.zeros(1, *pool.shape[1:], dtype=pool.dtype))


def build_net(model: Callable[[], Net], algorithm: Algorithm, shape: tuple[int, ...]) -> Net:
    """Build the net of a plan again, with any weights."""
    with seeded(0, "init"):  # leaves torch's generator as it was
        net = model()
        net.shape = shape
        net = build_parts(algorithm, net)
    return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


class TensorGroups(nn.Module):
    """Groups of named tensors as buffers: they are moved, saved and loaded with the model."""

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
    """Make one name of two; torch allows no dots in it."""
    return f"{group}|{name}".replace(".", ":")
