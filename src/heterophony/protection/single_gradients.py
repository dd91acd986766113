"""Gradients of single examples, by Opacus, and the check that each depends on its example alone."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from ..core.errors import ConfigError
from ..core.randomness import GeneratorStates, drawing_again
from ..core.samples import Samples
from ..core.tensors import Tensors
from ..core.training_pass import Loss

WHERE = "protection.example_dp"
TOLERANCE = 1e-3  # between the mean of single gradients and that of the batch
COUPLING_TOLERANCE = 1e-5  # between gradients of one example in two batches, by the largest norm
SEARCHED_EXAMPLES = 50  # for those of the same class and of another


class SingleGradients:
    """The gradients of single examples, which Opacus computes beside those of the batch."""

    def __init__(self) -> None:
        self.checked = False

    def add_clipped(self, named: Tensors, clip: float) -> dict[str, Tensor]:
        """Clip the gradient of each example, over all parameters, and add them up."""
        singles = {k: get_single(p) for k, p in named.items()}
        found = {k: g for k, g in singles.items() if g is not None}
        if not self.checked:
            check_single_gradients(named, found)
            self.checked = True
        squares = [g.flatten(1).square().sum(1) for g in found.values()]
        norms = torch.stack(squares).sum(0).sqrt() if squares else torch.zeros(1)
        factors = (clip / norms.clamp(min=1e-12)).clamp(max=1.0)
        sums = {k: torch.einsum("n,n...->...", factors, g) for k, g in found.items()}
        parameters: list[Any] = list(named.values())
        for p in parameters:
            p.grad_sample = None  # else Opacus adds the next ones to them
        return sums


@contextmanager
def single_gradients(net: nn.Module) -> Iterator[SingleGradients]:
    """Let Opacus compute the gradient of every example in the backward passes of the block."""
    if find_spec("opacus") is None:
        raise ConfigError(
            f"{WHERE}: it needs Opacus; install it with pip install 'heterophony[dp]'"
        )
    from opacus import GradSampleModule  # type: ignore[import-not-found, import-untyped, unused-ignore]

    if any(map(is_parametrized, net.modules())):
        raise ConfigError(
            f"{WHERE}: the algorithm computes weights from other parameters, which Opacus does not"
            " follow; choose another algorithm or client_dp"
        )
    try:
        # its own rules for convolutions are wrong where weights are in the format channels_last
        hooked = GradSampleModule(net, strict=False, force_functorch=True)
    except NotImplementedError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{WHERE}: Opacus cannot train this model: {reason}") from None
    try:
        with warnings.catch_warnings():
            # the first layer's input needs no gradient; Opacus does not use it
            warnings.filterwarnings("ignore", "Full backward hook is firing")
            yield SingleGradients()
    finally:
        hooked.remove_hooks()
        for p in net.parameters():
            if hasattr(p, "grad_sample"):
                del p.grad_sample


def get_single(parameter: Tensor) -> Tensor | None:
    return getattr(parameter, "grad_sample", None)


def check_single_gradients(named: Tensors, found: Mapping[str, Tensor]) -> None:
    """Refuse a loss that uses parameters outside of the layers that Opacus follows."""
    for name, p in named.items():
        if p.grad is None:
            continue
        whole = p.grad
        mean = found[name].mean(0) if name in found else torch.zeros_like(whole)
        if float((mean - whole).norm()) > TOLERANCE * (1e-3 + float(whole.norm())):
            raise ConfigError(
                f"{WHERE}: the gradient of '{name}' does not come from single examples: the loss uses"
                " it outside of a layer; choose another algorithm or client_dp"
            )


# One example, whatever the others are -----------------------------------------------------------


def check_uncoupled(named: Tensors, loss: Loss, samples: Samples) -> None:
    """Refuse a loss in which examples of a batch depend on each other: clipping bounds them singly.

    The gradients of the same examples are compared in three small batches: as they are, with the last
    example replaced, and without it. That happens away from the parameters as they are, where a term
    may have no gradient: features that are held near those received begin there.
    """
    if len(samples) < 2:
        return
    (x, y), other = make_batches(samples)
    with moved_parameters(named):
        drawn = GeneratorStates.save()
        with drawing_again(drawn):
            usual = compute_single_gradients(named, loss, x, y)[:-1]
            is_random = not torch.equal(GeneratorStates.save().cpu, drawn.cpu)
        batches = [other, (x[:-1], y[:-1])]
        for changed in batches[:1] if is_random else batches:  # a smaller batch has other draws
            with drawing_again(drawn):
                found = compute_single_gradients(named, loss, *changed)[: len(usual)]
            if float((found - usual).norm(dim=1).max()) > COUPLING_TOLERANCE * (
                1e-6 + float(usual.norm(dim=1).max())
            ):
                raise ConfigError(
                    f"{WHERE}: the loss of an example depends on the other examples of its batch, so"
                    " that one example changes more than its own clipped gradient; choose another"
                    " algorithm or loss, or client_dp"
                )


def make_batches(samples: Samples) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Make a small batch, and the same with its last example replaced by another."""
    chosen, replacement = choose_examples(samples.labels[:SEARCHED_EXAMPLES])
    x, y = samples.batch(torch.tensor(chosen))
    changed, label = samples.batch(torch.tensor([replacement]))
    if torch.equal(changed[0], x[-1]) and x.is_floating_point():
        changed = 1 - changed
    return (x, y), (torch.cat([x[:-1], changed]), torch.cat([y[:-1], label]))


def choose_examples(labels: Tensor) -> tuple[list[int], int]:
    """Choose two or three examples, and one in place of the last, which has the first one's class.

    If possible the other is of another class: then a loss that counts classes in a batch is noticed.
    """
    rest = range(1, len(labels))
    alike = [i for i in rest if torch.equal(labels[i], labels[0])]
    unlike = [i for i in rest if i not in alike]
    last = (alike or unlike)[0]
    others = [i for i in (*unlike, *alike) if i != last]
    replacement = next(iter([*unlike[1:], *unlike[:1], *others[1:], 0]))
    return [0, *others[:1], last], replacement


@contextmanager
def moved_parameters(named: Tensors) -> Iterator[None]:
    """Move the parameters a little, at random, inside the block; restore their bits after it."""
    source, before = torch.Generator().manual_seed(0), named.map(lambda p: p.detach().clone())
    with torch.no_grad():
        for p in named.values():
            size = 0.1 * (0.1 + p.square().mean().sqrt())
            p.add_(size * torch.randn(p.shape, generator=source).to(p))
    try:
        yield
    finally:
        with torch.no_grad():
            for k, p in named.items():
                p.copy_(before[k])


def compute_single_gradients(named: Tensors, loss: Loss, x: Tensor, y: Tensor) -> Tensor:
    """Return a row for each example: its gradient of all parameters."""
    loss(x, y).backward()
    rows = []
    parameters: list[Any] = list(named.values())
    for p in parameters:
        single = get_single(p)
        if single is not None and len(single) != len(y):
            raise ConfigError(
                f"{WHERE}: a layer is called with {len(single)} rows for {len(y)} examples, so that"
                " their gradients cannot be told apart; choose another model or client_dp"
            )
        rows.append(p.new_zeros(len(y), p.numel()) if single is None else single.flatten(1))
        p.grad = p.grad_sample = None
    return torch.cat(rows, 1)
