"""The names of topics: who may write where is told by the name alone.

All of a device is below ``d/<device>/``, so two patterns by authenticated name guard it.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from ...core.errors import CodecError, ConfigError

PROTOCOL_VERSION = 1  # of the protocol: other versions have other topics, and never meet
TOPIC_ROOT = f"het/{PROTOCOL_VERSION}"
TOPIC_NAME = re.compile(r"(?!\.)[A-Za-z0-9._-]{1,64}")

Channel = Literal["status", "up", "up/chunk", "down", "down/chunk"]
CHANNELS: dict[str, Channel] = {
    "status": "status",
    "up": "up",
    "up/chunk": "up/chunk",
    "down": "down",
    "down/chunk": "down/chunk",
}


class Publication(NamedTuple):
    """One message for the broker."""

    topic: str
    payload: bytes
    retain: bool = False


class ParsedTopic(NamedTuple):
    """What a topic says; the control topic is of no device."""

    run: str
    device: str
    channel: Channel | Literal["ctl"]


def check_name(of: str, value: str) -> str:
    """A run's or device's name, if it may be part of a topic."""
    if not TOPIC_NAME.fullmatch(value):
        raise ConfigError(
            f"{of}: '{value}' cannot be a name; use 1 to 64 letters, digits, '.', '_' or '-',"
            " not beginning with '.'"
        )
    return value


def make_control_topic(run: str) -> str:
    """Where the server says how the run stands; retained."""
    return f"{TOPIC_ROOT}/{check_name('run', run)}/ctl"


def make_device_topic(run: str, device: str, channel: Channel) -> str:
    """A topic of one device."""
    return f"{TOPIC_ROOT}/{check_name('run', run)}/d/{check_name('device', device)}/{channel}"


def list_server_subscriptions(run: str) -> list[str]:
    """What the server subscribes to."""
    devices = f"{TOPIC_ROOT}/{check_name('run', run)}/d/+"
    return [f"{devices}/status", f"{devices}/up/#"]


def list_device_subscriptions(run: str, device: str) -> list[str]:
    """What a device subscribes to; ``down/#`` holds ``down`` too."""
    return [make_control_topic(run), make_device_topic(run, device, "down") + "/#"]


def parse_topic(topic: str) -> ParsedTopic:
    """Run, device and channel of a topic of ours."""
    parts = topic.split("/", 5) if len(topic) <= 200 else []
    if "/".join(parts[:2]) != TOPIC_ROOT or len(parts) < 4 or not TOPIC_NAME.fullmatch(parts[2]):
        raise CodecError(f"{topic[:80]!r} is not a topic of this protocol")
    run, rest = parts[2], parts[3:]
    if rest == ["ctl"]:
        return ParsedTopic(run, "", "ctl")
    if (
        len(rest) != 3
        or rest[0] != "d"
        or not TOPIC_NAME.fullmatch(rest[1])
        or rest[2] not in CHANNELS
    ):
        raise CodecError(f"{topic[:80]!r} is not a topic of this protocol")
    return ParsedTopic(run, rest[1], CHANNELS[rest[2]])
