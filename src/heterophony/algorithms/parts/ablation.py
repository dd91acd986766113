"""The variants of FedReG in its paper's ablation, in words and by their letters."""

from typing import Literal

Variant = Literal["full", "no_split_weights", "no_own_head", "no_balancing", "no_own_phase"]

# Letters are accepted too, and stored as they were written: run folders that have them can resume.
VARIANTS_BY_LETTER: dict[str, Variant] = {
    "a": "no_split_weights",
    "b": "no_own_head",
    "c": "no_balancing",
    "d": "no_own_phase",
}
