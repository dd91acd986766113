"""Masked sums, a simulation of secure aggregation: Bonawitz et al., CCS 2017.

Clients send whole numbers modulo 2^64 plus masks that cancel in the sum. In this simulation, the
masks come from the run's seed instead of a key agreement, and a lost client cannot be replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ..core.algorithm import Reply
from ..core.errors import CodecError, ConfigError, DivergedError
from ..core.randomness import make_generator
from ..core.settings import setting
from ..core.tensors import Tensors, apply_moves, compute_moves
from .base import PREFIX, Departed, Departure, Gathered, Gathering, MergeKind, Protection, RunFacts

MASKED = f"{PREFIX}masked/"  # prefix of the names of masked tensors
LARGEST = 2.0**62  # limit for the sum over clients; above it, numbers modulo 2^64 change sign


@dataclass(frozen=True, repr=False)
class MaskedSum(Protection):
    """Simulate secure aggregation: the server learns only the sum of the replies."""

    encodes: ClassVar[bool] = True
    once_per_round: ClassVar[bool] = True
    bits: int = setting(32, "binary digits after the point in each value", low=8, high=48)

    @property
    def merge_kind(self) -> MergeKind:
        return "sum"

    @property
    def preserves_sensitivity(self) -> bool:
        return True

    def check_run(self, run: RunFacts) -> None:
        if run.unreliable:
            raise ConfigError(
                "protection.masked_sum: the sum cannot be unmasked without every reply; remove"
                " participation.dropout and participation.deadline"
            )
        if run.attacked:
            raise ConfigError(
                "protection.masked_sum: simulated attacks falsify single replies, but replies are masked;"
                " leave [attack] or masked_sum out"
            )

    def announce(self, client: str, cohort: Sequence[str], clients: Sequence[str]) -> Tensors:
        places = {c: i for i, c in enumerate(clients)}
        everybody = [places[c] for c in cohort]
        return Tensors({"cohort": torch.tensor([places[client], *everybody], dtype=torch.int32)})

    def leave(self, up: Tensors, kept: Tensors, departure: Departure) -> Departed:
        moves = compute_moves(up, departure.received)
        listed = departure.announced.get("cohort", torch.zeros(2, dtype=torch.int32))
        own, *cohort = listed.tolist()
        masked = {}
        for name, move in moves.items():
            whole = self.encode(move * departure.weight, len(cohort), name)
            for other in cohort:
                if other != own:
                    pair = (departure.seed, "mask", departure.t, name, *sorted((own, other)))
                    mask = draw_mask(pair, move.shape)
                    whole = whole + mask if own < other else whole - mask  # int64 wraps around
            masked[MASKED + name] = whole
        rest = {k: v for k, v in up.items() if k not in moves}
        return Departed(Tensors({**rest, **masked}))

    def encode(self, values: Tensor, clients: int, name: str) -> Tensor:
        """Convert a change to fixed-point integers; raise DivergedError if the clients' sum could overflow."""
        scaled = values * 2.0**self.bits
        if not bool((scaled.abs() < LARGEST / clients).all()):
            raise DivergedError(
                f"protection.masked_sum: '{name}' is too large for {self.bits} binary digits after the"
                " point; lower protection.masked_sum.bits or training.lr"
            )
        return torch.round(scaled).to(torch.int64)

    def gather(self, replies: Sequence[Reply], gathering: Gathering) -> Gathered:
        """Add up the masked replies, so that the masks cancel; give every reply the mean change."""
        if not replies:
            return Gathered([])
        missing = gathering.received.keys() - {r.client for r in replies}
        if missing:
            raise ConfigError(
                f"protection.masked_sum: client {min(missing)} sent no reply in round {gathering.t}, so"
                " the sum cannot be unmasked; leave masked_sum out if clients may fail"
            )
        names = [k for k in replies[0].tensors if k.startswith(MASKED)]
        whole = sum(r.weight for r in replies)
        mean = Tensors(
            {
                k.removeprefix(MASKED): add_masked([r.tensors[k] for r in replies]).double()
                / (2.0**self.bits * whole)
                for k in names
            }
        )
        out = []
        for reply in replies:
            received = gathering.received[reply.client]
            plain = reply.tensors.without(f"{MASKED}*") | received.only(*mean)
            out.append(replace(reply, tensors=apply_moves(plain, received, mean)))
        return Gathered(out)


def add_masked(masked: Sequence[Tensor]) -> Tensor:
    """Add up masked int64 tensors modulo 2^64; the result does not depend on the order."""
    out = masked[0].clone()
    for values in masked[1:]:
        if values.dtype != torch.int64 or values.shape != out.shape:
            raise CodecError("masked replies differ in type or shape")
        out += values
    return out


def draw_mask(key: tuple[object, ...], shape: torch.Size) -> Tensor:
    """Draw a client pair's mask: uniform numbers modulo 2^64, which both clients can draw."""
    words = make_generator(*key).integers(-(2**63), 2**63 - 1, shape, np.int64, endpoint=True)
    return torch.from_numpy(np.asarray(words))
