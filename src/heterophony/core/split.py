"""Split any module into base and head, and verify that both together compute the same as the module."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .errors import ConfigError, HeterophonyError, get_first_line, suggest_or_list
from .net import Net
from .randomness import seeded
from .records import find_record
from .trace import UntraceableError, cut_graph, is_last_operation, list_calls, trace_module

ADVICE = "write both parts yourself, as in hp.Net(base, head)"


@dataclass(frozen=True)
class Cut:
    """Where and how a module is cut into base and head; it is the same in every process.

    ``index``: a ``Sequential`` is cut before a layer. ``replace``: the child called last becomes the
    head, and an ``Identity`` takes its place. ``trace``: the head is a child and all that follows it.
    ``whole``: the module is the base, and nothing follows it. ``logits``: the module returns an object
    with an attribute ``logits``.
    """

    head: str | int
    way: Literal["index", "replace", "trace", "whole"]
    logits: bool = False


@dataclass(frozen=True, eq=False)
class Origin:
    """The data needed to compare a net with the module that it was split from."""

    cut: Cut
    traced: nn.Module | None = None  # the module, which shares its parameters with the net

    def rebuild_module(self, net: Net) -> nn.Module | None:
        """Rebuild the module with the net's current parameters; None if there is nothing to compare."""
        if self.cut.way != "replace":
            return self.traced
        copy = deepcopy(net)
        copy.base.set_submodule(str(self.cut.head), copy.head)
        return copy.base


class Logits(nn.Module):
    """Calls a module that returns an object, as models of transformers do, and returns its logits.

    GoogLeNet and Inception return such an object only in training, and a tensor in evaluation.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        output = self.module(*args, **kwargs)
        logits: Tensor = getattr(output, "logits", output)
        return logits


def split(module: nn.Module, head: str | int | None = None, example: Tensor | None = None) -> Net:
    """Split a copy of any module into base and head.

    ``head`` is the name of the head's first child (``"fc"``, ``"net.3"``) or, in a ``Sequential``,
    its index. Default: the child with parameters that the module's forward calls last. Everything
    that follows this child in the forward belongs to the head.

    ``example`` is a mini-batch of input: with it, the split is found and verified by calling the
    module. Without it, ``hp.run`` verifies the split.
    """
    module = deepcopy(module)
    if example is not None and returns_logits(module, example):
        module = Logits(module)
        head = f"module.{head}" if isinstance(head, str) else head
    cut = find_cut(module, head, example)
    if example is None:
        net = cut_module(module, cut)
        net.origin = Origin(cut, module if cut.way == "trace" else None)
        return net
    net = cut_module(deepcopy(module), cut)
    verify_split(module, net, example)
    return net


def cut_module(module: nn.Module, cut: Cut) -> Net:
    """Cut a module into base and head. The net reuses the module itself, not a copy."""
    if cut.logits:
        module = Logits(module)
    if cut.way == "whole":
        return Net(module, nn.Identity())
    if cut.way == "index":
        assert isinstance(module, nn.Sequential)
        layers = list(module)  # a slice would call the constructor of a subclass
        at = int(cut.head)
        return Net(nn.Sequential(*layers[:at]), nn.Sequential(*layers[at:]))
    head = str(cut.head)
    if cut.way == "trace":
        return Net(*cut_graph(module, trace_module(module, [head]), head))
    last = module.get_submodule(head)
    module.set_submodule(head, nn.Identity())
    return Net(module, last)


# Find the cut -----------------------------------------------------------------------------------


def find_cut(
    module: nn.Module, head: str | int | None = None, example: Tensor | None = None
) -> Cut:
    """Find where a module's head starts, unless it is named, and how the module can be cut there."""
    children = {k: m for k, m in module._modules.items() if m is not None}
    owners = [i for i, m in enumerate(children.values()) if has_parameters(m)]
    if type(module).forward is nn.Sequential.forward:
        if head is None and len(owners) > 1:
            return Cut(owners[-1], "index")
        if isinstance(head, int) or head in children:
            return cut_at_index(list(children), head)
    if head is None:
        return find_last_child(module, example)
    if isinstance(module, nn.Sequential) and head in range(-len(children), len(children)):
        head = list(children)[int(head)]
    paths = {k for k, _ in module.named_modules(remove_duplicate=False) if k}
    if not isinstance(head, str) or head not in paths:
        raise ConfigError(
            f"{type(module).__name__} has no child '{head}' to use as the head"
            f"{suggest_or_list(str(head), children)}"
        )
    return choose_way(module, head, None if example is None else record_calls(module, example))


