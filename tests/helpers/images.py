"""Images and samples of one client, as input for tests."""

from __future__ import annotations

import torch

from heterophony.core.randomness import seeded
from heterophony.core.samples import BYTES_TO_PLUS_MINUS_ONE, Samples, Scale


def make_images(n: int, shape=(1, 8, 8), top: int = 255, key: object = 0) -> torch.Tensor:
    """Make images that all differ: their first two pixels are a serial number."""
    with seeded("images", key):
        x = torch.randint(0, top + 1, (n, *shape), dtype=torch.uint8)
    x.view(n, -1)[:, 0], x.view(n, -1)[:, 1] = (
        torch.arange(n) % (top + 1),
        torch.arange(n) // (top + 1),
    )
    return x


def list_image_bytes(x: torch.Tensor) -> list[bytes]:
    return [row.numpy().tobytes() for row in x]


def make_client_samples(
    counts: dict[int, int], shape=(1, 8, 8), scale: Scale = BYTES_TO_PLUS_MINUS_ONE
) -> Samples:
    """Make a client with ``counts`` images by class, in random order, as rows of a larger pool."""
    labels = torch.tensor([c for c, n in counts.items() for _ in range(n)])
    with seeded("client"):
        labels = labels[torch.randperm(len(labels))]
        rows = torch.randperm(2 * len(labels))[: len(labels)]
    y = torch.full((2 * len(labels),), 99)
    y[rows] = labels
    return Samples(make_images(2 * len(labels), shape), y, scale, rows)
