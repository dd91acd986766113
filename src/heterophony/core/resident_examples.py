"""Examples of clients that stay on a device between jobs, up to a number of bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable

from torch import Tensor

CACHE_BYTES = 1 << 28  # of each worker; it holds all images of CIFAR-10, as bytes


class ResidentExamples:
    """A cache of one worker. Beyond its bound, the examples that were not used for longest leave.

    It serves one federation at a time: those of another one would have the same names.
    """

    def __init__(self, limit: int = CACHE_BYTES) -> None:
        self.limit, self.owner = limit, None
        self.size, self._entries = 0, OrderedDict[Hashable, Tensor]()

    def serve(self, owner: object) -> None:
        """Keep examples of this federation, and forget those of another one."""
        if owner is not self.owner:
            self._entries.clear()
            self.owner, self.size = owner, 0  # type: ignore[assignment]

    def get(self, key: Hashable, copy: Callable[[], Tensor]) -> Tensor:
        """Return the examples of that name; if they are not here, copy them to the device first."""
        if key in self._entries:
            self._entries.move_to_end(key)
            return self._entries[key]
        examples = copy()
        if examples.nbytes <= self.limit:
            self._entries[key] = examples
            self.size += examples.nbytes
            while self.size > self.limit:
                self.size -= self._entries.popitem(last=False)[1].nbytes
        return examples
