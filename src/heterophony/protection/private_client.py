"""Example-level differential privacy: DP-SGD on a client, with per-example gradients from Opacus."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.nn.utils.parametrize import is_parametrized

from ..core.accelerator import autocast, read_loss
from ..core.algorithm import Reply
from ..core.client import Client, Loss, TrainingPass, count_per_epoch
from ..core.errors import ConfigError
from ..core.net import BATCH_NORMS
from ..core.randomness import GeneratorStates, drawing_again
from ..core.samples import ClientData, Samples
from ..core.settings import setting
from ..core.tensors import Tensors, match_memory_format
from ..core.training import Optimizer, Training
from .accounting import compute_epsilon, draw_normal_like, draw_uniform
from .base import PREFIX, Departed, Departure, PrivacyPromise, Protection, RunFacts

WHERE = "protection.example_dp"
TOLERANCE = 1e-3  # allowed difference between the mean of single gradients and the batch's gradient
COUPLING_TOLERANCE = 1e-5  # allowed difference between one example's gradients in two batches
SEARCHED_EXAMPLES = 50  # examples among which ``choose_coupling_examples`` chooses


class SingleGradients:
    """Clips single examples' gradients, which Opacus computes in addition to the mini-batch's."""

    def __init__(self) -> None:
        self.checked = False

    def add_clipped(self, named: Tensors, clip: float) -> dict[str, Tensor]:
        """Clip each example's gradient over all parameters; return the sum over the examples by parameter."""
        singles = {k: get_single_gradients(p) for k, p in named.items()}
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
            p.grad_sample = None  # otherwise Opacus would add the next gradients to these
        return sums


@contextmanager
def single_gradients(net: nn.Module) -> Iterator[SingleGradients]:
    """Let Opacus compute the gradient of every example in backward passes inside the ``with`` block."""
    if find_spec("opacus") is None:
        raise ConfigError(f"{WHERE}: needs Opacus; install it with pip install 'heterophony[dp]'")
    from opacus import GradSampleModule  # type: ignore[import-not-found, import-untyped, unused-ignore]

    if any(map(is_parametrized, net.modules())):
        raise ConfigError(
            f"{WHERE}: the algorithm computes weights from other parameters, which Opacus does not"
            " support; choose another algorithm or client_dp"
        )
    try:
        # its own rules for convolutions are wrong for weights in the format channels_last
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


def get_single_gradients(parameter: Tensor) -> Tensor | None:
    """Return a parameter's gradient for each example, as stored by Opacus; None if there is none."""
    return getattr(parameter, "grad_sample", None)


def check_single_gradients(named: Tensors, found: Mapping[str, Tensor]) -> None:
    """Raise ConfigError if the loss uses parameters outside of layers, where Opacus misses the gradients."""
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


# Independence of the examples in a batch ---------------------------------------------------------


def check_uncoupled(named: Tensors, loss: Loss, samples: Samples) -> None:
    """Raise ConfigError if an example's loss depends on others in its batch, which DP-SGD does not allow.

    The gradients of the same examples are compared in three small batches: unchanged, with the last
    example replaced, and without the last example. The parameters are moved a little for this comparison: at
    the original parameters, a term such as a distance from received features may have no gradient.
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
        for changed in batches[:1] if is_random else batches:  # smaller batches draw differently
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
    """Make the two batches that ``check_uncoupled`` compares: they differ in their last example."""
    chosen, replacement = choose_coupling_examples(samples.labels[:SEARCHED_EXAMPLES])
    x, y = samples.batch(torch.tensor(chosen))
    changed, label = samples.batch(torch.tensor([replacement]))
    if torch.equal(changed[0], x[-1]) and x.is_floating_point():
        changed = 1 - changed
    return (x, y), (torch.cat([x[:-1], changed]), torch.cat([y[:-1], label]))


def choose_coupling_examples(labels: Tensor) -> tuple[list[int], int]:
    """Choose the examples for ``make_batches``, the first and last of one class; also choose a replacement.

    If possible, the replacement has another class, so that a loss that counts the classes of a batch is
    detected.
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
    """Move the parameters a little, at random, inside the block; restore their bits at the end."""
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
    """Return the gradient of each example with respect to all parameters, one per row."""
    loss(x, y).backward()
    rows = []
    parameters: list[Any] = list(named.values())
    for p in parameters:
        single = get_single_gradients(p)
        if single is not None and len(single) != len(y):
            raise ConfigError(
                f"{WHERE}: a layer is called with {len(single)} rows for {len(y)} examples, so that"
                " their gradients cannot be separated; choose another model or client_dp"
            )
        rows.append(p.new_zeros(len(y), p.numel()) if single is None else single.flatten(1))
        p.grad = p.grad_sample = None
    return torch.cat(rows, 1)


