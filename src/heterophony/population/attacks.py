"""Simulated attacks and faults: malicious clients, dropouts, deadlines, and when a round closes.

The seed decides who is malicious and what fails, so both are the same for every algorithm and engine. A
malicious client ignores the client's half of protections, so its reply is falsified after its arrival.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf
from statistics import NormalDist
from typing import Literal

import torch
from torch import Tensor

from ..core.algorithm import Reply
from ..core.errors import ConfigError
from ..core.randomness import derive_seed, make_generator
from ..core.samples import ClientData
from ..core.settings import check_settings, setting
from ..core.tensors import Tensors, apply_moves, compute_moves
from .availability import Availability, RandomAvailability, Speeds, draw_uniform
from .participation import Participation, RandomParticipation

AttackKind = Literal["none", "sign_flip", "scaling", "noise", "label_flip", "little_is_enough"]


@dataclass(frozen=True)
class Attack:
    """Settings of a simulated attack: how many clients are malicious, and what they do."""

    kind: AttackKind = setting("none", "what malicious clients do")
    f: int = setting(
        0, "number of malicious clients among all clients; the seed chooses them", low=0
    )
    scale: float = setting(
        10.0, "scaling: factor of the change; noise: standard deviation of the sent change", above=0
    )

    def __post_init__(self) -> None:
        check_settings(self)
        if (self.kind == "none") != (self.f == 0):
            raise ConfigError(
                "f: set the number of malicious clients and what they do, as in kind = 'sign_flip', f = 2"
            )

    @property
    def is_active(self) -> bool:
        """Return True if there are malicious clients."""
        return self.f > 0

    def check_run(self, clients: Sequence[str], task: str) -> None:
        """Raise ConfigError if all clients would be malicious, or if an attack has no labels to falsify."""
        if self.is_active and self.f >= len(clients):
            raise ConfigError(
                f"attack.f: must be below the number of clients ({len(clients)}), not {self.f}"
            )
        if self.kind == "label_flip" and task != "classification":
            raise ConfigError(f"attack.kind: label_flip needs classes, and the task is '{task}'")

    def list_bad_clients(self, clients: Sequence[str], seed: int) -> list[str]:
        """List the malicious clients, in client order."""
        if not self.is_active:
            return []
        chosen = make_generator(seed, "attack").choice(len(clients), self.f, replace=False)
        return [clients[i] for i in sorted(chosen)]

    def falsify_labels(
        self, data: ClientData, client: str, clients: Sequence[str], seed: int
    ) -> ClientData:
        """Return a malicious client's data with label c replaced by the last class minus c."""
        if self.kind != "label_flip" or client not in self.list_bad_clients(clients, seed):
            return data
        train = replace(data.train, y=data.classes - 1 - data.train.y)
        return replace(data, train=train)

    def falsify_replies(
        self,
        replies: Sequence[Reply],
        received: Mapping[str, Tensors],
        clients: Sequence[str],
        t: int,
        seed: int,
    ) -> list[Reply]:
        """Return a round's replies, in which the changes sent by malicious clients are falsified."""
        bad = set(self.list_bad_clients(clients, seed)) if self.kind != "label_flip" else set()
        if not bad & {r.client for r in replies}:
            return list(replies)
        honest = [
            compute_moves(r.tensors, received[r.client]) for r in replies if r.client not in bad
        ]
        hidden = (
            compute_hidden_change(honest, len(replies)) if self.kind == "little_is_enough" else None
        )
        out = []
        for reply in replies:
            if reply.client in bad:
                key = (seed, "attack", t, reply.client)
                moves = compute_moves(reply.tensors, received[reply.client])
                moves = self.falsify_moves(moves, key) if hidden is None else hidden
                tensors = apply_moves(reply.tensors, received[reply.client], moves)
                reply = replace(reply, tensors=tensors)
            out.append(reply)
        return out

    def falsify_moves(self, moves: Tensors, key: tuple[object, ...]) -> Tensors:
        """Return the changes that a malicious client sends instead of its true changes."""
        if self.kind == "sign_flip":
            return -1.0 * moves
        if self.kind == "scaling":
            return self.scale * moves
        source = torch.Generator().manual_seed(derive_seed(*key))
        return moves.map(lambda v: self.scale * torch.randn(v.shape, generator=source).double())


def compute_hidden_change(honest: Sequence[Tensors], replies: int) -> Tensors:
    """Compute the change that malicious clients send in "A little is enough" (Baruch et al., NeurIPS 2019).

    The change is as many standard deviations below the honest mean as possible, provided that enough honest
    changes are farther away. Here the malicious clients know all honest changes, which is the worst case.
    """
    if len(honest) < 2:
        return Tensors()
    f = replies - len(honest)
    supporters = replies // 2 + 1 - f
    share = (len(honest) - supporters) / len(honest)
    z = NormalDist().inv_cdf(min(max(share, 0.01), 0.99))
    names = [k for k in honest[0] if all(k in m for m in honest)]

    def shift(values: Tensor) -> Tensor:
        return values.mean(0) - max(z, 0.0) * values.std(0)

    return Tensors({k: shift(torch.stack([m[k] for m in honest])) for k in names})


