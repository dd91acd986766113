"""Devices by name, and how torch is set up for them, with a CUDA that is only pretended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from helpers.commands import refused
from heterophony.core.accelerator import (
    CPU,
    ON_CPU,
    Compute,
    GPUMemoryUse,
    WorkerPlace,
    assign_gpu,
    find_device,
    limit_gpu_memory,
    measure_gpu_memory,
    prepare_torch,
    prepared_torch,
    translate_device_errors,
)
from heterophony.core.errors import ConfigError, EngineError
from heterophony.engines import base
from heterophony.engines.ray.remote_job import prepare_on_node
from heterophony.studies import many
from heterophony.studies.many import RunOptions, run_many
from heterophony.studies.search import create_sweep, list_due_folders
from heterophony.studies.spec import read_spec
from heterophony.studies.sweep import build_sweep
from heterophony.tools.doctor import CheckedRun, find_differences

CUDA = Compute(torch.device("cuda"))


@pytest.fixture
def pretend(monkeypatch):
    """Pretend that torch sees so many CUDA devices."""

    def see(number: int) -> None:
        monkeypatch.setattr("torch.cuda.is_available", lambda: number > 0)
        monkeypatch.setattr("torch.cuda.device_count", lambda: number)

    return see


def test_auto_is_cuda_where_torch_sees_it(pretend):
    pretend(0)
    assert find_device("auto") == CPU
    pretend(1)
    assert find_device("auto").type == "cuda"
    assert find_device("cpu") == CPU


@pytest.mark.parametrize("device", ["cuda", "cuda:7", "mps"])
@pytest.mark.parametrize("command", ["run", "compare"])
def test_a_device_that_is_not_here_is_one_line_before_anything_is_written(
    device, command, pretend, monkeypatch, tmp_path
):
    pretend(0)
    monkeypatch.setattr("torch.mps.is_available", lambda: False)
    out = tmp_path / "run"
    line = refused(3, command, "fedavg", "-c", f"engine.accelerator={device}", "--out", out)
    assert line.startswith(f"engine.accelerator = '{device}': torch {torch.__version__} sees no ")
    assert line.endswith("set engine.accelerator = 'cpu'")
    assert not out.exists()


def test_the_number_of_a_device_must_be_one_of_those_here(pretend):
    pretend(2)
    assert find_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(ConfigError, match="torch sees cuda:0 to cuda:1 here"):
        find_device("cuda:2")


def test_a_run_keeps_its_precision(tmp_path):
    line = refused(3, "resume", tmp_path, "-c", "engine.precision=bfloat16")
    assert line == "-c engine.precision=bfloat16: a run keeps its precision; start a new run"


def test_worker_i_uses_gpu_i_modulo_their_number(pretend):
    pretend(2)
    places = [WorkerPlace.choose(CUDA, i, 5) for i in range(5)]
    assert [p.device for p in places] == [
        "cuda:0",
        "cuda:1",
        "cuda:0",
        "cuda:1",
        "cuda:0",
    ]
    assert [p.sharing for p in places] == [3, 2, 3, 2, 3]
    chosen = WorkerPlace.choose(Compute(torch.device("cuda:1")), 0, 4)
    assert (chosen.device, chosen.sharing) == ("cuda:1", 4)
    assert assign_gpu(ON_CPU, 3) == ON_CPU
    assert WorkerPlace.choose(ON_CPU, 3, 4).prepare() == ON_CPU


MB = 1 << 20


@pytest.mark.parametrize(
    ("total", "free", "peak", "reserved", "workers"),
    [
        (8000 * MB, 7388 * MB, 100 * MB, 100 * MB, 8),  # 0.95 · 8000 / (125 + 256 + 512)
        (8000 * MB, 7388 * MB, 200 * MB, 100 * MB, 7),  # the peak counts, not what is left
        (8000 * MB, 3388 * MB, 100 * MB, 100 * MB, 4),  # others use half of the GPU
        (8000 * MB, 388 * MB, 7000 * MB, 7000 * MB, 1),  # it fits once, so one may try
    ],
)
def test_the_memory_of_a_measured_job_decides_how_many_workers_share_a_gpu(
    total, free, peak, reserved, workers
):
    assert GPUMemoryUse(peak, reserved, free, total).count_fitting_workers() == workers


def test_there_is_at_most_one_worker_per_core_and_at_least_one_per_gpu(pretend, monkeypatch):
    monkeypatch.setattr(base, "count_cores", lambda: 6)
    pretend(1)
    assert base.count_gpu_workers(CUDA, 5) == 5
    assert base.count_gpu_workers(CUDA, 9) == 6
    assert base.count_gpu_workers(CUDA) == 4  # where torch cannot measure
    pretend(2)
    assert base.count_gpu_workers(CUDA, 2) == 4
    assert base.count_gpu_workers(Compute(torch.device("cuda:1")), 2) == 2
    pretend(8)
    assert base.count_gpu_workers(CUDA, 5) == 8  # no GPU is idle


def test_memory_is_measured_where_torch_can_tell(monkeypatch):
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (5, 9))
    monkeypatch.setattr("torch.cuda.max_memory_reserved", lambda device: 3)
    monkeypatch.setattr("torch.cuda.memory_reserved", lambda device: 2)
    assert measure_gpu_memory(CUDA) == GPUMemoryUse(peak=3, reserved=2, free=5, total=9)
    assert measure_gpu_memory(ON_CPU) is None
    assert measure_gpu_memory(Compute(torch.device("mps"))) is None


def test_workers_that_share_a_gpu_have_equal_parts_of_its_memory(monkeypatch):
    parts = []
    monkeypatch.setattr(
        "torch.cuda.set_per_process_memory_fraction", lambda part, device: parts.append(part)
    )
    for sharing in (1, 2, 5):
        limit_gpu_memory(CUDA, sharing)
    limit_gpu_memory(ON_CPU, 2)
    assert parts == [0.95 / 2, 0.95 / 5]


def test_the_settings_for_the_same_bits_are_made_and_taken_back(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    with prepared_torch(CUDA):
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.backends.cudnn.benchmark
        assert not torch.backends.cuda.matmul.allow_tf32
        assert not torch.backends.cudnn.allow_tf32
    assert not torch.are_deterministic_algorithms_enabled()
    with prepared_torch(Compute(torch.device("cuda"), deterministic=False)):
        assert torch.backends.cudnn.benchmark
        assert not torch.are_deterministic_algorithms_enabled()
    assert not torch.backends.cudnn.benchmark
    monkeypatch.setattr("torch.use_deterministic_algorithms", None)
    prepare_torch(ON_CPU)  # changes nothing


def test_out_of_memory_is_one_line_that_names_the_workers():
    message = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has …\nIf reserved …"
    with pytest.raises(EngineError) as caught, translate_device_errors("client 3, round 2"):
        raise torch.OutOfMemoryError(message)
    assert str(caught.value).startswith("client 3, round 2: the device is out of memory (CUDA out")
    assert "lower engine.workers" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_an_apple_device_cannot_do_is_one_line():
    message = (
        "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support it."
    )
    with pytest.raises(EngineError, match="needs float64"), translate_device_errors("client 3"):
        raise TypeError(message)
    with pytest.raises(TypeError, match="another"), translate_device_errors("client 3"):
        raise TypeError("another")


def test_an_operation_without_the_same_bits_is_one_line_that_names_the_setting():
    message = "f_cuda does not have a deterministic implementation, but you set"
    message += " 'torch.use_deterministic_algorithms(True)'. You can turn it off."
    said = pytest.raises(EngineError, match=r"set engine\.deterministic = false")
    with said, translate_device_errors("client 3, round 2"):
        raise RuntimeError(message)
    with pytest.raises(RuntimeError, match="another"), translate_device_errors("client 3"):
        raise RuntimeError("another")


FORK_SERVER = """
import torch
def touch(*_): raise AssertionError("CUDA is touched in the fork server")
torch.cuda.is_available = torch.cuda.device_count = torch.cuda._lazy_init = touch
import heterophony.engines.pool
"""


def test_nothing_touches_cuda_in_the_fork_server():
    """It forks the workers, and CUDA does not survive a fork."""
    subprocess.run([sys.executable, "-c", FORK_SERVER], check=True, timeout=120)


def test_a_job_that_ray_gave_a_gpu_needs_a_torch_that_sees_it(pretend):
    pretend(0)
    with pytest.raises(EngineError, match="torch sees none on its node"):
        prepare_on_node(WorkerPlace.describe(CUDA))
    assert prepare_on_node(WorkerPlace.describe(ON_CPU)) == ON_CPU


def test_a_board_chooses_where_it_computes_and_nothing_else(pretend):
    pretend(0)
    words = ("board", "--enrolment", "missing.toml", "--clients", "0", "-c")
    assert refused(3, *words, "engine.accelerator=cuda").startswith(
        "engine.accelerator = 'cuda': torch "
    )
    assert refused(3, *words, "training.lr=1").startswith(
        "-c training.lr=1: a board chooses only engine.accelerator"
    )


@pytest.fixture
def begun_sweep(tmp_path) -> Path:
    """A sweep whose two runs have not started."""
    pairs = ["rounds=1", "data.clients=2", "model.name=mlp", "engine.accelerator=cpu"]
    plan = build_sweep(None, pairs, ["training.lr=0.01,0.1"])
    create_sweep(tmp_path / "sweep", plan.combinations, plan.seeds, plan.maker.make_spec)
    return tmp_path / "sweep"


def test_a_sweep_is_resumed_where_the_command_says(begun_sweep, pretend):
    pretend(0)
    line = refused(3, "resume", begun_sweep, "-c", "engine.accelerator=cuda", "--json")
    assert line.startswith("engine.accelerator = 'cuda': torch ")
    assert not list(begun_sweep.glob("*/events.jsonl"))


def test_the_process_of_each_run_computes_where_the_command_says(begun_sweep, pretend):
    pretend(3)
    folder, *_ = list_due_folders(begun_sweep)
    spec = read_spec(folder, ["engine.accelerator=cuda"])
    assert many.place_on_gpu(spec, 7).config.engine.accelerator == "cuda:1"
    assert many.place_on_gpu(read_spec(folder), 7).config.engine.accelerator == "cpu"


def test_runs_side_by_side_say_that_they_continue_elsewhere(begun_sweep, pretend, monkeypatch):
    pretend(1)
    said, labels, widths = [], [], []

    def supervise_runs(work, width, receive):
        widths.append(width)
        receive(next(iter(work)), {"event": "start", "test": [1]})
        return {}

    monkeypatch.setattr(many, "supervise_runs", supervise_runs)
    monkeypatch.setattr(base, "count_cores", lambda: 9)
    due = list_due_folders(begun_sweep)
    for folder in due:
        start = {"event": "start", "device": "cpu"}
        folder.events_file.write_text(json.dumps(start) + "\n")
    progress = SimpleNamespace(
        begin_run=lambda label, rounds: labels.append(label) or (lambda event: None)
    )
    runs = {f: replace(read_spec(f, ["engine.accelerator=cuda"]), name=f.path.name) for f in due}
    run_many(runs, RunOptions(progress, side_by_side=True, warn=said.append))  # type: ignore[arg-type]
    assert widths == [4]
    assert labels == [f"{due[0].path.name} on cuda"]
    assert len(said) == 2
    assert all("was started on cpu and continues on cuda" in line for line in said)


def test_the_check_of_a_gpu_needs_one(pretend):
    pretend(0)
    line = refused(3, "doctor", "--gpu")
    assert line == f"doctor --gpu: torch {torch.__version__} sees no GPU here; nothing to check"
    assert refused(3, "bench", "--device", "cuda").startswith("engine.accelerator = 'cuda': torch ")


def test_the_check_of_a_gpu_names_what_differs_by_the_workers():
    def trial(algorithm, device, workers, sha256):
        return CheckedRun(algorithm, device, workers, sha256, 1.0, 0.5, None)

    same = [trial("fedavg", "cpu", 2, "c"), trial("fedavg", "cuda", 1, "a")]
    assert find_differences([*same, trial("fedavg", "cuda", 2, "a")]) == []
    assert find_differences([*same, trial("fedavg", "cuda", 2, "b")]) == [
        "fedavg differs by the number of workers (1: a, 2: b)"
    ]
