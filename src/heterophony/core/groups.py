"""Passes of training that need no autograd: alone, or those of several clients as one computation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod

import torch
from torch import Tensor, nn

from .client import Pull
from .direct import CLASS_LOSS, Aten, Frame, Layers, Rates, Stack, add_as_torch
from .samples import Samples, is_aligned
from .tasks import Criterion
from .tensors import Tensors

GATHERED_BYTES = 1 << 20  # of network input of all clients of a group, gathered at once


class DrawingPullError(Exception):
    """A ``pull`` draws random numbers: its draws would come in another order than with autograd."""


@dataclass(eq=False)
class DirectPass:
    """One client's pass of training, ready to run: its layers, parameters and mini-batches."""

    layers: Layers
    parameters: dict[str, nn.Parameter]  # that the layers use
    named: Tensors  # those that are trained
    rates: Rates
    loss: Criterion
    samples: Samples
    places: Tensor  # the positions of each step's examples; a short batch is filled up
    sizes: list[int]  # of the mini-batches
    momentum: dict[str, Tensor]  # to continue, or empty
    pull: Pull | None = None
    losses: list[float] = field(default_factory=list)  # of all steps, once it has run

    @property
    def key(self) -> tuple[object, ...]:
        """What must be equal in passes that run together."""
        x = self.samples.x
        shapes = tuple((k, tuple(p.shape), p.stride()) for k, p in self.parameters.items())
        data = (tuple(x.shape[1:]), x.dtype, self.samples.scale, str(self.first.device))
        return self.layers, shapes, self.rates, self.loss, data, self.places.shape[1]

    @property
    def first(self) -> nn.Parameter:
        return next(iter(self.parameters.values()))


def cut_batches(epochs: Sequence[Tensor], size: int) -> tuple[Tensor, list[int]]:
    """Cut the positions of epochs into mini-batches: one row each, and their sizes."""
    if all(len(at) % size == 0 for at in epochs):
        places = torch.cat(list(epochs)).view(-1, size)
        return places, [size] * len(places)
    parts = [part for at in epochs for part in at.split(size)]
    places = torch.zeros(len(parts), size, dtype=torch.int64)
    for row, part in zip(places, parts, strict=True):
        row[: len(part)] = part
    return places, [len(part) for part in parts]


# Mini-batches of several clients ------------------------------------------------------------------


def gather_steps(passes: Sequence[DirectPass], first: int, last: int) -> tuple[Tensor, Tensor]:
    """Gather examples and labels of some steps: by step, client and position in the mini-batch.

    Where a client has fewer steps, or a shorter mini-batch, any example stands in its place.
    """
    size = passes[0].places.shape[1]
    steps = [p.places[first:last] for p in passes]
    count = last - first
    if any(len(at) < count for at in steps):
        steps = [nn.functional.pad(at, (0, 0, 0, count - len(at))) for at in steps]
    one = passes[0].samples
    if all(type(p.samples) is Samples and p.samples.x is one.x for p in passes):
        chosen = [
            at if p.samples.rows is None else p.samples.rows[at.flatten()].view(count, size)
            for p, at in zip(passes, steps, strict=True)
        ]
        rows = torch.stack(chosen, 1).flatten()
        return one.convert(one.x[rows]), one.y[rows]
    parts = [p.samples.batch(at.flatten()) for p, at in zip(passes, steps, strict=True)]
    x, y = (
        torch.stack([v.unflatten(0, (count, size)) for v in part], 1)
        for part in zip(*parts, strict=True)
    )
    x, y = x.flatten(0, 2), y.flatten(0, 2)
    return (x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x), y


# The run ------------------------------------------------------------------------------------------


