"""Summaries of clients' data: told by devices, and computed by the server where it has the data."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from ..config.config import Config
from ..core.errors import DataError
from ..core.tensors import tensor_to_bytes
from ..data.client_folders import OWN_DATA
from ..data.client_names import check_names_on_devices
from ..data.federation import Federation
from .protocol.messages import ClientSummary

FindSummary = Callable[[str], ClientSummary | None]  # by the client's name; None: there is none


def summarize_client(federation: Federation, client: str) -> ClientSummary:
    """Return how much data a client has, of which kind, and a digest of it."""
    i = federation.clients.index(client)
    sizes = {part: federation.sizes(part)[client] for part in ("train", "test", "validation")}
    digest = hashlib.sha256()
    for part in [p for p in sizes if sizes[p]]:
        samples = federation.samples(client, part)
        digest.update(tensor_to_bytes(samples.get_all_stored()))
        digest.update(tensor_to_bytes(samples.labels))
    counts = tuple(int(n) for n in federation.counts()[i])
    return ClientSummary(
        client, **sizes, labels=counts, data_sha256=digest.hexdigest(), shape=federation.shape,
        classes=federation.classes, type=str(federation.x.dtype).removeprefix("torch."),
    )  # fmt: skip


def load_known_summaries(config: Config, say: Callable[[str], None]) -> FindSummary | None:
    """Load a partitioned data set to check what devices say; None if only they have the data."""
    if config.data.name == OWN_DATA:
        return None
    try:
        federation = config.build_federation()
    except DataError as error:
        say(f"what devices say about their data cannot be checked here: {error}")
        return None
    check_names_on_devices(federation.clients)
    known = set(federation.clients)
    return lambda client: summarize_client(federation, client) if client in known else None
