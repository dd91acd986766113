"""Mixtures of clients' models: weights and points on the simplex, APPLE's core models, FedFomo's downloads, FedAMP."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import Literal

import torch
from torch import Tensor

from ...core.algorithm import Algorithm, Client, Reply, Server, setting
from ...core.tensors import Tensors, answer, mix, state, weights


def minimise_on_simplex(q: Tensor, start: int) -> Tensor | None:
    """Minimise a'Qa over mixing weights a >= 0 with sum 1, from the corner ``start``; None if that fails.

    Q is a Gram matrix of points: the minimum is the point of their hull nearest to the origin.
    """
    n, q = len(q), q / q.diagonal().max().clamp(min=1e-300)
    a = torch.zeros(n, dtype=q.dtype)
    a[start] = 1.0
    for _ in range(10 * n):
        slope, held = q @ a, (a > 0).nonzero().flatten().tolist()
        enters = int(slope.argmin())
        if slope[enters] >= a @ slope - 1e-14 or enters in held:  # held: as near as rounding allows
            return a
        inside = minimise_on_face(q, a, sorted([*held, enters]))
        if inside is None:
            return None
        a = inside
    return None


def minimise_on_face(q: Tensor, a: Tensor, held: list[int]) -> Tensor | None:
    """Minimise a'Qa on the face of the simplex with corners ``held``; drop corners the minimum lies beyond."""
    while True:
        best = minimise_on_affine_hull(q, held)
        if not bool(best.isfinite().all()):
            return None
        here, out = a[held], (best <= 0).nonzero().flatten()
        if not len(out):
            return torch.zeros_like(a).index_copy_(0, torch.tensor(held), best)
        reach = here[out] / (here[out] - best[out])
        first = int(out[reach.argmin()])
        here = here + reach.min() * (best - here)
        a = torch.zeros_like(a).index_copy_(0, torch.tensor(held), here.clamp(min=0))
        held = [j for i, j in enumerate(held) if i != first]


def minimise_on_affine_hull(q: Tensor, held: list[int]) -> Tensor:
    """Minimise a'Qa on the plane through the corners ``held``, where Qa is the same for all of them."""
    n = len(held)
    k = torch.ones(n + 1, n + 1, dtype=q.dtype)
    k[:n, :n], k[n, n] = q[held][:, held], 0.0
    one = torch.zeros(n + 1, dtype=q.dtype)
    one[n] = 1.0
    solved, failed = torch.linalg.solve_ex(k, one)
    return solved[:n] if not failed else torch.full((n,), torch.nan, dtype=q.dtype)


def project_onto_simplex(points: Tensor, total: float | Tensor) -> Tensor:
    """Project one or several points (rows) onto the simplex of nonnegative entries with sum ``total``."""
    falling = points.sort(-1, descending=True).values
    over = (falling.cumsum(-1) - total) / torch.arange(1, points.shape[-1] + 1).to(points)
    used = (falling > over).sum(-1, keepdim=True)
    return (points - over.gather(-1, used - 1)).clamp(min=0)


def spread_over_simplex(rows: Tensor, corners: int) -> Tensor:
    """Assign each row a point of the simplex, so that similar rows get nearby points.

    The rows are projected on their first principal components and then onto simplices of a thousand
    sizes. The size that spreads them best, by the energy of equal charges, is used.
    """
    rows = rows.double() - rows.double().mean(0)
    values, vectors = torch.linalg.eigh(rows @ rows.T)
    axes = (vectors * values.clamp(min=0).sqrt()).flip(1)[:, :corners]
    # otherwise the eigenvectors' signs are arbitrary
    signs = axes.gather(0, axes.abs().argmax(0, keepdim=True)).sign()
    scores = torch.zeros(len(rows), corners, dtype=rows.dtype)
    scores[:, : axes.shape[1]] = axes * torch.where(signs == 0, 1.0, signs)
    sizes = torch.linspace(1e-4, 1, 1000, dtype=rows.dtype)
    best, least = scores, float("inf")
    first, second = torch.triu_indices(len(rows), len(rows), 1)
    for size in sizes:
        points = project_onto_simplex(scores, size) / size
        distances = (points[first] - points[second]).norm(dim=1).clamp(min=1e-4)
        energy = float((1 / distances.square()).sum())
        if energy < least:
            best, least = points, energy
    return best.float()


