"""Training passes that need no autograd: for a single client, or for several as one computation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod

import torch
from torch import Tensor, nn

from .direct import (
    ALIGNED,
    CLASS_LOSS,
    OWN_LOSSES,
    PACKED,
    Aten,
    Frame,
    Layers,
    Rates,
    Stack,
    add_as_torch,
    compile_net,
)
from .net import Net, copy_module
from .samples import Samples, is_aligned
from .tasks import Criterion
from .tensors import Tensors, params
from .training import SGD, Optimizer, Training, create_optimizer

Pull = Callable[[Tensors], Tensors]  # trained parameters -> term to add to the gradient

GATHERED_BYTES = 1 << 20  # network input of a whole group, gathered at once
GROUP_SIZE = 32  # clients that train together; larger groups are hardly faster
GROUP_PARAMETERS = 200_000  # largest net in a group; a single larger net already keeps a core busy


class DrawingPullError(Exception):
    """Raised when a ``pull`` draws random numbers: without autograd, their order would be different."""


@dataclass(eq=False)
class DirectPass:
    """One training pass of a client: its layers, parameters and mini-batches."""

    net: Net
    layers: Layers
    parameters: dict[str, nn.Parameter]  # parameters that the layers use
    optimiser: SGD
    loss: Criterion
    samples: Samples
    pull: Pull | None = None
    # positions of each step's examples
    places: Tensor = field(default_factory=lambda: torch.empty(0, 0))
    sizes: list[int] = field(default_factory=list)  # sizes of the mini-batches
    losses: list[float] = field(default_factory=list)  # losses of all steps, filled by the run

    def __post_init__(self) -> None:
        rates = {k: lr for lr, names in self.optimiser.groups for k in names}
        by_name = tuple((k, rates[k]) for k in self.parameters if k in rates)
        sgd = self.optimiser
        self.rates = Rates(by_name, sgd.momentum_factor, sgd.nesterov, sgd.how.weight_decay)
        self.momentum = {k: v for k, v in self.optimiser.momentum.items() if k in self.rates.names}

    @cached_property
    def shape_key(self) -> tuple[object, ...]:
        """The properties that decide which kernels run, besides the size of the mini-batch."""
        shapes = tuple((k, tuple(p.shape), p.stride()) for k, p in self.parameters.items())
        device = str(next(iter(self.parameters.values())).device)
        rates = self.rates
        how = (rates.names, rates.momentum, rates.nesterov, rates.weight_decay)
        data = (tuple(self.samples.x.shape[1:]), device)
        return self.layers, shapes, how, self.loss, data, self.pull is None

    @property
    def key(self) -> tuple[object, ...]:
        """The properties that must be equal in passes that run together."""
        data = (self.samples.x.dtype, self.samples.scale, self.places.shape[1])
        return self.shape_key, self.rates, data


def is_small(parameters: Iterable[nn.Parameter]) -> bool:
    """Return True if a net with these parameters is small enough to train in a group of clients."""
    return sum(p.numel() for p in parameters) <= GROUP_PARAMETERS


def is_small_and_plain(net: Net) -> bool:
    """Return True if clients with this net may train together: it is small and has only plain layers."""
    return is_small(net.parameters()) and compile_net(net) is not None


def prepare_pass(
    net: Net, loss: Criterion, optimiser: Optimizer, samples: Samples, pull: Pull | None
) -> DirectPass | None:
    """Compile a pass that minimises ``loss(net(x), y)`` over these examples; None if it needs autograd."""
    compiled = compile_net(net)
    if (
        compiled is None
        or type(optimiser) is not SGD
        or loss not in OWN_LOSSES
        or samples.image_transform is not None
        or not len(samples)
        or (not samples.x.is_floating_point() and samples.x.dtype != torch.uint8)
    ):
        return None
    trained = [k for k in compiled.parameters if k in optimiser.named]
    known = [k for k in trained if k in optimiser.momentum]
    if not trained or (pull is not None and len(trained) < len(optimiser.named)):
        return None
    if optimiser.momentum_factor and known and len(known) < len(trained):
        return None
    if loss is CLASS_LOSS and (samples.labels.dim() != 1 or int(samples.labels.min()) < 0):
        return None
    return DirectPass(net, compiled.layers, compiled.parameters, optimiser, loss, samples, pull)


def cut_batches(epochs: Sequence[Tensor], size: int) -> tuple[Tensor, list[int]]:
    """Cut the positions of each epoch's examples into mini-batches; return one row for each, and their sizes."""
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
    """Gather several clients' mini-batches for some steps, indexed by step, client and position.

    If a client has fewer steps or a shorter mini-batch, arbitrary examples fill its places.
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
    """Trains a group of clients as one computation, longest pass first; shorter passes finish earlier."""

    def __init__(self, passes: Sequence[DirectPass], packing: int) -> None:
        self.passes = sorted(passes, key=lambda p: -len(p.sizes))
        one = self.passes[0]
        self.stack = Stack([p.parameters for p in self.passes], one.rates, packing)
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
        """Train the group; leave the new parameters in the nets, and momentum and losses in the passes."""
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
            for parameter in p.parameters.values():  # the rounding of products depends on addresses
                if not is_aligned(parameter):
                    parameter.data = parameter.detach().clone()

    def run_steps(self, x: Tensor, y: Tensor, count: int, steps: range) -> None:
        """Train the first ``count`` clients of the stack for these steps, without autograd.

        ``x`` and ``y`` hold the mini-batches of all steps.
        """
        shape = (len(steps), count, self.size)
        y = y.view(*shape, *y.shape[1:])
        for at, step in enumerate(steps):
            for first, last, size in self.split_clients(step, count):
                frame = self.get_frame(first, last, size, x)
                if frame.takes_rows:
                    frame.run_forward(x.view(*shape, -1)[at, first:last, :size])
                else:
                    begins = [(at * count + i) * self.size for i in range(first, last)]
                    images = [x[b : b + size] for b in begins]
                    frame.run_forward([v if is_aligned(v) else v.clone() for v in images])
                self.compute_output_gradient(frame, y[at, first:last, :size], step)
                frame.run_backward()
                self.add_pulls(first, last, step)
                self.update(first, last, step)

    def split_clients(self, step: int, count: int) -> Iterator[tuple[int, int, int]]:
        """Split the clients that have this step into ranges with equal mini-batch sizes."""
        sizes = [p.sizes[step] for p in self.passes[:count] if len(p.sizes) > step]
        first = 0
        for i in range(1, len(sizes) + 1):
            if i == len(sizes) or sizes[i] != sizes[first]:
                yield first, i, sizes[first]
                first = i

    def get_frame(self, first: int, last: int, size: int, x: Tensor) -> Frame:
        """Return the operations of the clients' training steps at this mini-batch size, built on first use."""
        key = (first, last, size)
        if key not in self.frames:
            layers = self.passes[0].layers
            self.frames[key] = Frame(self.stack, layers, (first, last), x[:size])
        return self.frames[key]

    def compute_output_gradient(self, frame: Frame, y: Tensor, step: int) -> None:
        """Compute the gradient of the loss with respect to the output; store what ``read_losses`` needs."""
        z, gradient, key = (
            frame.output.each,
            frame.output_gradient,
            (frame.first, frame.last, frame.batch),
        )
        if self.loss is CLASS_LOSS:
            logs = Aten._log_softmax(z, 2, False)
            target = torch.zeros_like(logs).scatter_(2, y.unsqueeze(2), -1.0 / frame.batch)
            gradient.each.copy_(Aten._log_softmax_backward_data(target, logs, 2, torch.float32))
            self.kept.setdefault(key, []).append((step, logs, y))
            return
        for i, (output, labels) in enumerate(zip(z, y, strict=True), frame.first):
            with torch.enable_grad():
                leaf = output.detach().requires_grad_()
                value = self.loss(leaf, labels)
                (found,) = torch.autograd.grad(value, leaf)
            gradient.each[i - frame.first].copy_(found)
            self.found[i][step] = value.item()

    def read_losses(self) -> None:
        """Compute the losses of the completed steps, and drop the tensors stored for them."""
        for (first, _, size), parts in self.kept.items():
            logs = torch.stack([part[1] for part in parts])
            y = torch.stack([part[2] for part in parts])
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
            for k, parameter in one.optimiser.named.items():  # a pull may read the gradients
                parameter.grad = self.stack.grads[k].each[i] if k in self.stack.grads else None
            with torch.enable_grad():
                terms = one.pull(one.optimiser.named.map(Tensor.detach))
            if before is not None and not torch.equal(before, torch.default_generator.get_state()):
                raise DrawingPullError
            for k, term in terms.items():
                self.stack.grads[k].each[i].add_(term)

    def update(self, first: int, last: int, step: int) -> None:
        """Make one SGD step for these clients; the first step creates momentum for clients that have none."""
        fresh = self.is_fresh[first:last] if step == 0 and self.stack.momentum else [False]
        if len(set(fresh)) == 1:
            self.get_update(first, last)(fresh[0])
            return
        for i, is_fresh in enumerate(fresh, first):
            self.get_update(i, i + 1)(is_fresh)

    def get_update(self, first: int, last: int) -> Callable[[bool], None]:
        """Return the SGD step of these clients, built on first use."""
        if (first, last) not in self.updates:
            self.updates[first, last] = self.stack.make_update(first, last)
        return self.updates[first, last]