STEPS_METRIC = f"{PREFIX}steps"


class PrivateClient(Client):
    """A client that trains by DP-SGD and refuses every other use of its training examples.

    Each step draws every example independently (Poisson sampling), as the accounting assumes.
    """

    def __init__(self, *, clip: float, noise: float, secret: bytes, **facts: Any) -> None:
        super().__init__(**facts)
        self.clip, self.noise, self.secret = clip, noise, secret
        self.private_data, self.passes = self.data, 0
        if any(isinstance(m, BATCH_NORMS) for m in self.net.modules()):
            raise ConfigError(
                f"{WHERE}: the model has BatchNorm, which mixes the examples of a batch; choose a model"
                " without it, or with GroupNorm or LayerNorm"
            )

    @property
    def steps(self) -> int:
        """The number of steps in a round, available even while the algorithm must not see the examples."""
        samples, self.data = self.data, self.private_data
        try:
            return super().steps
        finally:
            self.data = samples

    def _run_pass(self, call: TrainingPass) -> None:
        """Run a training pass with private gradients, for as many steps as ``Client`` would."""
        check_allowed(call, self.training)
        super()._run_pass(call)
        if call.named:
            before = self.metrics.get(STEPS_METRIC, 0)
            self.metrics[STEPS_METRIC] = before + self.count_steps(call)

    def _run_steps(
        self, call: TrainingPass, optimiser: Optimizer, loss_sum: float
    ) -> tuple[float, int]:
        """Run the steps of a training pass by DP-SGD; return the sum of losses and the step count."""
        named, how, total = call.named, call.how, self.count_steps(call)
        self.passes += 1  # two passes may have one name, but must not share their noise
        with single_gradients(self.net) as gradients:
            if total:
                check_uncoupled(named, call.loss, self.private_data.train)
            for step in range(total):
                optimiser.zero_grad()
                purpose = f"{self.id}|{self.t}|{self._draw_seed}|{self.passes}|{step}"
                loss = call.loss
                loss_sum += self.set_private_gradients(named, loss, gradients, how.batch, purpose)
                call.add_pull()
                if how.clip_norm is not None:
                    clip_grad_norm_(named.values(), how.clip_norm)
                optimiser.step()
                if call.after is not None:
                    call.after()
        return loss_sum, total

    def count_steps(self, call: TrainingPass) -> int:
        """Count the steps of a training pass, as many as ``Client`` would train."""
        how, epochs, steps = call.how, call.epochs, call.steps
        per_epoch = count_per_epoch(self.net, len(self.private_data.train), how)[1]
        if epochs is None and steps is None:
            steps = how.steps
        if steps is None:
            return (how.epochs if epochs is None else epochs) * per_epoch
        return steps if per_epoch else 0

    def set_private_gradients(
        self, named: Tensors, loss: Loss, gradients: SingleGradients, batch: int, purpose: str
    ) -> float:
        """Set each gradient to the noisy sum of clipped single gradients, divided by the expected batch size."""
        samples = self.private_data.train
        rate, value = min(1.0, batch / len(samples)), 0.0
        drawn = draw_uniform(self.secret, f"examples|{purpose}", len(samples)) < rate
        at = torch.from_numpy(drawn.nonzero()[0])
        sums = {k: torch.zeros_like(p) for k, p in named.items()}
        if len(at):
            draws = self._make_image_draws(samples, f"fit/{purpose}")
            x, y = samples.batch(at, draws)
            self.examples += len(at)
            with autocast():
                result = loss(x, y)
            result.backward()
            value = float(read_loss(result))
            sums |= gradients.add_clipped(named, self.clip)
        noise = draw_normal_like(Tensors(sums), self.secret, f"example noise|{purpose}")
        for k, p in named.items():
            shaken = sums[k] + (self.noise * self.clip * noise[k]).to(sums[k])
            # the optimiser's kernel reads gradient and parameter in the same order
            p.grad = match_memory_format(shaken / (rate * len(samples)), p)
        return value


