"""FFA-LoRA: Sun et al., Improving LoRA in Privacy-preserving Federated Learning, ICLR 2024."""

from dataclasses import dataclass

from ..core.adapters import LORA_A
from ..core.algorithm import Net
from ..core.tensors import matches_any
from .parts.low_rank import LoRAAlgorithm


@dataclass(frozen=True)
class FFALoRA(LoRAAlgorithm):
    """Freeze the matrices A of low-rank adapters as drawn; average B and the head."""

    paper = "Sun et al., ICLR 2024"

    def build(self, net: Net) -> Net:
        net = super().build(net)
        for name, parameter in net.named_parameters():
            if matches_any(name, (LORA_A,)):
                parameter.requires_grad_(False)
        return net
