"""Every tensor is on the right device: runs on the shadow device have the bits of the CPU."""

from __future__ import annotations

import traceback

import pytest
import torch
from torch.nn.functional import cosine_similarity, cross_entropy

import heterophony as hp
from helpers import shadow_device
from helpers.support import digits, identical, played, untimed
from heterophony.algorithms import ALGORITHM_CLASSES
from heterophony.core import samples as device_samples
from heterophony.core.accelerator import Compute, ResidentExamples, computing
from heterophony.core.errors import EngineError
from heterophony.core.randomness import derive_seed, seeded
from heterophony.engines import base
from heterophony.engines import pool as pool_module
from heterophony.engines.pool import Pool

DIGITS_NET = {"model": "digitsnet", "rounds": 2}
NORMALISED = {"model": shadow_device.shadow_net, "rounds": 2}


@pytest.fixture(autouse=True)
def _swapped_parameters(monkeypatch):
    """Let ``net.to`` replace parameters, as a device made of wrapped tensors needs it."""
    swaps = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(swaps)


def few() -> hp.Federation:
    return digits(clients=4, examples=160)


class StopError(Exception):
    pass


def stop_after_first_round(event):
    if event["event"] == "round" and event["t"] == 0:
        raise StopError


@pytest.mark.parametrize("name", sorted(ALGORITHM_CLASSES))
def test_every_algorithm_has_the_bits_of_the_cpu_there(name, tmp_path):
    """With an interruption: what is kept and sent comes back from the CPU."""
    there = {**DIGITS_NET, "accelerator": "shadow", "out": tmp_path / "run", "resume": True}
    with pytest.raises(StopError):
        played(name, few(), on_event=stop_after_first_round, **there)
    assert identical(played(name, few(), **there), played(name, few(), **DIGITS_NET))


@pytest.mark.parametrize("name", ["apfl", "ditto", "fedbn", "pfakd", "pfedsd"])
def test_batch_norm_has_the_bits_of_the_cpu_there(name):
    assert identical(played(name, accelerator="shadow", **NORMALISED), played(name, **NORMALISED))


OTHER_SETTINGS = {
    "adam": {"training": hp.Training(epochs=1, batch=16, optimizer="adam", clip_norm=1.0)},
    "uniform weights": {"weights": "uniform", "buffers": "average", "model": "digitsnet"},
    "metrics": {"metrics": ["f1", "auc", "balanced_accuracy"]},
}


@pytest.mark.parametrize("how", OTHER_SETTINGS.values(), ids=OTHER_SETTINGS)
def test_other_settings_have_the_bits_of_the_cpu_there(how):
    there, here = (played("fedreg", rounds=2, accelerator=d, **how) for d in ("shadow", "cpu"))
    assert identical(there, here)
    assert untimed(there)[1:] == untimed(here)[1:]  # the first event names the device


def test_augmented_images_have_the_bits_of_the_cpu_there():
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(256, (60, 32, 32, 3), dtype=torch.uint8, generator=draw)
    federation = hp.federate(
        (x.numpy(), torch.arange(60).numpy() % 3),
        clients=2,
        transform="fedavg2rep",
        validation_fraction=0.2,
        feature_skew=hp.Rotation(30),
    )
    there, here = (played("fedavg", federation, rounds=1, accelerator=d) for d in ("shadow", "cpu"))
    assert identical(there, here)


def test_new_clients_have_the_bits_of_the_cpu_there():
    federation = digits().set_aside_new_clients(0.3, 0)
    there, here = (played("fedper", federation, rounds=1, accelerator=d) for d in ("shadow", "cpu"))
    assert untimed(there)[1:] == untimed(here)[1:]


def test_dropout_draws_the_same_for_both_models_there():
    """APFL replays the draws of a mini-batch, those of the device too."""

    def net() -> hp.Net:
        base = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 16), torch.nn.Dropout())
        return hp.Net(base, torch.nn.Linear(16, 10))

    there, here = (played("apfl", model=net, rounds=1, accelerator=d) for d in ("shadow", "cpu"))
    assert identical(there, here)


def test_the_generator_of_the_device_is_seeded_with_that_of_the_cpu(monkeypatch):
    seeds = list[int]()
    monkeypatch.setattr(torch.shadow, "manual_seed", seeds.append)
    with seeded("outside"), computing(Compute(torch.device("shadow:0"))):
        assert seeds == []
        with seeded("inside"):
            assert seeds == [derive_seed("inside")]


@pytest.mark.parametrize("name", ["fedreg", "moon"])
def test_the_pool_has_the_bits_of_the_cpu_there(name):
    pooled = played(name, accelerator="shadow", engine="pool", workers=2, **NORMALISED)
    assert identical(pooled, played(name, **NORMALISED))


