"""A net in two parts, base and head, and fast copies of modules."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from copy import deepcopy
from copyreg import dispatch_table
from functools import lru_cache
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

BATCH_NORMS = (nn.modules.batchnorm._BatchNorm,)


if TYPE_CHECKING:

    class TensorModule(nn.Module):
        """A part of a net, declared for type checkers: calling it returns a tensor."""

        def __call__(self, *args: Any) -> Tensor: ...


class Net(nn.Module):
    """A net that computes ``head(base(x))``.

    The activation between base and head belongs to the base. ``Algorithm.build`` may add further parts,
    such as a second head ``net.own``. In a run, ``shape`` is the shape of one example, ``classes``
    the number of classes, and ``task`` the name of the task.
    """

    shape: tuple[int, ...] = ()
    origin: Any = None  # the module that ``split`` cut, until a run has compared both
    classes: int = 0
    task: str = "classification"
    width: float = 1.0  # width of the hidden layers, relative to the whole net
    others: tuple[Net, ...] = ()  # if clients' nets differ: all of them, while this one is built

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> TensorModule: ...
        def __call__(self, x: Tensor) -> Tensor: ...

    def __init__(self, base: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.add_module("base", base)
        self.add_module("head", head)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.base(x))

    @property
    def smallest(self) -> Net:
        """A copy of the smallest net among the run's clients; a copy of this net if all are equal."""
        return copy_module(min(self.others or (self,), key=count_parameters))


Module = TypeVar("Module", bound=nn.Module)
Memo = dict[int, Any]  # as ``deepcopy`` uses it: the copy of every object that was copied

IMMUTABLE = {NoneType, bool, int, float, str, bytes, torch.dtype, torch.device, torch.Size}
CONTAINERS = {dict, OrderedDict, set, list}
TENSOR_DICTS, MODULE_DICT = ("_parameters", "_buffers"), "_modules"
# these methods only add attributes that files from old torch versions lack
PLAIN_SETSTATES = (nn.Module.__setstate__, nn.modules.conv._ConvNd.__setstate__)
PLAIN_LOADERS = (
    nn.Module._load_from_state_dict,
    nn.modules.batchnorm._NormBase._load_from_state_dict,
)


def copy_module(module: Module) -> Module:
    """Copy a module as ``deepcopy`` does, but faster: tied parameters stay tied, memory formats the same."""
    copied: Any = copy_part(module, {})
    return copied  # type: ignore[no-any-return]


def copy_part(module: nn.Module, memo: Memo) -> nn.Module:
    """Copy a module that may be part of another one; use ``deepcopy`` for everything that is not plain."""
    if id(module) in memo:
        known: nn.Module = memo[id(module)]
        return known
    kind: Any = type(module)
    if not is_copied_plainly(kind) or "_compiled_call_impl" in module.__dict__:
        return deepcopy(module, memo)
    copy: nn.Module = kind.__new__(kind)
    memo[id(module)] = copy
    attributes = copy.__dict__
    for name, value in module.__dict__.items():  # most attributes are numbers or empty
        kind = type(value)
        if kind in IMMUTABLE:
            attributes[name] = value
        elif kind in CONTAINERS and not value:
            attributes[name] = kind()
        else:
            attributes[name] = copy_attribute(name, value, memo)
    return copy


def copy_attribute(name: str, value: Any, memo: Memo) -> Any:
    """Copy an attribute of a module; use ``deepcopy`` if it is neither plain nor a module or tensor."""
    kind = type(value)
    if kind is tuple and all(type(v) in IMMUTABLE for v in value):
        return value
    if name == MODULE_DICT and kind in CONTAINERS:
        return kind((k, v if v is None else copy_part(v, memo)) for k, v in value.items())
    if name in TENSOR_DICTS and kind in CONTAINERS:
        return kind((k, v if v is None else copy_tensor(v, memo)) for k, v in value.items())
    return deepcopy(value, memo)


def copy_tensor(tensor: Tensor, memo: Memo) -> Tensor:
    """Copy a parameter or buffer of a module, as ``deepcopy`` does."""
    # this method also consults the memo; deepcopy would call it only after several lookups
    copied: Tensor = type(tensor).__deepcopy__(tensor, memo)
    return copied


@lru_cache(maxsize=256)
def is_copied_plainly(kind: Any) -> bool:
    """Return True if ``deepcopy`` would copy a module of this class attribute by attribute."""
    return (
        not hasattr(kind, "__deepcopy__")
        and kind.__setstate__ in PLAIN_SETSTATES
        and kind.__getstate__ is nn.Module.__getstate__
        and kind.__reduce_ex__ is object.__reduce_ex__
        and kind.__reduce__ is object.__reduce__
        and kind.__new__ is object.__new__
        and kind not in dispatch_table
        and not any("__slots__" in vars(c) for c in kind.__mro__)
    )


