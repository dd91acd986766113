"""The tensors of a net by name: what stays on the client, and that a run has the same ones."""

from __future__ import annotations

import json

import pytest
from torch import nn

import heterophony as hp
from helpers.commands import call
from helpers.support import calm
from heterophony.algorithms import ALGORITHM_CLASSES
from heterophony.core.errors import ConfigError
from heterophony.models import MODEL_DESCRIPTIONS


def by_kind(rows: list) -> dict[str, set[str]]:
    return {kind: {r.name for r in rows if r.kind == kind} for kind in {r.kind for r in rows}}


@pytest.mark.parametrize("name", ["fedavg", "fedper", "ditto", "fedrod", "local"])
def test_the_kinds_are_those_of_a_run(name):
    plan = calm(name).plan
    rows = hp.list_tensors("digitsnet", name, shape=plan.federation.shape)
    template = plan.template.state_dict()
    assert {r.name: r.shape for r in rows} == {k: tuple(v.shape) for k, v in template.items()}
    shared = set(plan.list_names(plan.template, 0, "shared"))
    assert by_kind(rows).get("shared", set()) == shared
    assert by_kind(rows).get("personal", set()) == set(template) - shared


def test_every_model_and_every_algorithm_can_be_listed():
    for model in MODEL_DESCRIPTIONS:
        assert hp.list_tensors(model)
    for name in ALGORITHM_CLASSES:
        assert hp.list_tensors("digitsnet", name, shape=(1, 8, 8))


def test_an_own_module_is_split_and_buffers_are_told_apart():
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    kinds = by_kind(hp.list_tensors(module, hp.FedPer))
    assert kinds["personal"] == {"head.0.weight", "head.0.bias"}
    assert all(".running_" in n or n.endswith("num_batches_tracked") for n in kinds["buffer"])
    assert {n.split(".")[0] for n in kinds["shared"]} == {"base"}
    with pytest.raises(ConfigError, match=r"^model: must be a name, an nn.Module or a function"):
        hp.list_tensors(lambda: 3)


def test_the_command_line_prints_them():
    words = ("list", "models", "--tensors", "ConvNet", "--algorithm", "FedPer")
    found = json.loads(call(*words, "--json").stdout)
    assert found[0] == {"name": "base.0.weight", "shape": [64, 3, 5, 5], "kind": "shared"}
    assert found[-1]["kind"] == "personal"
    lines = call(*words).stdout.splitlines()
    assert lines[0].split() == ["name", "shape", "with", "FedPer"]
    assert lines[2].split() == ["base.0.weight", "64×3×5×5", "shared"]
