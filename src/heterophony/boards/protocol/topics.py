"""The topics of the protocol: how they are named, who subscribes to them, who may read and write them.

Everything of a device is below ``d/<device>/``, so the broker can guard it by authenticated name. These
topics are the same in all runs: with the run in the topic, a device could invent runs, and retain a
message in each. So a device has three topics to write to, and the run is in the message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from ...core.errors import CodecError, ConfigError
from ...core.files import NAME_PATTERN, NAME_RULE

PROTOCOL_VERSION = 2  # other versions use other topics and never meet
TOPIC_ROOT = f"het/{PROTOCOL_VERSION}"
SERVER_NAME = "server"  # the one enrolled name that is not a device
MAINTENANCE_NAME = ".broker"  # of the broker's owner; no device's name begins with a dot

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
    """The parts of a topic; the control topic has no device, and those of devices have no run."""

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
    return f"{TOPIC_ROOT}/r/{check_name('run', run)}/ctl"


def make_server_topic(run: str) -> str:
    """Return the topic of the server's own last will."""
    return f"{TOPIC_ROOT}/r/{check_name('run', run)}/server"


def make_device_topic(device: str, channel: Channel) -> str:
    return f"{TOPIC_ROOT}/d/{check_name('device', device)}/{channel}"


def make_maintenance_topic() -> str:
    """Return the topic on which the broker's owner sends messages to itself."""
    return f"{TOPIC_ROOT}/maintenance"


# Subscriptions and rights -------------------------------------------------------------------
def make_any_control_pattern() -> str:
    """Return the pattern of the control topics of all runs."""
    return f"{TOPIC_ROOT}/r/+/ctl"


def list_server_subscriptions(devices: Sequence[str] = ("+",)) -> list[str]:
    """Return what the server subscribes to, for these devices or for all."""
    channels = ("status", "up", "up/chunk")
    return [f"{TOPIC_ROOT}/d/{device}/{channel}" for device in devices for channel in channels]


def list_device_subscriptions(run: str, device: str) -> list[str]:
    """Return what a device subscribes to; ``down/#`` includes ``down`` itself."""
    return [make_control_topic(run), make_device_topic(device, "down") + "/#"]


def make_device_pattern(device: str) -> str:
    """Return the pattern of all topics of a device."""
    return f"{TOPIC_ROOT}/d/{check_name('device', device)}/#"


def make_server_pattern() -> str:
    """Return the pattern of everything that the server may read and write."""
    return f"{TOPIC_ROOT}/#"


def list_device_rights(device: str) -> list[tuple[str, str]]:
    """Return what a device may do: pairs of a right and a pattern of topics."""
    own = f"{TOPIC_ROOT}/d/{device}"
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
    parts = topic.split("/", 4) if len(topic) <= 200 else []
    if len(parts) == 5 and "/".join(parts[:2]) == TOPIC_ROOT and NAME_PATTERN.fullmatch(parts[3]):
        kind, name, rest = parts[2:]
        if kind == "r" and rest == "ctl":
            return ParsedTopic(name, "", "ctl")
        if kind == "d" and rest in CHANNELS:
            return ParsedTopic("", name, CHANNELS[rest])
    raise CodecError(f"{topic[:80]!r} is not a topic of this protocol")
