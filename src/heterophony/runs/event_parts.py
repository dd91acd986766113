"""Records within events: the work of a round, and what each device did in it."""

from __future__ import annotations

from typing import Annotated, NotRequired, TypedDict


class WorkSeconds(TypedDict):
    """Seconds that workers computed, added up over all workers."""

    train: Annotated[float, "seconds of training"]
    evaluate: Annotated[float, "seconds of evaluation"]


Span = list[str | float]
"""What a device did: `receive`, `train`, `evaluate` or `send`; the client; begin and end in seconds."""


class DeviceRound(TypedDict):
    """What one device did in a round. Times are on the server's clock, from the round's begin."""

    train: Annotated[float, "seconds of training, as the device reports"]
    evaluate: Annotated[float, "seconds of evaluation, as the device reports"]
    transfer: Annotated[float, "seconds in which tensors or replies were on their way"]
    wait: Annotated[float, "seconds of the round without work or transfer"]
    bytes_down: Annotated[int, "bytes of all messages to the device"]
    bytes_up: Annotated[int, "bytes of all messages from the device"]
    peak_bytes: NotRequired[Annotated[float, "most memory that its process used so far"]]
    cpu_share: NotRequired[
        Annotated[float, "CPU seconds of its process per second, since its last report before"]
    ]
    celsius: NotRequired[Annotated[float, "highest temperature that the board tells"]]
    joules: NotRequired[
        Annotated[float, "energy of the board since its last report before, where it tells any"]
    ]
    clients_possible: NotRequired[
        Annotated[float, "number of such clients that fit its memory, by the measured jobs"]
    ]
    spans: Annotated[
        list[Span],
        "[what, client, begin, end] of each transfer and job: `receive`, `train`, `evaluate`, `send`",
    ]
