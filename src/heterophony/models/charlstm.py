"""CharLSTM: which character comes next, two LSTM layers of 256 (FedAvg2Rep's Shakespeare model)."""

from __future__ import annotations

from torch import Tensor, nn

from ..core.errors import ConfigError
from ..core.net import Net
from .layers import build_net


class CharacterEncoder(nn.Module):
    """Characters as integers in, what the second layer holds after the last one out."""

    def __init__(self, alphabet: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(alphabet, 8)
        self.lstm = nn.LSTM(8, 256, num_layers=2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        if x.is_floating_point():  # bytes become numbers between -1 and 1: no characters
            raise ConfigError(
                "model.name: charlstm reads sequences of integers (int16 to int64), not of numbers"
            )
        out: Tensor = self.lstm(self.embedding(x.long()))[0]
        return out[:, -1]


def charlstm(shape: tuple[int, ...], classes: int, head_depth: int = 1) -> Net:
    """What is read and what is predicted has one alphabet: the classes."""
    if len(shape) != 1:
        raise ConfigError(
            f"model.name: charlstm needs sequences of integers, not examples of shape {shape}"
        )
    return build_net([CharacterEncoder(classes)], [nn.Linear(256, classes)], head_depth)