def check_allowed(call: TrainingPass, usual: Training) -> None:
    """Raise ConfigError for a training pass whose steps the privacy accounting does not cover."""
    if call.data is not None:
        raise ConfigError(
            f"{WHERE}: the algorithm trains on examples that it derived from others, so that one example"
            " counts several times; choose another algorithm or client_dp"
        )
    if call.repeat != 1 or call.how.batch != usual.batch:
        raise ConfigError(
            f"{WHERE}: the algorithm uses a mini-batch several times or of another size; choose another"
            " algorithm or client_dp"
        )


class GuardedData:
    """Stands in for a private client's data while its algorithm runs: only ``fit`` may use the examples."""

    def __init__(self, data: ClientData) -> None:
        self.classes = data.classes

    def __getattr__(self, name: str) -> NoReturn:
        raise ConfigError(
            f"{WHERE}: the algorithm uses client.data.{name} outside of fit, and ε covers only fit;"
            " choose another algorithm or client_dp"
        )


@contextmanager
def guard_examples(client: Client) -> Iterator[None]:
    """Inside the block, refuse any use of a private client's examples outside of ``fit``."""
    if not isinstance(client, PrivateClient):
        yield
        return
    guarded: Any = GuardedData(client.data)
    client.data = guarded
    try:
        yield
    finally:
        client.data = client.private_data


@dataclass(frozen=True, repr=False)
class ExampleDP(Protection):
    """Clip each example's gradient, and add noise to every step of local training (Opacus)."""

    guards_replies: ClassVar[bool] = True
    once_per_round: ClassVar[bool] = True
    clip: float = setting(1.0, "largest norm of the gradient of one example", above=0)
    noise: float = setting(1.0, "standard deviation of the noise divided by clip", low=0)
    delta: float = setting(
        1e-5, "δ; should be well below 1 / number of a client's examples", above=0, below=1
    )

    @property
    def needs_secret(self) -> bool:
        return True  # also needed for the draws of examples

    def choose_client(self, secret: bytes) -> Callable[..., Client]:
        return partial(PrivateClient, clip=self.clip, noise=self.noise, secret=secret)

    def leave(self, up: Tensors, kept: Tensors, departure: Departure) -> Departed:
        """Send the reply unchanged, with the client's total number of steps for the privacy accounting."""
        before = int(kept["steps"]) if "steps" in kept else 0
        steps = before + int(departure.metrics.get(STEPS_METRIC, 0))
        return Departed(up, Tensors({"steps": torch.tensor(steps)}), {STEPS_METRIC: steps})

    def promise(self, run: RunFacts) -> PrivacyPromise:
        how = "what each client sends, with and without one of its examples; ε is the largest of all clients"
        return PrivacyPromise("example", self.delta, how)

    def spend(
        self, run: RunFacts, rounds: int, before: float | None, replies: Sequence[Reply]
    ) -> float | None:
        found = [
            compute_epsilon(
                self.noise,
                min(1.0, run.batch / r.samples),
                int(r.metrics[STEPS_METRIC]),
                self.delta,
            )
            for r in replies
            if r.samples
        ]
        largest = 0.0 if before is None and rounds <= 1 else before
        for epsilon in found:
            largest = None if largest is None or epsilon is None else max(largest, epsilon)
        return largest
