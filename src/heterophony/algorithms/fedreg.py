"""FedReG (FedReb): two heads on one base; the shared one is trained on a balanced copy of the data."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from ..core.algorithm import Algorithm, Client, Net, Reply, Server, as_agreed, mean, setting
from ..core.samples import ClientData, Samples
from ..core.tensors import Tensors
from ..core.training import Training
from .parts.ablation import Ablation, Variant, name_ablation
from .parts.phases import PhaseOrder, check_phase_order, train_phases
from .parts.rebalancing import rebalance
from .parts.threshold import Threshold, ThresholdScope, compute_class_target, compute_statistic


@dataclass(frozen=True)
class FedReG(Algorithm):
    """Train a personal head on the client's data as they are, and the shared head on balanced data."""

    paper = "FedReG; FedReb thesis"
    needs_classes = True
    personal = ("own.*",)
    head_depth = 2
    threshold: Threshold = setting("mean", "the statistic that every class is balanced to")
    threshold_scope: ThresholdScope = setting("class_nonzero", "of class counts or client sizes")
    augment: Literal["simple", "auto", "copy"] = setting("simple", "how small classes are filled")
    weights: Literal["split", "origin"] = setting("split", "heads count by kept, or all examples")
    variant: Variant = setting("full", "full, or an ablation of the paper, or its letter")
    phases: PhaseOrder = setting("sequential", "personal, then shared head; or in turn by epoch")

    @property
    def ablation(self) -> Ablation:
        return name_ablation(self.variant)

    def check_training(self, training: Training) -> None:
        check_phase_order(self.phases, training)

    def build(self, net: Net) -> Net:
        if self.ablation not in ("no_own_head", "no_own_phase"):
            net.add_module("own", deepcopy(net.head))
        return net

    def send(self, server: Server, client: str) -> Tensors:
        if self.threshold_scope == "class_nonzero":
            return server.model
        sizes = torch.tensor(list(server.samples.values()))
        return server.model | {"fedreg/size": compute_statistic(sizes, self.threshold)}

    def local(self, client: Client) -> Tensors:
        net, counts, target = client.net, client.data.counts, self.compute_target(client)

        def own_loss(x: Tensor, y: Tensor) -> Tensor:
            return client.loss(self.predict(client, x), y)

        def rebalanced(data: ClientData) -> Samples:  # its name is part of its seed
            return rebalance(data.train, target, self.augment)

        data, kept = client.data.train, counts
        if self.ablation != "no_balancing":
            data, kept = client.once(rebalanced), counts.clamp(max=target)
        trained = [net.base, getattr(net, "own", net.head)]
        own = partial(client.fit, own_loss, train=trained, phase="own")
        generic = partial(client.fit, train=[net.base, net.head], data=data, phase="generic")
        chosen = [generic] if self.ablation == "no_own_phase" else [own, generic]
        train_phases(chosen, self.phases, client.training)
        return client.shared() | {"fedreg/effective": kept.sum()}

    def merge(self, server: Server, replies: Sequence[Reply]) -> Server:
        origin = self.weights == "origin" or self.ablation == "no_split_weights"
        weight = as_agreed if origin else (lambda r: r.tensors["fedreg/effective"].item())
        return server.update(mean(replies, "base.*") | mean(replies, "head.*", weight=weight))

    def predict(self, client: Client, x: Tensor) -> Tensor:
        if not hasattr(client.net, "own"):
            return client.net(x)
        z = client.net.base(x)
        return client.net.head(z) + client.net.own(z)

    def generic(self, client: Client, x: Tensor) -> Tensor:
        return client.net(x)

    def compute_target(self, client: Client) -> int:
        size = client.received.get("fedreg/size")
        return compute_class_target(client.data.counts, self.threshold, size)
