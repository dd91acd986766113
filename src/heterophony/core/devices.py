"""Devices by name: which there are, how torch is set up for them, and what their errors mean."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from .compute import Compute, Precision
from .device_memory import limit_memory
from .errors import ConfigError, EngineError

KINDS = {"cuda": "CUDA", "mps": "Apple (mps)"}  # that torch may see beside the CPU
NAMES = "auto, cpu, cuda, cuda:0, cuda:1, … or mps"
REPRODUCIBLE_CUBLAS = ":4096:8"  # must be in the environment before CUDA starts


def check_device_name(name: str) -> None:
    """Refuse what names no device, whether this machine has it or not."""
    kind, _, number = name.partition(":")
    known = name in ("auto", "cpu", *KINDS)
    if not known and not (kind in KINDS and kind != "mps" and re.fullmatch(r"\d{1,4}", number)):
        raise ConfigError(f"device: must be {NAMES}, not {name!r}")


def find_device(name: str) -> torch.device:
    """Return the device of that name; ``auto`` is CUDA where torch sees it. Raise if it is not here."""
    check_device_name(name)
    if name == "auto":
        return torch.device("cuda" if count_devices("cuda") else "cpu")
    kind, _, number = name.partition(":")
    if kind == "cpu":
        return torch.device("cpu")
    seen = count_devices(kind)
    if not seen:
        raise ConfigError(
            f"engine.device = '{name}': torch {torch.__version__} sees no {KINDS[kind]} device here;"
            f" {name_remedy(kind)}set engine.device = 'cpu'"
        )
    if number and int(number) >= seen:
        there = f"only {kind}:0" if seen == 1 else f"{kind}:0 to {kind}:{seen - 1}"
        raise ConfigError(f"engine.device = '{name}': torch sees {there} here; choose one of these")
    return torch.device(f"{kind}:{int(number)}" if number else kind)


def count_devices(kind: str) -> int:
    """Count the devices of a kind that torch sees; this starts nothing on them."""
    module = torch.get_device_module(kind)
    return int(module.device_count()) if module.is_available() else 0


def name_remedy(kind: str) -> str:
    if kind == "cuda" and torch.version.cuda is None:
        return "it is built without CUDA: install another build (https://pytorch.org), or "
    return "check the driver, or " if kind == "cuda" else ""


def choose_compute(
    device: str = "auto", precision: Precision = "float32", deterministic: bool = True
) -> Compute:
    """Return where and how jobs compute; raise if the device is not here."""
    return Compute(find_device(device), precision, deterministic)


def assign_gpu(compute: Compute, worker: int) -> Compute:
    """Return where a worker computes: of several GPUs, worker i uses GPU i modulo their number."""
    kind = compute.device.type
    if kind != "cuda" or compute.device.index is not None or not (gpus := count_devices(kind)):
        return compute
    return replace(compute, device=torch.device(kind, worker % gpus))


@dataclass(frozen=True)
class WorkerPlace:
    """Where a worker process computes; it travels as plain text, and torch is set up on arrival."""

    device: str
    precision: Precision
    deterministic: bool
    sharing: int  # the workers that share its GPU

    @classmethod
    def choose(cls, compute: Compute, worker: int, workers: int) -> WorkerPlace:
        """Choose the GPU of a worker, and count the workers that share it."""
        there = assign_gpu(compute, worker)
        gpus = count_devices(there.device.type) if there != compute else 1
        here = len(range(worker % gpus, workers, gpus))
        return cls(str(there.device), compute.precision, compute.deterministic, here)

    @classmethod
    def describe(cls, compute: Compute) -> WorkerPlace:
        """Describe the same for a worker on another machine, which finds its GPU there."""
        return cls(str(compute.device), compute.precision, compute.deterministic, 1)

    def prepare(self) -> Compute:
        """Set torch up in this process, which must not have used the device yet."""
        compute = Compute(torch.device(self.device), self.precision, self.deterministic)
        prepare_torch(compute)
        limit_memory(compute, self.sharing)
        return compute


# Setting torch up -------------------------------------------------------------------------------


def prepare_torch(compute: Compute) -> None:
    """Set torch up for the device, before anything starts there. For the CPU nothing changes.

    By default every operation is deterministic: no TF32, no choice of kernels by their time.
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
    """Set torch up inside the ``with`` block; afterwards its settings are what they were."""
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
    """Turn what a device refuses into one line that says what to do."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise EngineError(
            f"{where}: the device is out of memory ({first_line(error)}); lower engine.workers, which"
            " share it, or local.batch, and resume: nothing is lost"
        ) from None
    except TypeError as error:
        if "float64" not in str(error) or "MPS" not in str(error):
            raise
        raise EngineError(
            f"{where}: this needs float64, which Apple's devices do not have; set engine.device = 'cpu'"
        ) from None
    except RuntimeError as error:
        if "deterministic" not in str(error) or "use_deterministic_algorithms" not in str(error):
            raise
        raise EngineError(
            f"{where}: {first_line(error).split('. ')[0]}; set engine.deterministic = false, and"
            " results are no longer the same bits every time"
        ) from None


def first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0].split(". ")[0] or type(error).__name__
