"""Privacy accounting with ``dp-accounting``, and Gaussian noise.

Privacy loss distributions (PLD) are rounded up, so that ε is an upper bound.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from importlib.util import find_spec
from math import ceil, prod, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..core.errors import ConfigError
from ..core.tensors import Tensors

if TYPE_CHECKING:
    from types import ModuleType


GRID = 2e-3  # grid of privacy losses; a finer grid is slower, and lowers ε by less than 0.1 %
MAX_CELLS = 1e6  # cells in a distribution of losses
NOISE_DIGITS = 4  # digits of the noise chosen for a target ε, which is rounded up


def import_accounting() -> ModuleType:
    """Import the optional library ``dp-accounting``."""
    if find_spec("dp_accounting") is None:
        raise ConfigError(
            "protection: accounting for privacy needs dp-accounting; install it with"
            " pip install 'heterophony[dp]'"
        )
    import dp_accounting  # type: ignore[import-not-found, import-untyped, unused-ignore]
    import dp_accounting.pld  # type: ignore[import-not-found, import-untyped, unused-ignore]

    return dp_accounting  # type: ignore[no-any-return, unused-ignore]


def make_event(noise: float, rate: float | None, steps: int) -> Any:
    """Make dp-accounting's event for ``steps`` noisy sums, each over a Poisson sample at this rate.

    ``noise`` is the standard deviation divided by the sensitivity. Without a rate, no
    sampling amplifies privacy.
    """
    library = import_accounting()
    event = library.GaussianDpEvent(noise)
    if rate is not None and rate < 1:
        event = library.PoissonSampledDpEvent(rate, event)
    return library.SelfComposedDpEvent(event, steps)


def create_accountant(grid: float = GRID) -> Any:
    """Create dp-accounting's accountant, which adds up privacy losses on this grid."""
    library = import_accounting()
    return library.pld.PLDAccountant(library.NeighboringRelation.ADD_OR_REMOVE_ONE, grid)


def choose_grid(noise: float, steps: int) -> float:
    """Choose the grid of privacy losses: a coarser one for noise so small that losses are huge."""
    largest = steps / (2 * noise**2) + 8 * sqrt(steps) / noise  # approximate; sampling lowers it
    return max(GRID, largest / MAX_CELLS)


@lru_cache(maxsize=1 << 12)
def compute_epsilon(noise: float, rate: float | None, steps: int, delta: float) -> float | None:
    """Compute the privacy loss ε of ``steps`` releases at this δ; without noise there is no bound: None."""
    if not steps:
        return 0.0
    if not noise:
        return None
    grid = choose_grid(noise, steps)
    accountant = create_accountant(grid).compose(make_event(noise, rate, steps))
    return float(accountant.get_epsilon(delta))


@lru_cache(maxsize=1 << 8)
def find_noise(epsilon: float, rate: float | None, steps: int, delta: float) -> float:
    """Find the smallest noise, rounded up, with which ``steps`` releases have a privacy loss of at most ε."""
    found = import_accounting().calibrate_dp_mechanism(
        create_accountant,
        lambda noise: make_event(noise, rate, steps),
        epsilon,
        delta,
        tol=10.0**-NOISE_DIGITS,
    )
    unit = 10**NOISE_DIGITS
    noise: float = ceil(found * unit) / unit
    while (spent := compute_epsilon(noise, rate, steps, delta)) is None or spent > epsilon:
        noise = round(noise + 1 / unit, NOISE_DIGITS)
    return noise


def count_affordable(
    noise: float, rate: float | None, steps: int, delta: float, budget: float
) -> int:
    """Return how many of ``steps`` releases keep the privacy loss ε within the budget."""
    low, high = 0, steps
    while low < high:
        middle = (low + high + 1) // 2
        spent = compute_epsilon(noise, rate, middle, delta)
        if spent is not None and spent <= budget:
            low = middle
        else:
            high = middle - 1
    return low


def draw_uniform(
    secret: bytes, purpose: str, count: int
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Draw uniform numbers strictly between 0 and 1 from the secret, for one purpose."""
    stream = hashlib.shake_256(len(secret).to_bytes(8, "big") + secret + purpose.encode())
    words = np.frombuffer(stream.digest(8 * count), "<u8") >> np.uint64(11)
    return (words.astype(np.float64) + 0.5) / 2.0**53


def draw_normal_like(tensors: Tensors, secret: bytes, purpose: str) -> Tensors:
    """Draw standard normal noise from the secret, in float64, with these tensors' names and shapes."""
    from scipy.special import ndtri  # type: ignore[import-untyped]  # slow to import

    def draw(name: str, shape: torch.Size) -> torch.Tensor:
        values = ndtri(draw_uniform(secret, f"{purpose}|{name}", prod(shape)))
        return torch.from_numpy(values).reshape(shape)

    return Tensors({k: draw(k, v.shape) for k, v in tensors.items()})
