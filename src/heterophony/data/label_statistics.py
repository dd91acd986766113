"""How different clients are: entropy of their labels, and distance from the overall labels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LabelCounts = NDArray[np.int64]  # clients × classes
FloatArray = NDArray[np.float64]


def entropy(counts: LabelCounts) -> FloatArray:
    """Compute the entropy of each client's labels in bits: 0 for one class, at most log2(classes)."""
    return compute_entropy_bits(normalise_counts(counts))


def total_variation(counts: LabelCounts) -> FloatArray:
    """Compute the total variation distance of each client's labels from the overall ones: 0 … 1."""
    overall = normalise_counts(counts.sum(axis=0))
    return np.asarray(np.abs(normalise_counts(counts) - overall).sum(axis=1) / 2)


def jensen_shannon(counts: LabelCounts) -> FloatArray:
    """Compute the Jensen-Shannon divergence (bits) of each client's labels from the overall ones."""
    own, overall = normalise_counts(counts), normalise_counts(counts.sum(axis=0))
    divergence = (
        compute_entropy_bits((own + overall) / 2)
        - (compute_entropy_bits(own) + compute_entropy_bits(overall)) / 2
    )
    return np.asarray(np.maximum(divergence, 0.0))  # rounding may make it negative


def normalise_counts(counts: LabelCounts) -> FloatArray:
    totals = counts.sum(axis=-1, keepdims=True)
    return np.asarray(counts / np.maximum(totals, 1))


def compute_entropy_bits(p: FloatArray) -> FloatArray:
    return np.asarray(-np.sum(p * np.log2(np.where(p > 0, p, 1.0)), axis=-1) + 0.0)
