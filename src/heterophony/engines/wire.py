"""How jobs, replies and plans are sent to and from workers: tensors are encoded once, plans are pickled.

The pool sends small tensors in the message, and large ones in a file on the same machine.
"""

from __future__ import annotations

import inspect
import pickle
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from ..core.algorithm import Reply
from ..core.codec import decode_groups, encode_groups
from ..core.errors import EngineError, get_first_line
from ..core.files import translate_disk_errors, write_atomically
from ..core.own_modules import Sources, load_sources
from ..core.samples import ALIGNMENT
from ..core.tensors import Memory, Tensors
from ..jobs.plan import Job

INLINE_BYTES = 1 << 16  # below this size, a pipe is faster than a file
CACHED_MODELS = 2  # decoded messages kept per worker: sent tensors, generic model
T = TypeVar("T")
K = TypeVar("K")


@dataclass(frozen=True)
class TensorMessage:
    """Encoded groups of tensors, or the path of a file that holds them. Equal keys mean equal tensors."""

    key: int
    content: bytes | str

    def decode(self) -> dict[str, Tensors]:
        """Decode a message into its groups of tensors."""
        blob = self.content
        if isinstance(blob, str):
            with translate_disk_errors(Path(blob)):
                blob = Path(blob).read_bytes()
        return decode_groups(blob, finite=False)[0]

    def delete(self) -> None:
        """Delete the message's file, if it has one."""
        if isinstance(self.content, str):
            Path(self.content).unlink(missing_ok=True)


def encode_message(groups: Memory, key: int, path: Path) -> TensorMessage | None:
    """Encode groups of tensors as a message, in a file at ``path`` if they are large; None if all are empty."""
    if not any(groups.values()):
        return None
    blob = encode_groups(groups)
    if len(blob) <= INLINE_BYTES:
        return TensorMessage(key, blob)
    write_atomically(path, blob, durable=False)
    return TensorMessage(key, str(path))


# Batches of jobs and their replies ------------------------------------------------------------


@dataclass(frozen=True)
class JobBatch:
    """Jobs as the pool sends them to a worker; tensors that several jobs share are sent once."""

    models: list[tuple[TensorMessage | None, TensorMessage | None]]  # received, generic
    rows: list[tuple[Any, ...]]  # each job's other fields, and its number of models

    @classmethod
    def encode(cls, jobs: Sequence[Job], encode: EncodeOnce[TensorMessage | None]) -> JobBatch:
        """Encode jobs for a worker; tensors that several jobs share are encoded once."""
        numbers = dict[tuple[int, int], int]()
        models, rows = list[tuple[TensorMessage | None, TensorMessage | None]](), []
        for job in jobs:
            key = id(job.tensors or None), id(job.generic_model or None)
            if key not in numbers:
                numbers[key] = len(models)
                models.append((encode(job.tensors), encode(job.generic_model)))
            rows.append((*(getattr(job, name) for name in JOB_FIELDS), numbers[key]))
        return cls(models, rows)

    def decode(self, cache: TensorCache[int]) -> list[Job]:
        """Decode the jobs in a worker; ``cache`` keeps the tensors that were decoded last."""
        models = [
            (decode_cached(cache, received), decode_cached(cache, both))
            for received, both in self.models
        ]
        jobs = []
        for *values, number in self.rows:
            received, generic_model = models[number]
            fields: dict[str, Any] = dict(zip(JOB_FIELDS, values, strict=True))
            jobs.append(Job(**fields, tensors=received, generic_model=generic_model))
        return jobs


JOB_FIELDS = ("kind", "t", "client", "cost", "turn", "keeps_memory", "custom_work")
REPLY_FIELDS = ("client", "kind", "samples", "weight", "metrics", "turn", "examples", "kept")


@dataclass(frozen=True)
class ReplyBatch:
    """Replies as a worker sends them; tensors with the same name and shape in all of them are stacked."""

    rows: list[tuple[Any, ...]]
    stacked: StackedTensors | None
    single: list[TensorMessage | None]  # one per reply, unless stacked

    @classmethod
    def encode(cls, replies: Sequence[Reply], path: Path) -> ReplyBatch:
        """Encode a worker's replies, with large tensors in files at ``path``."""
        rows = [tuple(getattr(reply, name) for name in REPLY_FIELDS) for reply in replies]
        groups = [{"up": reply.tensors, "aside": reply.aside} for reply in replies]
        if not any(group["up"] or group["aside"] for group in groups):
            return cls(rows, None, [])
        layout = describe_layout(groups[0])
        if len(groups) > 1 and all(describe_layout(group) == layout for group in groups[1:]):
            return cls(rows, StackedTensors.encode(groups, layout, path), [])
        paths = (path.with_name(f"{path.name}-{i}") for i in range(len(groups)))
        parts = zip(groups, paths, strict=True)
        return cls(rows, None, [encode_message(group, 0, to) for group, to in parts])

    def decode(self) -> list[Reply]:
        """Decode a worker's replies, and delete their files."""
        groups: Sequence[Memory] = [NO_TENSORS] * len(self.rows)
        if self.stacked is not None:
            groups = self.stacked.decode(len(self.rows))
        elif self.single:
            groups = [NO_TENSORS if m is None else decode_and_delete(m) for m in self.single]
        replies = []
        for values, group in zip(self.rows, groups, strict=True):
            fields: dict[str, Any] = dict(zip(REPLY_FIELDS, values, strict=True))
            replies.append(Reply(**fields, tensors=group["up"], aside=group["aside"]))
        return replies


