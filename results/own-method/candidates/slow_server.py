"""FedRows whose server moves only a part of the way to the merged model."""

from collections.abc import Sequence
from dataclasses import dataclass

from heterophony.core.algorithm import Reply, Server, setting

from .fedrows import FedRows


@dataclass(frozen=True)
class SlowServer(FedRows):
    """Move the common model a part of the way in each round."""

    share: float = setting(0.5, "of the way to the merged model", above=0, high=1)

    def merge(self, server: Server, replies: Sequence[Reply]) -> Server:
        merged = super().merge(server, replies).learned
        return server.update(
            merged.map(lambda new, old: old + self.share * (new - old), server.learned)
        )
