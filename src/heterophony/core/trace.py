"""Record the operations of a module with ``torch.fx``, and cut them in two where a child is called."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import fx, nn

from .errors import get_first_line
from .records import find_record

CONSTANT = "_tensor_constant"  # how torch.fx names tensors that a forward creates


class UntraceableError(Exception):
    """Raised when the operations cannot be recorded or cut; the message says why."""


class ByMode(nn.Module):
    """Returns one constant in training and another in evaluation, in place of ``self.training``."""

    def __init__(self, in_training: Any, in_evaluation: Any) -> None:
        super().__init__()
        self.in_training, self.in_evaluation = in_training, in_evaluation

    def forward(self) -> Any:
        return self.in_training if self.training else self.in_evaluation


class Part(fx.GraphModule):
    """One part of a module's operations. Every job copies it; the copies share the generated code."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Part:
        new = object.__new__(type(self))
        memo[id(self)] = new
        for key, value in self.__dict__.items():
            new.__dict__[key] = value if key == "_graph" else deepcopy(value, memo)
        return new

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuild_part, super().__reduce__()


def rebuild_part(make: Callable[..., fx.GraphModule], args: tuple[Any, ...]) -> Part:
    """Rebuild a pickled part; torch.fx would make it a plain ``GraphModule``."""
    plain = make(*args)
    return Part(plain, plain.graph)


class ChildTracer(fx.Tracer):
    """Records every call of a module as one operation, except those of the ``opened`` modules."""

    def __init__(self, opened: frozenset[str]) -> None:
        super().__init__()
        self.opened = opened

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return module_qualified_name not in self.opened


def trace_module(module: nn.Module, paths: Iterable[str]) -> fx.Graph:
    """Record the operations of a module's forward; modules at these paths become single operations.

    A value that differs between training and evaluation becomes a ``ByMode``, added to the module.
    """
    if find_record(module) is not None:
        raise UntraceableError("its forward has several inputs")
    parents = [p.split(".")[:-1] for p in paths]
    opened = frozenset(".".join(p[: i + 1]) for p in parents for i in range(len(p)))
    modes = {m: m.training for m in module.modules()}
    other = deepcopy(module)
    try:
        training = ChildTracer(opened).trace(module.train())
        evaluation = ChildTracer(opened).trace(other.eval())
    except Exception as error:  # a forward may do anything with the stand-ins for its tensors
        reason = get_first_line(error)
        raise UntraceableError(f"torch.fx cannot follow its forward ({reason})") from None
    finally:
        for m, mode in modes.items():
            m.training = mode
    return merge_modes(module, training, other, evaluation)


def merge_modes(
    module: nn.Module, training: fx.Graph, other: nn.Module, evaluation: fx.Graph
) -> fx.Graph:
    """Merge the operations traced in training and in evaluation; they may differ only in constants."""
    pairs = list(zip(training.nodes, evaluation.nodes, strict=False))
    if len(training.nodes) != len(evaluation.nodes) or any(
        (a.op, a.target, a.name) != (b.op, b.target, b.name) for a, b in pairs
    ):
        raise UntraceableError(
            "its forward runs different operations in training and in evaluation"
        )
    for a, b in pairs:
        if a.op == "get_attr" and str(a.target).startswith(CONSTANT):
            values = getattr(module, str(a.target)), getattr(other, str(b.target))
            if not torch.equal(*values):
                raise UntraceableError("its forward creates random tensors")
        choose = partial(insert_choice, module, training, a)
        a.args = merge_values(a.args, b.args, choose)
        a.kwargs = merge_values(a.kwargs, b.kwargs, choose)
    return training


def insert_choice(
    module: nn.Module, graph: fx.Graph, before: fx.Node, in_training: Any, in_evaluation: Any
) -> fx.Node:
    """Insert an operation into a traced graph that returns the constant for the current mode."""
    name = f"by_mode_{sum(isinstance(m, ByMode) for m in module.children())}"
    module.add_module(name, ByMode(in_training, in_evaluation).train(module.training))
    with graph.inserting_before(before):
        return graph.call_module(name)


def merge_values(a: Any, b: Any, choose: Callable[[Any, Any], fx.Node]) -> Any:
    """Merge a traced operation's arguments in both modes; ``choose`` handles constants that differ."""
    if isinstance(a, list | tuple) and type(a) is type(b) and len(a) == len(b):
        return type(a)([merge_values(u, v, choose) for u, v in zip(a, b, strict=True)])
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        return {k: merge_values(a[k], b[k], choose) for k in a}
    if isinstance(a, slice) and isinstance(b, slice):
        ends = ("start", "stop", "step")
        return slice(*(merge_values(getattr(a, k), getattr(b, k), choose) for k in ends))
    if isinstance(a, fx.Node) and isinstance(b, fx.Node) and a.name == b.name:
        return a
    if isinstance(a, fx.Node) or isinstance(b, fx.Node):
        raise UntraceableError("its forward uses different values in training and in evaluation")
    return a if type(a) is type(b) and a == b else choose(a, b)


