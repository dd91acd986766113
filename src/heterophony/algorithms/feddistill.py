"""FedDistill: Jeong et al., Federated distillation and augmentation (FD), 2018.

As in the paper, a client's teacher is the mean output of the *other* clients for the label, as
probabilities, and the loss is a cross entropy. PFLlib's teacher is a mean of logits that includes
the student's; its loss, too, has been a cross entropy since April 2024; before, it was a squared
error. The server stores the last outputs of every client: a vector per label. There is no common
model, so no G. Clients tell the server which labels they hold.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ..core.algorithm import Algorithm, Client, Reply, Server, setting
from ..core.tensors import Tensors


@dataclass(frozen=True)
class FedDistill(Algorithm):
    """Exchange mean outputs per label instead of models; each client learns from the others' outputs."""

    paper = "Jeong et al., 2018"
    needs_classes = True
    personal = ("*",)
    common = False
    needs_nets = "any"
    gamma: float = setting(1.0, "weight of the distillation", low=0)

    def send(self, server: Server, client: str) -> Tensors:
        """Send, for each label, the mean over the other clients that have an output for it."""
        told = [server.memory.get(f"outputs/{c}", Tensors()) for c in server.clients if c != client]
        labels = {k for outputs in told for k in outputs}
        stacked = {k: torch.stack([o[k] for o in told if k in o]) for k in labels}
        return Tensors(stacked).map(lambda v: v.double().mean(0).float())

    def local(self, client: Client) -> Tensors:
        net, classes = client.net, client.data.classes
        seen = client.data.counts.new_zeros(classes, dtype=torch.float32)
        sums = seen.new_zeros(classes, classes)
        teacher, known = torch.zeros_like(sums), torch.zeros_like(seen)
        for label, told in client.received.below("mean/").items():
            teacher[int(label)], known[int(label)] = told, 1.0

        def loss(x: Tensor, y: Tensor) -> Tensor:
            out = net(x)
            sums.index_add_(0, y, out.detach().float().softmax(1))
            seen.index_add_(0, y, torch.ones_like(known[y]))
            plain = client.loss(out, y)
            if not self.gamma or not known[y].any():
                return plain
            errors = cross_entropy(out, teacher[y].to(out.dtype), reduction="none")
            return plain + self.gamma * (known[y] * errors).mean()

        client.fit(loss)
        held = seen.nonzero().flatten().tolist()
        return Tensors({f"mean/{c}": sums[c] / seen[c] for c in held})

    def merge(self, server: Server, replies: Sequence[Reply]) -> Server:
        return server.update(**{f"outputs/{r.client}": r.tensors for r in replies})