def run_passes(passes: Sequence[DirectPass], packing: int = PACKED) -> None:
    """Run training passes with equal keys as one computation; store the momentum in their optimisers."""
    with torch.no_grad():
        GroupRun(passes, packing).run()
    for one in passes:
        one.optimiser.momentum.update(one.momentum)


# The self-test --------------------------------------------------------------------------------------

CHECKED_STEPS = 2  # two: the first step only fills the momentum
# self-test results of this process, by shapes
VERDICTS = dict[tuple[object, ...], tuple[bool, int]]()


def check_pass(one: DirectPass) -> tuple[bool, int]:
    """Check on random examples whether a training pass gives the same bits as autograd, alone and in a group.

    Return whether it does alone, and the packing with which it does in a group (0 if none does). Each shape
    is checked once per process.
    """
    found = list[tuple[bool, int]]()
    for size in sorted(set(one.sizes)):
        key = (one.shape_key, size)
        if key not in VERDICTS:
            VERDICTS[key] = compare_with_autograd(one, size)
        found.append(VERDICTS[key])
    packings = [packing for _, packing in found]
    return all(alone for alone, _ in found), max(packings) if all(packings) else 0


def find_fastest_training(net: Net, loss: Criterion, how: Training, samples: Samples) -> str:
    """Return the fastest way to train a net with the same bits as autograd: "groups", "direct" or "autograd"."""
    one = prepare_pass(net, loss, create_optimizer(params(net), how, {}, Tensors()), samples, None)
    if one is None or how.clip_norm is not None:
        return "autograd"
    one.sizes = [min(how.batch, len(samples))]
    alone, packing = check_pass(one)
    return "groups" if alone and packing else "direct" if alone else "autograd"


