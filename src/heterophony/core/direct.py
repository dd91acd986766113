"""Training steps without autograd, for nets of plain layers and SGD: one client, or many at once.

``compile_net`` lists the layers of a net. A ``Stack`` holds the parameters of several clients, stacked
in memory. A ``Frame`` holds the operations of one training step for some of them: the kernels that autograd
would call, with the backward pass written out. Matrix products run for all clients at once, other layers
client by client. A step costs a fraction of the time and gives each client the same bits as autograd on
that client alone: ``groups.check_pass`` verifies this before any of it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from .net import Net
from .tasks import TASKS

Operation = Callable[[], object]
Aten: Any = torch.ops.aten
# how a stack lies in memory: without gaps, or with slices that start at multiples of 64 bytes
PACKED, ALIGNED = 1, 2
ALIGNED_FLOATS = 16
SMALL_PRODUCT = 400  # multiplications: for fewer, torch's batched product uses its own loop
CASCADE_LEVELS = 8  # levels of torch's summation of losses


# The layers of a net ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Layer:
    """A layer: its kind, the names of its parameters (empty if it has none), and its settings."""

    kind: str
    weight: str = ""
    bias: str = ""
    settings: tuple[Any, ...] = ()

    @property
    def names(self) -> list[str]:
        return [name for name in (self.weight, self.bias) if name]


Layers = tuple[Layer, ...]


@dataclass(frozen=True)
class Activation:
    """An activation: its forward pass, and its backward pass from gradient, input, output and settings."""

    forward: Callable[..., Tensor]
    backward: Callable[..., Tensor]
    settings: tuple[str, ...] = ()  # attributes of the module
    rounds: bool = True  # whether it rounds: its bits may then depend on an entry's position, so it runs client by client


ACTIVATIONS: dict[type[nn.Module], Activation] = {
    nn.ReLU: Activation(torch.relu, lambda g, x, y: Aten.threshold_backward(g, y, 0), (), False),
    nn.Tanh: Activation(torch.tanh, lambda g, x, y: Aten.tanh_backward(g, y)),
    nn.Sigmoid: Activation(torch.sigmoid, lambda g, x, y: Aten.sigmoid_backward(g, y)),
    nn.LeakyReLU: Activation(
        nn.functional.leaky_relu,
        lambda g, x, y, slope: Aten.leaky_relu_backward(g, x, slope, False),
        ("negative_slope",),
    ),
    nn.GELU: Activation(
        lambda x, how: nn.functional.gelu(x, approximate=how),
        lambda g, x, y, how: Aten.gelu_backward(g, x, approximate=how),
        ("approximate",),
    ),
}
BY_NAME = {kind.__name__: activation for kind, activation in ACTIVATIONS.items()}


@dataclass(frozen=True)
class CompiledNet:
    """The layers of a net and the parameters that they use, by name."""

    layers: Layers
    parameters: dict[str, nn.Parameter]


def compile_net(net: nn.Module) -> CompiledNet | None:
    """List the layers of a net that computes ``head(base(x))``; return None if any layer is not plain."""
    if type(net).forward is not Net.forward or not is_plain(net) or _has_any_global_hook():
        return None
    layers, used = list[Layer](), dict[str, nn.Parameter]()
    for part in ("base", "head"):
        if not add_layers(layers, used, net._modules[part], part):
            return None
    if len(set(map(id, used.values()))) < len(used) or not all(map(is_dense, used.values())):
        return None
    return CompiledNet(tuple(layers), used)


def add_layers(
    layers: list[Layer], used: dict[str, nn.Parameter], module: nn.Module | None, name: str
) -> bool:
    """Add a module's layers and their parameters; return False if the module is not plain."""
    kind: Any = type(module)
    if module is None or not is_plain(module):
        return False
    if kind is nn.Sequential:
        parts = module._modules.items()
        return all(add_layers(layers, used, part, f"{name}.{k}") for k, part in parts)
    m: Any = module
    names = {k: f"{name}.{k}" for k, p in m._parameters.items() if p is not None}
    parameters = names.get("weight", ""), names.get("bias", "")
    if kind in ACTIVATIONS:
        settings = tuple(getattr(m, s) for s in ACTIVATIONS[kind].settings)
        layers.append(Layer(kind.__name__, settings=settings))
    elif kind is nn.Flatten and (m.start_dim, m.end_dim) == (1, -1):
        layers.append(Layer("flatten"))
    elif kind is nn.MaxPool2d and not m.return_indices:
        pooling = (m.kernel_size, m.stride, m.padding, m.dilation, m.ceil_mode)
        layers.append(Layer("pool", settings=pooling))
    elif kind is nn.Linear and parameters[0]:
        layers.append(Layer("linear", *parameters))
    elif kind is nn.Conv2d and m.padding_mode == "zeros" and not isinstance(m.padding, str):
        settings = (m.stride, m.padding, m.dilation, m.groups)
        layers.append(Layer("conv", *parameters, settings))
    elif kind is not nn.Identity:
        return False
    used.update((names[k], p) for k, p in m._parameters.items() if p is not None)
    return True


