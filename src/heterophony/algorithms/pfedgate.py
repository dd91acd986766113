"""pFedGate: Chen et al., Efficient personalized federated learning via sparse model-adaptation, 2023."""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from ..core.algorithm import Algorithm, Client, Net, setting
from ..core.tensors import Tensors, params, state
from .parts.layers import Blocks, GatingLayer, forward_gated, select_blocks, split_into_blocks


@dataclass(frozen=True)
class PFedGate(Algorithm):
    """Scale blocks of the shared model by a personal gate, within a budget; P is transductive
    (gates see all of a client's unlabelled test inputs).
    """

    paper = "Chen et al., ICML 2023"
    personal = ("gate.*",)
    sparsity: float = setting(0.5, "fraction of the model that is kept", above=0, high=1)
    pieces: int = setting(5, "blocks per tensor", low=1)
    gate_lr: float | None = setting(None, "learning rate of the gate; default: training.lr", low=0)
    clip: float = setting(10.0, "largest gradient norm, for the gate and for the model", above=0)
    mode: Literal["joint", "alternate"] = setting(
        "joint", "train gate and model together or alternately"
    )
    separate_transform: bool = setting(False, "use separate heads to select and to scale blocks")
    decay_after: int | None = setting(None, "rounds until learning rates are divided by 10", low=0)
    tested: Literal["local", "received"] = setting("local", "model that P is measured with")

    def build(self, net: Net) -> Net:
        gates = sum(len(b.sizes) for b in split_into_blocks(net, self.pieces))
        net.add_module("gate", GatingLayer(net.shape, gates, self.separate_transform))
        return net

    def local(self, client: Client) -> Tensors:
        net, cut, kept = client.net, split_into_blocks(client.net, self.pieces), list[float]()
        late = self.decay_after is not None and client.t >= self.decay_after
        how = replace(client.training, lr=client.training.lr * (0.1 if late else 1))
        rate = how.lr if self.gate_lr is None else self.gate_lr * (0.1 if late else 1)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            gates, share = self.compute_gates(cut, *(v.mean(0) for v in net.gate(x)))
            kept.append(share)
            return client.loss(forward_gated(net, cut, gates, params(net), x), y)

        def clip(w: Tensors) -> Tensors:
            for part in ([net.gate], [net.base, net.head]):
                clip_grad_norm_([p for m in part for p in m.parameters()], self.clip)
            return Tensors()

        if self.mode == "joint":
            client.fit(loss, how=how, rates={"gate.*": rate}, pull=clip)
        else:
            for e in range(how.epochs):
                turn = replace(how, lr=rate)
                client.fit(loss, net.gate, epochs=1, how=turn, pull=clip, phase=f"gate{e}")
                both = [net.base, net.head]
                client.fit(loss, both, epochs=1, how=how, pull=clip, phase=f"main{e}")
        client.metrics["kept_fraction"] = sum(kept) / max(1, len(kept))
        client.memory["own"] = state(net).without("gate.*")
        return client.shared()

    def compute_gates(self, cut: Blocks, g: Tensor, m: Tensor) -> tuple[Tensor, float]:
        """Compute the gate of every block, 0 if it is dropped; also return the fraction of the model kept."""
        if self.sparsity == 1:
            return m, 1.0
        least = min(max(1 / self.pieces, 0.1), self.sparsity)
        g = g.clamp(min=least)
        keep, share = select_blocks(cut, g.detach(), self.sparsity - least)
        factors = m * (1 + (g - g.detach()))  # the gradient also reaches the selection
        return torch.where(keep, factors, 0), share

    def predict(self, client: Client, x: Tensor) -> Tensor:
        """Compute gates from the client's whole test set, so that no output depends on its batch."""
        own = client.memory.get("own", Tensors()) if self.tested == "local" else Tensors()
        cut = split_into_blocks(client.net, self.pieces)
        seen = [client.net.gate(v) for v, _ in client.data.test.batches(250)]
        gates, _ = self.compute_gates(cut, *(torch.cat(v).mean(0) for v in zip(*seen, strict=True)))
        return forward_gated(client.net, cut, gates, params(client.net) | own, x)

    def generic(self, client: Client, x: Tensor) -> Tensor:
        return client.net(x)
