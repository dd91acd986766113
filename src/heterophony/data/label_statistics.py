"""How unlike the clients are: their labels' entropy, and their distance from everybody's labels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LabelCounts = NDArray[np.int64]  # clients × classes
FloatArray = NDArray[np.float64]


def entropy(counts: LabelCounts) -> FloatArray:
    """Of each client's labels, in bits: 0 for a single class, log2(classes) for all alike."""
    return compute_entropy_bits(normalise_counts(counts))


def total_variation(counts: LabelCounts) -> FloatArray:
    """From each client's labels to everybody's: 0 the same, 1 nothing in common."""
    everybody = normalise_counts(counts.sum(axis=0))
    return np.asarray(np.abs(normalise_counts(counts) - everybody).sum(axis=1) / 2)


def jensen_shannon(counts: LabelCounts) -> FloatArray:
    """The divergence, in bits, of each client's labels from everybody's: 0 … 1."""
    own, everybody = normalise_counts(counts), normalise_counts(counts.sum(axis=0))
    gap = (
        compute_entropy_bits((own + everybody) / 2)
        - (compute_entropy_bits(own) + compute_entropy_bits(everybody)) / 2
    )
    return np.asarray(np.maximum(gap, 0.0))  # rounding may go below


def normalise_counts(counts: LabelCounts) -> FloatArray:
    totals = counts.sum(axis=-1, keepdims=True)
    return np.asarray(counts / np.maximum(totals, 1))


def compute_entropy_bits(p: FloatArray) -> FloatArray:
    return np.asarray(-np.sum(p * np.log2(np.where(p > 0, p, 1.0)), axis=-1) + 0.0)
