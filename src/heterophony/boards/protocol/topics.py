"""The topics of the protocol: their names, their subscribers, and who may read and write them.

All topics of a board are below ``b/<board>/``, so the broker can guard them by authenticated name. They
are the same in all runs: with the run in the topic, a board could invent runs and retain a
message in each. So a board may write to three topics, and the message names the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

from ...core.errors import CodecError, ConfigError
from ...core.files import NAME_PATTERN, NAME_RULE

PROTOCOL_VERSION = 3  # other versions use other topics and never meet
TOPIC_ROOT = f"het/{PROTOCOL_VERSION}"
SERVER_NAME = "server"  # the one enrolled name that is not a board
SERVER_HERE, SERVER_GONE = b"here", b"gone"  # payloads on the topic of a run's server
# patterns: all topics, all runs' control topics, and all topics that show whether servers are connected
ALL_TOPICS = f"{TOPIC_ROOT}/#"
ALL_CONTROL_TOPICS, ALL_SERVER_TOPICS = f"{TOPIC_ROOT}/r/+/ctl", f"{TOPIC_ROOT}/r/+/server"
# the broker's owner sends a message to itself here, to mark the end of retained messages
MAINTENANCE_TOPIC = f"{TOPIC_ROOT}/maintenance"
MAINTENANCE_NAME = ".broker"  # name of the broker's owner; no board's name begins with a dot

Channel = Literal["status", "up", "up/chunk", "down", "down/chunk"]
CHANNELS: dict[str, Channel] = {name: name for name in get_args(Channel)}


class Publication(NamedTuple):
    """A message to publish."""

    topic: str
    payload: bytes
    retain: bool = False


class ParsedTopic(NamedTuple):
    """The parts of a topic. The run is empty in topics of boards, the board in topics of runs."""

    run: str
    board: str
    channel: Channel | Literal["ctl", "server"]


def check_name(kind: str, value: str) -> str:
    """Return the name of a run or board if it can be part of a topic; otherwise raise ConfigError."""
    if not NAME_PATTERN.fullmatch(value):
        raise ConfigError(f"{kind}: '{value}' cannot be a name; {NAME_RULE}")
    return value


# Topics -------------------------------------------------------------------------------------
def make_control_topic(run: str) -> str:
    """Return the retained topic on which the server publishes the state of a run."""
    return f"{TOPIC_ROOT}/r/{check_name('run', run)}/ctl"


def make_server_topic(run: str) -> str:
    """Return the retained topic that shows whether the server of a run is connected."""
    return f"{TOPIC_ROOT}/r/{check_name('run', run)}/server"


def make_board_topic(board: str, channel: Channel) -> str:
    """Return the topic of one channel between the server and a board."""
    return f"{TOPIC_ROOT}/b/{check_name('board', board)}/{channel}"


# Subscriptions and permissions -------------------------------------------------------------------
def list_server_subscriptions(boards: Sequence[str] = ("+",)) -> list[str]:
    """Return the topics to which the server subscribes, for these boards or for all boards."""
    channels = ("status", "up", "up/chunk")
    return [f"{TOPIC_ROOT}/b/{board}/{channel}" for board in boards for channel in channels]


def list_board_subscriptions(run: str, board: str) -> list[str]:
    """Return the topics to which a board subscribes; ``down/#`` includes ``down`` itself."""
    return [make_control_topic(run), make_board_topic(board, "down") + "/#"]


def make_board_pattern(board: str) -> str:
    """Return the pattern of all topics of a board."""
    return f"{TOPIC_ROOT}/b/{check_name('board', board)}/#"


def list_board_rights(board: str) -> list[tuple[str, str]]:
    """Return a board's permissions at the broker: pairs of access mode and topic pattern."""
    own = f"{TOPIC_ROOT}/b/{board}"
    return [
        ("read", ALL_CONTROL_TOPICS),
        ("read", ALL_SERVER_TOPICS),
        ("read", f"{own}/down/#"),
        ("write", f"{own}/up"),
        ("write", f"{own}/up/chunk"),
        ("readwrite", f"{own}/status"),
    ]


def find_owner(topic: str) -> str:
    """Return the board that a topic belongs to; an empty string for any other topic."""
    try:
        return parse_topic(topic).board
    except CodecError:
        return ""


def parse_topic(topic: str) -> ParsedTopic:
    """Return the run or board and the channel of a topic; raise CodecError for an unknown topic."""
    parts = topic.split("/", 4) if len(topic) <= 200 else []
    if len(parts) == 5 and "/".join(parts[:2]) == TOPIC_ROOT and NAME_PATTERN.fullmatch(parts[3]):
        kind, name, rest = parts[2:]
        if kind == "r" and rest in ("ctl", "server"):
            return ParsedTopic(name, "", "ctl" if rest == "ctl" else "server")
        if kind == "b" and rest in CHANNELS:
            return ParsedTopic("", name, CHANNELS[rest])
    raise CodecError(f"{topic[:80]!r} is not a topic of this protocol")
