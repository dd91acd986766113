"""Where a job runs (CPU or GPU), its precision, and how GPU memory is shared and cached."""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from .errors import ConfigError, EngineError, get_first_line
from .tensors import Memory, Tensors

CACHE_BYTES = 1 << 28  # cache of each worker; enough for CIFAR-10 as bytes


class ResidentExamples:
    """A worker's cache of examples on its GPU; the least recently used ones are dropped when it is full.

    It holds examples of one federation at a time, because two federations may use the same names.
    """

    def __init__(self, limit: int = CACHE_BYTES) -> None:
        self.limit, self.owner = limit, None
        self.size, self._entries = 0, OrderedDict[Hashable, Tensor]()

    def serve_federation(self, owner: object) -> None:
        """Prepare the cache for this federation's examples; drop those of any other federation."""
        if owner is not self.owner:
            self._entries.clear()
            self.owner, self.size = owner, 0  # type: ignore[assignment]

    def get(self, key: Hashable, copy: Callable[[], Tensor]) -> Tensor:
        """Return the examples cached under this name; if none are cached, copy them to the device first."""
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


CPU = torch.device("cpu")
Precision = Literal["float32", "bfloat16"]
Module = TypeVar("Module", bound=nn.Module)


@dataclass(frozen=True)
class Compute:
    """How jobs compute: on which device, in which precision, and whether deterministically."""

    device: torch.device = CPU
    precision: Precision = "float32"
    deterministic: bool = True
    fast: bool = True  # skip autograd and train many clients at once where the bits stay the same
    resident: ResidentExamples = field(default_factory=ResidentExamples, compare=False, repr=False)

    @property
    def is_cpu(self) -> bool:
        return self.device.type == "cpu"

    @property
    def is_usual(self) -> bool:
        """Return True if jobs compute on the CPU in float32."""
        return self.is_cpu and self.precision == "float32"

    def place(self, tensors: Tensors) -> Tensors:
        """Return these tensors on the job's device; on the CPU, return the same object."""
        return tensors if self.is_cpu else tensors.map(lambda v: v.to(self.device))

    def place_memory(self, memory: Memory) -> Memory:
        """Return a client's memory on the job's device; on the CPU, return the same object."""
        return memory if self.is_cpu else {k: self.place(v) for k, v in memory.items()}

    def place_net(self, net: Module) -> Module:
        """Move a net to the job's device, in place."""
        return net if self.is_cpu else net.to(self.device)


ON_CPU = Compute()
AS_IT_IS = nullcontext()  # one shared object: a training step takes microseconds
CURRENT = ContextVar("compute", default=ON_CPU)


def get_compute() -> Compute:
    """Return the device and precision of this thread's job; outside of jobs, the CPU in float32."""
    return CURRENT.get()


@contextmanager
def computing(compute: Compute) -> Iterator[None]:
    """Run the jobs inside the ``with`` block on this device and in this precision."""
    token = CURRENT.set(compute)
    try:
        yield
    finally:
        CURRENT.reset(token)


def autocast() -> AbstractContextManager[object]:
    """Return a context that runs operations in the job's precision; in float32, it has no effect.

    The context can be entered more than once.
    """
    compute = get_compute()
    if compute.precision == "float32":
        return AS_IT_IS
    return torch.autocast(compute.device.type, torch.bfloat16)


# Back on the CPU --------------------------------------------------------------------------------


def copy_to_cpu(tensors: Tensors) -> Tensors:
    """Copy a job's tensors from its device to the CPU; if the job runs on the CPU, return the same object."""
    return tensors if get_compute().is_cpu else tensors.map(Tensor.cpu)


def copy_memory_to_cpu(memory: Memory) -> Memory:
    """Copy a client's memory to the CPU, as ``copy_to_cpu`` does."""
    return memory if get_compute().is_cpu else {k: copy_to_cpu(v) for k, v in memory.items()}


def widen(tensor: Tensor) -> Tensor:
    """Convert a bfloat16 tensor, as autocast computes it, to float32; return any other tensor unchanged."""
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor


