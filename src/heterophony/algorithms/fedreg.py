"""FedReG (FedReb): two heads on one base; the shared one is trained on a balanced copy of the data."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from ..core.algorithm import Algorithm, Client, Net, Reply, Server, as_agreed, mean, setting
from ..core.tensors import Tensors
from ..core.training import Training
from .parts import rebalancing
from .parts.server_updates import ReceivedPull, check_one_term, correct_average


@dataclass(frozen=True)
class FedReG(Algorithm):
    """Train a personal head on the client's original data, and the shared head on balanced data."""

    paper = "FedReG; FedReb thesis"
    needs_classes = separates_head = True
    personal = ("own.*",)
    head_depth = 2
    threshold: rebalancing.Threshold = setting(
        "mean", "statistic that gives the balanced size of a class"
    )
    threshold_scope: rebalancing.ThresholdScope = setting(
        "class_nonzero", "compute the threshold from class counts or from client sizes"
    )
    augment: rebalancing.Augmentation = setting(
        "simple", "how small classes are filled up; auto: AutoAugment"
    )
    weights: rebalancing.HeadWeights = setting(
        "split", "examples that weight a client's head: kept, all, or balanced"
    )
    variant: rebalancing.Variant = setting(
        "full", "full method, or an ablation of the paper by name or letter"
    )
    phases: rebalancing.PhaseOrder = setting(
        "sequential", "personal head first, or alternating by epoch"
    )
    own_phase: rebalancing.TrainedHeads = setting(
        "own_head", "heads that the personal phase trains"
    )
    magnitude: float = setting(1.0, "strength of augment = simple; 1 is a guess", low=0, high=5)
    proximal: float = setting(0.0, "strength of FedProx's term in the shared phase", low=0)
    dynamic: float = setting(0.0, "strength of FedDyn's term in the shared phase", low=0)

    @property
    def ablation(self) -> rebalancing.Ablation:
        return rebalancing.name_ablation(self.variant)

    def check_training(self, training: Training) -> None:
        rebalancing.check_phase_order(self.phases, training)
        check_one_term(self.proximal, self.dynamic)

    def build(self, net: Net) -> Net:
        if self.ablation not in ("no_own_head", "no_own_phase"):
            net.add_module("own", deepcopy(net.head))
        return net

    def send(self, server: Server, client: str) -> Tensors:
        return server.model | rebalancing.make_size_tensor(
            server, self.threshold, self.threshold_scope
        )

    def local(self, client: Client) -> Tensors:
        net, data, counted = client.net, client.data.train, client.data.counts
        if self.ablation != "no_balancing":
            target = rebalancing.compute_own_target(client, self.threshold)
            data = rebalancing.get_balanced_data(client, target, self.augment, self.magnitude)
            counted = rebalancing.count_head_examples(counted, target, self.weights)

        def own_loss(x: Tensor, y: Tensor) -> Tensor:
            return client.loss(self.predict(client, x), y)

        term = ReceivedPull(client, self.proximal, self.dynamic)
        heads = [getattr(net, "own", net.head)] + [net.head] * (self.own_phase == "both_heads")
        own = partial(client.fit, own_loss, train=[net.base, *heads], phase="own")
        shared = partial(client.fit, train=[net.base, net.head], phase="generic")
        generic = partial(shared, data=data, pull=term.pull)
        chosen = [generic] if self.ablation == "no_own_phase" else [own, generic]
        rebalancing.train_phases(chosen, self.phases, client.training)
        term.end_round()
        return client.shared() | {"fedreg/effective": counted.sum()}

    def merge(self, server: Server, replies: Sequence[Reply]) -> Server:
        origin = self.weights == "origin" or self.ablation == "no_split_weights"
        weight = as_agreed if origin else (lambda r: r.tensors["fedreg/effective"].item())
        average = mean(replies, "base.*") | mean(replies, "head.*", weight=weight)
        return correct_average(server, replies, average, self.dynamic)

    def predict(self, client: Client, x: Tensor) -> Tensor:
        if not hasattr(client.net, "own"):
            return client.net(x)
        z = client.net.base(x)
        return client.net.head(z) + client.net.own(z)

    def generic(self, client: Client, x: Tensor) -> Tensor:
        return client.net(x)