LEAST_BASE = 1.5  # lower limit of the base of powers, as in the authors' code


def compute_example_shares(client: Client) -> Tensor:
    """Compute APPLE's p0, each client's share of all examples; this client comes first."""
    sizes = client.received["apple/samples"]
    counts = torch.cat([sizes.new_tensor([float(len(client.data.train))]), sizes])
    return counts / counts.sum()


def stack_cores(client: Client) -> Tensors:
    """Stack the core models of the other clients (APPLE), one per row.

    Each is as received this round, else as kept from an earlier one, else the initial model.
    """
    initial = client.memory.get("initial", weights(client.net))
    rows = [
        initial | client.memory.get(f"core/{i}", {}) | client.received.below(f"core/{i}/")
        for i in range(count_other_clients(client))
    ]
    return Tensors({k: torch.stack([row[k].flatten() for row in rows]) for k in initial if rows})


def count_other_clients(client: Client) -> int:
    """Return how many other clients an APPLE client knows of: all other clients of the run."""
    return len(client.received["apple/samples"])


def add_cores(own: Tensors, others: Tensors, p: Tensor) -> Tensors:
    """Return APPLE's weighted sum of all core models, with gradients for the client's own and for p."""
    if not others:
        return own.map(lambda w: p[0] * w)
    return own.map(lambda w, rows: p[0] * w + (p[1:] @ rows).view(w.shape), others)


def scale_gradients(tensors: Tensors, factor: float) -> Tensors:
    """Return tensors with the same values whose gradients are multiplied by the factor."""
    if factor == 1:
        return tensors
    return tensors.map(lambda w: w.detach() + factor * (w - w.detach()))


class CoreWeights:
    """APPLE's weights p of the core models, the client's own first: they start as p0, and SGD trains them.

    Their momentum is that of local training: as in the authors' code, one optimiser steps both.
    Like that of the net, it is kept between rounds or reset.
    """

    def __init__(self, client: Client) -> None:
        kept, self.p0 = client.memory.get("weights", Tensors()), compute_example_shares(client)
        self.p = kept.get("p", self.p0).clone().requires_grad_()
        self.momentum = kept.get("momentum", torch.zeros_like(self.p0)).clone()
        self.factor = client.training.momentum or 0.0
        self.nesterov = client.training.nesterov

    def step(self, rate: float, pull: float) -> None:
        """Make an SGD step of p along the gradient of the loss, and towards p0."""
        if self.p.grad is None:
            return
        slope = self.p.grad + pull * (self.p.detach() - self.p0)
        self.momentum.mul_(self.factor).add_(slope)
        step = slope.add(self.momentum, alpha=self.factor) if self.nesterov else self.momentum
        self.p.data.add_(step, alpha=-rate)
        self.p.grad = None

    def keep(self, client: Client) -> None:
        """Store p, and the momentum if it is kept, in the client's memory."""
        found = {"p": self.p.detach().clone()}
        if self.factor and client.training.momentum_state == "persist":
            found["momentum"] = self.momentum
        client.memory["weights"] = Tensors(found)


# Limited downloads --------------------------------------------------------------------------
def list_sent_cores(
    server: Server, client: str, others: Sequence[str], limit: int | None
) -> list[int]:
    """List the positions of the other clients whose core models APPLE sends: all that have taken part.

    With a limit, they are those that the client asked for, or the first ones if it has not asked yet.
    """
    known = [i for i, c in enumerate(others) if f"core/{c}" in server.memory]
    if limit is None or limit >= len(others):
        return known
    wanted = server.memory.get(f"wanted/{client}", Tensors()).get("apple/wanted")
    return known[:limit] if wanted is None else [i for i in wanted.tolist() if i in known]


def keep_received_cores(client: Client) -> None:
    """Store the received core models on the client, for rounds in which it receives others."""
    for i in range(count_other_clients(client)):
        if core := client.received.below(f"core/{i}/"):
            client.memory[f"core/{i}"] = core


