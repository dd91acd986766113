"""Evaluate many clients at once: examples of clients with the same model pass through it in large blocks.

Clients with personal heads on a common base share the base's features. The outputs have the same bits as
when clients are evaluated one by one: ``find_form`` checks this for each size before blocks are used.
Matrix products with very few rows round differently from those with many, so clients with very few
examples are stacked and get one product each.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import isfinite
from typing import Literal

import torch
from torch import Tensor, nn

from ..core.algorithm import Algorithm, Reply
from ..core.direct import ALIGNED_FLOATS, Slices
from ..core.net import Net, find_aliases, iterate_tensors
from ..core.samples import Samples, is_aligned
from ..core.scores import LOSS_PREFIX
from ..core.tasks import count_confusions
from ..core.tensors import Memory, Tensors, load_into_net
from .client_store import ClientStore, digest_memory
from .evaluation import EVALUATION_BATCH, NO_VARIANCE, adapts_models, evaluate
from .plan import Job, Plan

Form = Literal["rows", "stack", "alone"]  # how clients of equal size are evaluated
BLOCK_ROWS = 1000  # examples that go through the net at once
ROWS_STEP = 250  # blocks are padded to a multiple of this, so that few sizes need tests
KEPT_BYTES = 16 << 20  # limit on the client memories loaded at a time
NOTHING = Tensors()  # shared, because creating one for every client takes time
TASKS_BY_ROW = ("classification", "regression", "multilabel")  # tasks with one score per example


def evaluates_in_blocks(plan: Plan) -> bool:
    """Return True if clients of this plan can share a block: models are mere nets, and data are unaltered."""
    kind = type(plan.algorithm)
    return (
        kind.predict is Algorithm.predict
        and kind.generic is Algorithm.generic
        and not adapts_models(plan.algorithm)
        and type(plan.template).forward is Net.forward
        and plan.task.name in TASKS_BY_ROW
        and plan.loss is None
        and plan.federation.skew is None
        and plan.federation.record is None
        and not plan.attack.is_active
        and not plan.clients_on_boards
        and not plan.net_of
        and not find_aliases(plan.template)
    )


@dataclass(eq=False)
class EvaluatedClient:
    """One client in a block: its job, its memory, its examples by part, and its metrics."""

    job: Job
    memory: Memory
    samples: dict[str, Samples]
    metrics: dict[str, float] = field(default_factory=dict)

    @cached_property
    def personal(self) -> Tensors:
        """The tensors of the client's net that the server did not send."""
        kept = self.memory.get("net", NOTHING)
        if not kept:
            return NOTHING
        return Tensors({k: v for k, v in kept.items() if k not in self.job.tensors})

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The number of the client's examples by part."""
        return {part: len(samples) for part, samples in self.samples.items()}

    @property
    def shares_base(self) -> bool:
        """Whether the server sent the whole base, so that its features can be shared."""
        return not any(name.startswith("base.") for name in self.personal)


def evaluate_in_blocks(plan: Plan, jobs: Sequence[Job], client_store: ClientStore) -> list[Reply]:
    """Evaluate all jobs with the same results as ``evaluate``, in blocks where this is possible.

    The times in the replies are equal shares of the whole time.
    """
    begun = time.perf_counter()
    parts = ("test", "validation") if plan.federation.validates else ("test",)
    replies, clients, kept = list[Reply](), list[EvaluatedClient](), 0
    has_memories = client_store.has_memories()
    for job in jobs:
        samples = {part: plan.federation.samples(job.client, part) for part in parts}
        memory = client_store.load_memory(job.client, before=job.t) if has_memories else {}
        clients.append(EvaluatedClient(job, memory, samples))
        kept += sum(tensors.nbytes for tensors in memory.values())
        if kept > KEPT_BYTES:
            replies += evaluate_clients(plan, clients, client_store, begun)
            clients, kept, begun = [], 0, time.perf_counter()
    return replies + evaluate_clients(plan, clients, client_store, begun)


