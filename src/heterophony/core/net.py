"""A network in two parts, base and head: what every algorithm can tell apart."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from .errors import ConfigError

if TYPE_CHECKING:

    class TensorModule(nn.Module):
        """A part of a net, for the type checker: calling it gives a tensor."""

        def __call__(self, *args: Any) -> Tensor: ...


class Net(nn.Module):
    """``head(base(x))``; the activation before the split belongs to the base.

    Algorithms may add parts of their own (``net.own``). ``shape`` is that of one example, where
    the net is part of a run.
    """

    shape: tuple[int, ...] = ()

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> TensorModule: ...
        def __call__(self, x: Tensor) -> Tensor: ...

    def __init__(self, base: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.add_module("base", base)
        self.add_module("head", head)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.base(x))


def split(module: nn.Module, head: str | int | None = None) -> Net:
    """Any module as base and head.

    ``head`` names the last part: a child (``"fc"``) that the module's forward calls last, or,
    in a ``Sequential``, the index where the head begins. Default: the last child that has
    parameters.
    """
    module = deepcopy(module)
    # named_children() leaves out the second use of a module, and every later index with it
    children = [(k, m) for k, m in module._modules.items() if m is not None]
    if head is None:
        owners = [i for i, (_, m) in enumerate(children) if any(True for _ in m.parameters())]
        if len(owners) < 2:
            raise ConfigError(
                f"cannot split {type(module).__name__} by itself: fewer than two of its children "
                "have parameters; name the head, as in hp.split(model, head='fc')"
            )
        head = owners[-1] if isinstance(module, nn.Sequential) else children[owners[-1]][0]
    names = [name for name, _ in children]
    if isinstance(module, nn.Sequential) and (isinstance(head, int) or head in names):
        at = head if isinstance(head, int) else names.index(head)
        if not 0 < (at + len(module) if at < 0 else at) < len(module):
            raise ConfigError(
                f"cannot split a Sequential of {len(module)} at {head}: a part is empty"
            )
        layers = list(module)  # a slice would call a subclass's own constructor
        return Net(nn.Sequential(*layers[:at]), nn.Sequential(*layers[at:]))
    if head not in dict(children):
        raise ConfigError(f"{type(module).__name__} has no child '{head}' to be the head")
    last = module.get_submodule(str(head))
    setattr(module, str(head), nn.Identity())
    return Net(module, last)
