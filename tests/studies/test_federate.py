"""What ``hp.federate`` takes: clients with their own data, and data with a split of their own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import heterophony as hp
from heterophony.core.errors import ConfigError, DataError

X, Y = np.zeros((4, 5), np.float32), np.array([0, 1, 0, 1])


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"clients": 3}, "clients: is 3, but the data have 2 clients; leave it out"),
        ({"clients": "5"}, "clients: must be a whole number, not '5'"),
        ({"partition": "iid"}, "partition: data in a list or dict already belong to clients"),
        ({"path": "x"}, "path: is only for data sets that are given by name; leave it out"),
        ({"split": "official"}, "split: 'official', but client 0 has no test examples of its own"),
        ({"split": "half"}, "data.split: must be one of merged, official, not 'half'"),
    ],
)
def test_what_cannot_be_asked_of_clients_with_their_own_data_is_said(how, said):
    with pytest.raises(ConfigError) as caught:
        hp.federate([(X, Y), (X, Y)], **how)
    assert str(caught.value).startswith(said)
    assert hp.federate([(X, Y), (X, Y)], clients=2).sizes() == {"0": 3, "1": 3}
    own = hp.federate([(X, Y, X, Y)], split="merged")
    assert (own.sizes(), own.sizes("test")) == ({"0": 6}, {"0": 2})


def test_examples_that_clients_bring_can_be_altered():
    x = np.random.default_rng(0).integers(0, 256, (8, 6, 6), np.uint8)
    plain, turned = (
        hp.federate({"a": (x, Y.repeat(2))}, feature_skew=skew) for skew in (None, hp.Rotation())
    )
    assert turned.skew == hp.Rotation(seed=0)
    held = [f.data("a").train.get_all_stored() for f in (plain, turned)]
    assert not torch.equal(*held)
    with pytest.raises(DataError, match="'rotation' needs images, not examples of shape"):
        hp.federate([(X, Y)], feature_skew=hp.Rotation())


def test_train_and_test_are_a_split_whatever_they_hold():
    draw = np.random.default_rng(0)
    both = [(draw.normal(size=(n, 3)).astype(np.float32), np.arange(n) % 2) for n in (12, 6)]
    loaders = [TensorDataset(*map(torch.from_numpy, pair)) for pair in both]
    how = {"clients": 2, "partition": "iid", "split": "official"}
    usual = hp.federate((*both[0], *both[1]), **how)
    for train, test in (
        both,
        [dict(zip("xy", pair, strict=True)) for pair in both],
        [(x.tolist(), y.tolist()) for x, y in both],
        loaders,
        [DataLoader(own, 5) for own in loaders],
    ):
        made = hp.federate({"train": train, "test": test}, **how)
        assert made.sha256 == usual.sha256
    with pytest.raises(ConfigError, match="data: must have the keys train and test only; add the"):
        hp.federate({"train": both[0], "validation": both[1], "test": both[1]})
