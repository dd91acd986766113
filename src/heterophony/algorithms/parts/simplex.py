"""Minimise a convex quadratic form on the simplex: Wolfe, Nearest point in a polytope, 1976."""

import torch
from torch import Tensor


def minimise_on_simplex(q: Tensor, start: int) -> Tensor | None:
    """Find argmin of a'Qa over a >= 0, sum a = 1, from the corner ``start``; None where that fails.

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
    """Minimise between the held corners, dropping corners that the minimum lies beyond."""
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
    """Minimise on the plane through the corners, where Qa is the same for all of them."""
    n = len(held)
    k = torch.ones(n + 1, n + 1, dtype=q.dtype)
    k[:n, :n], k[n, n] = q[held][:, held], 0.0
    one = torch.zeros(n + 1, dtype=q.dtype)
    one[n] = 1.0
    solved, failed = torch.linalg.solve_ex(k, one)
    return solved[:n] if not failed else torch.full((n,), torch.nan, dtype=q.dtype)
