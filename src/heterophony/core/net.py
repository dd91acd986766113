"""A network in two parts, base and head, which algorithms can share, keep and train separately."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from .errors import ConfigError, suggest_or_list

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


def split(module: nn.Module, head: str | int | None = None) -> Net:
    """Split a copy of any module into base and head.

    ``head`` is the name of the child that the module's forward calls last (``"fc"``) or, in a
    ``Sequential``, the index of the head's first layer. Default: the last child with parameters.
    """
    module = deepcopy(module)
    # not named_children(): it skips the second use of a module, which shifts all later indices
    children = [(k, m) for k, m in module._modules.items() if m is not None]
    if head is None:
        owners = [i for i, (_, m) in enumerate(children) if any(True for _ in m.parameters())]
        if len(owners) < 2:
            raise ConfigError(
                f"cannot split {type(module).__name__} automatically: fewer than two of its"
                " children have parameters; name the head, as in hp.split(model, head='fc')"
            )
        head = owners[-1] if isinstance(module, nn.Sequential) else children[owners[-1]][0]
    names = [name for name, _ in children]
    if isinstance(module, nn.Sequential) and (isinstance(head, int) or head in names):
        at = head if isinstance(head, int) else names.index(head)
        if not 0 < (at + len(module) if at < 0 else at) < len(module):
            raise ConfigError(
                f"cannot split a Sequential of {len(module)} at {head}: base or head would be empty"
            )
        layers = list(module)  # a slice would call the constructor of a subclass
        return Net(nn.Sequential(*layers[:at]), nn.Sequential(*layers[at:]))
    if head not in dict(children):
        raise ConfigError(
            f"{type(module).__name__} has no child '{head}' to be the head"
            f"{suggest_or_list(str(head), names)}"
        )
    last = module.get_submodule(str(head))
    setattr(module, str(head), nn.Identity())
    return Net(module, last)
