"""The medium scale: which settings it changes, which it keeps, and the small data sets."""

from __future__ import annotations

import numpy as np
import pytest

from heterophony.config.reading import resolve_config
from heterophony.core.samples import BYTES_TO_PLUS_MINUS_ONE
from heterophony.data.source import Source
from heterophony.data.sources import SOURCES
from heterophony.data.sources.builtin import halve_images, read_small
from heterophony.data.sources.registry import NamedDataset
from heterophony.models import get_model_builder
from heterophony.papers import scaling as medium
from heterophony.papers.reproduce import TableSelection
from heterophony.papers.scaling import choose_seeds
from heterophony.papers.table import TableScale, load_table, load_tables


def find_config(table: str, row: str, column: str, stand_ins="never"):
    cells = load_table(table).cells
    config = next(c.config for c in cells if (c.row, c.column) == (row, column))
    return config, medium.shrink_to_medium(config, stand_ins)


def test_data_net_and_rounds_shrink_and_the_rest_stays():
    full, small = find_config("fedreg-table2-sota", "FedReG", "Fashion-MNIST")
    changed = {
        "rounds": 50,
        "data": {**full["data"], "name": "fmnist-small"},
        "model": {"name": "convnet_small", "head_depth": 2},
        "training": {**full["training"], "lr": 0.03},
        "evaluation": {"every": 2},
    }
    assert small == {**full, **changed}


def test_the_learning_rate_stays_where_clients_have_as_many_images_or_steps():
    for table, row, column in (
        ("feddecomp-table1", "FedAvg", "CIFAR-10, alpha 0.1"),
        ("fedavg2rep-table4-hybrid", "FedRep, N_C = 5", "J = 16"),
        ("fedavg2rep-text-centralised", "centralised", "CIFAR-100"),
    ):
        full, small = find_config(table, row, column)
        assert small["training"]["lr"] == full["training"]["lr"]


def test_a_client_that_draws_its_own_images_draws_no_more_than_a_class_has():
    _, ten = find_config("feddecomp-table1", "FedAvg", "CIFAR-10, alpha 0.1")
    _, hundred = find_config("feddecomp-table1", "FedAvg", "CIFAR-100, alpha 0.1")
    parts = [[c["data"]["partition"][k] for k in ("train", "test")] for c in (ten, hundred)]
    assert parts == [[500, 100], [160, 40]]


def test_rounds_follow_epochs_and_steps_and_settings_that_count_rounds_follow_them():
    _, few = find_config("pfakd-table1-main", "FedAvg", "Fashion-MNIST, E = 20")
    assert (few["rounds"], few["evaluation"]) == (25, {"every": 1})
    _, steps = find_config("fedavg2rep-table4-hybrid", "FedAvg2Rep, N_C = 5", "J = 4")
    assert (steps["rounds"], steps["algorithm"]["warmup_rounds"]) == (200, 50)
    _, cac = find_config("feddecomp-table1", "FedCAC", "CIFAR-10, alpha 0.1")
    assert (cac["rounds"], cac["algorithm"]["beta"]) == (50, 16)


def test_a_control_with_more_epochs_has_as_many_rounds():
    varied = load_table("fedreg-table2-sota").choose_variants(["equal-work"])
    rounds = {
        (c.row, c.config["training"]["epochs"]): medium.shrink_to_medium(c.config, False)["rounds"]
        for c in varied.cells
        if c.column == "Fashion-MNIST" and c.row in ("FedAvg", "FedReG")
    }
    assert rounds == {("FedAvg", 10): 50, ("FedReG", 5): 50}


def test_a_smaller_net_has_as_many_layers_in_its_head():
    _, small = find_config("pfakd-table1-main", "FedPer", "CIFAR-10, E = 5")
    assert small["model"] == {"name": "pfakd_fmnist", "head_depth": 2}
    _, deep = find_config("fedreb-table5-3-head-depth", "depth 3", "split")
    assert deep["model"] == {"name": "convnet_small", "head_depth": 3}


def test_a_data_set_that_is_not_here_has_a_named_stand_in(monkeypatch):
    monkeypatch.setattr(NamedDataset, "available", False)
    _, own = find_config("feddecomp-table5", "FedDecomp", "alpha 0.1")
    _, other = find_config("feddecomp-table5", "FedDecomp", "alpha 0.1", stand_ins="if missing")
    assert (own["data"]["name"], other["data"]["name"]) == ("cifar100-small", "cifar10-small")
    assert medium.keeps_dataset("cifar100", "cifar100-small")
    assert not medium.keeps_dataset("cifar100", "cifar10-small")
    selection = TableSelection(
        load_table("fedreg-table2-sota"), TableScale.medium, "FedAvg", "*", (0,)
    )
    assert selection.stand_ins["EMNIST"] == ("Fashion-MNIST", "EMNIST")


def test_every_cell_of_every_table_has_settings_at_medium_scale():
    for table in load_tables():
        for cell in table.cells:
            resolve_config(medium.shrink_to_medium(cell.config, stand_ins="never"))


def test_there_are_five_seeds_the_papers_first():
    assert choose_seeds(load_table("fedreg-table2-sota"), TableScale.medium) == (0, 1, 2, 3, 4)
    assert choose_seeds(load_table("pfakd-table1-main"), TableScale.medium) == (42, 43, 44, 45, 46)
    assert choose_seeds(load_table("pfakd-table1-main"), TableScale.quick) == (42,)


# Small data sets and nets -------------------------------------------------------------------


def test_each_pixel_is_the_rounded_mean_of_four():
    x = np.array([[[[0, 1, 9], [1, 1, 9], [255, 255, 9], [255, 254, 9]]]], np.uint8)
    assert halve_images(x).tolist() == [[[[1], [255]]]]


def test_some_images_of_both_official_sets_are_drawn_always_the_same():
    count = 2500
    y = np.arange(count) % 2
    x = (np.arange(count) // 10).astype(np.uint8)[:, None, None, None] * np.ones(
        (1, 1, 2, 2), np.uint8
    )
    source = Source("full", x, y, BYTES_TO_PLUS_MINUS_ONE, ("a", "b"), official=2000)
    small = read_small(lambda path: source, "full-small", None)
    assert (len(small.y), small.official, small.name) == (2000, 1600, "full-small")
    assert small.x.shape == (2000, 1, 1, 1)
    rows = np.flatnonzero(np.diff(small.x[:, 0, 0, 0].astype(int)) < 0)
    assert rows.tolist() == []  # in the order of the full set
    again = read_small(lambda path: source, "full-small", None)
    assert np.array_equal(small.x, again.x)
    assert np.array_equal(small.y, again.y)


def test_the_sizes_of_small_data_sets_are_known_without_reading_them():
    sizes = {name: SOURCES[name].size for name in SOURCES if name.endswith("-small")}
    assert {k: (s.examples, s.shape, s.classes) for k, s in sizes.items()} == {
        "fmnist-small": (10_000, (1, 14, 14), 10),
        "emnist-small": (47_000, (1, 14, 14), 47),
        "cifar10-small": (10_000, (3, 16, 16), 10),
        "cifar100-small": (20_000, (3, 16, 16), 100),
    }


@pytest.mark.parametrize(
    ("name", "shape", "count"),
    [
        ("convnet_small", (1, 14, 14), 21_546),
        ("resnet8_small", (3, 16, 16), 79_962),
        ("resnet10_small", (3, 16, 16), 310_746),
    ],
)
def test_small_nets_have_these_parameters(name, shape, count):
    net = get_model_builder(name)(shape, 10, 1)
    assert sum(p.numel() for p in net.parameters()) == count
