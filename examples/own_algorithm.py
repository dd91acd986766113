"""An algorithm of your own. Run it with: heterophony run own_algorithm:HalfStep -c rounds=10"""

from dataclasses import dataclass

import heterophony as hp


@dataclass(frozen=True)
class HalfStep(hp.Algorithm):
    """FedAvg whose server moves only part of the way to the clients' mean."""

    share: float = hp.setting(0.5, "how far the server moves", above=0, high=1)

    def merge(self, server, replies):
        goal = hp.mean(replies)
        step = server.model.map(lambda old, new: old.lerp(new, self.share), goal)
        return server.update(step)