@dataclass(frozen=True)
class RoundEnd:
    """How a simulated round closed: its length in seconds, and the positions of merged and late replies."""

    seconds: float
    merged: tuple[int, ...]
    late: tuple[int, ...]


@dataclass(frozen=True)
class Faults:
    """Settings of simulated faults. By default, nothing fails."""

    availability: float | Availability | None = setting(
        None, "fraction of the rounds in which a client can be reached, or a rule", above=0, high=1
    )
    dropout: float = setting(
        0.0, "probability that a selected client sends no reply", low=0, high=1
    )
    deadline: float | None = setting(None, "simulated seconds after which a round closes", above=0)
    quorum: int | float | None = setting(
        None, "replies needed in a round: a number, or a fraction of the selected clients", above=0
    )

    def __post_init__(self) -> None:
        check_settings(self)
        if isinstance(self.quorum, float) and self.quorum > 1:
            raise ConfigError(
                f"quorum: must be a fraction of at most 1 or a whole number, not {self.quorum}"
            )

    @property
    def is_unreliable(self) -> bool:
        """Return True if a selected client's reply may be missing."""
        return self.dropout > 0 or self.deadline is not None

    def get_availability_rule(self) -> Availability | None:
        """Return the rule that decides which clients are available; None if all clients always are."""
        given = self.availability
        return RandomAvailability(given) if isinstance(given, int | float) else given

    def list_reachable(self, t: int, clients: Sequence[str], now: float, seed: int) -> list[str]:
        """List the clients that are available in round ``t``."""
        rule = self.get_availability_rule()
        return [c for c in clients if rule is None or rule.reachable(c, t, now, seed)]

    def compute_idle_seconds(self, clients: Sequence[str], now: float, seed: int) -> float:
        """Compute the simulated seconds of a round without available clients: it ends when one is available."""
        rule = self.get_availability_rule()
        waits = [rule.wait(c, now, seed) for c in clients] if rule else []
        soonest = min(waits, default=0.0)
        return soonest if soonest < inf else 0.0

    def has_dropped_out(self, t: int, client: str, seed: int) -> bool:
        """Return True if a client that is selected in round ``t`` drops out and sends no reply."""
        return draw_uniform(seed, "dropout", t, client) < self.dropout

    def count_needed_replies(self, asked: int) -> int:
        """Count the replies needed in a round of ``asked`` clients; without a quorum, one."""
        if isinstance(self.quorum, float):
            return max(1, ceil(self.quorum * asked - 1e-9))
        return self.quorum or 1

    def determine_round_end(self, arrivals: Sequence[float | None]) -> RoundEnd:
        """Decide when a simulated round closes and which replies are merged, by their arrival times (None: never).

        A round closes when all replies have arrived, or at the deadline. If the quorum is missing at
        the deadline, it closes with the reply that completes the quorum; if that never arrives, no
        reply is merged.
        """
        times = sorted(a for a in arrivals if a is not None)
        needed, last = self.count_needed_replies(len(arrivals)), times[-1] if times else 0.0
        end = inf if self.deadline is None else self.deadline
        if self.quorum is not None and len(times) >= needed:
            end = max(end, times[needed - 1])
        arrived = [i for i, a in enumerate(arrivals) if a is not None and a <= end]
        late = tuple(i for i, a in enumerate(arrivals) if a is not None and a > end)
        everyone = len(arrived) == len(arrivals)
        void = len(arrived) < needed
        if void and self.quorum is not None:  # the server waited for the quorum in vain
            seconds = max(last, self.deadline or 0.0)
        else:
            seconds = last if everyone or end == inf else end
        return RoundEnd(seconds, () if void else tuple(arrived), late)


def check_participation(
    faults: Faults, speeds: Speeds, participation: Participation, clients: Sequence[str]
) -> None:
    """Raise ConfigError or DataError if faults, speeds and participation contradict each other or the clients."""
    size = (
        participation.compute_sample_size(len(clients))
        if isinstance(participation, RandomParticipation)
        else len(clients)
    )
    if faults.deadline is not None and not speeds.simulates_time:
        raise ConfigError(
            "participation.deadline: needs simulated time;"
            " set speeds.sample_seconds or speeds.bytes_per_second"
        )
    if faults.count_needed_replies(size) > size:
        raise ConfigError(
            f"participation.quorum: {faults.quorum} replies are needed, but only {size} clients are"
            " selected"
        )
    rule = faults.get_availability_rule()
    if getattr(rule, "unit", "rounds") == "seconds" and not speeds.simulates_time:
        raise ConfigError(
            "participation.availability.unit: needs simulated time;"
            " set speeds.sample_seconds or speeds.bytes_per_second"
        )
    if rule is not None:
        rule.know(clients)
    speeds.check_clients(clients)
