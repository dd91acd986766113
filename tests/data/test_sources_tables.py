"""Own data that name the client of each example: tables, and ``.npz`` files with the names of clients."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import heterophony as hp
from heterophony.config.reading import resolve_config
from heterophony.core.errors import ConfigError, DataError
from heterophony.data.sources import find_named_clients, read_source

ROWS = [
    "age, Client ,bmi,label",
    "30,site-10,1.5,sick",
    "40,site-2,2.5,well",
    "50,site-2,3.5,well",
    "60,site-10,4.5,sick",
]


def write(path: Path, rows: list[str], end: str = "\n") -> Path:
    path.write_text(end.join(rows) + end, encoding="utf-8-sig")
    return path


@pytest.mark.parametrize(
    ("name", "delimiter", "end"),
    [
        ("t.csv", ",", "\r\n"),
        ("t.CSV", ";", "\n"),
        ("t.tsv", "\t", "\n"),
        ("t.csv", "\t", "\n"),
        ("t.csv", ",", "\r"),
    ],
)
def test_a_table_has_numbers_labels_and_clients(
    tmp_path: Path, name: str, delimiter: str, end: str
) -> None:
    path = write(tmp_path / name, [r.replace(",", delimiter) for r in ROWS], end)
    source = read_source(str(path))
    assert source.x.tolist() == [[30, 1.5], [40, 2.5], [50, 3.5], [60, 4.5]]
    assert source.x.dtype == np.float32
    assert (source.labels, source.y.tolist()) == (("sick", "well"), [0, 1, 1, 0])
    assert source.users is not None
    assert (source.user_names, source.users.tolist()) == (("site-2", "site-10"), [1, 0, 0, 1])


def test_classes_of_a_table_can_be_ordered_and_numbered(tmp_path: Path) -> None:
    path = str(write(tmp_path / "t.csv", ROWS))
    source = read_source(path, classes=["well", "sick", "unknown"])
    assert (source.labels, source.y.tolist()) == (("well", "sick", "unknown"), [1, 0, 0, 1])
    numbers = [ROWS[0], *(r.replace("sick", "0").replace("well", "1") for r in ROWS[1:])]
    assert read_source(str(write(tmp_path / "n.csv", numbers))).y.tolist() == [0, 1, 1, 0]
    regression = read_source(str(tmp_path / "n.csv"), task="regression")
    assert regression.y.tolist() == [[0], [1], [1], [0]]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["age,clinic,ill", "1,a,0"], "no column 'label'.* It has: age, clinic, ill"),
        (
            ["age,label", "1,0", "two,1", "3,1"],
            "row 2, column 'age': 'two' is not a number, unlike most",
        ),
        (["age,bmi,label", "1,,0", "2,NA,1"], "column 'bmi': all values are missing; leave out"),
        (
            [",age,label", "0,1,0", "1,2,1"],
            "column 1 has no name; if it is the index of a frame, store",
        ),
        (["age,label", "1,0", "2,"], "row 2: the label is missing; remove the row"),
        (
            ["age,label", *(f"id{i},0" for i in range(101))],
            "'age': 101 different texts are too many",
        ),
        (["age,label", "1,0", "1"], "row 2: 1 values for 2 columns"),
        (["age,label"], "no row below"),
        (["label,client", "0,a"], "no column to learn from"),
        (["age,label,Label", "1,0,0"], "2 columns 'label'"),
        (["age,label,client", "1,0,a", "2,1,"], "row 2: the name of the client is missing"),
        (["age,label", "1,3", "1,4"], "the labels are 3, 4"),
        (["age,label", "1,0", f"2,{'9' * 5000}"], "row 2, .* a number of 5000 digits is too large"),
        (["age,label", "inf,0", "1,1"], "column 'age': a number is infinite or too large"),
        (
            ["crp;label", "1,5;0", "2;1", "3,5;1"],
            "row 1, column 'crp': '1,5' has a decimal comma; wr",
        ),
        (
            ["crp;label", "7;0", "8;1", "3,5;1"],
            "row 3, column 'crp': '3,5' has a decimal .* write 3.5",
        ),
        (["crp;label", "1.234,5;0", "2;1"], "'1.234,5' has a decimal comma; write 1234.5"),
        (["cost,label", '"1,200",0', '"2,300",1'], "'1,200' has a comma; write 1200 or 1.200"),
        (["cost,label", '"1,200.5",0', '"2,300",1'], "'1,200.5' has a comma; write 1200.5"),
        (
            ["sat,label", "90%,0", "8.5 %,1"],
            "column 'sat': '90%' is a percentage; convert it to a num",
        ),
        (
            ["day,label", "2020-01-05,0", "2020-01-06 12:30,1"],
            "'2020-01-05' is a date or a time; conv",
        ),
        (
            ["day,label", "5.1.2020,0", "?,1"],
            "column 'day': '5.1.2020' is a date or a time; convert",
        ),
        (
            ["day,label", "12:30,0", "11:00,1"],
            "column 'day': '12:30' is a date or a time; convert it",
        ),
        (
            ["age,label", "1,0.25", "2,1"],
            "row 1, column 'label': '0.25' is not a whole number; for num",
        ),
        (["age,label", "1,a", "2,a"], "all rows have the label 'a'; there must be two classes"),
        (["age,label", "1,0", "2,0.0"], "all rows have the label '0'; there must be two classes"),
        (["age,label", "1,0", "2,1\0"], "it holds a zero byte, so it is damaged"),
    ],
)
def test_a_wrong_table_is_explained(tmp_path: Path, rows: list[str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_source(str(write(tmp_path / "t.csv", rows)))


def test_a_cell_in_quotes_may_hold_line_breaks(tmp_path: Path) -> None:
    text = "one\ntwo\u2028three\x0cfour"
    path = write(tmp_path / "t.csv", ["text,label", f'"{text}",0', "short,1"])
    x = read_source(str(path)).x
    assert bytes(int(t) - 1 for t in x[0] if t) == text.encode()


def test_labels_of_a_table_may_be_whole_floats_and_names_that_look_like_numbers(
    tmp_path: Path,
) -> None:
    path = str(write(tmp_path / "t.csv", ["age,label", "1,0.0", "2,1.0", "3,1"]))
    source = read_source(path)
    assert (source.labels, source.y.tolist()) == (("0", "1"), [0, 1, 1])
    path = str(write(tmp_path / "v.csv", ["age,label", "1,3.11", "2,3.9"]))
    source = read_source(path, classes=["3.9", "3.11"])
    assert (source.labels, source.y.tolist()) == (("3.9", "3.11"), [1, 0])
    path = str(write(tmp_path / "one.csv", ["age,label", "1,a", "2,a"]))
    assert read_source(path, classes=["a", "b"]).labels == ("a", "b")


def test_unreadable_tables_and_unsuitable_settings_are_explained(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        read_source(str(tmp_path / "missing.csv"))
    for code in ("latin-1", "utf-16"):
        (tmp_path / "latin.csv").write_bytes("größe,label\n1,0\n".encode(code))
        name = code.replace("-1", "1").replace("utf16", "utf-16")
        said = f"it is not text in UTF-8; save it as UTF-8 .iconv -f {name} -t utf-8 latin.csv"
        with pytest.raises(DataError, match=said):
            read_source(str(tmp_path / "latin.csv"))
    path = str(write(tmp_path / "t.csv", ROWS))
    with pytest.raises(DataError, match=r"row 2: label 'well' is not in data.classes"):
        read_source(path, classes=["sick", "fine"])
    with pytest.raises(ConfigError, match="list the names"):
        read_source(path, classes=2)
    with pytest.raises(ConfigError, match="one label per row"):
        read_source(path, task="multilabel")


def test_named_clients_are_the_clients_of_a_run(tmp_path: Path) -> None:
    table = str(write(tmp_path / "t.csv", [ROWS[0], *ROWS[1:] * 4]))
    x, y = np.zeros((8, 3), np.float32), np.arange(8) % 2
    names = np.array([7, 7, 7, 7, 10, 10, 10, 10])
    np.savez(tmp_path / "one.npz", x=x, y=y, client=names)
    halves = {"x_train": x[:4], "y_train": y[:4], "x_test": x[4:], "y_test": y[4:]}
    np.savez(tmp_path / "two.npz", **halves, client_train=names[::2], client_test=names[::2])
    for data in (table, str(tmp_path / "one.npz"), str(tmp_path / "two.npz")):
        assert len(find_named_clients(data).names) == 2
        config = resolve_config({"data": {"name": data}})
        assert (config.data.clients, config.data.partition["kind"]) == (2, "natural")
    federation = hp.federate(tmp_path / "one.npz")
    assert federation.clients == ("7", "10")
    assert len(hp.federate(table, partition="iid", clients=4).clients) == 4


def test_wrong_names_of_clients_are_explained(tmp_path: Path) -> None:
    x, y = np.zeros((4, 3), np.float32), np.arange(4) % 2
    np.savez(tmp_path / "short.npz", x=x, y=y, client=np.array(["a", "b"]))
    with pytest.raises(DataError, match="one name per example: 4 examples"):
        read_source(str(tmp_path / "short.npz"))
    np.savez(tmp_path / "objects.npz", x=x, y=y, client=np.array(["a", None], dtype=object))
    with pytest.raises(DataError, match=r"client holds Python objects; store text as np.array"):
        read_source(str(tmp_path / "objects.npz"))
    assert not find_named_clients(str(tmp_path / "objects.npz")).names
