"""TokenLSTM: predict a token at every place of a sequence, by one LSTM layer of 128."""

from __future__ import annotations

from torch import Tensor, nn

from ..core.errors import ConfigError
from ..core.net import Net
from .layers import build_net


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
