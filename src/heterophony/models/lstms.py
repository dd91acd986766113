"""Recurrent networks for text: characters and tokens."""

from __future__ import annotations

from torch import Tensor, nn

from ..core.errors import ConfigError
from ..core.net import Net
from .convnets import build_net


class CharacterEncoder(nn.Module):
    """Encode a sequence of characters as the second layer's output after the last one."""

    def __init__(self, alphabet: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(alphabet, 8)
        self.lstm = nn.LSTM(8, 256, num_layers=2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        if x.is_floating_point():  # scaled bytes are not characters
            raise ConfigError(
                "model.name: charlstm reads sequences of integers (int16 to int64), not of scaled numbers"
            )
        out: Tensor = self.lstm(self.embedding(x.long()))[0]
        return out[:, -1]


def charlstm(shape: tuple[int, ...], classes: int, head_depth: int = 1) -> Net:
    """Build the net; the characters it reads are the classes that it predicts."""
    if len(shape) != 1:
        raise ConfigError(
            f"model.name: charlstm needs sequences of integers, not examples of shape {shape}"
        )
    return build_net([CharacterEncoder(classes)], [nn.Linear(256, classes)], head_depth)


class TokenEncoder(nn.Module):
    """Encode every token by itself and all tokens before it."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, 32)
        self.lstm = nn.LSTM(32, 128, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.lstm(self.embedding(x.long()))[0]
        return out


def tokenlstm(shape: tuple[int, ...], classes: int, head_depth: int = 1) -> Net:
    """Build the net; the tokens it reads are those that it predicts."""
    if len(shape) != 1:
        raise ConfigError(
            f"model.name: tokenlstm needs sequences of integers, not examples of shape {shape}"
        )
    return build_net([TokenEncoder(classes)], [nn.Linear(128, classes)], head_depth)
