"""Tables of all algorithms with their traffic, and of a model's tensors."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import cache, partial
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

from ..algorithms import (
    ALGORITHM_CLASSES,
    TABLE_FILE,
    construct_algorithm,
    digest_source,
    get_algorithm_class,
    read_stored_rows,
)
from ..core.algorithm import Algorithm, build_parts, list_kinds
from ..core.errors import ConfigError
from ..core.net import Net, find_aliases
from ..core.samples import BYTES_TO_PLUS_MINUS_ONE
from ..core.settings import describe_settings
from ..core.split import split
from ..core.temporary import temporary_folder
from ..core.tensors import Kind
from ..core.training import Training
from ..data.federation import Federation
from ..engines.base import Serial
from ..jobs.client_store import FolderClientStore
from ..jobs.plan import Plan
from ..models import TOKEN_MODELS, find_model_name, get_default_head_depth, get_model_builder
from ..models.convnets import convnet
from ..population.participation import Uniform
from ..runs.loop import run_round

Row = dict[str, Any]


def list_algorithm_rows() -> list[Row]:
    """List the table rows of all algorithms, sorted by name."""
    stored = read_stored_rows()
    return [stored.get(name) or compute_algorithm_row(name) for name in sorted(ALGORITHM_CLASSES)]


def write_algorithm_table() -> None:
    """Compute the rows of all algorithms and store them in ``TABLE_FILE``."""
    table = {
        name: {"source_sha256": digest_source(name), "row": compute_algorithm_row(name)}
        for name in sorted(ALGORITHM_CLASSES)
    }
    TABLE_FILE.write_text(json.dumps(table, indent=1) + "\n")


def compute_algorithm_row(name: str) -> Row:
    """Compute an algorithm's row in the table: its description, settings, and traffic relative to FedAvg."""
    cls = get_algorithm_class(name)
    wire_bytes = measure_relative_to_fedavg(construct_algorithm(cls, {}))
    return {
        "name": name,
        "about": (cls.__doc__ or "").splitlines()[0],
        "paper": cls.paper,
        "stays": describe_personal_parameters(cls),
        "bytes_down": round(wire_bytes["down"], 4),
        "bytes_up": round(wire_bytes["up"], 4),
        "settings": describe_settings(cls),
    }


def describe_personal_parameters(cls: type[Algorithm]) -> str:
    """Describe which parameters of an algorithm never leave a client."""
    if cls.stays is not Algorithm.stays:
        return "parts of layers"
    return "everything" if cls.personal == ("*",) else ", ".join(cls.personal) or "nothing"


# the names of tensors do not depend on the shape of examples, so any shape will do
IMAGE_SHAPE, SEQUENCE_SHAPE = (3, 32, 32), (80,)


class NamedTensor(NamedTuple):
    """A tensor of a net; ``kind`` says whether clients and server exchange it.

    A given tensor is frozen when the run starts: every client has it, and none trains or sends it.
    """

    name: str
    shape: tuple[int, ...]
    kind: Kind | Literal["buffer"]


def list_tensors(
    model: str | nn.Module | Callable[[], nn.Module],
    algorithm: str | Algorithm | type[Algorithm] = "fedavg",
    *,
    shape: tuple[int, ...] | None = None,
    classes: int = 10,
) -> list[NamedTensor]:
    """List the tensors that patterns can match: a model's own and those that the algorithm adds.

    ``model`` is a name, a module or a function that builds one. ``shape`` is the shape of one example.
    As in a run, ``buffers`` decides whether buffers such as BatchNorm's running statistics are personal
    or averaged.
    """
    chosen = choose_instance(algorithm)
    net = build_net(model, chosen, shape, classes)
    net = build_parts(chosen, net)
    kinds, aliases = list_kinds(chosen, net, 0), find_aliases(net)
    buffers = {name for name, _ in net.named_buffers(remove_duplicate=False)}
    return [
        NamedTensor(
            name,
            tuple(tensor.shape),
            "buffer" if name in buffers else kinds[aliases.get(name, name)],
        )
        for name, tensor in net.state_dict().items()
    ]


