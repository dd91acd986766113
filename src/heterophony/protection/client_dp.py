"""Client-level differential privacy: McMahan et al., ICLR 2018, with today's privacy accounting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import ClassVar, Literal

from ..core.algorithm import Reply
from ..core.errors import ConfigError
from ..core.settings import setting
from ..core.tensors import Tensors, apply_moves, compute_moves, compute_norm
from . import base
from .accounting import compute_epsilon, count_affordable, draw_normal_like, find_noise

MARGIN = 1e-6  # relative margin below the bound, as replies are rounded to float32


@dataclass(frozen=True, repr=False)
class ClientDP(base.Protection):
    """Clip each client's whole change, and add Gaussian noise to the sum or on each client."""

    guards_replies: ClassVar[bool] = True
    once_per_round: ClassVar[bool] = True
    clip: float = setting(1.0, "largest norm of a client's change", above=0, infinite=True)
    noise: float | None = setting(None, "standard deviation of the noise divided by clip", low=0)
    epsilon: float | None = setting(None, "ε after all rounds; chooses the noise", above=0)
    delta: float = setting(1e-5, "δ; should be well below 1 / number of clients", above=0, below=1)
    where: Literal["server", "device"] = setting(
        "server", "where noise is added: once to the sum, or to each reply on its client"
    )
    budget: float | None = setting(None, "the run stops before its ε exceeds this", above=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.noise is None) == (self.epsilon is None):
            raise ConfigError("noise: set either noise or epsilon")
        if self.clip == inf and (self.epsilon or self.noise):
            raise ConfigError(
                "clip: must be finite if noise is added: the noise is a multiple of clip"
            )
        if self.epsilon is not None and self.budget is not None:
            raise ConfigError(
                "budget: cannot be combined with epsilon, which already limits ε; leave budget out"
            )

    @property
    def is_identity(self) -> bool:
        return self.clip == inf and self.noise == 0

    @property
    def merge_kind(self) -> base.MergeKind:
        return "sum" if self.where == "server" else "any"

    @property
    def needs_secret(self) -> bool:
        return bool(self.noise or self.epsilon)

    def check_run(self, run: base.RunFacts) -> None:
        if run.shares_buffers:
            raise ConfigError(
                "protection.client_dp: cannot be combined with model.buffers = 'average': running statistics do not"
                " tolerate noise; set model.buffers = 'local'"
            )
        if self.where == "device":
            return
        if run.weights != "uniform":
            raise ConfigError(
                "protection.client_dp: a client must not count more than another; set"
                " aggregation.weights = 'uniform'"
            )
        others = [p for p in run.protections if p is not self]
        for other in [p for p in others if not p.preserves_sensitivity]:
            raise ConfigError(
                f"protection.client_dp: {type(other).__name__} makes each reply depend on the others,"
                " so noise for a sum does not cover it; set where = 'device', or remove one of the two"
            )

    # Accounting -----------------------------------------------------------------------------
    def get_rate(self, run: base.RunFacts) -> float | None:
        """Return the sampling rate that amplifies privacy; None if the client selection does not amplify it."""
        return run.rate if run.participation_kind == "poisson" and self.where == "server" else None

    @property
    def multiplier(self) -> float:
        """The standard deviation of the noise divided by the sensitivity.

        The sum changes by at most ``clip`` if one client's change is removed or set to zero. If the server
        sees each reply, the noise must hide the client's data: two clipped replies differ by up to twice
        ``clip``.
        """
        return (self.noise or 0.0) / (1 if self.where == "server" else 2)

    def settle(self, run: base.RunFacts) -> tuple[base.Protection, int]:
        settled, rate = self, self.get_rate(run)
        if self.epsilon is not None:
            if run.participation_kind == "own":
                raise ConfigError(
                    "protection.client_dp.epsilon: no accounting exists for this participation; set"
                    " noise, or participation=hp.Poisson(rate=…)"
                )
            noise = find_noise(self.epsilon, rate, run.rounds, self.delta)
            noise = noise if self.where == "server" else 2 * noise
            settled = replace(self, noise=noise, epsilon=None, budget=self.epsilon)
        if settled.budget is None:
            return settled, run.rounds
        rounds = count_affordable(settled.multiplier, rate, run.rounds, self.delta, settled.budget)
        if run.rounds and not rounds:
            raise ConfigError(
                f"protection.client_dp.budget: the first round spends more than {settled.budget:g};"
                " raise noise or budget"
            )
        return settled, rounds

    def promise(self, run: base.RunFacts) -> base.PrivacyPromise:
        rate = self.get_rate(run)
        if self.where == "device":
            how = "each reply, for any data of the client; the server sees no more"
        elif rate is None:
            how = "the models, with a client's changes or with zeros instead; fixed cohorts do not amplify privacy"
        else:
            how = f"the models, with and without one client; Poisson sampling at rate {rate:g}"
        return base.PrivacyPromise("client", self.delta, how)

    def spend(
        self, run: base.RunFacts, rounds: int, before: float | None, replies: Sequence[Reply]
    ) -> float | None:
        return compute_epsilon(self.multiplier, self.get_rate(run), rounds, self.delta)

    # The two halves -------------------------------------------------------------------------
    def leave(self, up: Tensors, kept: Tensors, departure: base.Departure) -> base.Departed:
        """Clip the client's change; with ``where = "device"``, also add the noise."""
        moves = clip_moves(compute_moves(up, departure.received), self.clip, MARGIN)
        if self.where == "device" and self.noise:
            purpose = f"client noise|{departure.client}|{departure.t}"
            noise = draw_normal_like(moves, departure.secret, purpose)
            moves = moves + self.noise * self.clip * noise
        return base.Departed(apply_moves(up, departure.received, moves))

    def gather(self, replies: Sequence[Reply], gathering: base.Gathering) -> base.Gathered:
        """Clip again, as a client may not have clipped; divide by the expected reply count; add the noise."""
        if self.where == "device" or (not replies and gathering.expected is None):
            return base.Gathered(replies)
        replies = replies or [gathering.empty_reply]
        expected = gathering.expected or len(replies)
        out = []
        for reply in replies:
            received = gathering.received.get(reply.client, reply.tensors)
            moves = clip_moves(compute_moves(reply.tensors, received), self.clip)
            # a mean of these replies divides by their count, which must be the expected count
            moves = moves * (len(replies) / expected)
            if self.noise:
                noise = draw_normal_like(moves, gathering.secret, f"server noise|{gathering.t}")
                moves = moves + (self.noise * self.clip / expected) * noise
            out.append(replace(reply, tensors=apply_moves(reply.tensors, received, moves)))
        return base.Gathered(out)


def clip_moves(moves: Tensors, clip: float, margin: float = 0.0) -> Tensors:
    """Clip the norm of a client's changes, taken as one vector, to ``clip``."""
    norm, bound = compute_norm(moves), clip * (1 - margin)
    return moves * (bound / norm) if norm > bound else moves
