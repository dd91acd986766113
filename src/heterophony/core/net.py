"""A network in two parts, base and head, which algorithms can share, keep and train separately."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

BATCH_NORMS = (nn.modules.batchnorm._BatchNorm,)

if TYPE_CHECKING:

    class TensorModule(nn.Module):
        """A part of a net, for the type checker: calling it returns a tensor."""

        def __call__(self, *args: Any) -> Tensor: ...


class Net(nn.Module):
    """A network that computes ``head(base(x))``.

    The activation between the two belongs to the base. ``Algorithm.build`` may add further parts,
    such as a second head ``net.own``. In a run, ``shape`` is the shape of one example, ``classes``
    the number of classes, and ``task`` what is learned.
    """

    shape: tuple[int, ...] = ()
    origin: Any = None  # what ``split`` made it of, until a run has compared both
    classes: int = 0
    task: str = "classification"

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> TensorModule: ...
        def __call__(self, x: Tensor) -> Tensor: ...

    def __init__(self, base: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.add_module("base", base)
        self.add_module("head", head)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.base(x))
