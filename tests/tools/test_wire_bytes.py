"""What algorithms cost on the wire, measured, and the page that says so."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from heterophony.algorithms import ALGORITHM_CLASSES, get_algorithm_class
from heterophony.algorithms.fedrod import FedRoD
from heterophony.core.algorithm import Algorithm, build_parts
from heterophony.models import get_model_builder
from heterophony.tools.tables import (
    compute_algorithm_row,
    make_reference_net,
    measure_relative_to_fedavg,
    measure_wire_bytes,
)

ROOT = Path(__file__).parents[2]
WHOLE = 4 * 797_962
every_algorithm = pytest.mark.parametrize("name", sorted(ALGORITHM_CLASSES))


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


# Checked by hand against the papers: bytes down and up relative to FedAvg's. An algorithm may have
# a row here and needs none.
AS_FEDAVG = ["apfl", "ditto", "fedadam", "fedala", "fedamp", "fedavg", "fedavg2rep", "fedavgm",
             "fedbn", "cfl", "feddecomp", "feddyn", "fednova", "fedprox", "fedreg", "fedrep_full",
             "fedrod", "fedyogi", "heurfedamp", "moon", "perfedavg", "pfedgate", "pfedme",
             "pfedsd"]  # fmt: skip
RATIOS = dict.fromkeys(AS_FEDAVG, (1, 1)) | {
    "centralized": (0, 0),
    "fedbabu": (0.9976, 0.9976),
    "feddbe": (1.0002, 1.0002),  # a feature vector
    "feddistill": (0, 0.0001),  # 100 numbers; a single client has nobody to learn from
    "fedfomo": (1, 1),  # and five gains
    "ifca": (2, 1),
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
    "pfedpara": (0.0742, 0.0742),  # of the last layer, factors of rank 4
    "scaffold": (2, 2),
}


@pytest.mark.parametrize("name", sorted(RATIOS))
def test_bytes_relative_to_fedavg_are_those_checked_by_hand(name):
    measured = measure_relative_to_fedavg(get_algorithm_class(name)())
    assert tuple(round(measured[way], 4) for way in ("down", "up")) == RATIOS[name]


# what clients receive and do not send: models of other clusters, what the server trains
ONLY_DOWN = {"fedgen": "generator.", "fedgh": "head.", "flora": "base.", "ifca": "clusters."}


@every_algorithm
def test_bytes_follow_from_what_is_shared_and_sent(name):
    """Down: exactly the shared tensors, unless ``send`` adds to them. Up: at least those."""
    algorithm = get_algorithm_class(name)()
    net = build_parts(algorithm, make_reference_net(algorithm))
    sizes = {k: 4 * net.state_dict()[k].numel() for k in algorithm.shared(net, 0)}
    shared = sum(sizes.values())
    back = sum(n for k, n in sizes.items() if not k.startswith(ONLY_DOWN.get(name, "/")))
    measured = measure_wire_bytes(algorithm)
    if algorithm.pooled:  # the data were moved before the first round; no model is sent
        assert measured == {"down": 0, "up": 0}
    elif type(algorithm).send is Algorithm.send:
        assert measured["down"] == shared
    else:
        assert measured["down"] >= shared
    if not algorithm.pooled:
        assert back <= measured["up"]
        assert (back < shared) == (name in ONLY_DOWN)


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


PAGE = runpy.run_path(str(ROOT / "scripts" / "generated" / "algorithms.py"))
WRITTEN = (ROOT / "docs" / "reference" / "algorithms.md").read_text()


@every_algorithm
def test_the_row_of_the_algorithms_page_is_up_to_date(name):
    """An algorithm without a row passes: the page is written by a command, when one likes."""
    if PAGE["row_start"](name) not in WRITTEN:
        pytest.skip(f"docs/reference/algorithms.md has no {name} yet: run scripts/generate")
    described = compute_algorithm_row(name)
    assert PAGE["row"](described) in WRITTEN, "run scripts/generate"
    assert PAGE["section"](described) in WRITTEN, "run scripts/generate"


def test_the_algorithms_page_lists_only_algorithms_that_exist():
    listed = PAGE["list_names"](WRITTEN)
    assert listed
    assert set(listed) <= set(ALGORITHM_CLASSES), "run scripts/generate"
    assert WRITTEN.startswith(PAGE["HEAD"]), "run scripts/generate"