def cut_at_index(names: list[str], head: str | int) -> Cut:
    """Cut a ``Sequential`` before a layer; raise ConfigError if base or head would be empty."""
    at = head if isinstance(head, int) else names.index(head)
    if not 0 < (at + len(names) if at < 0 else at) < len(names):
        raise ConfigError(
            f"cannot split a Sequential of {len(names)} at {head}: base or head would be empty"
        )
    return Cut(at, "index")


def find_last_child(module: nn.Module, example: Tensor | None) -> Cut:
    """Cut a module at the child with parameters that its forward calls last."""
    paths = list_children(module)
    if len(paths) < 2:
        raise ConfigError(
            f"cannot split {type(module).__name__} automatically: fewer than two of its"
            " children have parameters; name the head, as in hp.split(model, head='fc')"
        )
    record = None if example is None else record_calls(module, example)
    called = find_called(module, paths) if record is None else record.order
    head = next((path for path in reversed(called) if path in paths), paths[-1])
    cut = choose_way(module, head, record)
    if not has_parameters(cut_module(deepcopy(module), cut).base):
        raise make_split_error(module, f"nothing with parameters comes before '{head}'")
    return cut


def find_called(module: nn.Module, paths: list[str]) -> list[str]:
    """List the children that a module's forward calls, in order; as declared if it cannot be traced."""
    try:
        return list_calls(trace_module(deepcopy(module), paths))
    except UntraceableError:
        return paths


def list_children(module: nn.Module, prefix: str = "") -> list[str]:
    """List the paths of a module's children with parameters; look inside a child if it is the only one."""
    paths = []
    for name, child in module.named_children():
        if isinstance(child, nn.ModuleList | nn.ModuleDict):  # is never called itself
            items = child.named_children()
            paths += [f"{prefix}{name}.{k}" for k, m in items if has_parameters(m)]
        elif has_parameters(child):
            paths.append(f"{prefix}{name}")
    if len(paths) != 1:
        return paths
    single = module.get_submodule(paths[0].removeprefix(prefix))
    library = type(single).__module__.startswith("torch.")  # its children are not split
    return (
        []
        if library and type(single) is not nn.Sequential
        else list_children(single, f"{paths[0]}.")
    )


@dataclass
class CallRecord:
    """The calls of all children of a module during one forward pass."""

    order: list[str]  # paths of the children, in the order of their calls
    with_one_tensor: set[str]  # children called with one tensor and nothing else
    returned: set[str]  # children whose output is the output of the module

    def ends_with(self, head: str) -> bool:
        """Return True if this child is called once, with one tensor, and the module returns its output."""
        return self.order.count(head) == 1 and head in self.with_one_tensor & self.returned


def choose_way(module: nn.Module, head: str, record: CallRecord | None) -> Cut:
    """Choose how to cut a module at this child: the head is the child, or the child and all that follows."""
    copy = deepcopy(module)
    try:
        graph = trace_module(copy, [head])
    except UntraceableError as error:
        if record is None or record.ends_with(head):  # both parts are called to verify this
            return Cut(head, "replace")
        raise make_split_error(module, str(error)) from None
    try:
        if is_last_operation(graph, head):
            return Cut(head, "replace")
        cut_graph(copy, graph, head)
    except UntraceableError as error:
        raise make_split_error(module, str(error)) from None
    return Cut(head, "trace")


def record_calls(module: nn.Module, example: Tensor) -> CallRecord:
    """Call a copy of the module on the example, and record the calls of all modules in it."""
    copy, record = deepcopy(module), CallRecord([], set(), set())
    outputs: list[tuple[str, Any]] = []

    def record_call(path: str, args: Any, kwargs: Any, output: Any) -> None:
        record.order.append(path)
        outputs.append((path, output))
        if len(args) == 1 and isinstance(args[0], Tensor) and not kwargs:
            record.with_one_tensor.add(path)

    for path, child in copy.named_modules():
        if path:
            hook = partial(lambda path, _, *call: record_call(path, *call), path)
            child.register_forward_hook(hook, with_kwargs=True)
    result = call_module(copy.train(), example)
    record.returned = {path for path, output in outputs if output is result}
    return record