def decode_and_delete(message: TensorMessage) -> Memory:
    """Decode a message of tensors that no other process will read, and delete its file."""
    groups = message.decode()
    message.delete()
    return groups


NO_TENSORS = {"up": Tensors(), "aside": Tensors()}
Layout = list[tuple[str, str, torch.Size, torch.dtype]]  # group and name, shape and type


def describe_layout(groups: Memory) -> Layout:
    """Return the layout of groups of tensors: group, name, shape and type of each tensor, in order."""
    return [(g, k, v.shape, v.dtype) for g, part in groups.items() for k, v in part.items()]


@dataclass(frozen=True)
class StackedTensors:
    """The tensors of several replies with one layout, as bytes: tensor by tensor, the values of all replies.

    Every tensor is aligned like a new one, because rounding in matrix products may depend on this.
    """

    layout: Layout
    content: bytes | str  # or the path of a file that holds the bytes

    @classmethod
    def encode(cls, groups: Sequence[Memory], layout: Layout, path: Path) -> StackedTensors:
        """Encode the tensors of replies with this layout, in a file at ``path`` if they are large."""
        parts = list[Tensor]()
        for group, name, _, _ in layout:
            stacked = torch.stack([one[group][name] for one in groups]).contiguous()
            rows = stacked.view(len(groups), -1).view(torch.uint8)
            parts.append(nn.functional.pad(rows, (0, -rows.shape[1] % ALIGNMENT)).flatten())
        content = torch.cat(parts).numpy().tobytes()
        if len(content) <= INLINE_BYTES:
            return cls(layout, content)
        write_atomically(path, content, durable=False)
        return cls(layout, str(path))

    def decode(self, count: int) -> list[Memory]:
        """Decode the tensor groups of ``count`` replies; delete their file, if there is one."""
        flat = self.read()
        found: list[dict[str, dict[str, Tensor]]] = [{"up": {}, "aside": {}} for _ in range(count)]
        begin = 0
        for group, name, shape, dtype in self.layout:
            size = shape.numel() * dtype.itemsize
            step = size + -size % ALIGNMENT
            rows = flat[begin : begin + count * step].view(count, step)[:, :size]
            for one, row in zip(found, rows.unbind(), strict=True):
                one[group][name] = row.view(dtype).view(shape)
            begin += count * step
        return [{g: Tensors(part) for g, part in one.items()} for one in found]

    def read(self) -> Tensor:
        """Read the bytes of all replies into one tensor; delete their file, if there is one."""
        if isinstance(self.content, bytes):
            flat = torch.empty(len(self.content), dtype=torch.uint8)
            flat.numpy()[:] = np.frombuffer(self.content, np.uint8)
            return flat
        path = Path(self.content)
        with translate_disk_errors(path), path.open("rb") as file:
            flat = torch.empty(path.stat().st_size, dtype=torch.uint8)
            place: Any = flat.numpy()
            file.readinto(place)
            path.unlink()
        return flat


def decode_cached(cache: TensorCache[int], message: TensorMessage | None) -> Tensors:
    """Return the tensors of a message to a worker, decoded once for all jobs that share them."""
    if message is None:
        return Tensors()
    return cache.get(message.key, lambda: message.decode()["down"])


class EncodeOnce(Generic[T]):
    """Encodes tensors that many jobs share only once; ``encode(tensors, key)`` receives a unique key."""

    def __init__(self, encode: Callable[[Tensors, int], T]) -> None:
        self.encode, self.last_key = encode, 0
        # by the tensors' id; the tensors are kept so that no other object gets the same id
        self.known: dict[int, tuple[Tensors, T]] = {}

    def __call__(self, tensors: Tensors) -> T:
        if id(tensors) not in self.known:
            self.last_key += 1
            self.known[id(tensors)] = tensors, self.encode(tensors, self.last_key)
        return self.known[id(tensors)][1]

    def forget(self, tensors: Tensors) -> None:
        """Drop encoded tensors that no later job needs."""
        self.known.pop(id(tensors), None)

    def clear(self) -> list[T]:
        """Drop all encoded tensors; return their messages."""
        encoded = [made for _, made in self.known.values()]
        self.known.clear()
        return encoded


class TensorCache(Generic[K]):
    """Keeps the tensors that a worker decoded last, as many jobs of a round share them."""

    def __init__(self) -> None:
        self.known = OrderedDict[K, Tensors]()

    def get(self, key: K, decode: Callable[[], Tensors]) -> Tensors:
        """Return the decoded tensors with this key; decode them unless they are cached."""
        if key not in self.known:
            self.known[key] = decode()
            if len(self.known) > CACHED_MODELS:
                self.known.popitem(last=False)
        self.known.move_to_end(key)
        return self.known[key]


