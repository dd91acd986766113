"""Models of sequences and image patches: LSTMs and small transformers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..core.errors import ConfigError
from ..core.net import Net
from .convnets import build_net


class CharacterEncoder(nn.Module):
    """Encode a sequence of characters as the second layer's output at the last character."""

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


def check_sequence_shape(model: str, shape: tuple[int, ...]) -> None:
    """Raise ConfigError unless the examples are sequences of integers."""
    if len(shape) != 1:
        raise ConfigError(
            f"model.name: {model} needs sequences of integers, not examples of shape {shape}"
        )


def charlstm(shape: tuple[int, ...], classes: int, head_depth: int = 1) -> Net:
    """Build an LSTM that reads characters and predicts the next one, from the same set."""
    check_sequence_shape("charlstm", shape)
    return build_net([CharacterEncoder(classes)], [nn.Linear(256, classes)], head_depth)


class TokenEncoder(nn.Module):
    """Encode each token together with all tokens before it."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, 32)
        self.lstm = nn.LSTM(32, 128, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.lstm(self.embedding(x.long()))[0]
        return out


def tokenlstm(shape: tuple[int, ...], classes: int, head_depth: int = 1) -> Net:
    """Build an LSTM that reads tokens and predicts the next one at every position."""
    check_sequence_shape("tokenlstm", shape)
    return build_net([TokenEncoder(classes)], [nn.Linear(128, classes)], head_depth)


WIDTH, HEADS, DEPTH = 64, 4, 4  # width of the layers; their feed-forward parts are twice as wide
PATCH = 4  # side of a patch, in pixels
VOCABULARY = 1024  # embeddings of ``text_tiny``; token 0 is padding, larger tokens share embeddings


class SelfAttention(nn.Module):
    """Multi-head self-attention, with linear layers that adapters can find: query, key, value, out."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.value, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            layer(x).view(batch, length, HEADS, -1).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return out


class Block(nn.Module):
    """A pre-norm transformer layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(WIDTH), SelfAttention()
        self.norm2 = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x + self.attention(self.norm1(x), mask)
        fed: Tensor = self.down(nn.functional.gelu(self.up(self.norm2(x))))
        return x + fed


class PatchEncoder(nn.Module):
    """Encode an image by its patches and a class token."""

    def __init__(self, channels: int, patches: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(channels, WIDTH, PATCH, stride=PATCH)
        self.token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.position = nn.Parameter(0.02 * torch.randn(1, patches + 1, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.position
        for block in self.blocks:
            x = block(x)
        first: Tensor = self.norm(x[:, 0])
        return first


class TextEncoder(nn.Module):
    """Encode a sequence of token numbers as the mean over its tokens; token 0 is padding."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Parameter(0.02 * torch.randn(1, length, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH // 2))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        if tokens.is_floating_point():
            raise ConfigError(
                "model.name: text_tiny reads token numbers (integers), not scaled ones"
            )
        tokens = tokens.long()
        shared = 1 + (tokens - 1) % (VOCABULARY - 1)  # the hashing trick; 0 stays for padding
        tokens = torch.where(tokens < VOCABULARY, tokens, shared)
        # an empty text must have a mean, too
        known = (tokens != 0) | (tokens == 0).all(1, keepdim=True)
        x = self.embedding(tokens) + self.position
        for block in self.blocks:
            x = block(x, known[:, None, None, :])
        weight = known.unsqueeze(-1).to(x)
        mean: Tensor = (self.norm(x) * weight).sum(1) / weight.sum(1)
        return mean


def vit_tiny(shape: tuple[int, ...], classes: int, head_depth: int = 1) -> Net:
    if len(shape) != 3 or any(n % PATCH for n in shape[1:]):
        raise ConfigError(
            f"model.name: vit_tiny needs images whose sides are multiples of {PATCH}, not examples of"
            f" shape {shape}"
        )
    channels, height, width = shape
    encoder = PatchEncoder(channels, (height // PATCH) * (width // PATCH))
    return build_net([encoder], [nn.Linear(WIDTH, classes)], head_depth)


def text_tiny(shape: tuple[int, ...], classes: int, head_depth: int = 1) -> Net:
    check_sequence_shape("text_tiny", shape)
    return build_net([TextEncoder(shape[0])], [nn.Linear(WIDTH, classes)], head_depth)
