"""FedALA: Zhang et al., Adaptive local aggregation, AAAI 2023."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..core.algorithm import Algorithm, Client, Net, setting
from ..core.client import Loss
from ..core.samples import Samples
from ..core.tensors import Tensors, answer, load_into_net, params


@dataclass(frozen=True)
class FedALA(Algorithm):
    """Learn, element by element, how much of the received model to take before training it."""

    paper = "Zhang et al., AAAI 2023"
    personal = ("mixing.*",)
    top: int = setting(2, "so many of the last tensors are mixed; 0: all", low=0)
    eta: float = setting(1.0, "learning rate of the mixing weights", low=0)
    percent: float = setting(80.0, "of the client's data to learn them from", above=0, high=100)
    passes: int = setting(100, "at most so many passes when they are first learned", low=1)

    def build(self, net: Net) -> Net:
        ones = [torch.ones_like(v) for v in self.mixed(net).values()]
        net.add_module("mixing", nn.ParameterList(ones))
        return net

    def mixed(self, net: Net) -> Tensors:
        """The last tensors of the model, live; the mixing weights are in the order of their names."""
        model = [(k, p) for k, p in net.named_parameters() if not k.startswith("mixing.")]
        return Tensors(model[-self.top :] if self.top else model)

    def local(self, client: Client) -> Tensors:
        self.tune(client)
        client.fit(train=[client.net.base, client.net.head])
        client.memory["before"] = self.mixed(client.net).map(lambda p: p.detach().clone())
        return client.shared()

    def tune(self, client: Client) -> None:
        """Mix what was received with the client's own; before its first round it has none."""
        if "before" not in client.memory:
            return
        net, old = client.net, client.memory["before"]
        new = self.mixed(net).map(lambda p: p.detach().clone())

        def mixture() -> Tensors:
            mixing = zip(new, params(net.mixing).values(), strict=True)
            return Tensors({k: torch.lerp(old[k], new[k], m) for k, m in mixing})

        def loss(x: Tensor, y: Tensor) -> Tensor:
            net.eval()  # running statistics must not notice
            return cross_entropy(answer(net, mixture(), x), y)

        self.learn(client, loss)
        load_into_net(net, mixture())

    def learn(self, client: Client, loss: Loss) -> None:
        """The first time until the loss is steady, later one pass, over some of the data."""
        net, how = client.net, replace(client.training, lr=self.eta, momentum=0.0, weight_decay=0.0)

        def clip() -> None:
            for weight in params(net.mixing).values():
                weight.data.clamp_(0, 1)

        data, losses = self.some(client), list[float]()
        for k in range(1 if "mixed" in client.memory else self.passes):
            phase = f"mixing/{k}"
            client.fit(loss, net.mixing, data, epochs=1, how=how, after=clip, phase=phase)
            losses.append(client.metrics.pop(f"loss/{phase}", 0.0))
            if k >= 9 and torch.tensor(losses[-10:]).std(correction=0) < 0.1:
                break
        client.memory["mixed"] = Tensors({"passes": torch.tensor(len(losses))})

    def some(self, client: Client) -> Samples:
        train = client.data.train
        with client.apart("some"):
            at = torch.randperm(len(train))[: max(1, int(self.percent / 100 * len(train)))]
        return train.select_examples(at)
