"""What algorithms cost on the wire, measured, and the page that says so."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from heterophony.algorithms import ALGORITHM_CLASSES, get_algorithm_class
from heterophony.algorithms.fedrod import FedRoD
from heterophony.models import get_model_builder
from heterophony.tools.wire_bytes import measure_relative_to_fedavg, measure_wire_bytes

ROOT = Path(__file__).parents[2]
WHOLE = 4 * 797_962


@pytest.mark.parametrize(
    ("name", "down", "up"),
    [
        ("fedavg", WHOLE, WHOLE),
        ("fedper", 4 * 796_032, 4 * 796_032),
        ("lgfedavg", 4 * 1_930, 4 * 1_930),
        ("fedreg", WHOLE, WHOLE + 8),  # how many examples it learned from
        ("scaffold", 2 * WHOLE, 2 * WHOLE),
        ("fedproto", None, None),  # only after the first round is there anything to send down
        ("local", 0, 0),
        ("centralized", 0, 0),
    ],
)
def test_traffic_is_that_of_the_tensors(name, down, up):
    found = measure_wire_bytes(get_algorithm_class(name)())
    if down is None:
        assert 0 < min(found.values()) <= max(found.values()) < 0.01 * WHOLE
    else:
        assert found == {"down": down, "up": up}


RATIOS = {  # to FedAvg's bytes down and up, where the papers' methods do not send what it sends
    "centralized": (0, 0),
    "fedbabu": (0.9976, 0.9976),
    "fedcac": (1, 1.0313),  # a bit per parameter goes up
    "fedpac": (1.0024, 1.0048),
    "fedpara": (0.1419, 0.1419),
    "fedper": (0.9976, 0.9976),
    "fedproto": (0.0024, 0.0024),
    "fedrep": (0.9976, 0.9976),
    "gpfl": (1.0938, 1.0938),
    "lgfedavg": (0.0024, 0.0024),
    "local": (0, 0),
    "pfakd": (0.9976, 0.9976),
    "pfedpara": (0.0756, 0.0756),
    "scaffold": (2, 2),
}


@pytest.mark.parametrize("name", sorted(ALGORITHM_CLASSES))
def test_bytes_relative_to_fedavg_are_the_specs(name):
    down, up = RATIOS.get(name, (1, 1))
    assert {
        k: round(v, 4) for k, v in measure_relative_to_fedavg(get_algorithm_class(name)()).items()
    } == {
        "down": down,
        "up": up,
    }


@pytest.mark.parametrize(
    ("model", "shape", "classes", "depth", "ratio"),
    [
        ("pfakd_cnn", (3, 32, 32), 10, 2, 0.6137),
        ("pfakd_fmnist", (1, 28, 28), 10, 1, 0.9890),
        ("resnet18", (3, 32, 32), 100, 1, 0.9954),
    ],
)
def test_the_base_alone_travels_in_pfakds_networks(model, shape, classes, depth, ratio):
    net, how = get_model_builder(model)(shape, classes, depth), get_algorithm_class("pfakd")()
    whole = sum(p.numel() for p in net.parameters())
    base = sum(net.get_parameter(k).numel() for k in how.shared(net, 0))
    assert round(base / whole, 4) == ratio


def test_a_variant_is_measured_as_it_is():
    assert {
        k: round(v, 4) for k, v in measure_relative_to_fedavg(FedRoD(head="hyper")).items()
    } == {
        "down": 1.0803,
        "up": 1.0803,
    }


def test_the_page_of_algorithms_is_up_to_date():
    page = runpy.run_path(str(ROOT / "scripts" / "algorithms_page"))["page"]
    assert (ROOT / "docs" / "algorithms.md").read_text() == page(), "run scripts/algorithms_page"