def list_calls(graph: fx.Graph) -> list[str]:
    """List the paths of the modules that a traced forward calls, in order."""
    return [str(n.target) for n in graph.nodes if n.op == "call_module"]


def is_last_operation(graph: fx.Graph, head: str) -> bool:
    """Return True if the module returns the result of its child ``head``, called once and unchanged."""
    calls = [n for n in graph.nodes if n.op == "call_module" and n.target == head]
    if len(calls) != 1 or len(calls[0].all_input_nodes) != 1 or calls[0].kwargs:
        return False
    return [n.op for n in calls[0].users] == ["output"] and get_output(graph) is calls[0]


def cut_graph(module: nn.Module, graph: fx.Graph, head: str) -> tuple[nn.Module, nn.Module]:
    """Cut a traced graph at the call of ``head``: operations before it, and the call with all that follow.

    Both parts share their children with the module. Only a single tensor may cross the cut.
    """
    features, after = find_crossing_value(graph, head)
    computed = list_input_dependents(graph)
    base, rest = fx.Graph(), fx.Graph()
    start = rest.placeholder("features")
    copy_operations(graph, base, add_constants(computed - after, computed), {}, features)
    copy_operations(
        graph, rest, add_constants(after, computed), {features: start}, get_output(graph)
    )
    return Part(module, base), Part(module, rest)


def copy_operations(
    graph: fx.Graph,
    part: fx.Graph,
    nodes: set[fx.Node],
    copies: dict[fx.Node, fx.Node],
    output: fx.Node,
) -> None:
    """Copy some operations of a traced graph into a part that returns ``output``."""
    for node in graph.nodes:
        if node in nodes and node.op != "output":
            copies[node] = part.node_copy(node, copies.__getitem__)
            copies[node].type = None  # an annotation may be text, which cannot be pickled as code
    part.output(copies[output])


def find_crossing_value(graph: fx.Graph, head: str) -> tuple[fx.Node, set[fx.Node]]:
    """Find the value passed to the head in a traced graph, and all operations that depend on the head."""
    calls = [n for n in graph.nodes if n.op == "call_module" and n.target == head]
    if len(calls) != 1:
        raise UntraceableError(f"its forward calls '{head}' {len(calls)} times")
    inputs = calls[0].all_input_nodes
    if len(inputs) != 1 or len(calls[0].args) != 1 or calls[0].args[0] is not inputs[0]:
        raise UntraceableError(f"'{head}' is called with more than one tensor")
    computed = list_input_dependents(graph)
    after = list_dependents(graph, calls)
    crossing = {n for m in after for n in m.all_input_nodes if n in computed and n not in after}
    if get_output(graph) not in after:
        raise UntraceableError(f"its output does not depend on '{head}'")
    if crossing != set(inputs):
        raise UntraceableError(f"operations after '{head}' also use values from before it")
    return inputs[0], after


def list_input_dependents(graph: fx.Graph) -> set[fx.Node]:
    """List the operations of a traced graph that depend on the module's input."""
    return list_dependents(graph, [n for n in graph.nodes if n.op == "placeholder"])


def list_dependents(graph: fx.Graph, roots: Iterable[fx.Node]) -> set[fx.Node]:
    """List these operations of a traced graph, and all operations that use their values."""
    found = set(roots)
    for node in graph.nodes:
        if any(n in found for n in node.all_input_nodes):
            found.add(node)
    return found


def add_constants(nodes: set[fx.Node], computed: set[fx.Node]) -> set[fx.Node]:
    """Add the constants that these operations use: values that do not depend on the input, such as parameters."""
    found, waiting = set(nodes), list(nodes)
    while waiting:
        more = [n for n in waiting.pop().all_input_nodes if n not in computed and n not in found]
        found.update(more)
        waiting.extend(more)
    return found


def get_output(graph: fx.Graph) -> fx.Node:
    """Return the operation of a traced graph whose value the module returns."""
    (output,) = (n for n in graph.nodes if n.op == "output")
    value = output.args[0]
    if not isinstance(value, fx.Node):
        raise UntraceableError("its forward does not return one tensor")
    return value
