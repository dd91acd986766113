"""Tables with categories and missing values: rules fitted on training rows, stored, applied to new rows."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
import torch

import heterophony as hp
from helpers.formats import HELD, Frame
from heterophony.config.reading import read_config
from heterophony.core.errors import DataError
from heterophony.data.columns import Column, Columns, encode_columns, fit_columns, parse_column
from heterophony.data.federation import Federation


def test_columns_are_fitted_on_given_rows_only():
    age, numbers = parse_column("age", ["30", "?", "50", "900"], "t.csv")
    ward, places = parse_column("ward", ["a", "b", "", "c"], "t.csv")
    columns, x = Columns([age, ward]), np.stack([numbers, places], 1)
    fitted = fit_columns(columns, x[:3])
    assert fitted == (Column("age", fill=40.0), Column("ward", ("a", "b")))
    assert encode_columns(columns, fitted, x).tolist() == [
        [30, 1, 0],
        [40, 0, 1],
        [50, 0, 0],
        [900, 0, 0],
    ]
    rows = [{"age": None, "ward": "b"}, {"age": "7", "ward": "elsewhere"}]
    assert fitted.encode(rows).tolist() == [[40, 0, 1], [7, 0, 0]]


def test_a_frame_becomes_clients_and_its_model_takes_rows(tmp_path):
    frame = Frame(HELD, {"ward": "category"})
    federation = hp.federate(frame, users="hospital", seed=1)
    assert federation.clients == ("A", "B")
    assert [c.name for c in federation.columns] == ["age", "sex", "ward"]
    train = np.concatenate([federation.train[c].numpy() for c in federation.clients])
    ages = [HELD["age"][i] for i in train if HELD["age"][i] is not None]
    assert federation.columns[0].fill == np.median([a for a in ages if a == a])
    wards = sorted({str(HELD["ward"][i]) for i in train})
    assert federation.columns[2].categories == tuple(wards)
    result = hp.run("fedavg", federation, rounds=1, out=tmp_path / "run", progress=False)
    stored = json.loads((tmp_path / "run" / "columns.json").read_text())
    assert [c["name"] for c in stored] == ["age", "sex", "ward"]
    model = result.personal("A")
    rows = {k: HELD[k] for k in ("age", "sex", "ward")}
    expected = model(federation.x)
    assert torch.equal(model(rows), expected)
    assert torch.equal(model(Frame(rows)), expected)
    assert torch.equal(model([{k: v[0] for k, v in rows.items()}]), model(federation.x[:1]))
    with pytest.raises(DataError, match="the rows have no column 'ward'; they have: age, sex"):
        model({k: HELD[k] for k in ("age", "sex")})
    with pytest.raises(DataError, match="row 1, column 'age': must be a finite number"):
        model({**rows, "age": ["old"] * 8})
    federation.save(tmp_path / "stored")
    opened = Federation.open(tmp_path / "stored")
    assert (opened.columns, opened.sha256) == (federation.columns, federation.sha256)


def test_new_clients_do_not_change_the_rules_and_partitions_can_be_stored(tmp_path: Path) -> None:
    rows = [f"{i},{'ab'[i % 2]},{i % 4},{i % 2}" for i in range(40)]
    rows[3] = ",b,3,1"
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["age,kind,client,label", *rows]) + "\n")
    settings = [f"data.name={path}", "data.new_clients=0.25"]
    federation = read_config(None, settings).build_federation()
    trained = torch.cat([federation.train[c] for c in federation.clients]).tolist()
    assert federation.columns[0].fill == np.median([i for i in trained if i != 3])
    federation.save_partition(tmp_path / "who.json")
    again = read_config(None, [*settings, f"data.partition={{kind='file', path='{tmp_path}/who.json'}}",
                               "data.clients=4"]).build_federation()  # fmt: skip
    assert again.sha256 == federation.sha256


def test_numbers_without_gaps_are_used_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b,label\n" + "1,2,0\n3,4,1\n" * 4)
    federation = hp.federate(tmp_path / "t.csv", clients=2, partition="iid")
    assert federation.x.tolist() == [[1, 2], [3, 4]] * 4


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        (datetime(2020, 1, 5, tzinfo=UTC), "is a date or a time; convert it to a number"),
        (timedelta(hours=3), "'3:00:00' is a date or a time; convert it to a number"),
        (np.datetime64("2020-01-05"), "'2020-01-05' is a date or a time; convert it to a number"),
        ([1, 2], "a cell holds several values; give each a column of its own, or store the"),
        (np.zeros(1), "a cell holds several values; give each a column of its own, or store the"),
    ],
)
def test_cells_that_are_neither_numbers_nor_texts_are_refused(cell, words):
    with pytest.raises(DataError) as caught:
        hp.federate(Frame({"age": [1, 2], "b": [None, cell], "label": [0, 1]}))
    assert str(caught.value).startswith("the table, row 2, column 'b': ")
    assert words in str(caught.value)


def test_dates_that_are_declared_categories_stay_categories():
    cells = ["2020-01-05", "90%", "1,5"] * 4
    frame = Frame({"b": cells, "label": [0, 1] * 6}, {"b": "category"})
    assert hp.federate(frame, clients=2, partition="iid").columns[0].categories


FITTED = Columns([Column("age", fill=40.0), Column("ward", ("a", "b"))])


class Row:
    """A stand-in for a row of a frame, which pandas calls a Series."""

    def to_frame(self) -> Frame:
        return Frame({})


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "there are no rows"),
        ({"age": [], "ward": []}, "there are no rows"),
        (Frame({"age": [], "ward": []}), "there are no rows"),
        (
            {"age": [1, 2], "ward": ["a"]},
            "columns of the rows have different lengths: age 2, ward 1",
        ),
        (
            {"age": 50.0, "ward": "a"},
            "column 'age' must be a list of values; for a single row, pass",
        ),
        (
            Frame({"age": [1], "ward": ["a"]}, twice="age"),
            "the table has 2 columns 'age'; rename all",
        ),
        (Row(), "one row of a frame must stay a frame: frame.iloc[[0]], not frame.iloc[0]"),
    ],
)
def test_rows_that_cannot_be_encoded_are_one_line(rows, words):
    with pytest.raises(DataError) as caught:
        FITTED.encode(rows if FITTED.accepts(rows) else {})
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_table_without_rows_and_one_with_two_equal_columns_are_refused():
    for frame, words in (
        (Frame({"age": [], "label": []}), "the table has no rows"),
        (Frame({"age": [1], "label": [0]}, twice="age"), "the table has 2 columns 'age'; rename"),
    ):
        with pytest.raises(DataError, match=words):
            hp.federate(frame)


@pytest.mark.parametrize("beside", [False, True])
def test_an_index_that_names_clients_is_a_column(beside):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({k: HELD[k] for k in ("age", "sex", "label")})
    frame["client"] = HELD["hospital"]
    whole, indexed = hp.federate(frame), frame.set_index("client")
    given = (indexed.drop(columns="label"), indexed["label"]) if beside else indexed
    assert hp.federate(given).clients == whole.clients == ("A", "B")
    by_ward = frame.rename(columns={"client": "ward"}).set_index("ward")
    assert hp.federate(by_ward, users="ward").clients == ("A", "B")
