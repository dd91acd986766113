"""FedALA: Zhang et al., Adaptive local aggregation, AAAI 2023."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..core.algorithm import Algorithm, Client, Net, setting
from ..core.client import Loss
from ..core.samples import Samples
from ..core.tensors import Tensors, answer, is_given, load_into_net, params


@dataclass(frozen=True)
class FedALA(Algorithm):
    """Learn, element by element, how much of the received model replaces the client's previous one."""

    paper = "Zhang et al., AAAI 2023"
    personal = ("mixing.*",)
    top: int = setting(2, "number of tensors that are mixed, counted from the end; 0: all", low=0)
    eta: float = setting(1.0, "learning rate of the mixing weights", low=0)
    percent: float = setting(
        80.0,
        "percentage of the client's data used to learn mixing weights",
        above=0,
        high=100,
    )
    passes: int = setting(
        100, "largest number of passes when mixing weights are first learned", low=1
    )

    def build(self, net: Net) -> Net:
        ones = [torch.ones_like(v) for v in self.get_mixed_parameters(net).values()]
        net.add_module("mixing", nn.ParameterList(ones))
        return net

    def get_mixed_parameters(self, net: Net) -> Tensors:
        """Return the parameters that FedALA mixes, the net's last ones (not copies)."""
        named = ((k, p) for k, p in net.named_parameters() if not is_given(p))
        model = [(k, p) for k, p in named if not k.startswith("mixing.")]
        return Tensors(model[-self.top :] if self.top else model)

    def local(self, client: Client) -> Tensors:
        self.adapt(client)
        client.fit(train=[client.net.base, client.net.head])
        client.memory["before"] = self.get_mixed_parameters(client.net).map(
            lambda p: p.detach().clone()
        )
        return client.shared()

    def adapt(self, client: Client) -> None:
        """Mix the received model with the client's previous one; in its first round, change nothing."""
        if "before" not in client.memory:
            return
        net, old = client.net, client.memory["before"]
        new = self.get_mixed_parameters(net).map(lambda p: p.detach().clone())

        def mixture() -> Tensors:
            mixing = zip(new, params(net.mixing).values(), strict=True)
            return Tensors({k: torch.lerp(old[k], new[k], m) for k, m in mixing})

        def loss(x: Tensor, y: Tensor) -> Tensor:
            net.eval()  # leaves running statistics unchanged
            return client.loss(answer(net, mixture(), x), y)

        self.train_mixing_weights(client, loss)
        load_into_net(net, mixture())

    def train_mixing_weights(self, client: Client, loss: Loss) -> None:
        """Train the mixing weights on part of the data: first until the loss is steady, later for one pass."""
        net, how = client.net, client.training.as_plain_sgd(self.eta)

        def clip() -> None:
            for weight in params(net.mixing).values():
                weight.data.clamp_(0, 1)

        data, losses = self.draw_subset(client), list[float]()
        for k in range(1 if "mixed" in client.memory else self.passes):
            phase = f"mixing/{k}"
            client.fit(loss, net.mixing, data, epochs=1, how=how, after=clip, phase=phase)
            losses.append(client.metrics.pop(f"loss/{phase}", 0.0))
            if k >= 9 and torch.tensor(losses[-10:]).std(correction=0) < 0.1:
                break
        client.memory["mixed"] = Tensors({"passes": torch.tensor(len(losses))})

    def draw_subset(self, client: Client) -> Samples:
        """Draw ``percent`` of the client's training data, but at least one example."""
        train = client.data.train
        with client.apart("some"):
            at = torch.randperm(len(train))[: max(1, int(self.percent / 100 * len(train)))]
        return train.select_examples(at)
