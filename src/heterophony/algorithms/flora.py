"""FLoRA: Wang et al., Federated fine-tuning LLMs with heterogeneous low-rank adaptations, NeurIPS 2024.

In the paper, the server sends the stacked adapters, and each client merges them into its copy of the net.
In this implementation, it adds them up and sends the sum, which a client that missed rounds needs; frozen
parameters do not change. Adapters are padded with zeros to the largest rank, so that all replies have the same form.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ..core.adapters import LoRAConv2d, LoRALinear
from ..core.algorithm import Client, Net, Reply, Server, mean, setting
from ..core.tensors import Tensors, is_given
from .parts.low_rank import LoRAAlgorithm, draw_adapter, list_lora_layers

HALVED = "flora/halved"  # how many times a client's rank is halved
A, B = "flora/A/", "flora/B/"  # prefixes of matrices; the name of the update follows


@dataclass(frozen=True)
class FLoRA(LoRAAlgorithm):
    """Stack the adapters of all clients and merge them into the net; clients draw new ones each round."""

    paper = "Wang et al., NeurIPS 2024"
    halvings: int = setting(
        0,
        "largest number of halvings of the rank; clients in turn have the full rank, half of it, and so on",
        low=0,
    )

    def build(self, net: Net) -> Net:
        net = super().build(net)
        for layer in list_adapted_layers(net).values():
            layer.update = nn.Parameter(torch.zeros_like(layer.weight))  # all stacks so far
            layer.lora_A.requires_grad_(False)  # between rounds B is 0
            layer.lora_B.requires_grad_(False)
        return net

    def send(self, server: Server, client: str) -> Tensors:
        place = server.clients.index(client) if client in server.clients else 0  # a new client
        return server.model | {HALVED: torch.tensor([float(place % (self.halvings + 1))])}

    def local(self, client: Client) -> Tensors:
        layers, halved = list_adapted_layers(client.net), int(client.received[HALVED])
        between = {name: (layer.lora_A, layer.lora_B) for name, layer in layers.items()}
        with client.apart("adapters"):
            for layer in layers.values():
                draw_adapter(layer, max(1, len(layer.lora_A) >> halved))
        merged = {id(layer.update) for layer in layers.values()}
        trained = (p for p in client.net.parameters() if not is_given(p))
        anew = replace(client.training, momentum_state="reset")  # other adapters have another name
        client.fit(train=[p for p in trained if id(p) not in merged], how=anew)
        reply = {k: v for k, v in client.shared().items() if k not in layers}
        for name, layer in layers.items():
            reply |= pad_adapter(name, layer, len(between[name][0]))
            learned = layer.compute_merged_weight() - layer.weight
            layer.update = nn.Parameter(learned.detach())
            layer.lora_A, layer.lora_B = between[name]
        return Tensors(reply)

    def merge(self, server: Server, replies: Sequence[Reply]) -> Server:
        averaged = [k for k in replies[0].tensors if "/" not in k]
        adapted = list(replies[0].tensors.below(A))
        new = mean(replies, *averaged) if averaged else Tensors()
        return server.update(
            new | {k: server.model[k] + sum_adapter_products(replies, k) for k in adapted}
        )


def list_adapted_layers(net: Net) -> dict[str, LoRALinear | LoRAConv2d]:
    """List the net's layers with LoRA adapters, by the names of their updates."""
    return {f"{k}.update": layer for k, layer in list_lora_layers(net, "flora merges").items()}


def pad_adapter(name: str, layer: LoRALinear | LoRAConv2d, largest: int) -> dict[str, Tensor]:
    """Return a layer's LoRA matrices A and scaled B, padded with zeros to the largest rank."""
    a, b, rank = layer.lora_A.detach(), layer.lora_B.detach(), len(layer.lora_A)
    more = largest - rank
    wide = torch.cat([b * layer.scale, b.new_zeros(len(b), more, *b.shape[2:])], 1)
    return {A + name: torch.cat([a, a.new_zeros(more, *a.shape[1:])]), B + name: wide}


def sum_adapter_products(replies: Sequence[Reply], name: str) -> Tensor:
    """Compute the weighted sum of the replies' adapter products BA of a layer, by stacking the adapters."""
    total = sum(r.weight for r in replies)
    a = torch.cat([r.tensors[A + name] * (r.weight / total) for r in replies])
    b = torch.cat([r.tensors[B + name] for r in replies], 1)
    return (b.flatten(1) @ a.flatten(1)).view(len(b), *a.shape[1:])