class GroupRun:
    """The training of some clients, the longest pass first: the stack shrinks as the others end."""

    def __init__(self, passes: Sequence[DirectPass], unit: int) -> None:
        self.passes = sorted(passes, key=lambda p: -len(p.sizes))
        one = self.passes[0]
        self.stack = Stack([p.parameters for p in self.passes], one.rates, unit)
        self.size, self.loss = one.places.shape[1], one.loss
        self.is_fresh = [not p.momentum for p in self.passes]
        for i, p in enumerate(self.passes):
            for k, v in p.momentum.items():
                self.stack.momentum[k].each[i].copy_(v)
        self.frames = dict[tuple[int, int, int], Frame]()
        self.updates = dict[tuple[int, int], Callable[[bool], None]]()
        self.kept = dict[tuple[int, int, int], list[tuple[int, Tensor, Tensor]]]()
        self.found: list[dict[int, float]] = [{} for _ in self.passes]

    def run(self) -> None:
        """Run all steps; leave the new parameters in the nets, momentum and losses in the passes."""
        step, total = 0, len(self.passes[0].sizes)
        while step < total:
            active = [p for p in self.passes if len(p.sizes) > step]
            x = active[0].samples.x
            one_step = len(active) * self.size * 4 * prod(x.shape[1:])
            end = min(total, step + max(1, GATHERED_BYTES // one_step))
            x, y = gather_steps(active, step, end)
            self.run_steps(x, y, len(active), range(step, end))
            self.read_losses()
            step = end
        for i, p in enumerate(self.passes):
            p.losses = [self.found[i][s] for s in range(len(p.sizes))]
            p.momentum.update({k: v.each[i] for k, v in self.stack.momentum.items()})

    def run_steps(self, x: Tensor, y: Tensor, count: int, steps: range) -> None:
        """Run some steps on the examples that were gathered for them, for the first ``count`` clients."""
        shape = (len(steps), count, self.size)
        y = y.view(*shape, *y.shape[1:])
        for at, step in enumerate(steps):
            for first, last, size in self.split_clients(step, count):
                frame = self.get_frame(first, last, size, x)
                if frame.takes_rows:
                    frame.run_net(x.view(*shape, -1)[at, first:last, :size])
                else:
                    begins = [(at * count + i) * self.size for i in range(first, last)]
                    images = [x[b : b + size] for b in begins]
                    frame.run_net([v if is_aligned(v) else v.clone() for v in images])
                self.set_slopes(frame, y[at, first:last, :size], step)
                frame.run_back()
                self.add_pulls(first, last, step)
                self.update(first, last, step)

    def split_clients(self, step: int, count: int) -> Iterator[tuple[int, int, int]]:
        """Part the clients that have this step into neighbours with mini-batches of one size."""
        sizes = [p.sizes[step] for p in self.passes[:count] if len(p.sizes) > step]
        first = 0
        for i in range(1, len(sizes) + 1):
            if i == len(sizes) or sizes[i] != sizes[first]:
                yield first, i, sizes[first]
                first = i

    def get_frame(self, first: int, last: int, size: int, x: Tensor) -> Frame:
        key = (first, last, size)
        if key not in self.frames:
            layers = self.passes[0].layers
            self.frames[key] = Frame(self.stack, layers, (first, last), x[:size])
        return self.frames[key]

    def set_slopes(self, frame: Frame, y: Tensor, step: int) -> None:
        """Compute the gradient of the loss by the output, and keep what gives the loss itself."""
        z, slope, key = (
            frame.output.each,
            frame.output_slope,
            (frame.first, frame.last, frame.batch),
        )
        if self.loss is CLASS_LOSS:
            logs = Aten._log_softmax(z, 2, False)
            target = torch.zeros_like(logs).scatter_(2, y.unsqueeze(2), -1.0 / frame.batch)
            slope.each.copy_(Aten._log_softmax_backward_data(target, logs, 2, torch.float32))
            self.kept.setdefault(key, []).append((step, logs, y))
            return
        for i, (output, labels) in enumerate(zip(z, y, strict=True), frame.first):
            with torch.enable_grad():
                leaf = output.detach().requires_grad_()
                value = self.loss(leaf, labels)
                (found,) = torch.autograd.grad(value, leaf)
            slope.each[i - frame.first].copy_(found)
            self.found[i][step] = value.item()

    def read_losses(self) -> None:
        """Compute the losses of the steps that were run, and forget what was kept for them."""
        for (first, _, size), parts in self.kept.items():
            logs, y = (torch.stack([part[i] for part in parts]) for i in (1, 2))
            picked = logs.gather(3, y.unsqueeze(3)).squeeze(3).neg_()
            values = add_as_torch(picked).div_(size).tolist()
            for (step, _, _), row in zip(parts, values, strict=True):
                for i, value in enumerate(row, first):
                    self.found[i][step] = value
        self.kept.clear()

    def add_pulls(self, first: int, last: int, step: int) -> None:
        """Add the terms of every client's ``pull`` to its gradients."""
        for i in range(first, last):
            one = self.passes[i]
            if one.pull is None:
                continue
            before = torch.default_generator.get_state() if step == 0 else None
            with torch.enable_grad():
                terms = one.pull(one.named.map(Tensor.detach))
            if before is not None and not torch.equal(before, torch.default_generator.get_state()):
                raise DrawingPullError
            for k, term in terms.items():
                self.stack.grads[k].each[i].add_(term)

    def update(self, first: int, last: int, step: int) -> None:
        """Do a step of SGD; in the first, clients without momentum get theirs."""
        fresh = self.is_fresh[first:last] if step == 0 and self.stack.momentum else [False]
        if len(set(fresh)) == 1:
            self.get_update(first, last)(fresh[0])
            return
        for i, is_fresh in enumerate(fresh, first):
            self.get_update(i, i + 1)(is_fresh)

    def get_update(self, first: int, last: int) -> Callable[[bool], None]:
        if (first, last) not in self.updates:
            self.updates[first, last] = self.stack.make_update(first, last)
        return self.updates[first, last]


def run_passes(passes: Sequence[DirectPass], unit: int) -> None:
    """Run passes of one key together."""
    with torch.no_grad():
        GroupRun(passes, unit).run()
