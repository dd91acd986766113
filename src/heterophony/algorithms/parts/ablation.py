"""The variants of FedReG: its paper's ablation, in words and by letters, and other readings."""

from typing import Literal, cast

Ablation = Literal["full", "no_split_weights", "no_own_head", "no_balancing", "no_own_phase"]
Variant = Literal[Ablation, "a", "b", "c", "d"]
# Line 11 of the thesis' Algorithm 2 also updates the shared head; all other sources freeze it.
TrainedHeads = Literal["own_head", "both_heads"]

# Letters are accepted too, and stored as they were written: run folders that have them can resume.
ABLATIONS_BY_LETTER: dict[str, Ablation] = {
    "a": "no_split_weights",
    "b": "no_own_head",
    "c": "no_balancing",
    "d": "no_own_phase",
}


def name_ablation(variant: Variant) -> Ablation:
    """Return the variant in words."""
    return ABLATIONS_BY_LETTER.get(variant, cast(Ablation, variant))
