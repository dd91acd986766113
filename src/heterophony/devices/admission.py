"""Which runs devices can take part in, and which devices may take part in a run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from .. import __version__
from ..config.config import Config
from ..core.errors import ConfigError
from ..core.names import NAME_PATTERN
from ..data.client_folders import OWN_DATA, ExampleSpec
from .data_summaries import FindSummary
from .protocol.messages import ClientSummary, Hello

MAX_EXAMPLES = 10_000_000  # of one client; more would be claimed only to outweigh the others
MAX_VALUES = 1 << 20  # in one example; a network for more would take gigabytes
Summaries = Mapping[str, ClientSummary]  # of the clients introduced so far, by name


def check_devices_can_run(config: Config) -> None:
    """Refuse a configuration that devices cannot run, before anybody waits for them."""
    if config.algorithm.pooled:
        raise ConfigError(
            f"algorithm.name: {config.algorithm_name} trains on pooled data, which devices never"
            " send; use heterophony run"
        )
    if config.data.new_clients:
        raise ConfigError(
            "data.new_clients: devices cannot join after training; leave it out, or use"
            " heterophony run"
        )
    if config.attack.is_active:
        raise ConfigError(
            "attack.kind: attacks are simulated, and devices are real; leave it out, or use heterophony"
            " run"
        )


def list_numbered_clients(config: Config) -> list[str] | None:
    """Return the clients of the run if they are numbered; None if the data or a file name them."""
    partition = config.data.partition
    kind, pooled = partition.get("kind"), partition.get("iid", False)
    if config.data.name == OWN_DATA or kind == "file" or (kind == "natural" and not pooled):
        return None
    return [str(i) for i in range(config.data.clients)]


def find_objection(
    config: Config, summaries: Summaries, hello: Hello, find_summary: FindSummary | None = None
) -> str:
    """Return why a device cannot take part with its clients; an empty string if it can.

    ``find_summary`` computes what is true of a client's data, if the server has them.
    """
    if hello.version != __version__:
        return f"it has heterophony {hello.version}, the server {__version__}"
    if why := find_membership_objection(config, summaries, [c.name for c in hello.clients]):
        return why
    for client in hello.clients:
        if why := find_data_objection(config, summaries, client, hello.clients[0]):
            return why
        if client.name in summaries or find_summary is None:
            continue
        if (known := find_summary(client.name)) is None:
            return f"the run has no client '{client.name}'"
        if client != known:
            return (
                f"the data of client '{client.name}' are not those that the configuration gives it;"
                " use the same data set as the server"
            )
    return ""


def find_data_objection(
    config: Config, summaries: Summaries, client: ClientSummary, first: ClientSummary
) -> str:
    """Return why a client's data do not fit the run; ``first`` is the device's first client."""
    if why := find_size_objection(client):
        return f"client '{client.name}' {why}"
    if config.data.name == OWN_DATA and sum(client.labels) != client.train:
        return f"client '{client.name}' has {client.train} examples, and other numbers by class"
    before = summaries.get(client.name)
    if before is not None and before != client:
        return f"the data of client '{client.name}' differ from those it started the run with"
    if not has_configured_format(config, client):
        return f"examples of client '{client.name}' do not match data.shape and data.classes"
    if get_example_format(client) != get_example_format(next(iter(summaries.values()), first)):
        return f"examples of client '{client.name}' have another format than those of others"
    return ""


def find_size_objection(client: ClientSummary) -> str:
    """Return what is wrong with the numbers that a client gives; an empty string if nothing is."""
    if client.train < 1 or len(client.labels) != client.classes:
        return "has no training data, or a wrong number of classes"
    if client.test < 1:
        return "has no test data"
    if (most := max(client.train, client.test, client.validation)) > MAX_EXAMPLES:
        return f"claims {most} examples, over {MAX_EXAMPLES}"
    if not 1 <= math.prod(client.shape) <= MAX_VALUES:
        return f"claims examples of {math.prod(client.shape)} values; 1 to {MAX_VALUES} are allowed"
    return ""


def describe_dominance(config: Config, summaries: Summaries) -> str:
    """Return a warning if one of several clients weighs more than all others; else nothing."""
    total = sum(c.train for c in summaries.values())
    largest = max(summaries.values(), key=lambda c: c.train)
    uniform = config.aggregation.weights == "uniform"
    if uniform or len(summaries) < 3 or 2 * largest.train <= total:
        return ""
    return (
        f"client {largest.name} says that it has {largest.train} of all {total} training examples,"
        " and weighs that much in averages; if that cannot be, set aggregation.weights = uniform"
    )


def find_membership_objection(config: Config, summaries: Summaries, clients: Sequence[str]) -> str:
    """Return why these cannot be clients of the run; an empty string if they are or can be."""
    if (numbered := list_numbered_clients(config)) is not None:
        unknown = [c for c in clients if c not in numbered]
        return f"the run has no client '{unknown[0]}'" if unknown else ""
    invalid = [c for c in clients if not NAME_PATTERN.fullmatch(c)]
    if invalid:
        return f"'{invalid[0]}' cannot be a client's name"
    new = [c for c in clients if c not in summaries]
    free = config.data.clients - len(summaries)
    if len(new) > free:
        left = f"can take {free} more" if free else "is complete"
        return f"the run of {config.data.clients} clients {left}, and '{new[0]}' is not among them"
    return ""


def has_configured_format(config: Config, client: ClientSummary) -> bool:
    """Return whether own data match the configuration, which describes no other data."""
    if config.data.name != OWN_DATA:
        return True
    spec = ExampleSpec.from_config(config.data.shape, config.data.classes)
    return get_example_format(client)[:2] == (spec.shape, len(spec.labels))


def get_example_format(client: ClientSummary) -> tuple[tuple[int, ...], int, str]:
    """Return what must be the same for all clients of a run: shape, classes and type."""
    return tuple(client.shape), client.classes, client.type