def read_loss(value: Tensor) -> float:
    """Return the loss of a training step as a number; on a GPU, as a tensor, so that no step waits for it.

    The caller adds up the losses and converts only the sum to a number.
    """
    if value.is_cpu:
        return value.item()
    # Apple's devices have no float64
    there: Any = value.detach().to(torch.float32 if value.device.type == "mps" else torch.float64)
    return there  # type: ignore[no-any-return]


MEMORY_SHARE = 0.95  # share of a GPU's memory, divided evenly among its workers
MARGIN = 1.25  # factor on the measured peak, as other clients may need more memory
CONTEXT_BYTES = 1 << 29  # largest memory that a process uses on a GPU before its first tensor
DEFAULT_WORKERS_PER_GPU = 4  # where torch does not report the memory of a GPU


@dataclass(frozen=True)
class GPUMemoryUse:
    """The memory of a GPU as a worker sees it after a job, in bytes."""

    peak: int  # most that torch reserved for this worker
    reserved: int  # currently reserved by torch for this worker
    free: int
    total: int

    def count_fitting_workers(self) -> int:
        """Return how many workers the GPU can hold, if each needs as much memory as this one."""
        outside = max(0, self.total - self.free - self.reserved)  # including other programs
        context = min(outside, CONTEXT_BYTES)
        available = self.free + self.reserved + context
        need = MARGIN * self.peak + CACHE_BYTES + context
        return max(1, int(MEMORY_SHARE * available / need))


def measure_gpu_memory(compute: Compute) -> GPUMemoryUse | None:
    """Measure the GPU memory that this worker uses; return None if torch does not report it."""
    module: Any = None if compute.is_cpu else torch.get_device_module(compute.device)
    if not hasattr(module, "mem_get_info"):
        return None
    free, total = module.mem_get_info(compute.device)
    peak, now = (f(compute.device) for f in (module.max_memory_reserved, module.memory_reserved))
    return GPUMemoryUse(peak, now, free, total)


def limit_gpu_memory(compute: Compute, sharing: int) -> None:
    """Limit this worker to its share of a GPU's memory, so that the other workers keep theirs."""
    if compute.device.type == "cuda" and sharing > 1:
        torch.cuda.set_per_process_memory_fraction(MEMORY_SHARE / sharing, compute.device)


KINDS = {"cuda": "CUDA", "mps": "Apple (mps)"}  # kinds of device that torch may see besides the CPU
NAMES = "auto, cpu, cuda, cuda:0, cuda:1, … or mps"
REPRODUCIBLE_CUBLAS = ":4096:8"  # must be in the environment before CUDA starts


def check_device_name(name: str) -> None:
    """Raise ConfigError unless this is a name for ``engine.accelerator``; the device need not exist here."""
    kind, _, number = name.partition(":")
    known = name in ("auto", "cpu", *KINDS)
    if not known and not (kind in KINDS and kind != "mps" and re.fullmatch(r"\d{1,4}", number)):
        raise ConfigError(f"accelerator: must be {NAMES}, not {name!r}")


def find_device(name: str) -> torch.device:
    """Return the device with this name, or raise ConfigError; ``auto`` is CUDA if available, else the CPU."""
    check_device_name(name)
    if name == "auto":
        return torch.device("cuda" if count_devices("cuda") else "cpu")
    kind, _, number = name.partition(":")
    if kind == "cpu":
        return torch.device("cpu")
    seen = count_devices(kind)
    if not seen:
        raise ConfigError(
            f"engine.accelerator = '{name}': torch {torch.__version__} sees no {KINDS[kind]} device here;"
            f" {suggest_device_remedy(kind)}set engine.accelerator = 'cpu'"
        )
    if number and int(number) >= seen:
        there = f"only {kind}:0" if seen == 1 else f"{kind}:0 to {kind}:{seen - 1}"
        raise ConfigError(
            f"engine.accelerator = '{name}': torch sees {there} here; choose one of these"
        )
    return torch.device(f"{kind}:{int(number)}" if number else kind)


def count_devices(kind: str) -> int:
    """Return how many accelerators of this kind torch can use, without initialising any."""
    module = torch.get_device_module(kind)
    return int(module.device_count()) if module.is_available() else 0