def choose_wanted_cores(client: Client, p: Tensor, count: int) -> Tensors:
    """Choose whose core models an APPLE client receives next: first, at random, those never received.

    Each of the others is drawn with probability proportional to a power: its exponent is the
    absolute weight, and its base grows with the number of downloads so far.
    """
    base = max(LEAST_BASE, (client.t + 1) * count / len(p))
    new = torch.tensor([f"core/{i}" not in client.memory for i in range(len(p) - 1)])
    sizes = p[1:].detach().abs().cpu().double().masked_fill(new, 0)
    with client.apart("wanted"):
        draws = -(-torch.rand_like(sizes).log()).log()  # draws from Gumbel's distribution
    # the largest are drawn in proportion to base ** |p|
    scores = (draws + log(base) * sizes).tolist()
    order = sorted(range(len(scores)), key=lambda i: (not new[i], -scores[i]))
    return Tensors({"apple/wanted": torch.tensor(sorted(order[:count]), dtype=torch.int64)})


def choose_downloads(liking: Tensor, known: Sequence[bool], count: int, chance: float) -> Tensor:
    """Choose the models that FedFomo's clients download: up to ``count`` others each, padded with -1.

    ``liking`` has the preferences of each client in a row, and ``known`` marks the clients with a model.
    Each choice is the remaining client with the highest preference (ties are broken at random) or, with
    probability ``chance``, a random remaining client.
    """
    n, rows = len(liking), []
    explores, ranks = torch.rand(n, count) < chance, torch.rand(n, n)
    for i in range(n):
        left, row = [j for j in range(n) if known[j] and j != i], list[int]()
        for slot in range(min(count, len(left))):
            liked = torch.zeros(n) if explores[i, slot] else liking[i]
            best = max(left, key=lambda j: (float(liked[j]), float(ranks[i, j])))
            left.remove(best)
            row.append(best)
        rows.append(row + [-1] * (count - len(row)))
    return torch.tensor(rows, dtype=torch.int64).view(n, count)


@dataclass(frozen=True)
class AttentiveMessagePassing(Algorithm):
    """Base of FedAMP: client i starts from u_i, the server's mixture for it, and trains w_i near u_i."""

    paper = "Huang et al., AAAI 2021"
    common = False
    lam: float = setting(1.0, "strength of the proximal term towards the cloud model u_i", low=0)
    alpha: float = setting(
        1e4, "divisor of the proximal term; falls to a tenth every 30 rounds", above=0
    )
    tested: Literal["local", "cloud"] = setting(
        "local", "model that P is measured with: w_i as last trained, or the cloud model u_i"
    )

    def compute_alpha(self, t: int) -> float:
        """Return FedAMP's α in round ``t``: it falls to a tenth every 30 rounds."""
        return self.alpha * 0.1 ** (t // 30)

    def send(self, server: Server, client: str) -> Tensors:
        known = list_clients_with_model(server)
        if client not in known:
            return server.model  # the common initial model
        row = server.memory["attention"]["xi"][known.index(client)].tolist()
        models = [server.memory[f"model/{c}"] for c in known]
        used = [(w, share) for w, share in zip(models, row, strict=True) if share]
        return mix([w for w, _ in used], [share for _, share in used])

    def local(self, client: Client) -> Tensors:
        cloud = weights(client.net)
        # the term grows as alpha falls; the floor keeps lr times its strength at most a tenth
        floor = 10 * client.lr * self.lam
        strength = self.lam and self.lam / max(self.compute_alpha(client.t), floor)

        client.fit(pull=(lambda w: strength * (w - cloud)) if strength else None)
        client.memory["own"] = state(client.net)
        return client.shared()

    def merge(self, server: Server, replies: Sequence[Reply]) -> Server:
        after = server.update(**{f"model/{r.client}": r.tensors for r in replies})
        models = [
            after.memory[f"model/{c}"].without(*server.statistics)
            for c in list_clients_with_model(after)
        ]
        return after.update(attention=Tensors({"xi": self.compute_attention(models, server.t + 1)}))

    def compute_attention(self, models: Sequence[Tensors], t: int) -> Tensor:
        """Compute the mixture of each client: in row i, the share of each model, with sum 1."""
        raise NotImplementedError

    def predict(self, client: Client, x: Tensor) -> Tensor:
        own = client.memory.get("own", Tensors()) if self.tested == "local" else Tensors()
        return answer(client.net, own, x)


def list_clients_with_model(server: Server) -> list[str]:
    """List the clients whose models the server has, in client order."""
    return [c for c in server.clients if f"model/{c}" in server.memory]