Copy = Callable[[Any], Any]
MAIN = "__main__"  # the module of everything defined in a notebook, at a prompt or in the script
TORCH_TABLES = ("_parameters", "_buffers", "_modules")  # attributes of a module that hold others
MAX_DEPTH = 8  # depth limit of the search for the part that cannot be pickled


def pickle_for_children(value: object) -> bytes:
    """Pickle a value for our own child processes; raise EngineError if this is impossible.

    A class of an importable module is sent by its name. A class that only this process has is sent
    with its code, which needs cloudpickle.
    """
    by_name, reason = try_copying(pickle.dumps, value)
    if by_name is not None and MAIN.encode() not in by_name:
        return bytes(by_name)
    if find_spec("cloudpickle") is not None:
        import cloudpickle

        by_value, reason = try_copying(cloudpickle.dumps, value)
        if by_value is not None:
            return bytes(by_value)
        if by_name is None or not is_main_importable():
            raise make_pickling_error(value, cloudpickle.dumps, "pool")
    elif by_name is None or not is_main_importable():
        raise EngineError(
            "the pool engine needs cloudpickle to send its workers a class or function that is not at"
            f" the top level of a file{f' ({reason})' if reason else ''}; install it with pip install"
            " 'heterophony[notebook]', or use the serial engine"
        )
    return bytes(by_name)  # a child imports the script again, and finds the class there


def try_copying(copy: Copy, value: object) -> tuple[Any, str]:
    """Try to pickle or copy a value; return the result and an empty text, or None and the reason."""
    try:
        return copy(value), ""
    except Exception as error:  # a user's object can raise any error
        return None, get_first_line(error)


def is_main_importable() -> bool:
    """Return True if child processes can import the main module: a script, not a notebook or prompt."""
    return hasattr(sys.modules[MAIN], "__file__")


def unpickle_from_parent(content: bytes, sources: Sources | None = None) -> Any:
    """Unpickle a value from this process's parent; raise EngineError if its classes are not found.

    ``sources`` are the modules that the parent has loaded by their path.
    """
    try:
        load_sources(sources or {})
        return pickle.loads(content)
    except Exception as error:  # importing a user's module can raise any error
        raise EngineError(
            f"the pool's workers cannot load this algorithm or model ({get_first_line(error)}); define it at the"
            ' top level of a file, above `if __name__ == "__main__":`, or use the serial engine'
        ) from None


# What cannot be pickled -------------------------------------------------------------------------


def make_pickling_error(value: object, dumps: Copy, engine: str) -> EngineError:
    """Return the error for a plan that cannot be pickled; it names the innermost object at fault."""
    where, reason = find_unpicklable(value, "", dumps)
    where = where.removeprefix("config.")  # users pass the algorithm itself
    return EngineError(
        f"the {engine} engine cannot send {where or 'this algorithm or model'} to its workers ({reason});"
        " create it inside the method that uses it, or use the serial engine"
    )


def find_unpicklable(
    value: object, where: str, copy: Copy, above: tuple[object, ...] = ()
) -> tuple[str, str]:
    """Find the innermost part of a value that ``copy`` (pickling or deepcopy) refuses; also return why."""
    chain = (*above, value)
    for name, part in list_parts(value, where) if len(chain) < MAX_DEPTH else ():
        known = any(part is other for other in chain)  # methods refer to their class
        if not known and try_copying(copy, part)[1]:
            return find_unpicklable(part, name, copy, chain)
    return where, try_copying(copy, value)[1]


def list_parts(value: object, where: str) -> Iterator[tuple[str, object]]:
    """Iterate over the parts that are pickled with a value, and their names for error messages."""
    if isinstance(value, partial):  # the function that builds a user's model
        yield from ((where, part) for part in (value.func, *value.args))
    elif isinstance(value, dict):
        yield from ((f"{where}[{k!r}]", part) for k, part in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((where, part) for part in value)
    elif isinstance(value, FunctionType):
        used = inspect.getclosurevars(value)
        for k, part in {**used.globals, **used.nonlocals}.items():
            yield f"'{k}', which {value.__qualname__} uses,", part
    elif isinstance(value, type):
        for k, part in vars(value).items():
            yield f"{value.__qualname__}.{k}", getattr(part, "__func__", part)
    else:
        yield from list_attributes(value, where)
        yield where, type(value)


def list_attributes(value: object, where: str) -> Iterator[tuple[str, object]]:
    """Iterate over the attributes that are pickled with an object; those of a module include its layers."""
    own = dict(getattr(value, "__dict__", {}))
    if isinstance(value, nn.Module):
        for table in TORCH_TABLES:
            own.update(own.pop(table, {}))
    yield from ((f"{where}.{k}" if where else k, part) for k, part in own.items())
