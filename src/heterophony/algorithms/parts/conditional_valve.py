"""The conditional valve of GPFL: it makes generic or personal features of common ones."""

from torch import Tensor, nn


class ConditionalValve(nn.Module):
    """Scale and shift features by a condition: the conditional valve of the paper."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma, self.beta = (
            nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.LayerNorm(width)) for _ in "gb"
        )

    def forward(self, z: Tensor, condition: Tensor) -> Tensor:
        out: Tensor = z * (self.gamma(condition) + 1) + self.beta(condition)
        return out.relu()
