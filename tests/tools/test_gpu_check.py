"""``doctor --gpu`` on the shadow device, whose hashes are those of the CPU."""

from __future__ import annotations

import json

import pytest
import torch

import heterophony as hp
from helpers import shadow_device  # noqa: F401  # makes the device known
from helpers.commands import call
from heterophony.tools import doctor


@pytest.fixture
def few_examples(monkeypatch):
    """Check with small runs in this process, which knows the shadow device."""

    def run(*given, **how):
        return hp.run(*given, **{**how, "engine": "serial", "model": "mlp"})

    monkeypatch.setattr(doctor, "run", run)
    monkeypatch.setattr(doctor, "IMAGES", 80)
    monkeypatch.setattr(doctor, "CLIENTS", 2)
    swaps = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(swaps)


def test_it_compares_hashes_of_three_algorithms_and_numbers_of_workers(few_examples):
    done = call("doctor", "--gpu", "--device", "shadow", "--json")
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert found["differences"] == []
    assert found["setup"]["device"] == "shadow"
    assert len(found["trials"]) == 12
    assert len({t["model_sha256"] for t in found["trials"]}) == 3  # one for each algorithm


def test_bits_that_depend_on_the_workers_are_exit_1(few_examples, monkeypatch):
    monkeypatch.setattr(doctor, "find_differences", lambda trials: ["fedavg differs"])
    done = call("doctor", "--gpu", "--device", "shadow")
    assert done.exit_code == 1
    assert "fedavg differs" in done.stderr
    assert "please report this" in done.stderr
