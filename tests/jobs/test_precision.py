"""``engine.precision = "bfloat16"``: every algorithm runs, a few learn, and parameters stay float32."""

from __future__ import annotations

import pytest
import torch

import heterophony as hp
from helpers.support import digits, model, played
from heterophony.algorithms import ALGORITHM_CLASSES
from heterophony.core.errors import FolderError


@pytest.mark.parametrize("name", sorted(ALGORITHM_CLASSES))
def test_every_algorithm_runs_in_bfloat16(name):
    few = digits(clients=3, examples=120)
    how = {"rounds": 1, "model": "digitsnet", "metrics": ["f1"]}
    result = played(name, few, precision="bfloat16", **how)
    assert result.events[0]["precision"] == "bfloat16"
    assert all(v.dtype != torch.bfloat16 for v in model(result).values())
    memories = result._run_folder.client_store
    kept = [t for c in few.clients for t in memories.load_memory(c, before=1).values()]
    assert all(v.dtype != torch.bfloat16 for tensors in kept for v in tensors.values())


@pytest.mark.parametrize("name", ["ditto", "fedavg", "fedreg"])
def test_it_learns_in_bfloat16(name):
    result = played(name, rounds=8, training=hp.Training(epochs=3, batch=16, lr=0.05),
                    participation=1.0, precision="bfloat16")  # fmt: skip
    assert result.P.last > 0.75
    assert result.model_sha256 != played(name, rounds=8).model_sha256


def test_another_precision_is_another_run(tmp_path):
    how = {"rounds": 1, "out": tmp_path / "run", "resume": True}
    played("fedavg", **how)
    with pytest.raises(FolderError, match="other settings"):
        played("fedavg", precision="bfloat16", **how)
