"""The topics of the protocol: how they are named, who subscribes to them, who may read and write them.

Everything of a device is below ``d/<device>/``, so the broker can guard it by authenticated name.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from ...core.errors import CodecError, ConfigError
from ...core.names import NAME_PATTERN, NAME_RULE

PROTOCOL_VERSION = 1  # other versions use other topics and never meet
TOPIC_ROOT = f"het/{PROTOCOL_VERSION}"

Channel = Literal["status", "up", "up/chunk", "down", "down/chunk"]
CHANNELS: dict[str, Channel] = {
    "status": "status",
    "up": "up",
    "up/chunk": "up/chunk",
    "down": "down",
    "down/chunk": "down/chunk",
}


class Publication(NamedTuple):
    """A message to publish."""

    topic: str
    payload: bytes
    retain: bool = False


class ParsedTopic(NamedTuple):
    """The parts of a topic; the control topic has no device."""

    run: str
    device: str
    channel: Channel | Literal["ctl"]


def check_name(of: str, value: str) -> str:
    """Return the name of a run or device, if it can be part of a topic."""
    if not NAME_PATTERN.fullmatch(value):
        raise ConfigError(f"{of}: '{value}' cannot be a name; {NAME_RULE}")
    return value


# Topics -------------------------------------------------------------------------------------
def make_control_topic(run: str) -> str:
    """Return the retained topic on which the server publishes the state of a run."""
    return f"{TOPIC_ROOT}/{check_name('run', run)}/ctl"


def make_server_topic(run: str) -> str:
    """Return the topic of the server's own last will."""
    return f"{TOPIC_ROOT}/{check_name('run', run)}/server"


def make_device_topic(run: str, device: str, channel: Channel) -> str:
    return f"{TOPIC_ROOT}/{check_name('run', run)}/d/{check_name('device', device)}/{channel}"


# Subscriptions and rights -------------------------------------------------------------------
def make_any_control_pattern() -> str:
    """Return the pattern of the control topics of all runs."""
    return f"{TOPIC_ROOT}/+/ctl"


def list_server_subscriptions(run: str) -> list[str]:
    devices = f"{TOPIC_ROOT}/{check_name('run', run)}/d/+"
    return [f"{devices}/status", f"{devices}/up", f"{devices}/up/chunk"]


def list_device_subscriptions(run: str, device: str) -> list[str]:
    """Return what a device subscribes to; ``down/#`` includes ``down`` itself."""
    return [make_control_topic(run), make_device_topic(run, device, "down") + "/#"]


def make_server_pattern() -> str:
    """Return the pattern of everything that the server may read and write."""
    return f"{TOPIC_ROOT}/#"


def list_device_rights(device: str) -> list[tuple[str, str]]:
    """Return what a device may do, in all runs: pairs of a right and a pattern of topics."""
    own = f"{TOPIC_ROOT}/+/d/{device}"
    return [
        ("read", make_any_control_pattern()),
        ("read", f"{own}/down/#"),
        ("write", f"{own}/up"),
        ("write", f"{own}/up/chunk"),
        ("readwrite", f"{own}/status"),
    ]


def find_sender(topic: str) -> str:
    """Return the device whose topic it is; an empty string for any other topic."""
    try:
        return parse_topic(topic).device
    except CodecError:
        return ""


def parse_topic(topic: str) -> ParsedTopic:
    """Return run, device and channel of a topic; refuse topics that are not of this protocol."""
    parts = topic.split("/", 5) if len(topic) <= 200 else []
    if "/".join(parts[:2]) != TOPIC_ROOT or len(parts) < 4 or not NAME_PATTERN.fullmatch(parts[2]):
        raise CodecError(f"{topic[:80]!r} is not a topic of this protocol")
    run, rest = parts[2], parts[3:]
    if rest == ["ctl"]:
        return ParsedTopic(run, "", "ctl")
    if (
        len(rest) != 3
        or rest[0] != "d"
        or not NAME_PATTERN.fullmatch(rest[1])
        or rest[2] not in CHANNELS
    ):
        raise CodecError(f"{topic[:80]!r} is not a topic of this protocol")
    return ParsedTopic(run, rest[1], CHANNELS[rest[2]])