def choose_instance(algorithm: str | Algorithm | type[Algorithm]) -> Algorithm:
    """Return an instance of the algorithm, with default settings if a name or class is given."""
    if isinstance(algorithm, Algorithm):
        return algorithm
    cls = get_algorithm_class(algorithm, trust=True) if isinstance(algorithm, str) else algorithm
    return construct_algorithm(cls, {})


def build_net(
    model: str | nn.Module | Callable[[], nn.Module],
    algorithm: Algorithm,
    shape: tuple[int, ...] | None,
    classes: int,
) -> Net:
    """Build the net of a model as a run would, for examples of ``shape`` or of a usual shape."""
    if isinstance(model, str):
        name = find_model_name(model)
        shape = shape or (SEQUENCE_SHAPE if name in TOKEN_MODELS else IMAGE_SHAPE)
        build = get_model_builder(name)
        net = build(shape, classes, algorithm.head_depth or get_default_head_depth(build))
    else:
        module = model if isinstance(model, nn.Module) else model()
        if not isinstance(module, nn.Module):
            raise ConfigError(
                f"model: must be a name, an nn.Module or a function that makes one, not {model!r}"
            )
        net = deepcopy(module) if isinstance(module, Net) else split(module)
    net.shape, net.classes = shape or (), classes
    return net


CIFAR_SHAPE, CLASS_COUNT = (3, 32, 32), 10  # as in CIFAR-10


def measure_wire_bytes(algorithm: Algorithm) -> dict[str, int]:
    """Measure the bytes that an algorithm sends to and receives from a client with all classes.

    They are measured in the second round, when the server has received replies.
    """
    plan = Plan(
        algorithm=algorithm,
        model=partial(make_reference_net, algorithm),
        federation=make_reference_federation(),
        rounds=9,
        participation=Uniform(rate=1.0),
        # without training, tensors have the same sizes
        training=Training(epochs=1, batch=CLASS_COUNT, lr=0.0, momentum=0.0),
        evaluate_every=9,
    )
    # start at round 1: before round 0, models are evaluated
    server = replace(plan.create_initial_server(), t=1)
    with temporary_folder() as folder:
        store = FolderClientStore(folder / "clients", folder / "scratch")
        with Serial(plan, store) as engine:
            for _ in range(2):
                server, _, done = run_round(plan, engine, server)
    down, up = done["bytes_down"], done["bytes_up"]
    # no rows are sent without learning; at most, they are as large as the tensors that they replace
    return {"down": down, "up": max(down, up) if algorithm.rows_vary else up}


def measure_relative_to_fedavg(algorithm: Algorithm) -> dict[str, float]:
    """Measure the bytes that an algorithm sends and receives, relative to FedAvg."""
    return {way: n / measure_fedavg()[way] for way, n in measure_wire_bytes(algorithm).items()}


@cache
def measure_fedavg() -> dict[str, int]:
    """Measure the bytes that FedAvg sends and receives, once in each process."""
    return measure_wire_bytes(Algorithm())


def make_reference_net(algorithm: Algorithm) -> Net:
    """Build ConvNet for CIFAR-10, with the algorithm's head depth if its paper gives one."""
    depth = algorithm.head_depth or get_default_head_depth(convnet)
    return convnet(CIFAR_SHAPE, CLASS_COUNT, depth)


def make_reference_federation() -> Federation:
    """Build one client with an example of every class, because only shapes and labels matter."""
    rows = torch.arange(CLASS_COUNT)
    x = torch.zeros(CLASS_COUNT, *CIFAR_SHAPE, dtype=torch.uint8)
    labels = tuple(map(str, range(CLASS_COUNT)))
    return Federation(
        "reference", x, rows, BYTES_TO_PLUS_MINUS_ONE, labels, {"0": rows}, {"0": rows[:1]}
    )