def compare_with_autograd(one: DirectPass, size: int) -> tuple[bool, int]:
    """Train on mini-batches of this size with and without autograd; return what ``check_pass`` returns."""
    count = GROUP_SIZE if is_small(one.parameters.values()) else 1
    test = SelfTest(one, size, count)
    try:
        if not test.has_same_bits([0], PACKED):
            return False, 0
        # a pull may use the net, so its parameters must be aligned
        packings = (PACKED, ALIGNED) if one.pull is None else (ALIGNED,)
        for packing in packings if count > 1 else ():
            if all(test.has_same_bits(group, packing) for group in (range(count), [2, 0, 5])):
                return True, packing
    except (RuntimeError, NotImplementedError):  # a layer that fails on this shape
        return False, 0
    return True, 0


class SelfTest:
    """Random nets and examples of clients, and the results of training them with autograd."""

    def __init__(self, one: DirectPass, size: int, count: int) -> None:
        self.one, self.size, self.count = one, size, count
        draw = torch.Generator().manual_seed(0)
        number = count * CHECKED_STEPS * size
        shape, like = one.samples.x.shape[1:], next(iter(one.parameters.values()))
        x = torch.rand((number, *shape), generator=draw).mul_(2).sub_(1)
        labels = one.samples.labels
        y = labels[torch.arange(number) % len(labels)]
        self.samples = Samples(x.to(like.device), y.to(like.device))
        self.places = torch.arange(number).view(count, CHECKED_STEPS, size)
        self.start = [
            {k: torch.rand(p.shape, generator=draw).sub_(0.5) for k, p in one.parameters.items()}
            for _ in range(count)
        ]
        # client -> results of autograd, computed on demand
        self.expected = dict[int, list[Tensor]]()

    def build(self, i: int) -> tuple[Net, SGD]:
        """Build a client's random net, and an optimiser like that of the pass."""
        net = copy_module(self.one.net)
        parameters = dict(net.named_parameters())
        with torch.no_grad():
            for k, v in self.start[i].items():
                parameters[k].copy_(v)
        for k, p in parameters.items():
            p.requires_grad_(k in self.one.optimiser.named).grad = None
        named = Tensors({k: parameters[k] for k in self.one.optimiser.named})
        optimiser = SGD(named, self.one.optimiser.how, {}, Tensors())
        optimiser.groups = self.one.optimiser.groups
        return net.train(), optimiser

    def run_autograd(self, i: int) -> list[Tensor]:
        """Train one client's random net with autograd; return the results to compare with."""
        net, optimiser = self.build(i)
        losses = list[float]()
        with torch.enable_grad():
            for at in self.places[i]:
                optimiser.zero_grad()
                value = self.one.loss(net(self.samples.batch(at)[0]), self.samples.labels[at])
                value.backward()
                optimiser.step()
                losses.append(value.item())
        return self.list_results(net, optimiser, losses)

    def has_same_bits(self, members: Sequence[int], packing: int) -> bool:
        """Train some clients' random nets together; return True if each gets the same bits as with autograd."""
        built = {i: self.build(i) for i in members}
        passes = []
        for i, (net, optimiser) in built.items():
            used = {k: dict(net.named_parameters())[k] for k in self.one.parameters}
            here = replace(self.one, net=net, parameters=used, optimiser=optimiser, pull=None)
            here.samples, here.places = self.samples, self.places[i]
            here.sizes = [self.size] * CHECKED_STEPS
            passes.append(here)
        run_passes(passes, packing)
        for i, here in zip(members, passes, strict=True):
            if i not in self.expected:
                self.expected[i] = self.run_autograd(i)
            found = self.list_results(*built[i], here.losses)
            if not all(map(torch.equal, found, self.expected[i])):
                return False
        return True

    def list_results(self, net: Net, optimiser: SGD, losses: list[float]) -> list[Tensor]:
        """List the parameters, the momentum and the losses after training."""
        found = [p.detach() for p in net.parameters()]
        found += [optimiser.momentum[k] for k in sorted(optimiser.momentum)]
        return [*found, torch.tensor(losses, dtype=torch.float64)]
