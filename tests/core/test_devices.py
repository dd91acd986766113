"""Devices by name, and how torch is set up for them, with a CUDA that is only pretended."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from helpers.commands import refused
from heterophony.core.compute import CPU, ON_CPU, Compute
from heterophony.core.devices import (
    WorkerPlace,
    assign_gpu,
    find_device,
    prepare_torch,
    prepared_torch,
    translate_device_errors,
)
from heterophony.core.errors import ConfigError, EngineError
from heterophony.engines import base
from heterophony.engines.ray.remote_job import prepare_on_node
from heterophony.tools.gpu_check import Trial, find_differences

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
    line = refused(3, command, "fedavg", "-c", f"engine.device={device}", "--out", out)
    assert line.startswith(f"engine.device = '{device}': torch {torch.__version__} sees no ")
    assert line.endswith("set engine.device = 'cpu'")
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
    assert [p.device for p in places] == ["cuda:0", "cuda:1", "cuda:0", "cuda:1", "cuda:0"]
    assert [p.sharing for p in places] == [3, 2, 3, 2, 3]
    chosen = WorkerPlace.choose(Compute(torch.device("cuda:1")), 0, 4)
    assert (chosen.device, chosen.sharing) == ("cuda:1", 4)
    assert assign_gpu(ON_CPU, 3) == ON_CPU
    assert WorkerPlace.choose(ON_CPU, 3, 4).prepare() == ON_CPU


def test_a_few_workers_share_a_gpu_and_never_more_than_one_per_core(pretend, monkeypatch):
    monkeypatch.setattr(base, "count_cores", lambda: 6)
    pretend(1)
    assert base.count_default_workers(CUDA) == 4
    pretend(2)
    assert base.count_default_workers(CUDA) == 6
    pretend(8)
    assert base.count_default_workers(CUDA) == 8  # no GPU is idle
    assert base.count_default_workers(ON_CPU) == 6


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
import heterophony.engines.preload
"""


def test_nothing_touches_cuda_in_the_fork_server():
    """It forks the workers, and CUDA does not survive a fork."""
    subprocess.run([sys.executable, "-c", FORK_SERVER], check=True, timeout=120)


def test_a_job_that_ray_gave_a_gpu_needs_a_torch_that_sees_it(pretend):
    pretend(0)
    with pytest.raises(EngineError, match="torch sees none on its node"):
        prepare_on_node(WorkerPlace.describe(CUDA))
    assert prepare_on_node(WorkerPlace.describe(ON_CPU)) == ON_CPU


def test_a_device_over_mqtt_chooses_where_it_computes_and_nothing_else(pretend):
    pretend(0)
    words = ("device", "--enrolment", "missing.toml", "--clients", "0", "-c")
    assert refused(3, *words, "engine.device=cuda").startswith("engine.device = 'cuda': torch ")
    assert refused(3, *words, "local.lr=1").startswith("-c local.lr=1: only engine.device")


def test_the_check_of_a_gpu_needs_one(pretend):
    pretend(0)
    line = refused(3, "doctor", "--gpu")
    assert line == f"doctor --gpu: torch {torch.__version__} sees no GPU here; nothing to check"
    assert refused(3, "bench", "--device", "cuda").startswith("engine.device = 'cuda': torch ")


def test_the_check_of_a_gpu_names_what_differs_by_the_workers():
    def trial(algorithm, device, workers, sha256):
        return Trial(algorithm, device, workers, sha256, 1.0, 0.5, None)

    same = [trial("fedavg", "cpu", 2, "c"), trial("fedavg", "cuda", 1, "a")]
    assert find_differences([*same, trial("fedavg", "cuda", 2, "a")]) == []
    assert find_differences([*same, trial("fedavg", "cuda", 2, "b")]) == [
        "fedavg differs by the number of workers (1: a, 2: b)"
    ]
