"""How a client trains: the settings of local SGD, the same for every algorithm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .fields import check_settings, setting


@dataclass(frozen=True)
class Training:
    """Local SGD: how long a client trains in a round, and with which optimiser settings."""

    epochs: int = setting(5, "passes over the client's data in a round", low=0)
    steps: int | None = setting(None, "mini-batches in a round, instead of epochs", low=0)
    batch: int = setting(20, "examples in a mini-batch", low=1)
    lr: float = setting(0.01, "learning rate", low=0)
    momentum: float = setting(0.9, "momentum of SGD", low=0, high=1)
    weight_decay: float = setting(0.0, "weight decay of SGD", low=0)
    momentum_state: Literal["persist", "reset"] = setting(
        "persist", "keep a client's momentum between rounds, or reset it"
    )
    drop_last: bool = setting(True, "drop an epoch's short last batch (unless it is the only one)")

    def __post_init__(self) -> None:
        check_settings(self)
