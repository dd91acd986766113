"""How unlike the clients are: their labels' entropy, and their distance from everybody's labels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]  # clients × classes
Numbers = NDArray[np.float64]


def entropy(counts: Counts) -> Numbers:
    """Of each client's labels, in bits: 0 for a single class, log2(classes) for all alike."""
    return bits(frequencies(counts))


def total_variation(counts: Counts) -> Numbers:
    """From each client's labels to everybody's: 0 the same, 1 nothing in common."""
    everybody = frequencies(counts.sum(axis=0))
    return np.asarray(np.abs(frequencies(counts) - everybody).sum(axis=1) / 2)


def jensen_shannon(counts: Counts) -> Numbers:
    """The divergence, in bits, of each client's labels from everybody's: 0 … 1."""
    own, everybody = frequencies(counts), frequencies(counts.sum(axis=0))
    gap = bits((own + everybody) / 2) - (bits(own) + bits(everybody)) / 2
    return np.asarray(np.maximum(gap, 0.0))  # rounding may go below


def frequencies(counts: Counts) -> Numbers:
    totals = counts.sum(axis=-1, keepdims=True)
    return np.asarray(counts / np.maximum(totals, 1))


def bits(p: Numbers) -> Numbers:
    return np.asarray(-np.sum(p * np.log2(np.where(p > 0, p, 1.0)), axis=-1) + 0.0)
