"""What algorithms cost on the wire, measured, and the page that says so."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from heterophony.algorithms import algorithm
from heterophony.algorithms.fedrod import FedRoD
from heterophony.traffic import relative, traffic

ROOT = Path(__file__).parents[1]
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
    found = traffic(algorithm(name)())
    if down is None:
        assert 0 < min(found.values()) <= max(found.values()) < 0.01 * WHOLE
    else:
        assert found == {"down": down, "up": up}


def test_a_variant_is_measured_as_it_is():
    assert {k: round(v, 4) for k, v in relative(FedRoD(head="hyper")).items()} == {
        "down": 1.0803,
        "up": 1.0803,
    }


def test_the_page_of_algorithms_is_up_to_date():
    page = runpy.run_path(str(ROOT / "scripts" / "algorithms_page"))["page"]
    assert (ROOT / "docs" / "algorithms.md").read_text() == page(), "run scripts/algorithms_page"