def test_without_workers_the_first_jobs_decide_how_many_there_are(monkeypatch):
    """The first job of each kind is measured with one worker; then there is room for three."""
    monkeypatch.setattr(base, "count_cores", lambda: 8)
    counts = []

    class Counting(Pool):
        def run_jobs(self, jobs):
            counts.append((len(jobs), {j.kind for j in jobs}, self.worker_count, len(self.workers)))
            return super().run_jobs(jobs)

    monkeypatch.setattr(pool_module, "Pool", Counting)
    pooled = played(
        "fedavg", few(), accelerator="shadow", engine="pool", workers=None, **NORMALISED
    )
    assert counts[0] == (2, {"train", "evaluate"}, 1, 1)
    assert [c[2:] for c in counts[1:]] == [(3, 3)] * (len(counts) - 1)
    assert identical(pooled, played("fedavg", few(), **NORMALISED))


def test_examples_stay_on_the_device_between_jobs(monkeypatch):
    """Four clients with two parts each are copied once, however often they train and are measured."""
    copied = []
    true_copy = device_samples.copy_to_device

    def copy(tensor, device):
        copied.append(tensor.dim())
        return true_copy(tensor, device)

    monkeypatch.setattr(device_samples, "copy_to_device", copy)
    how = {**DIGITS_NET, "rounds": 3, "participation": 1.0, "accelerator": "shadow"}
    there = played("fedavg", few(), **how)
    assert sum(dim > 1 for dim in copied) == 8  # labels have one dimension
    copied.clear()
    monkeypatch.setattr(ResidentExamples.__init__, "__defaults__", (0,))  # keep nothing
    assert identical(played("fedavg", few(), **how), there)
    assert sum(dim > 1 for dim in copied) > 24  # once per job


def test_the_first_event_names_the_device():
    result = played("fedavg", rounds=1, accelerator="shadow", deterministic=False)
    assert result.events[0]["device"] == "shadow"
    assert result.events[0]["deterministic"] is False
    assert result.summary.to_dict()["compute"] == {"device": "shadow", "deterministic": False}
    here = played("fedavg", rounds=1)
    assert here.events[0]["device"] == "cpu"
    assert {"deterministic", "precision"}.isdisjoint(here.events[0])
    assert "compute" not in here.summary.to_dict()


def test_a_run_that_continues_on_another_kind_of_device_says_so(tmp_path):
    how = {"rounds": 2, "out": tmp_path / "run", "resume": True}
    with pytest.raises(StopError):
        played("fedavg", accelerator="shadow", on_event=stop_after_first_round, **how)
    with pytest.warns(
        UserWarning, match="was started on shadow and continues on cpu: .* last bits"
    ):
        played("fedavg", accelerator="cpu", **how)


class Hungry(hp.FedAvg):
    """FedAvg that needs too much memory in its second round, while ``hungry`` is set."""

    hungry = True

    def local(self, client):
        if self.hungry and client.t == 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")
        return super().local(client)


def test_after_lack_of_memory_nothing_is_lost(tmp_path, monkeypatch):
    how = {**DIGITS_NET, "rounds": 3}
    there = {**how, "accelerator": "shadow", "out": tmp_path / "run", "resume": True}
    with pytest.raises(
        EngineError, match=r"round 1: the device is out of memory .*engine\.workers"
    ):
        played(Hungry(), few(), **there)
    monkeypatch.setattr(Hungry, "hungry", False)
    resumed = played(Hungry(), few(), **there)
    assert [e["t"] for e in resumed.events if e["event"] == "round"] == [0, 1, 2]
    assert identical(resumed, played(Hungry(), few(), **how))


def test_models_of_a_result_are_on_the_cpu():
    result = played("fedper", rounds=1, accelerator="shadow")
    assert all(p.device.type == "cpu" for p in result.personal("0").parameters())
    assert all(v.device.type == "cpu" for v in result._server.model.values())


class MoonWithAMistake(hp.MOON):
    """MOON with a tensor that is made without a device, as it once was."""

    def compute_contrast(self, z, near, far):
        likeness = [cosine_similarity(z.flatten(1), o.flatten(1)) for o in (near, far)]
        scores = torch.stack(likeness, 1) / self.temperature
        return cross_entropy(scores, torch.zeros(len(z), dtype=torch.int64))  # the mistake


def test_a_tensor_on_the_wrong_side_is_an_error_that_names_the_line():
    played(MoonWithAMistake(), rounds=1)  # on the CPU nobody notices
    with pytest.raises(RuntimeError, match="a tensor of the CPU among") as caught:
        played(MoonWithAMistake(), rounds=1, accelerator="shadow")
    assert any("# the mistake" in (f.line or "") for f in traceback.extract_tb(caught.tb))
