"""FedSA-LoRA: Guo et al., Selective Aggregation for Low-Rank Adaptation in FL, ICLR 2025."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ..core.adapters import LORA_B
from ..core.algorithm import Net, setting
from .parts.low_rank import LoRAAlgorithm


@dataclass(frozen=True)
class FedSALoRA(LoRAAlgorithm):
    """Share the matrices A of low-rank adapters; B and the head are personal."""

    paper = "Guo et al., ICLR 2025"
    separates_head = True
    keeps: Literal["B_and_head", "B", "nothing"] = setting("B_and_head", "the personal parameters")

    def stays(self, net: Net) -> Iterable[str]:
        return {"B_and_head": (LORA_B, "head.*"), "B": (LORA_B,), "nothing": ()}[self.keeps]
