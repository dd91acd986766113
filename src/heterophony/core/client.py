"""A client: its data, net, memory and random numbers, and ``fit``, the only training loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import InitVar, dataclass, field
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from .accelerator import ON_CPU, autocast, computing, get_compute, read_loss, widen
from .errors import ConfigError, DivergedError
from .groups import Pull, check_pass, cut_batches, prepare_pass
from .meeting import train_directly
from .net import BATCH_NORMS, Net, iterate_named_parameters, list_state, start_training
from .randomness import GeneratorStates, derive_seed, drawing_again, seeded
from .samples import (
    ClientData,
    ImageDraws,
    Samples,
    draw_every_time,
    draw_once_per_image,
    get_stored_data,
)
from .tasks import TASKS, Criterion
from .tensors import Kind, Tensors, is_given, load_into_net, mark_given, params
from .training import Optimizer, Training, create_optimizer

Loss = Callable[[Tensor, Tensor], Tensor]  # computes the loss of a mini-batch from input and labels


@dataclass(frozen=True)
class TrainingPass:
    """The settings of one call of ``fit``: loss, parameters, examples, duration and optimiser."""

    loss: Loss
    named: Tensors  # the parameters that are trained, by name
    data: Samples | None  # None: the client's training examples
    pull: Pull | None
    epochs: int | None
    steps: int | None
    repeat: int
    how: Training
    rates: Mapping[str, float]
    after: Callable[[], None] | None
    phase: str
    turn: int

    @property
    def key(self) -> tuple[object, ...]:
        """The phase and turn of a pass: they seed its random draws, in addition to round and client."""
        return (self.phase, self.turn) if self.turn else (self.phase,)

    def add_pull(self) -> None:
        """Add each term of ``pull`` to the gradient of the parameter with the same name."""
        if self.pull is None:
            return
        for k, term in self.pull(self.named.map(Tensor.detach)).items():
            p = self.named[k]
            p.grad = term.clone() if p.grad is None else p.grad.add_(term)


def iterate_epochs(
    net: nn.Module, n: int, how: Training, epochs: int | None, steps: int | None
) -> Iterator[Tensor]:
    """Iterate over the epochs of a training pass: the positions of the examples, in a new random order each.

    Mini-batches cut from them add up to the length given by ``epochs`` or ``steps``.
    """
    used, per_epoch = count_per_epoch(net, n, how)
    if epochs is None and steps is None:
        steps = how.steps
    left = (how.epochs if epochs is None else epochs) * per_epoch if steps is None else steps
    while left > 0 and per_epoch:
        yield torch.randperm(n)[: min(used, min(left, per_epoch) * how.batch)]
        left -= per_epoch


def count_per_epoch(net: nn.Module, n: int, how: Training) -> tuple[int, int]:
    """Count the examples and mini-batches of an epoch; BatchNorm cannot train on a single example."""
    used = n - n % how.batch if how.drop_last and n >= how.batch else n
    smallest = 2 if any(isinstance(m, BATCH_NORMS) for m in net.modules()) else 1
    full = used // how.batch if how.batch >= smallest else 0
    return used, full + (used % how.batch >= smallest)


def count_examples(net: nn.Module, n: int, how: Training) -> int:
    """Count the examples that one pass of ``fit`` with these settings trains on."""
    used, per_epoch = count_per_epoch(net, n, how)
    if not per_epoch:
        return 0
    steps = how.epochs * per_epoch if how.steps is None else how.steps
    whole, rest = divmod(steps, per_epoch)
    return whole * min(used, per_epoch * how.batch) + min(rest * how.batch, used)


SamplesDerivation = Callable[[ClientData], Samples]
Trainable = nn.Module | Tensor


@dataclass(kw_only=True, eq=False, repr=False)
class Client:
    """One client in one round, built by the framework; ``Algorithm.local`` trains it.

    ``id``        the client's name
    ``t``         the round, counted from 0; the run has ``rounds`` of them
    ``net``       its net: personal parameters from its last round, the others as received
    ``data``      its training and test examples
    ``received``  the tensors that ``Algorithm.send`` sent it
    ``memory``    sets of tensors that the algorithm keeps on the client between rounds
    ``training``  the settings of local training; ``lr`` is its learning rate in this round
    ``kinds``     by name of each tensor of ``net``: "shared", "personal" or "given" (never trained)
    ``loss``      the loss of a mini-batch by output and targets: that of the task, or the user's
    ``metrics``   numbers to record with the reply; ``fit`` adds the mean loss of each phase
    ``examples``  how many examples it has trained on so far, for the simulated clock
    """

    id: str
    t: int
    net: Net
    data: ClientData
    received: Tensors
    memory: dict[str, Tensors]
    training: Training
    rounds: int
    seed: InitVar[int]
    list_kinds: InitVar[Callable[[Net, int], Mapping[str, Kind]]]
    cache_derived: InitVar[Callable[[str, Callable[[], Samples]], Samples]]
    draw_seed: InitVar[int | None] = None
    loss: Criterion = TASKS["classification"].loss
    metrics: dict[str, float] = field(init=False, default_factory=dict)
    examples: int = field(init=False, default=0)

    def __post_init__(
        self,
        seed: int,
        list_kinds: Callable[[Net, int], Mapping[str, Kind]],
        cache_derived: Callable[[str, Callable[[], Samples]], Samples],
        draw_seed: int | None,
    ) -> None:
        """Load the personal parameters (``memory["net"]``) and the received ones into the net.

        ``list_kinds`` returns the kind of each of the net's tensors in a round: shared, personal, or
        given (frozen now). ``cache_derived`` stores the result of ``once``. ``draw_seed`` replaces
        ``seed`` for the draws of a round; it differs if a client is selected a second time in the round.
        """
        mark_given(self.net)
        kept, sent = self.memory.get("net", Tensors()), self.received.without("*/*")
        self.memory = {k: v for k, v in self.memory.items() if k != "net"}
        self._seed, self._draw_seed = seed, seed if draw_seed is None else draw_seed
        self.kinds, self._cache_derived = list_kinds(self.net, self.t), cache_derived
        # phase -> momentum after its last pass of the round
        self._momentum: dict[str, Tensors] = {}
        self._losses: dict[str, tuple[float, int]] = {}  # sum and number, for the mean of a phase
        known = kept | sent
        check_all_received(self._list_names("shared"), known)
        load_into_net(self.net, known)

    def fit(
        self,
        loss: Loss | None = None,
        train: Trainable | Iterable[Trainable] | None = None,
        data: Samples | None = None,
        epochs: int | None = None,
        steps: int | None = None,
        pull: Pull | None = None,
        how: Training | None = None,
        rates: Mapping[str, float] | None = None,
        repeat: int = 1,
        after: Callable[[], None] | None = None,
        phase: str = "main",
        turn: int = 0,
    ) -> None:
        """Minimise ``loss(x, y)`` over mini-batches of the client's training data.

        Plain nets are trained by ``core/direct.py`` and ``core/groups.py``: ``GroupRun`` computes the loss there.

        ``loss``    default: ``client.loss(client.net(x), y)``
        ``train``   the modules or parameters to train; default: all parameters that are not given
        ``data``    the examples to train on; default: ``client.data.train``
        ``epochs``  the number of epochs; default: that of ``how``
        ``steps``   the number of mini-batches, in place of ``epochs``
        ``pull``    ``pull(w)`` is added to the gradient; ``w`` are the trained parameters
        ``how``     replaces ``client.training``
        ``rates``   learning rates of parameters whose names match a pattern (``head.*``)
        ``repeat``  updates per mini-batch
        ``after``   is called after the updates of each mini-batch
        ``phase``   names this pass; a phase has its own random draws and its own momentum
        ``turn``    counts the passes of a phase that is trained several times in a round: later
                    ones continue its momentum but have their own draws

        The schedule of ``how`` scales its ``lr`` and all ``rates`` to those of this round. With
        ``clip_norm``, the whole gradient, including ``pull``, is clipped. Parameters outside ``train``
        are frozen. A parameter without a gradient is not updated, not even by momentum or weight decay.
        A given parameter (frozen when the run starts) never trains; it is an error if ``train`` contains it.
        """
        named = self._select_parameters(train)
        loss, how = loss or self.compute_net_loss, how or self.training
        what, length = (loss, named, data, pull), (epochs, steps, repeat)
        self._run_pass(TrainingPass(*what, *length, how, rates or {}, after, phase, turn))

    def _select_parameters(self, train: Trainable | Iterable[Trainable] | None) -> Tensors:
        """Return the parameters to train, by name; raise ConfigError if ``train`` contains a given one."""
        if train is None:
            return params(self.net)
        parts = list(flatten_parts(train))
        chosen = {id(p) for p in iterate_parameters(parts)}
        given = {id(p) for p in parts if isinstance(p, Tensor) and is_given(p)}
        for name, p in self.net.named_parameters():
            if id(p) in given:
                raise ConfigError(
                    f"client.fit: train contains '{name}', which is frozen (requires_grad=False) when the"
                    " run starts; unfreeze it before the run, or remove it from train"
                )
        return Tensors((k, p) for k, p in params(self.net).items() if id(p) in chosen)

    def _run_pass(self, call: TrainingPass) -> None:
        """Run a training pass: train its parameters, store its momentum and record its loss."""
        named, how, phase = call.named, call.how, call.phase
        if not named:
            return  # a head without parameters has nothing to learn
        trained = {id(p) for p in named.values()}
        parameters = [p for _, p in iterate_named_parameters(self.net)]
        for p in parameters:
            p.requires_grad_(id(p) in trained)
        kept = self.memory.get(f"momentum/{phase}", Tensors())
        kept = self._momentum[phase] if call.turn else kept
        factor = how.compute_lr_factor(self.t, self.rounds)
        optimiser = create_optimizer(named, how, call.rates, kept, factor)
        loss_sum, updates = self._losses[phase] if call.turn else (0.0, 0)
        with seeded(self._draw_seed, "fit", self.t, self.id, *call.key):
            start_training(self.net)
            loss_sum, more = self._run_steps(call, optimiser, loss_sum)
        optimiser.zero_grad()
        for p in parameters:
            p.requires_grad_(not is_given(p))
        self._store_momentum(optimiser, how, phase, kept)
        self._losses[phase] = float(loss_sum), updates + more
        self._record_loss(phase, float(loss_sum), updates + more)

    def _run_steps(
        self, call: TrainingPass, optimiser: Optimizer, loss_sum: float
    ) -> tuple[float, int]:
        """Run the steps of a training pass; return ``loss_sum`` plus all losses, and the number of updates."""
        if (losses := self._run_directly(call, optimiser)) is not None:
            for of_step in losses:  # sum() would round differently
                loss_sum += of_step
            return loss_sum, len(losses)
        named, how, precision = call.named, call.how, autocast()
        samples, updates = self.data.train if call.data is None else call.data, 0
        draws = self._make_image_draws(samples, "/".join(("fit", *map(str, call.key))))
        order = iterate_epochs(self.net, len(samples), how, call.epochs, call.steps)
        for x, y in samples.gather_batches(order, how.batch, draws):
            self.examples += call.repeat * len(y)
            for _ in range(call.repeat):
                optimiser.zero_grad()
                with precision:
                    value = call.loss(x, y)
                value.backward()
                call.add_pull()
                if how.clip_norm is not None:
                    clip_grad_norm_(named.values(), how.clip_norm)
                optimiser.step()
                loss_sum, updates = loss_sum + read_loss(value), updates + 1
            if call.after is not None:
                call.after()
        return loss_sum, updates

    def _run_directly(self, call: TrainingPass, optimiser: Optimizer) -> list[float] | None:
        """Run a training pass without autograd, with the same bits; return the loss of each step.

        Return None and change nothing if the pass needs autograd.
        """
        compute, how = get_compute(), call.how
        if (
            not compute.fast
            or compute.precision != "float32"
            or call.loss != self.compute_net_loss
            or type(self).compute_net_loss is not Client.compute_net_loss
            or (call.repeat, call.after, how.clip_norm) != (1, None, None)
        ):
            return None
        samples = self.data.train if call.data is None else call.data
        one = prepare_pass(self.net, self.loss, optimiser, samples, call.pull)
        if one is None:
            return None
        before = GeneratorStates.save()
        order = list(iterate_epochs(self.net, len(samples), how, call.epochs, call.steps))
        if not order:
            return []
        one.places, one.sizes = cut_batches(order, how.batch)
        has_same_bits, packing = check_pass(one)
        if not has_same_bits or not train_directly(one, packing):
            before.restore()
            return None
        self.examples += sum(one.sizes)
        return one.losses

    def compute_net_loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute the loss of the net's output: the default loss of ``fit``."""
        return self.loss(self.net(x), y)

    @property
    def lr(self) -> float:
        """The learning rate of this round: ``training.lr``, scaled by the schedule."""
        return self.training.lr * self.lr_factor

    @property
    def lr_factor(self) -> float:
        """The factor by which the schedule in ``training`` scales learning rates in this round."""
        return self.training.compute_lr_factor(self.t, self.rounds)

    @property
    def steps(self) -> int:
        """The number of mini-batches in a round, according to ``training``."""
        per_epoch = count_per_epoch(self.net, len(self.data.train), self.training)[1]
        if self.training.steps is not None:
            return self.training.steps if per_epoch else 0
        return self.training.epochs * per_epoch

    def draws(self, purpose: str) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate without end over random mini-batches of the training data.

        These draws use a separate generator, so the mini-batches of ``fit`` do not change.
        """
        source = torch.Generator().manual_seed(
            derive_seed(self._draw_seed, "draws", self.t, self.id, purpose)
        )
        n, size = len(self.data.train), self.training.batch
        image_draws = self._make_image_draws(self.data.train, f"draws/{purpose}")
        used, per_epoch = count_per_epoch(self.net, n, self.training)
        while per_epoch:
            for at in torch.randperm(n, generator=source)[:used].split(size)[:per_epoch]:
                self.examples += len(at)
                yield self.data.train.batch(at, image_draws)

    @torch.no_grad()
    def features(self) -> Tensor:
        """Compute the output of the base for all training examples, in evaluation mode."""
        self.net.eval()
        with autocast():
            return widen(torch.cat([self.net.base(x) for x, _ in self.data.train.batches(250)]))

    @contextmanager
    def apart(self, purpose: str) -> Iterator[None]:
        """Draw random numbers from a separate generator inside the ``with`` block.

        Run a teacher that uses dropout in such a block, so that the student's draws do not change.
        """
        with seeded(self._draw_seed, "apart", self.t, self.id, purpose):
            yield

    def remember_draws(self) -> Callable[[], AbstractContextManager[None]]:
        """Return a function ``again``: ``with again():`` repeats the draws that follow this call."""
        return partial(drawing_again, GeneratorStates.save())

    def once(self, derive: SamplesDerivation) -> Samples:
        """Return examples derived from the client's data, ``derive(client.data)``, cached for later rounds.

        ``derive`` runs on the CPU; its draws depend on client and function name, not on round or engine.
        """

        def derive_seeded() -> Samples:
            with computing(ON_CPU), seeded(self._seed, "once", self.id, derive.__name__):
                return derive(get_stored_data(self.data))

        return self._cache_derived(derive.__name__, derive_seeded)

    def shared(self) -> Tensors:
        """Return a copy of the net's shared tensors, which are sent to the server in this round."""
        return self._copy_tensors("shared")

    def stays(self) -> Tensors:
        """Return a copy of the net's personal tensors, which are neither shared nor given."""
        return self._copy_tensors("personal")

    def _list_names(self, kind: Kind) -> list[str]:
        """List the names of the net's tensors of one kind."""
        return [k for k, found in self.kinds.items() if found == kind]

    def _copy_tensors(self, kind: Kind) -> Tensors:
        """Return a copy of the net's tensors of one kind."""
        names = self._list_names(kind)
        now = list_state(self.net) if names else {}
        return Tensors({k: now[k].detach().clone() for k in names})

    def _store_momentum(
        self, optimiser: Optimizer, how: Training, phase: str, before: Tensors
    ) -> None:
        """Store the optimiser's state for later passes of the phase, and for later rounds if it persists."""
        after = optimiser.state()
        self._momentum[phase] = before | after
        if how.momentum_state == "persist" and after:
            self.memory[f"momentum/{phase}"] = before | after

    def _record_loss(self, phase: str, loss_sum: float, updates: int) -> None:
        """Record a phase's mean loss as a metric; raise DivergedError if it is not finite."""
        if updates:
            self.metrics[f"loss/{phase}"] = loss_sum / updates
        if loss_sum != loss_sum or loss_sum in (float("inf"), float("-inf")):
            remedies = (
                "training.lr or training.momentum" if self.training.momentum else "training.lr"
            )
            raise DivergedError(
                f"client {self.id}, round {self.t}: the loss of phase '{phase}' is no longer finite"
                f" (training.lr = {self.training.lr:g}); lower {remedies}, or set training.clip_norm"
            )

    def _make_image_draws(self, samples: Samples, purpose: str) -> ImageDraws | None:
        """Create the draws of the random image transform; None if the samples have no transform.

        These draws use a separate generator, so no other draws change.
        """
        if samples.image_transform is None:
            return None
        if samples.image_transform.frozen:
            return draw_once_per_image(len(samples.x), derive_seed(self._seed, "moves", self.id))
        return draw_every_time(derive_seed(self._draw_seed, "moves", self.id, self.t, purpose))


def flatten_parts(parts: Trainable | Iterable[Trainable]) -> Iterator[Trainable]:
    """Iterate over the modules and parameters in the argument ``train`` of ``fit``, which may be nested."""
    if isinstance(parts, nn.Module | Tensor):
        yield parts
    else:
        for part in parts:
            yield from flatten_parts(part)


def iterate_parameters(parts: Trainable | Iterable[Trainable]) -> Iterator[Tensor]:
    """Iterate over all parameters in the argument ``train`` of ``fit``, including those of its modules."""
    for part in flatten_parts(parts):
        yield from part.parameters() if isinstance(part, nn.Module) else [part]


def check_all_received(shared: Iterable[str], known: Tensors) -> None:
    """Raise KeyError if a shared tensor was not sent: the net would silently keep its initial values."""
    for name in shared:
        if name not in known:
            raise KeyError(f"the shared tensor {name!r} was not sent to the client")
