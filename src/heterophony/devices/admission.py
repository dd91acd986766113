"""Who may take part in a run on devices, and in which runs devices can take part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .. import __version__
from ..config.config import Config
from ..core.errors import ConfigError
from ..core.names import NAME_PATTERN
from ..data.client_folders import OWN_DATA, ExampleSpec, sort_client_names
from .protocol.messages import ClientSummary, Hello


def check_devices_can_run(config: Config) -> None:
    """Refuse what devices cannot do, before anybody waits for them."""
    if config.algorithm.pooled:
        raise ConfigError(f"algorithm.name: {config.algorithm_name} has no devices; run it")
    if config.data.new_clients:
        raise ConfigError("data.new_clients: on devices nobody joins after training; leave it out")


def list_clients(config: Config, held: Mapping[str, ClientSummary]) -> list[str]:
    """The clients of the run, in their order; with data of their own, those who came so far."""
    if config.data.name == OWN_DATA:
        return sort_client_names(held)
    return [str(i) for i in range(config.data.clients)]


def find_objection(config: Config, held: Mapping[str, ClientSummary], hello: Hello) -> str:
    """Why a device cannot take part with these clients; nothing if it can."""
    if hello.version != __version__:
        return f"it has heterophony {hello.version}, the server {__version__}"
    if why := find_membership_objection(config, held, [c.name for c in hello.clients]):
        return why
    for client in hello.clients:
        if client.train < 1 or len(client.labels) != client.classes:
            return f"client '{client.name}' has nothing to train on, or not its classes"
        before = held.get(client.name)
        if before is not None and before != client:
            return f"the data of client '{client.name}' are not those it began with"
        if not has_configured_format(config, client):
            return f"examples of client '{client.name}' are not what data.shape and .classes say"
        if get_example_format(client) != get_example_format(
            next(iter(held.values()), hello.clients[0])
        ):
            return f"examples of client '{client.name}' have another form than those of others"
    return ""


def find_membership_objection(
    config: Config, held: Mapping[str, ClientSummary], clients: Sequence[str]
) -> str:
    """Why these are not clients of the run; nothing if they are, or can still become it."""
    if config.data.name != OWN_DATA:
        unknown = [c for c in clients if c not in list_clients(config, held)]
        return f"the run has no client '{unknown[0]}'" if unknown else ""
    nameless = [c for c in clients if not NAME_PATTERN.fullmatch(c)]
    if nameless:
        return f"'{nameless[0]}' cannot be a client's name"
    fresh, places = [c for c in clients if c not in held], config.data.clients - len(held)
    if len(fresh) > places:
        left = f"has places for {places} more" if places else "is complete"
        return (
            f"the run of {config.data.clients} clients {left}, and '{fresh[0]}' is not among them"
        )
    return ""


def has_configured_format(config: Config, client: ClientSummary) -> bool:
    """Are its own data what the configuration says of them? Of dealt data it says nothing."""
    if config.data.name != OWN_DATA:
        return True
    kind = ExampleSpec.from_config(config.data.shape, config.data.classes)
    return get_example_format(client)[:2] == (kind.shape, len(kind.labels))


def get_example_format(client: ClientSummary) -> tuple[tuple[int, ...], int, str]:
    """What must be the same for all clients of a run."""
    return tuple(client.shape), client.classes, client.type