def suggest_device_remedy(kind: str) -> str:
    """Suggest, for an error message, what to do if torch sees no accelerator of this kind."""
    if kind == "cuda" and torch.version.cuda is None:
        return "it is built without CUDA: install another build (https://pytorch.org), or "
    return "check the driver, or " if kind == "cuda" else ""


def assign_gpu(compute: Compute, worker: int) -> Compute:
    """Assign a GPU to a worker process: with n GPUs, worker i uses GPU i modulo n."""
    kind = compute.device.type
    if kind != "cuda" or compute.device.index is not None or not (gpus := count_devices(kind)):
        return compute
    return replace(compute, device=torch.device(kind, worker % gpus))


@dataclass(frozen=True)
class WorkerPlace:
    """The device of a worker process and its settings, sent to the worker so that it can set up torch."""

    device: str  # a name: a process can unpickle it before torch knows the device
    precision: Precision
    deterministic: bool
    fast: bool
    sharing: int  # the workers that share its GPU

    @classmethod
    def choose(cls, compute: Compute, worker: int, workers: int) -> WorkerPlace:
        """Choose the GPU of a worker, and count the workers that share it."""
        there = assign_gpu(compute, worker)
        gpus = count_devices(there.device.type) if there != compute else 1
        here = len(range(worker % gpus, workers, gpus))
        return replace(cls.describe(there), sharing=here)

    @classmethod
    def describe(cls, compute: Compute) -> WorkerPlace:
        """Describe the place for a worker on another machine, which chooses its own GPU."""
        how = (compute.precision, compute.deterministic, compute.fast)
        return cls(str(compute.device), *how, sharing=1)

    def prepare(self) -> Compute:
        """Set up torch in this worker process, which must not have used the device yet."""
        how = (self.precision, self.deterministic, self.fast)
        compute = Compute(torch.device(self.device), *how)
        prepare_torch(compute)
        limit_gpu_memory(compute, self.sharing)
        return compute


# Setting torch up -------------------------------------------------------------------------------


def prepare_torch(compute: Compute) -> None:
    """Set torch's global options for a device, before anything runs on it; for the CPU, change nothing.

    By default every operation is deterministic: no TF32, and no kernels chosen by timing.
    """
    if compute.is_cpu:
        return
    if compute.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", REPRODUCIBLE_CUBLAS)
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = not compute.deterministic
    torch.backends.cudnn.allow_tf32 = not compute.deterministic
    torch.backends.cuda.matmul.allow_tf32 = not compute.deterministic
    if compute.device.type == "cuda" and compute.device.index is not None:
        torch.cuda.set_device(compute.device)


@contextmanager
def prepared_torch(compute: Compute) -> Iterator[None]:
    """Set torch's global options for a device inside the ``with`` block; restore them at the end."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    fills = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    flags = cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32
    prepare_torch(compute)
    try:
        yield
    finally:
        if not compute.is_cpu:
            torch.use_deterministic_algorithms(before, warn_only=warns)
            torch.utils.deterministic.fill_uninitialized_memory = fills  # type: ignore[attr-defined]
            cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32 = flags


# Errors -----------------------------------------------------------------------------------------


@contextmanager
def translate_device_errors(where: str) -> Iterator[None]:
    """Convert torch's GPU errors inside the ``with`` block to EngineError, whose message says what to do."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise EngineError(
            f"{where}: the device is out of memory ({get_first_sentence(error)}); lower engine.workers, which"
            " share it, or training.batch, and resume: nothing is lost"
        ) from None
    except TypeError as error:
        if "float64" not in str(error) or "MPS" not in str(error):
            raise
        raise EngineError(
            f"{where}: this needs float64, which Apple's devices do not have; set engine.accelerator = 'cpu'"
        ) from None
    except RuntimeError as error:
        if "deterministic" not in str(error) or "use_deterministic_algorithms" not in str(error):
            raise
        raise EngineError(
            f"{where}: {get_first_sentence(error)}; set engine.deterministic = false, and"
            " results may then differ in their bits from run to run"
        ) from None


def get_first_sentence(error: Exception) -> str:
    """Return the first sentence of an error's message, or its class name if the message is empty."""
    return get_first_line(error).split(". ")[0]
