"""The data and settings that all platforms share in ``small_jobs.py``. Needs NumPy only."""

from __future__ import annotations

import numpy as np

CLIENTS, EXAMPLES, PER_ROUND = 1000, 50, 50
EPOCHS, BATCH, LR = 5, 10, 0.1
TRAINED = 30  # of the 37 training examples of a client: heterophony drops an epoch's short batch
TEST_FROM = 37


def make_examples(clients: int, examples: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw images of 8 x 8 bytes, a noisy pattern for each of ten classes, and their labels."""
    draw = np.random.default_rng(0)
    labels = np.arange(clients * examples) % 10
    patterns = draw.integers(0, 256, size=(10, 8, 8, 1))
    noise = draw.integers(0, 256, size=(len(labels), 8, 8, 1))
    return (0.25 * patterns[labels] + 0.75 * noise).astype(np.uint8), labels