def is_plain(module: nn.Module) -> bool:
    """Return True if calling a module only runs its class's ``forward``: it has no hooks."""
    return "forward" not in module.__dict__ and not (
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def is_dense(parameter: Tensor | None) -> bool:
    """Return True if this is an ordinary float32 parameter, contiguous in memory."""
    if type(parameter) is not nn.Parameter or parameter.dtype != torch.float32:
        return False
    expected = 1
    for step, size in sorted(zip(parameter.stride(), parameter.shape, strict=True)):
        if size > 1 and step != expected:
            return False
        expected *= size
    return expected > 0


# Parameters of several clients ------------------------------------------------------------------


class Slices:
    """One tensor for each of ``count`` clients, all of the same shape and contiguous in memory.

    ``each`` has the clients as its first dimension; ``flat`` is the whole memory, in one dimension.
    """

    def __init__(self, count: int, shape: Sequence[int], unit: int, like: Tensor) -> None:
        self.shape, self.step = tuple(shape), -(-prod(shape) // unit) * unit
        inner = like.stride() if like.shape == self.shape else make_strides(shape)
        self.flat = torch.zeros(count * self.step, dtype=torch.float32, device=like.device)
        self.each = self.flat.as_strided((count, *shape), (self.step, *inner))

    def between(self, first: int, last: int) -> Tensor:
        """Return the memory of clients ``first`` to ``last`` (exclusive), in one dimension."""
        return self.flat[first * self.step : last * self.step]


def make_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor of this shape."""
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


@dataclass(frozen=True)
class Rates:
    """The settings of SGD, and the learning rate of each trained parameter."""

    by_name: tuple[tuple[str, float], ...]
    momentum: float
    nesterov: bool
    weight_decay: float

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.by_name)


class Stack:
    """Parameters, gradients and momentum of several clients, stacked.

    The clients' parameters become slices of the stack, so their nets show the current values during training.
    """

    def __init__(
        self, clients: Sequence[Mapping[str, nn.Parameter]], rates: Rates, packing: int
    ) -> None:
        """``packing`` is how the slices lie in memory."""
        first, count = clients[0], len(clients)
        unit = self.unit = ALIGNED_FLOATS if packing == ALIGNED else 1
        self.rates, self.like = rates, next(iter(first.values()))
        self.values = {k: Slices(count, p.shape, unit, p) for k, p in first.items()}
        self.grads = {k: Slices(count, first[k].shape, unit, first[k]) for k in rates.names}
        buffers = rates.names if rates.momentum else ()
        self.momentum = {k: Slices(count, first[k].shape, unit, first[k]) for k in buffers}
        for i, parameters in enumerate(clients):
            for k, p in parameters.items():
                place = self.values[k].each[i]
                place.copy_(p.detach())
                p.data = place

    def make_update(self, first: int, last: int) -> Callable[[bool], None]:
        """Return a function that runs one SGD step for some clients; ``fresh`` marks their first step."""
        groups = list[tuple[float, list[Tensor], list[Tensor], list[Tensor]]]()
        for lr in dict.fromkeys(lr for _, lr in self.rates.by_name):
            names = [k for k, rate in self.rates.by_name if rate == lr]
            parts = (self.values, self.grads, self.momentum)
            lists = [
                [v for k in names if k in part for v in list_updated(part[k], first, last)]
                for part in parts
            ]
            groups.append((lr, lists[0], lists[1], lists[2]))
        rates = self.rates

        def update(fresh: bool) -> None:
            for lr, values, grads, momentum in groups:
                torch._fused_sgd_(
                    values,
                    grads,
                    momentum,
                    weight_decay=rates.weight_decay,
                    momentum=rates.momentum,
                    lr=lr,
                    dampening=0.0,
                    nesterov=rates.nesterov,
                    maximize=False,
                    is_first_step=fresh,
                )

        return update


def list_updated(slices: Slices, first: int, last: int) -> list[Tensor]:
    """List the tensors that SGD updates for one parameter: one for all clients together, or one per client.

    Clients are stacked only if each one's entries fill whole processor vectors: a tail would be rounded
    differently inside a stack than alone.
    """
    if prod(slices.shape) % ALIGNED_FLOATS == 0:
        return [slices.between(first, last)]
    return list(slices.each[first:last])


# One step ---------------------------------------------------------------------------------------


class Frame:
    """The operations of one training step for some of a stack's clients, whose mini-batches have equal sizes.

    ``run_forward`` computes the outputs, ``run_backward`` the gradients. The output of a layer is one tensor
    of slices if the next layer is a matrix product, and otherwise a list with one tensor for each client.
    """

    def __init__(self, stack: Stack, layers: Layers, clients: tuple[int, int], x: Tensor) -> None:
        """``x`` is one client's mini-batch; those of the other clients have the same shape."""
        self.stack = stack
        self.first, self.last = clients
        self.count, self.batch = self.last - self.first, len(x)
        trained = [i for i, layer in enumerate(layers) if set(layer.names) & stack.grads.keys()]
        self.lowest = trained[0]
        self.forward, self.backward = list[Operation](), list[Operation]()
        self.takes_rows = x.dim() == 2 or layers[0].kind == "flatten"
        self.images = list[Tensor]()
        self.rows = self.new_rows(prod(x.shape[1:])) if self.takes_rows else None
        self.shape: tuple[int, ...] = (prod(x.shape[1:]),) if self.takes_rows else x.shape[1:]
        here: Slices | list[Tensor] = self.images if self.rows is None else self.rows
        undo = list[Callable[[Any], Any]]()
        for i, layer in enumerate(layers):
            self.may_overwrite = i > 0 and layers[i - 1].kind == "linear"
            here, back = self.add_layer(layer, here, i)
            undo.append(back)
        if not isinstance(here, Slices):
            raise NotImplementedError("the output of the net has more than two dimensions")
        self.output = here
        gradient: Any = self.new_rows(here.shape[-1])
        self.output_gradient = gradient
        for i in range(len(layers) - 1, self.lowest - 1, -1):
            gradient = undo[i](gradient)

    def new_rows(self, columns: int) -> Slices:
        return Slices(self.count, (self.batch, columns), self.stack.unit, self.stack.like)

    def add_layer(
        self, layer: Layer, here: Slices | list[Tensor], i: int
    ) -> tuple[Slices | list[Tensor], Callable[[Any], Any]]:
        """Add the forward pass of a layer; return its output and a function that adds its backward pass."""
        if not isinstance(here, Slices):
            if layer.kind == "linear":
                raise NotImplementedError("a linear layer on images")
            return (
                self.add_flatten(here)
                if layer.kind == "flatten"
                else self.add_apart(layer, here, i)
            )
        if layer.kind == "flatten":
            return here, lambda gradient: gradient
        if layer.kind == "linear":
            return self.add_linear(layer, here, i)
        if layer.kind in BY_NAME:
            return self.add_activation(layer, here)
        raise NotImplementedError(f"{layer.kind} on rows")

    def add_linear(self, layer: Layer, x: Slices, i: int) -> tuple[Slices, Callable[[Any], Any]]:
        part = slice(self.first, self.last)
        weight = self.stack.values[layer.weight].each[part]
        y = self.new_rows(weight.shape[1])
        turned = weight.transpose(1, 2)
        bias = self.stack.values[layer.bias].each[part] if layer.bias else None
        self.forward.append(make_product(x.each, turned, y.each, bias))

        def undo(gradient: Slices) -> Slices | None:
            grads = self.stack.grads
            if layer.weight in grads:
                out = grads[layer.weight].each[part]
                self.backward.append(make_product(gradient.each.transpose(1, 2), x.each, out))
            if layer.bias in grads:
                out = grads[layer.bias].each[part]
                self.backward.append(partial(torch.sum, gradient.each, 1, out=out))
            if i == self.lowest:
                return None
            below = self.new_rows(weight.shape[2])
            self.backward.append(make_product(gradient.each, weight, below.each))
            return below

        return y, undo

    def add_activation(self, layer: Layer, x: Slices) -> tuple[Slices, Callable[[Any], Any]]:
        if layer.kind == "ReLU" and self.may_overwrite:  # a linear layer does not need its output
            return self.add_relu(x)
        chosen, y = BY_NAME[layer.kind], self.new_rows(x.shape[-1])
        xs, ys = (list(v.each) if chosen.rounds else [v.flat] for v in (x, y))

        def forward() -> None:
            for a, b in zip(xs, ys, strict=True):
                b.copy_(chosen.forward(a, *layer.settings))

        def undo(gradient: Slices) -> Slices:
            gradients = list(gradient.each) if chosen.rounds else [gradient.flat]

            def backward() -> None:
                for g, a, b in zip(gradients, xs, ys, strict=True):
                    g.copy_(chosen.backward(g, a, b, *layer.settings))

            self.backward.append(backward)
            return gradient

        self.forward.append(forward)
        return y, undo

    def add_relu(self, x: Slices) -> tuple[Slices, Callable[[Any], Any]]:
        """Add ReLU in place, for all clients at once."""
        self.forward.append(partial(torch.relu_, x.flat))

        def undo(gradient: Slices) -> Slices:
            how = (gradient.flat, x.flat, 0)
            kernel = Aten.threshold_backward.grad_input
            self.backward.append(partial(kernel, *how, grad_input=gradient.flat))
            return gradient

        return x, undo

    def add_flatten(self, images: list[Tensor]) -> tuple[Slices, Callable[[Any], Any]]:
        rows = self.new_rows(prod(self.shape))
        places, shape = list(rows.each), (self.batch, *self.shape)
        self.shape = (prod(self.shape),)

        def forward() -> None:
            for place, image in zip(places, images, strict=True):
                place.copy_(image.flatten(1))

        def undo(gradient: Slices) -> list[Tensor]:
            return [part.reshape(shape) for part in gradient.each]

        self.forward.append(forward)
        return rows, undo

    def add_apart(
        self, layer: Layer, xs: list[Tensor], i: int
    ) -> tuple[list[Tensor], Callable[[Any], Any]]:
        """Add a layer that runs client by client: a convolution, pooling or an activation."""
        ys, runs = list[Tensor](), self.make_runs(layer, i)
        probe = self.stack.like.new_zeros((1, *self.shape))
        self.shape = tuple(runs[0].forward(probe).shape[1:])

        def forward() -> None:
            ys[:] = [run.forward(x) for run, x in zip(runs, xs, strict=True)]

        def undo(gradients: list[Tensor]) -> list[Tensor]:
            below = list[Tensor]()

            def backward() -> None:
                parts = zip(runs, gradients, xs, ys, strict=True)
                below[:] = [run.backward(g, x, y) for run, g, x, y in parts]

            self.backward.append(backward)
            return below

        self.forward.append(forward)
        return ys, undo

    def make_runs(self, layer: Layer, i: int) -> list[ApartLayer]:
        """Return one layer per client of the frame."""
        part = range(self.first, self.last)
        if layer.kind == "pool":
            return [PoolOfClient(layer.settings) for _ in part]
        if layer.kind == "conv":
            return [ConvolutionOfClient(self.stack, layer, c, i > self.lowest) for c in part]
        return [ActivationOfClient(layer) for _ in part]

    def run_forward(self, x: Tensor | Sequence[Tensor]) -> None:
        """Compute the outputs for one mini-batch per client: one tensor of rows, or a list of images."""
        if self.rows is not None:
            assert isinstance(x, Tensor)
            self.rows.each.copy_(x)
        else:
            self.images[:] = x
        for operation in self.forward:
            operation()

    def run_backward(self) -> None:
        """Compute all gradients from the output's gradient, which is in ``output_gradient``."""
        for operation in self.backward:
            operation()


def make_product(a: Tensor, b: Tensor, out: Tensor, bias: Tensor | None = None) -> Operation:
    """Return an operation that computes one matrix product per client, with the single-product kernel."""
    if prod(a.shape[1:]) * b.shape[2] >= SMALL_PRODUCT:
        if bias is None:
            return partial(torch.bmm, a, b, out=out)
        return partial(torch.baddbmm, bias.unsqueeze(1), a, b, out=out)

    def multiply() -> None:
        for i in range(len(a)):
            if bias is None:
                torch.mm(a[i], b[i], out=out[i])
            else:
                torch.addmm(bias[i], a[i], b[i], out=out[i])

    return multiply


class ApartLayer:
    """One client's layer; it returns new tensors, as autograd's kernels do."""

    def forward(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def backward(self, gradient: Tensor, x: Tensor, y: Tensor) -> Tensor:
        raise NotImplementedError


class ActivationOfClient(ApartLayer):
    """The activation layer of one client's net."""

    def __init__(self, layer: Layer) -> None:
        self.chosen, self.settings = BY_NAME[layer.kind], layer.settings

    def forward(self, x: Tensor) -> Tensor:
        return self.chosen.forward(x, *self.settings)

    def backward(self, gradient: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return self.chosen.backward(gradient, x, y, *self.settings)


class PoolOfClient(ApartLayer):
    """Max pooling in one client's net."""

    def __init__(self, settings: tuple[Any, ...]) -> None:
        self.settings, self.indices = settings, torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor
        y, self.indices = Aten.max_pool2d_with_indices(x, *as_pairs(self.settings))
        return y

    def backward(self, gradient: Tensor, x: Tensor, y: Tensor) -> Tensor:
        how = (*as_pairs(self.settings), self.indices)
        out: Tensor = Aten.max_pool2d_with_indices_backward(gradient, x, *how)
        return out


def as_pairs(settings: tuple[Any, ...]) -> list[Any]:
    """Return a layer's settings with each integer, such as a stride, as a pair for height and width."""
    return [[v, v] if type(v) is int else v for v in settings]


class ConvolutionOfClient(ApartLayer):
    """A convolution in one client's net."""

    def __init__(self, stack: Stack, layer: Layer, client: int, has_below: bool) -> None:
        self.weight = stack.values[layer.weight].each[client]
        self.bias = stack.values[layer.bias].each[client] if layer.bias else None
        places = [stack.grads.get(name) for name in (layer.weight, layer.bias)]
        self.grads = [None if place is None else place.each[client] for place in places]
        self.settings, self.has_below = layer.settings, has_below

    def forward(self, x: Tensor) -> Tensor:
        return torch.conv2d(x, self.weight, self.bias, *self.settings)

    def backward(self, gradient: Tensor, x: Tensor, y: Tensor) -> Tensor:
        stride, padding, dilation, groups = self.settings
        sizes = None if self.bias is None else list(self.bias.shape)
        mask = [self.has_below, *(g is not None for g in self.grads)]
        how = (sizes, stride, padding, dilation, False, [0, 0], groups, mask)
        below, *found = Aten.convolution_backward(gradient, x, self.weight, *how)
        for place, grad in zip(self.grads, found, strict=True):
            if place is not None:
                place.copy_(grad)
        out: Tensor = below if self.has_below else gradient
        return out


# Losses -----------------------------------------------------------------------------------------

CLASS_LOSS = TASKS["classification"].loss
OWN_LOSSES = tuple(task.loss for task in TASKS.values() if task.name != "sequence")


def add_as_torch(losses: Tensor) -> Tensor:
    """Add the losses of a mini-batch (the last dimension) in the order used by torch's ``nll_loss``."""
    size = losses.shape[-1]
    power = max(4, (size - 1).bit_length() // CASCADE_LEVELS)
    sums: list[Tensor | None] = [None] * CASCADE_LEVELS
    for b in range(size):
        moved: Tensor | None = losses[..., b] if sums[0] is None else sums[0] + losses[..., b]
        sums[0] = moved
        for j in range(CASCADE_LEVELS - 1):
            if b & ((1 << power) - 1) << (j * power):
                break
            above = sums[j + 1]
            sums[j + 1] = sums[j] if above is None else above + sums[j]  # type: ignore[operator]
            sums[j] = None
    total: Tensor | None = None
    for part in sums:
        if part is not None:
            total = part if total is None else total + part
    assert total is not None
    return total