def evaluate_clients(
    plan: Plan, clients: Sequence[EvaluatedClient], client_store: ClientStore, begun: float
) -> list[Reply]:
    """Evaluate clients whose memories are loaded; those with the same tensors are evaluated in blocks."""
    groups = dict[tuple[int, int], list[EvaluatedClient]]()
    for client in clients:
        if client.shares_base:
            key = id(client.job.tensors), id(client.job.generic_model)
            groups.setdefault(key, []).append(client)
    done = set[int]()
    for group in groups.values():
        if len(group) > 1:
            done.update(map(id, BlockEvaluation(plan, group, client_store).run()))
    for client in clients:
        if id(client) not in done:
            alone = evaluate(plan, client.job, client.memory, client_store)
            client.metrics.update(alone.metrics)
    seconds = (time.perf_counter() - begun) / max(1, len(clients))
    return [make_reply(plan, client, seconds) for client in clients]


def make_reply(plan: Plan, client: EvaluatedClient, seconds: float) -> Reply:
    """Make the reply to an evaluation; after the last round, include the digest of the client's memory."""
    tested, is_last = client.sizes["test"], client.job.t == plan.rounds
    return Reply(
        client.job.client,
        "evaluate",
        NOTHING,
        tested,
        tested,
        {**client.metrics, "seconds": seconds},
        aside=NOTHING,
        kept=digest_memory(client.memory) if is_last else "",
    )