def count_parameters(net: nn.Module) -> int:
    """Return the number of parameters of a net, counting every tensor entry."""
    return sum(p.numel() for p in net.parameters())


# Loading --------------------------------------------------------------------------------------


def load_tensors(module: nn.Module, tensors: Mapping[str, Tensor]) -> list[str]:
    """Copy tensors into the parameters and buffers of the same names; return the unknown names."""
    if not tensors:
        return []
    parts = list(walk_modules(module, ""))
    if all(is_loaded_plainly(part) for _, part in parts):
        own = {k: v for prefix, part in parts for k, v in list_own_tensors(prefix, part)}
        if all(k in own and own[k].shape == v.shape for k, v in tensors.items()):
            with torch.no_grad():
                for name, tensor in own.items():
                    if name in tensors:
                        tensor.copy_(tensors[name])
            return []
    return list(module.load_state_dict(tensors, strict=False).unexpected_keys)


def walk_modules(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    """Iterate over a module and its children, with the prefix of each in the names of ``state_dict``."""
    yield prefix, module
    for name, child in module._modules.items():
        if child is not None:
            yield from walk_modules(child, f"{prefix}{name}.")


def is_loaded_plainly(module: nn.Module) -> bool:
    """Return True if ``load_state_dict`` only copies values into this module's own tensors."""
    return (
        type(module)._load_from_state_dict in PLAIN_LOADERS
        and type(module).load_state_dict is nn.Module.load_state_dict
        and type(module).set_extra_state is nn.Module.set_extra_state
        and not module._load_state_dict_pre_hooks
        and not module._load_state_dict_post_hooks
    )


def list_state(module: nn.Module) -> Mapping[str, Tensor]:
    """Return the tensors of ``state_dict``; faster, unless a module overrides how they are listed."""
    parts = list(walk_modules(module, ""))
    if all(is_stored_plainly(part) for _, part in parts):
        return {k: v for prefix, part in parts for k, v in list_own_tensors(prefix, part)}
    state: Mapping[str, Tensor] = module.state_dict()
    return state


def is_stored_plainly(module: nn.Module) -> bool:
    """Return True if ``state_dict`` only lists this module's own tensors."""
    return (
        type(module)._save_to_state_dict is nn.Module._save_to_state_dict
        and type(module).state_dict is nn.Module.state_dict
        and type(module).get_extra_state is nn.Module.get_extra_state
        and not module._state_dict_hooks
        and not module._state_dict_pre_hooks
    )


def iterate_named_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Iterate as ``named_parameters`` does, but faster: tied parameters come once, by their first name."""
    seen = set[int]()
    for prefix, part in walk_modules(module, ""):
        for name, p in part._parameters.items():
            if p is not None and id(p) not in seen:
                seen.add(id(p))
                yield prefix + name, p


def start_training(module: nn.Module) -> None:
    """Put a module into training mode as ``train()`` does, but faster."""
    parts = [part for _, part in walk_modules(module, "")]
    kinds: set[Any] = set(map(type, parts))
    if all(map(is_switched_plainly, kinds)):
        for part in parts:
            part.__dict__["training"] = True
    else:
        module.train()


@lru_cache(maxsize=256)
def is_switched_plainly(kind: Any) -> bool:
    """Return True if ``train()`` only sets an attribute of a module of this class, and of its parts."""
    return (
        kind.train is nn.Module.train
        and kind.children is nn.Module.children
        and kind.__setattr__ is nn.Module.__setattr__
    )


def iterate_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Iterate over the names and tensors of ``state_dict``, but faster."""
    for prefix, part in walk_modules(module, ""):
        yield from list_own_tensors(prefix, part)


def find_aliases(module: nn.Module) -> dict[str, str]:
    """Find tensors with several names, such as tied weights; map every other name to the first."""
    first, found = dict[int, str](), dict[str, str]()
    for name, tensor in iterate_tensors(module):
        known = first.setdefault(id(tensor), name)
        if known != name:
            found[name] = known
    return found


def list_own_tensors(prefix: str, module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Iterate over the module's own parameters and buffers that are in its ``state_dict``."""
    for name, parameter in module._parameters.items():
        if parameter is not None:
            yield prefix + name, parameter
    for name, buffer in module._buffers.items():
        if buffer is not None and name not in module._non_persistent_buffers_set:
            yield prefix + name, buffer