def find_verified_cut(module: nn.Module, example: Tensor, needs_head: bool) -> Cut:
    """Find and verify the cut of a module; leave the module whole if no head is needed."""
    logits = returns_logits(module, example)
    whole = Logits(deepcopy(module)) if logits else module
    call_module(deepcopy(whole), example)
    try:
        cut = find_cut(whole, example=example)
        verify_split(whole, cut_module(deepcopy(whole), cut), example)
    except ConfigError:
        if needs_head:
            raise
        cut = Cut("", "whole")
    return replace(cut, logits=logits)


def returns_logits(module: nn.Module, example: Tensor) -> bool:
    """Return True if a module returns an object with logits in training, as models of transformers do."""
    output = call_any_module(deepcopy(module).train(), example)
    return isinstance(getattr(output, "logits", None), Tensor)


# Verify it --------------------------------------------------------------------------------------


def verify_split(module: nn.Module, net: Net, example: Tensor) -> None:
    """Raise ConfigError unless module and net compute the same bits, in training and in evaluation.

    Copies are called, with the same random draws, so running statistics do not change.
    """
    for mode in (True, False):
        expected = call_module(deepcopy(module).train(mode), example)
        try:
            given = call_module(deepcopy(net).train(mode), example)
        except ConfigError:
            raise make_split_error(
                module, "base and head cannot be called one after the other"
            ) from None
        if not have_same_bits(expected, given):
            when = "training" if mode else "evaluation"
            raise make_split_error(module, f"base and head compute something different in {when}")


def verify_origin(net: Net, example: Tensor) -> None:
    """Verify a net that ``split`` made without an example; other nets are used as written."""
    module = None if net.origin is None else net.origin.rebuild_module(net)
    if module is not None:
        verify_split(module, net, example)


def call_module(module: nn.Module, example: Tensor) -> Tensor:
    """Call a module on a mini-batch, always with the same random draws; it must return a tensor."""
    output = call_any_module(module, example)
    if not isinstance(output, Tensor):
        raise ConfigError(
            f"{type(module).__name__} returns {type(output).__name__}, not a tensor;"
            " return only the logits, or an object that has them as .logits (auxiliary outputs"
            " are allowed; their loss belongs in an algorithm's client.fit(loss=…))"
        )
    return output


def call_any_module(module: nn.Module, example: Tensor) -> Any:
    """Call a module on a mini-batch; if the call fails, name the module in the error."""
    name = type(module).__name__
    # BatchNorm cannot train on one example
    batch = torch.cat([example, example]) if len(example) == 1 else example.clone()
    batch = batch.contiguous(memory_format=torch.channels_last) if batch.dim() == 4 else batch
    try:
        with seeded("split"), torch.no_grad():
            output = module.to(memory_format=torch.channels_last)(batch)  # type: ignore[call-overload]
    except HeterophonyError:
        raise
    except Exception as error:  # a user's forward may raise anything
        record = find_record(module)
        shape = record.describe() if record else "×".join(map(str, example.shape[1:]))
        raise ConfigError(
            f"{name} cannot process examples of {shape}: {get_first_line(error)}"
        ) from None
    return output


def have_same_bits(a: Tensor, b: Tensor) -> bool:
    """Return True if two tensors are equal; NaN equals NaN."""
    same = a.shape == b.shape and a.dtype == b.dtype
    return same and bool(((a == b) | ((a != a) & (b != b))).all())


def make_split_error(module: nn.Module, reason: str) -> ConfigError:
    """Return the error for a module that cannot be split."""
    return ConfigError(f"cannot split {type(module).__name__}: {reason}; {ADVICE}")


def has_parameters(module: nn.Module) -> bool:
    """Return True if a module or one of its children has parameters."""
    return any(True for _ in module.parameters())
