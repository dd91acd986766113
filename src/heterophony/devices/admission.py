"""Who may take part in a run on devices, and in which runs devices can take part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .. import __version__
from ..config.config import Config
from ..core.errors import ConfigError
from ..data.client_folders import (
    NAME,
    OWN,
    Kind,
    in_order,
)
from .protocol.messages import Hello, Holding


def playable(config: Config) -> None:
    """Refuse what devices cannot do, before anybody waits for them."""
    if config.algorithm.pooled:
        raise ConfigError(f"algorithm.name: {config.algorithm_name} has no devices; run it")
    if config.data.new_clients:
        raise ConfigError("data.new_clients: on devices nobody joins after training; leave it out")


def names(config: Config, held: Mapping[str, Holding]) -> list[str]:
    """The clients of the run, in their order; with data of their own, those who came so far."""
    if config.data.name == OWN:
        return in_order(held)
    return [str(i) for i in range(config.data.clients)]


def objection(config: Config, held: Mapping[str, Holding], hello: Hello) -> str:
    """Why a device cannot take part with these clients; nothing if it can."""
    if hello.version != __version__:
        return f"it has heterophony {hello.version}, the server {__version__}"
    if why := stranger(config, held, [c.name for c in hello.clients]):
        return why
    for client in hello.clients:
        if client.train < 1 or len(client.labels) != client.classes:
            return f"client '{client.name}' has nothing to train on, or not its classes"
        before = held.get(client.name)
        if before is not None and before != client:
            return f"the data of client '{client.name}' are not those it began with"
        if not described(config, client):
            return f"examples of client '{client.name}' are not what data.shape and .classes say"
        if form(client) != form(next(iter(held.values()), hello.clients[0])):
            return f"examples of client '{client.name}' have another form than those of others"
    return ""


def stranger(config: Config, held: Mapping[str, Holding], clients: Sequence[str]) -> str:
    """Why these are not clients of the run; nothing if they are, or can still become it."""
    if config.data.name != OWN:
        unknown = [c for c in clients if c not in names(config, held)]
        return f"the run has no client '{unknown[0]}'" if unknown else ""
    nameless = [c for c in clients if not NAME.fullmatch(c)]
    if nameless:
        return f"'{nameless[0]}' cannot be a client's name"
    fresh, places = [c for c in clients if c not in held], config.data.clients - len(held)
    if len(fresh) > places:
        left = f"has places for {places} more" if places else "is complete"
        return (
            f"the run of {config.data.clients} clients {left}, and '{fresh[0]}' is not among them"
        )
    return ""


def described(config: Config, client: Holding) -> bool:
    """Are its own data what the configuration says of them? Of dealt data it says nothing."""
    if config.data.name != OWN:
        return True
    kind = Kind.of(config.data.shape, config.data.classes)
    return form(client)[:2] == (kind.shape, len(kind.labels))


def form(client: Holding) -> tuple[tuple[int, ...], int, str]:
    """What must be the same for all clients of a run."""
    return tuple(client.shape), client.classes, client.type
