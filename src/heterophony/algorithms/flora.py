"""FLoRA: Wang et al., Federated Fine-Tuning of LLMs with Heterogeneous Low-Rank Adaptations, 2024."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from ..core.adapters import LORA_A, LORA_B, LoRA, iterate_lora_layers
from ..core.algorithm import Algorithm, Client, Net, Reply, Server, mean, setting
from ..core.errors import ConfigError
from ..core.tensors import Tensors


@dataclass(frozen=True)
class FLoRA(Algorithm):
    """Train a fresh adapter in every round, of each client's own rank; add up the products B A."""

    paper = "Wang et al., NeurIPS 2024"
    personal = (LORA_A, LORA_B)  # fresh in every round, and sent beside the model
    ranks: str = setting("8", "ranks of the clients' adapters, as in 4,8,16: in turn")
    alpha: float = setting(8.0, "a product is scaled by alpha / rank", above=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(r.strip().isdecimal() and int(r) > 0 for r in self.ranks.split(",")):
            raise ConfigError(
                f"algorithm.ranks: must be whole numbers above 0, as in 4,8,16, not {self.ranks!r}"
            )

    def build(self, net: Net) -> Net:
        net = LoRA(rank=max(self.list_ranks()), alpha=1.0).apply(net)
        for _, layer in iterate_lora_layers(net):
            layer.weight.requires_grad_(True)  # the server changes it: it is shared, not given
            layer.scale = 1.0
        return net

    def list_ranks(self) -> list[int]:
        return [int(rank) for rank in self.ranks.split(",")]

    def send(self, server: Server, client: str) -> Tensors:
        ranks = self.list_ranks()
        rank = (
            ranks[server.clients.index(client) % len(ranks)]
            if client in server.clients
            else ranks[0]
        )
        return server.model | Tensors({"flora/rank": torch.tensor(float(rank))})

    def local(self, client: Client) -> Tensors:
        layers = dict(iterate_lora_layers(client.net))
        rank = int(client.received["flora/rank"])
        with client.apart("adapters"), torch.no_grad():
            for layer in layers.values():
                nn.init.kaiming_uniform_(layer.lora_A, a=5**0.5)
                layer.lora_A[rank:] = 0  # rows of zeros stay zero: their gradients vanish
                layer.lora_B.zero_()
                layer.scale = self.alpha / rank
        weights = {id(layer.weight) for layer in layers.values()}
        client.fit(
            train=[p for p in client.net.parameters() if p.requires_grad and id(p) not in weights]
        )
        names = {f"{name}.weight" for name in layers}
        reply = Tensors({k: v for k, v in client.shared().items() if k not in names})
        for name, layer in layers.items():
            reply[f"{name}/A"] = layer.lora_A.detach()[:rank].clone()
            reply[f"{name}/B"] = layer.scale * layer.lora_B.detach()[:, :rank]
        with torch.no_grad():
            for layer in layers.values():
                layer.lora_B.zero_()
        return reply

    def merge(self, server: Server, replies: Sequence[Reply]) -> Server:
        total = sum(r.weight for r in replies)
        changed = dict[str, torch.Tensor]()
        for name in (k.removesuffix("/A") for k in replies[0].tensors if k.endswith("/A")):
            weight = server.model[f"{name}.weight"]
            added = torch.zeros_like(weight, dtype=torch.float64)
            for r in replies:
                a, b = (r.tensors[f"{name}/{side}"].double() for side in "AB")
                added += r.weight / total * (b.flatten(1) @ a.flatten(1)).view_as(weight)
            changed[f"{name}.weight"] = (weight.double() + added).to(weight)
        others = [k for k in replies[0].tensors if not k.endswith(("/A", "/B"))]
        return server.update(
            mean(replies, *others) | Tensors(changed) if others else Tensors(changed)
        )