class BlockEvaluation:
    """The evaluation of clients that received the same tensors and differ at most in their heads."""

    def __init__(
        self, plan: Plan, clients: Sequence[EvaluatedClient], client_store: ClientStore
    ) -> None:
        job = clients[0].job
        self.plan, self.clients = plan, clients
        self.net = plan.build_client(job, {}, client_store).net.eval()
        # provides the personal heads
        self.own_net = plan.build_client(job, {}, client_store).net.eval()
        memory = {"net": job.generic_model}
        bare = replace(job, tensors=Tensors())
        self.generic = plan.build_client(bare, memory, client_store).net.eval()
        self.has_generic_base = has_same_tensors(self.net.base, self.generic.base)
        self.is_generic = self.has_generic_base and has_same_tensors(self.net, self.generic)
        personal = [client.personal for client in clients if client.personal]
        self.personal_names = personal[0].keys() if personal else frozenset[str]()
        algorithm = plan.algorithm
        self.measures = ["P"] if job.t == plan.rounds or algorithm.ready(job.t) else []
        self.measures += ["G"] if algorithm.common else []

    def run(self) -> list[EvaluatedClient]:
        """Measure all clients whose examples fit into blocks; return the measured clients."""
        with torch.inference_mode():
            done = [client for client in self.clients if self.fits(client)]
            for part in done[0].samples if done else ():
                for size, block in self.split_clients(done, part):
                    self.measure_block(block, part, size)
        return done

    def fits(self, client: EvaluatedClient) -> bool:
        """Return True if a client's outputs in a block are bit-identical to evaluating it alone."""
        if client.personal and client.personal.keys() != self.personal_names:
            return False
        return all(self.find_form(size) != "alone" for size in client.sizes.values())

    def find_form(self, size: int) -> Form:
        """Find, by testing random inputs, how clients with ``size`` examples can be batched.

        The outputs must be bit-identical to evaluating each client alone ("alone" if no way works).
        """
        forms = self.plan.block_forms
        if size not in forms:
            forms[size] = "alone"
            if size == 0 or (size <= EVALUATION_BATCH and self.has_same_rows(size)):
                forms[size] = "rows"
            elif size <= EVALUATION_BATCH and self.has_same_stack(size):
                forms[size] = "stack"
        return forms[size]

    def has_same_rows(self, size: int) -> bool:
        """Return True if a client's rows have the same bits at any place in a block of any length."""
        samples = self.draw_samples()
        for rows in range(ROWS_STEP, BLOCK_ROWS + 1, ROWS_STEP):
            whole = self.run_parts(samples.batch(torch.arange(rows))[0])
            for begin in {0, 7 % (rows - size + 1), rows - size}:
                if not self.has_bits_alone(samples, range(begin, begin + size), whole):
                    return False
        return True

    def has_same_stack(self, size: int) -> bool:
        """Return True if the outputs of each client in a stack are bit-identical to evaluating it alone."""
        samples, rows = self.draw_samples(), count_stacked_rows(size)
        with stacking(self.net, size):
            whole = self.run_parts(samples.batch(torch.arange(rows))[0])
        return all(
            self.has_bits_alone(samples, range(begin, begin + size), whole)
            for begin in range(0, rows, size)
        )

    def draw_samples(self) -> Samples:
        """Return random examples or, if the data are tokens, the first examples, repeated."""
        stored, draw = self.plan.federation.x, torch.Generator().manual_seed(0)
        if stored.dtype == torch.uint8 or stored.is_floating_point():
            x = torch.rand((BLOCK_ROWS, *stored.shape[1:]), generator=draw).mul_(2).sub_(1)
        else:
            x = stored[torch.arange(BLOCK_ROWS) % len(stored)]
        return Samples(x, torch.zeros(BLOCK_ROWS))

    def has_bits_alone(self, samples: Samples, rows: range, whole: Sequence[Tensor]) -> bool:
        """Return True if these rows of ``whole`` have the same bits as when they are computed alone."""
        alone = self.run_parts(samples.batch(torch.tensor(rows))[0])
        return all(map(torch.equal, (part[rows.start : rows.stop] for part in whole), alone))

    def run_parts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features and the outputs of a block's examples."""
        features = self.net.base(x)
        return features, self.net.head(features)

    def split_clients(
        self, clients: Sequence[EvaluatedClient], part: str
    ) -> Iterator[tuple[int, list[EvaluatedClient]]]:
        """Split the clients into blocks: (0, clients of any size) or (size, clients to stack)."""
        blocks, rows = dict[int, list[EvaluatedClient]](), dict[int, int]()
        for client in clients:
            size = client.sizes[part]
            key = size if self.find_form(size) == "stack" else 0
            if rows.get(key, 0) + size > BLOCK_ROWS:
                yield key, blocks.pop(key)
                rows[key] = 0
            blocks.setdefault(key, []).append(client)
            rows[key] = rows.get(key, 0) + size
        yield from blocks.items()

    def measure_block(self, block: Sequence[EvaluatedClient], part: str, size: int) -> None:
        """Run the models on several clients' examples, and measure each client's outputs.

        ``size`` is the number of examples of each client in a stack; it is 0 for other blocks.
        """
        samples = [client.samples[part] for client in block]
        rows = torch.cat([one.rows for one in samples if one.rows is not None])
        filled = -(-max(1, len(rows)) // ROWS_STEP) * ROWS_STEP
        if size:
            filled = count_stacked_rows(size)
        places = torch.nn.functional.pad(rows, (0, filled - len(rows)))
        whole = replace(samples[0], rows=None)
        x, y = whole.batch(places)[0], whole.y[rows]
        sizes = [client.sizes[part] for client in block]
        with stacking(self.net, size), stacking(self.generic, size):
            outputs = self.compute_outputs(x, block, sizes)
        suffix = "" if part == "test" else "_valid"
        measured = dict[int, list[dict[str, float]]]()
        for measure, output in outputs.items():
            if id(output) not in measured:
                measured[id(output)] = measure_rows(self.plan, output[: len(y)], y, sizes)
            name = measure + suffix
            # the score, its loss, and additional metrics, as an evaluation names them
            names = {"": name, LOSS_PREFIX: f"{LOSS_PREFIX}{name}"}
            for client, found in zip(block, measured[id(output)], strict=True):
                for k, value in found.items():
                    client.metrics[names.get(k) or f"{name}/{k}"] = value

    def compute_outputs(
        self, x: Tensor, block: Sequence[EvaluatedClient], sizes: Sequence[int]
    ) -> dict[str, Tensor]:
        """Compute the outputs of the personal models (P) and of the generic model (G)."""
        features = self.net.base(x)
        outputs = dict[str, Tensor]()
        if "P" in self.measures:
            outputs["P"] = self.compute_own(features, block, sizes)
        if "G" in self.measures:
            if self.is_generic and not any(c.personal for c in block) and "P" in outputs:
                outputs["G"] = outputs["P"]
            elif self.has_generic_base:
                outputs["G"] = self.generic.head(features)
            else:
                outputs["G"] = self.generic(x)
        return outputs

    def compute_own(
        self, features: Tensor, block: Sequence[EvaluatedClient], sizes: Sequence[int]
    ) -> Tensor:
        """Compute the outputs of the personal models from the features of a block."""
        common = None
        if not all(client.personal for client in block):
            common = self.net.head(features)
        if not any(client.personal for client in block):
            assert common is not None
            return common
        parts, begin = list[Tensor](), 0
        for client, size in zip(block, sizes, strict=True):
            mine = features[begin : begin + size]
            if client.personal:
                load_into_net(self.own_net, client.personal)
                parts.append(self.own_net.head(mine if is_aligned(mine) else mine.clone()))
            elif common is not None:
                parts.append(common[begin : begin + size])
            begin += size
        return torch.cat(parts)


def count_stacked_rows(size: int) -> int:
    """Return the fixed number of rows in a stack of clients with ``size`` examples."""
    return BLOCK_ROWS // size * size


@contextmanager
def stacking(net: Net, size: int) -> Iterator[None]:
    """Make linear layers compute one product per ``size`` rows inside the ``with`` block; 0: one in all."""
    layers = [m for m in net.modules() if type(m) is nn.Linear] if size else []
    for layer in layers:
        layer.forward = partial(multiply_stacked, layer, size)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def multiply_stacked(layer: nn.Linear, size: int, x: Tensor) -> Tensor:
    """Compute the output of a linear layer with a product for every ``size`` rows."""
    count = len(x) // size
    rows = Slices(count, (size, layer.in_features), ALIGNED_FLOATS, x).each
    out = Slices(count, (size, layer.out_features), ALIGNED_FLOATS, x).each
    rows.copy_(x.view(rows.shape))
    weight = layer.weight.t().expand(count, -1, -1)
    if layer.bias is None:
        torch.bmm(rows, weight, out=out)
    else:
        torch.baddbmm(layer.bias, rows, weight, out=out)
    return out.reshape(len(x), layer.out_features)


def has_same_tensors(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    """Return True if all parameters and buffers of two nets are equal."""
    others = dict(iterate_tensors(b))
    return all(torch.equal(v, others[k]) for k, v in iterate_tensors(a))


def measure_rows(
    plan: Plan, output: Tensor, y: Tensor, sizes: Sequence[int]
) -> list[dict[str, float]]:
    """Compute the score, loss and metrics of each client's rows, with the same bits as for one client."""
    counted = plan.task.name == "classification"
    variance = plan.federation.target_variance if plan.task.name == "regression" else NO_VARIANCE
    scores = plan.task.score_examples(output, y, variance)
    losses = plan.task.list_losses(output, y).split(list(sizes))
    values = count_by_client(scores, sizes) if counted else add_by_client(scores.split(list(sizes)))
    sums = add_by_client(losses)
    parts = zip(values, sums, losses, output.split(list(sizes)), y.split(list(sizes)), strict=True)
    found = []
    for value, total, loss, out, labels in parts:
        one = {"": value}
        if len(labels) and isfinite(mean := total / loss.numel()):
            one[LOSS_PREFIX] = mean
        for metric in plan.metrics if len(labels) else ():
            if isfinite(number := float(metric.compute(out, labels))):
                one[metric.name] = number
        if plan.confusion and len(labels):
            one |= count_confusions(out, labels)
        found.append(one)
    return found


def count_by_client(correct: Tensor, sizes: Sequence[int]) -> list[float]:
    """Count each client's correctly predicted examples."""
    counts = torch.nn.functional.pad(correct.cumsum(0), (1, 0))
    ends = torch.tensor(sizes).cumsum(0)
    return (counts[ends] - counts[ends - torch.tensor(sizes)]).tolist()


def add_by_client(parts: Sequence[Tensor]) -> list[float]:
    """Add up each client's values; read all sums at once."""
    return torch.stack([part.sum() for part in parts]).tolist()
