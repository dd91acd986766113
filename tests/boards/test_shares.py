"""Shares of a data set: the same examples as the whole, and one line for what is no share."""

from __future__ import annotations

import numpy as np
import pytest

from heterophony.boards.board_data import encode_share, load_shares, summarize_client
from heterophony.config.reading import resolve_config
from heterophony.core.errors import ConfigError, DataError

DATA = {"clients": 4, "partition": {"kind": "dirichlet", "alpha": 0.5}}


def federate(**data):
    return resolve_config({"data": {**DATA, **data}}).build_federation()


@pytest.mark.parametrize(
    "more",
    [{}, {"validation_fraction": 0.2}, {"feature_skew": {"kind": "rotation", "degrees": 30.0}}],
    ids=["plain", "validation", "skew"],
)
def test_shares_are_what_the_partition_gives_each_client(more, tmp_path):
    whole = federate(**more)
    for client in ("1", "3"):
        (tmp_path / f"{client}.npz").write_bytes(encode_share(whole, client))
    part = load_shares(tmp_path, ["1", "3"])
    assert part.clients == ("1", "3")
    for client in part.clients:
        assert summarize_client(part, client) == summarize_client(whole, client)
        ours, theirs = (f.data(client).train for f in (part, whole))
        at = np.arange(len(ours))
        assert all(a.equal(b) for a, b in zip(ours.batch(at), theirs.batch(at), strict=True))
    assert encode_share(whole, "1") == encode_share(federate(**more), "1")


def test_what_is_no_share_is_one_line(tmp_path):
    with pytest.raises(DataError, match=r"there is no share .*0\.npz; copy it with"):
        load_shares(tmp_path, ["0"])
    for content in (b"", b"PK", encode_share(federate(), "0")[:-30]):
        (tmp_path / "0.npz").write_bytes(content)
        with pytest.raises(DataError, match="is not a client's share; copy it again"):
            load_shares(tmp_path, ["0"])
    np.savez(tmp_path / "0.npz", x=np.zeros(3))
    with pytest.raises(DataError, match="is not a client's share"):
        load_shares(tmp_path, ["0"])


def test_data_that_depend_on_all_clients_cannot_be_sent_as_shares():
    from dataclasses import replace

    with pytest.raises(ConfigError, match=r"data\.task: R² depends on all clients' targets"):
        encode_share(replace(federate(), task="regression"), "0")
