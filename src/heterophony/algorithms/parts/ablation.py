"""The variants of FedReG in its paper's ablation, in words and by their letters."""

from typing import Literal, cast

Ablation = Literal["full", "no_split_weights", "no_own_head", "no_balancing", "no_own_phase"]
Variant = Literal[Ablation, "a", "b", "c", "d"]

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
