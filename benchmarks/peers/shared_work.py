"""The work that all platforms do in ``small_jobs.py``: data, network and local SGD. Needs NumPy and torch."""

from __future__ import annotations

import json
from functools import cache

import torch
from small_work import CLIENTS, EXAMPLES, TEST_FROM, TRAINED, make_examples
from torch import Tensor, nn


class Examples:
    """The examples of all clients as network input, so that no platform spends time on that."""

    def __init__(self) -> None:
        x, y = make_examples(CLIENTS, EXAMPLES)
        scaled = torch.from_numpy(x).float().permute(0, 3, 1, 2).contiguous() / 127.5 - 1
        self.x = scaled.view(CLIENTS, EXAMPLES, 1, 8, 8)
        self.y = torch.from_numpy(y).view(CLIENTS, EXAMPLES)

    def get_training_examples(self, client: int) -> tuple[Tensor, Tensor]:
        return self.x[client, :TRAINED], self.y[client, :TRAINED]

    @torch.no_grad()
    def measure_accuracy(self, net: nn.Module) -> float:
        """Return the share of all clients' test examples that the network answers correctly."""
        net.eval()
        x, y = self.x[:, TEST_FROM:].flatten(0, 1), self.y[:, TEST_FROM:].flatten()
        return float((net(x).argmax(1) == y).float().mean())


@cache
def read_examples() -> Examples:
    """Generate the examples, once in every process."""
    return Examples()


def build_net() -> nn.Sequential:
    """Build the network that heterophony calls ``mlp``."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))


def report(platform: str, marks: list[float], accuracy: float) -> None:
    """Print the mean seconds of a round, not counting the first one, and the accuracy."""
    seconds = (marks[-1] - marks[0]) / (len(marks) - 1)
    print(json.dumps({"platform": platform, "seconds": seconds, "accuracy": accuracy}), flush=True)
