"""Clients keep their names: from every kind of data, through a run, to its models, tables and page."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Picture
from typer.testing import CliRunner

import heterophony as hp
from helpers.sources import ClassLabel, Image, Rows, Value
from heterophony.boards.board_data import load_known_summaries
from heterophony.boards.fleet.hosts import assign_clients, read_fleet
from heterophony.boards.server import find_membership_objection
from heterophony.cli import app
from heterophony.cli.boards import list_default_settings
from heterophony.config.reading import read_config
from heterophony.core.errors import ConfigError, DataError, FolderError
from heterophony.core.files import sort_names
from heterophony.data.source import check_names_on_boards, number_clients
from heterophony.jobs import client_store
from heterophony.jobs.client_store import FolderClientStore, encode_folder_name
from heterophony.jobs.dry_runs import simulate_replies
from heterophony.report.page.html import dump_safe_json
from heterophony.report.page.page_data import build_page_data
from heterophony.results.runs import load_runs

# of every client as many examples as nobody else has: so sizes tell who is who
SIZES = {"B": 12, "site 10": 16, "A": 20, "site 2": 24}
ORDER = ["A", "B", "site 2", "site 10"]
NAMES = [name for name, size in SIZES.items() for _ in range(size)]
SHUFFLED = [NAMES[i] for i in np.random.default_rng(0).permutation(len(NAMES))]
SIDE = 4


def make_arrays() -> tuple[np.ndarray, np.ndarray]:
    """Images of one colour: that of their client."""
    colours = np.array([ORDER.index(name) for name in SHUFFLED], np.uint8)
    return np.repeat(colours, SIDE * SIDE).reshape(-1, SIDE, SIDE), np.arange(len(colours)) % 2


def from_csv(folder: Path) -> hp.Federation:
    x, y = make_arrays()
    cells = [
        [*map(str, row.flat), name, str(label)]
        for row, name, label in zip(x, SHUFFLED, y, strict=True)
    ]
    head = [*(f"p{i}" for i in range(SIDE * SIDE)), "client", "label"]
    (folder / "t.csv").write_text("\n".join(",".join(row) for row in [head, *cells]))
    return hp.federate(folder / "t.csv")


def from_npz(folder: Path) -> hp.Federation:
    x, y = make_arrays()
    np.savez(folder / "t.npz", x=x, y=y, client=np.array(SHUFFLED))
    return read_config(None, [f"data.name={folder / 't.npz'}"]).build_federation()


def from_arrays(folder: Path) -> hp.Federation:
    return hp.federate(make_arrays(), client=SHUFFLED)


def from_dict(folder: Path) -> hp.Federation:
    x, y = make_arrays()
    mine = {name: np.array(SHUFFLED) == name for name in SIZES}
    return hp.federate({name: (x[rows], y[rows]) for name, rows in mine.items()})


def from_hugging_face(folder: Path) -> hp.Federation:
    return hp.federate(make_splits("client"))


def make_splits(column: str) -> dict[str, Rows]:
    x, y = make_arrays()
    rows = [
        {"image": Picture.fromarray(image), "label": int(label), column: name}
        for image, label, name in zip(x, y, SHUFFLED, strict=True)
    ]
    columns = {"image": Image(), "label": ClassLabel(["a", "b"]), column: Value()}
    return {"train": Rows(rows, **columns)}


@pytest.mark.parametrize(
    "build",
    [from_csv, from_npz, from_arrays, from_dict, from_hugging_face],
    ids=lambda f: f.__name__,
)
def test_named_clients_come_back_by_name(tmp_path: Path, build: Callable[[Path], Any]) -> None:
    federation = build(tmp_path)
    assert list(federation.clients) == ORDER
    for name in ORDER:
        rows = np.concatenate([federation.train[name], federation.test[name]])
        assert len(rows) == SIZES[name]
        assert np.unique(federation.x[rows]).tolist() == [ORDER.index(name)]
    run = tmp_path / "run"
    how: dict[str, Any] = {"model": "mlp", "rounds": 1, "participation": 1.0, "progress": False}
    result = hp.run("fedper", federation, out=str(run), **how)
    for found in (result, hp.load(run, federation=federation)):
        assert {name: c.train + c.total for name, c in found.clients.items()} == SIZES
        assert list(found.clients) == ORDER
        assert [row["client"] for row in found.rows()] == ORDER * 2
        personal, memory = found.personal("A"), found._run_folder.client_store.load_memory("A", 9)
        assert personal.net.head[0].weight.equal(memory["net"]["head.0.weight"])
    with pytest.raises(DataError, match="there is no client '0'"):
        result.personal("0")
    page = build_page_data(load_runs([run]))
    assert page["federations"][0]["clients"] == ORDER
    stored = json.loads((run / "partition.json").read_text())["clients"]
    assert {name: len(s["train"]) + len(s["test"]) for name, s in stored.items()} == SIZES


# Whose examples -----------------------------------------------------------------------------


def test_another_column_or_array_can_name_the_clients(tmp_path: Path) -> None:
    from_csv(tmp_path)
    text = (tmp_path / "t.csv").read_text().replace("client", "Hospital")
    (tmp_path / "h.csv").write_text(text)
    x, y = make_arrays()
    np.savez(tmp_path / "h.npz", x=x, y=y, hospital=np.array(SHUFFLED))
    for data in (tmp_path / "h.csv", tmp_path / "h.npz"):
        config = read_config(None, [f"data.name={data}", "users=hospital"])
        assert list(config.build_federation().clients) == ORDER
        again = read_config(None, [f"data.name={data}", "data.users=hospital", "partition=iid"])
        assert len(again.build_federation().clients) == 20, "a partition deals them anew"
        assert list(hp.federate(data, users="hospital").clients) == ORDER
        with pytest.raises(DataError, match=r"^data\.users: .*h\.\w+ has no (column|array) 'ward'"):
            hp.federate(data, users="ward")
    assert list(hp.federate(make_splits("site"), users="site").clients) == ORDER
    with pytest.raises(DataError, match=r"has no column 'ward'; it has: image, label, site"):
        hp.federate(make_splits("site"), users="ward")
    with pytest.warns(UserWarning, match="datasets: the column site is not used"):
        assert len(hp.federate(make_splits("site"), partition="iid", clients=3).clients) == 3
    for data, words in (
        ("digits", "digits has no such column"),
        ((x, y), "arrays have no columns"),
    ):
        with pytest.raises(ConfigError, match=words):
            hp.federate(data, users="site")
    with pytest.raises(ConfigError, match="remove client and users"):
        hp.federate([(x, y), (x, y)], client=["a", "b"])


def test_numbered_names_of_a_column_are_read_as_text() -> None:
    splits = make_splits("client")
    rows = [{**row, "client": ORDER.index(row["client"])} for row in splits["train"]]
    columns = splits["train"].features | {"client": ClassLabel(ORDER)}
    federation = hp.federate(Rows(rows, **columns))
    assert list(federation.clients) == ORDER
    assert federation.labels == ("a", "b"), "the clients are not the classes"


def test_names_are_in_natural_order_however_long_their_numbers() -> None:
    names = ["10", "9", "b", "a10", "a9", "a09", "²", "1" + "0" * 5000, "A", "", "a10b2", "a10b10"]
    assert sort_names(names) == [
        *("", "9", "10", "1" + "0" * 5000, "A", "a09", "a9", "a10", "a10b2", "a10b10", "b", "²")
    ]
    numbers, known = number_clients([10, 9, 10], "here")
    assert (numbers.tolist(), known) == ([1, 0, 1], ("9", "10"))
    assert number_clients(np.array([b"x", b"y"]).tolist(), "here")[1] == ("x", "y")


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ([1, "1"], "client, row 2: '1' and 1 would both be client '1'; write the name in one way"),
        (["a", ""], "client, row 2: the name of the client is missing"),
        (["a", None], "client, row 2: the name of the client is missing"),
        ([float("nan"), 1.0], "client, row 1: the name of the client is missing"),
        (["a", "*"], "client, row 2: '*' stands for all clients together; rename the client"),
        (["a", "\ud800"], "client, row 2: '\\ud800' is not text in UTF-8; rename the client"),
        ([["a"], "b"], "client, row 1: the name of a client must be a text or a number, not ['a']"),
        (["a"], "client: must have one name per example: 2 examples, 1 names"),
    ],
)
def test_names_that_cannot_be_are_one_line(names: list[object], words: str) -> None:
    with pytest.raises(DataError) as caught:
        hp.federate((np.zeros((2, 3), np.float32), np.array([0, 1])), client=names)
    assert str(caught.value) == words


def test_two_clients_cannot_have_one_name() -> None:
    pair = (np.zeros((4, 3), np.float32), np.array([0, 1] * 2))
    with pytest.raises(DataError, match=r"^two clients have the name '1'; rename one of them$"):
        hp.federate({1: pair, "1": pair})


# Odd names ----------------------------------------------------------------------------------

ODD = [
    *("a/b", "../up", ".", "..", "%", "%2E", "A b", "Zürich ☂", "<b>&</script>", "[/red]", "=1+1"),
    *("$x_$", "line\nfeed", "x" * 300, "x" * 299 + "y", "\x1b[31m", "-", "~", "\u202egnp"),
]


def test_folders_of_clients_are_told_apart_whatever_their_names_are(tmp_path: Path) -> None:
    plain = ["0", "17", "site-2", "Ward_B", "c~1"]
    assert [encode_folder_name(name) for name in plain] == plain, "as in runs of before"
    assert encode_folder_name("a.b/c d") == "a%2Eb%2Fc%20d"
    folders = [encode_folder_name(name) for name in (*ODD, *plain, "x" * 192, "x" * 193)]
    assert len(set(folders)) == len(folders)
    for folder in folders:
        (tmp_path / folder).mkdir()  # no link, no other folder, not too long
        assert len(folder) <= 192
    assert len(list(tmp_path.iterdir())) == len(folders)


def test_names_that_differ_in_case_alone_need_a_disk_that_tells_them_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FolderClientStore(tmp_path / "clients", tmp_path / "scratch")
    store.check_names(["a", "A"])
    monkeypatch.setattr(client_store, "ignores_case", lambda folder: True)
    store.check_names(["a", "b"])
    with pytest.raises(FolderError, match="clients 'a' and 'A' differ only in case"):
        store.check_names(["a", "A"])


def test_a_run_of_clients_with_odd_names_is_as_any_other(tmp_path: Path) -> None:
    some = ODD[:2] + ODD[7:-2]
    names = [name for name in some for _ in range(4)]
    x = np.random.default_rng(0).normal(size=(len(names), 2)).astype(np.float32)
    np.savez(tmp_path / "odd.npz", x=x, y=np.arange(len(names)) % 2, client=np.array(names))
    words = [f"data.name={tmp_path / 'odd.npz'}", "rounds=1", "model=mlp", "algorithm=fedfomo"]
    words += ["new_clients=0.1", "rate=1", "engine=serial", f"--out={tmp_path / 'run'}", "--json"]
    words = [w if w.startswith("--") else f"-c{w}" for w in words]
    done = CliRunner().invoke(app, ["run", *words])
    assert done.exit_code == 0, done.output
    result = hp.load(tmp_path / "run")
    late = set(result.plan.federation.new)
    assert list(result.clients) == [name for name in sort_names(some) if name not in late]
    for name in ("a/b", "x" * 300, *late):
        assert result.personal(name)(x[:3]).shape == (3, 2)
    assert {p.name for p in (tmp_path / "run/commits/clients").iterdir()} <= {
        encode_folder_name(name) for name in some
    }
    page = dump_safe_json(build_page_data(load_runs([tmp_path / "run"])))
    assert "<" not in page
    assert json.loads(page)["federations"][0]["clients"] == list(result.clients)
    shown = CliRunner().invoke(app, ["data", "partition", f"-cdata={tmp_path / 'odd.npz'}"])
    assert shown.exit_code == 0, shown.output
    assert "\x1b" not in shown.output
    assert "[/red]" in shown.output
    described = CliRunner().invoke(app, ["data", "show", str(tmp_path / "odd.npz")])
    assert "a/b" in described.output
    assert "\x1b" not in described.output


def test_files_about_clients_name_them_as_the_data_do(tmp_path: Path) -> None:
    (tmp_path / "when.csv").write_text("client,start,end\nsite 2,0,1\n")
    (tmp_path / "fast.json").write_text('{"A": [0.5, null]}')
    federation = from_npz(tmp_path)
    pairs = [f"data.name={tmp_path / 't.npz'}", "rate=1", f"speeds.file={tmp_path / 'fast.json'}"]
    pairs += ["participation.availability.kind=trace"]
    config = read_config(None, [*pairs, f"participation.availability.file={tmp_path / 'when.csv'}"])
    plan = config.build_plan(federation)
    assert plan.select_clients(0) == ORDER
    assert plan.select_clients(1) == ["A", "B", "site 10"]
    assert plan.speeds.get_speed("A", 0)[0] == 0.5
    (tmp_path / "when.csv").write_text("client,start,end\n2,0,1\n")
    again = read_config(None, [*pairs, f"participation.availability.file={tmp_path / 'when.csv'}"])
    with pytest.raises(DataError, match="there is no client '2'"):
        again.build_plan(federation)


# On devices ---------------------------------------------------------------------------------


def test_a_server_without_the_data_takes_the_names_that_devices_bring(tmp_path: Path) -> None:
    from_npz(tmp_path)
    config = read_config(None, [f"data.name={tmp_path / 't.npz'}", "clients=3"])
    assert find_membership_objection(config, {}, ["A", "site-2"]) == ""
    assert find_membership_objection(config, {}, ["site 2"]) == "'site 2' cannot be a client's name"
    assert "can take 3 more" in find_membership_objection(config, {}, ["A", "B", "C", "D"])
    numbered = read_config(None, ["data.name=digits", "clients=3"])
    assert find_membership_objection(numbered, {}, ["A"]) == "the run has no client 'A'"
    with pytest.raises(DataError, match="'site 2' cannot be a client's name on boards; rename it"):
        check_names_on_boards(ORDER)


def test_a_server_with_the_data_knows_the_names(tmp_path: Path) -> None:
    x, y = make_arrays()
    plain = np.array([name.replace(" ", "-") for name in SHUFFLED])
    np.savez(tmp_path / "t.npz", x=x, y=y, client=plain)
    config = read_config(None, [f"data.name={tmp_path / 't.npz'}"])
    find = load_known_summaries(config, print)
    assert find is not None
    mine, wrong = find("site-2"), find("0")
    assert mine is not None
    assert (mine.name, mine.train + mine.test, wrong) == ("site-2", SIZES["site 2"], None)
    np.savez(tmp_path / "t.npz", x=x, y=y, client=np.array(SHUFFLED))
    with pytest.raises(DataError, match="'site 2' cannot be a client's name on boards"):
        load_known_summaries(config, print)


def test_a_trial_of_a_merge_has_three_clients_whatever_they_are_called() -> None:
    x, y = make_arrays()
    federation = hp.federate({"b": (x, y), "c": (x, y)})
    plan = read_config(None, ["model=mlp"]).build_plan(federation)
    assert [reply.client for reply in simulate_replies(plan)[0]] == ["b", "c", "d"]


def test_boards_that_count_clients_are_told_to_name_them(tmp_path: Path) -> None:
    (tmp_path / "hosts.toml").write_text("[boards.one]\nclients = 2\n")
    said = r"no board holds client 'A'; .* the boards hold 2: 0, 1, …; list the names"
    with pytest.raises(ConfigError, match=said):
        assign_clients(read_fleet(tmp_path / "hosts.toml"), ("A", "B"))
    with pytest.raises(ConfigError, match=r"no board holds client '2'; .* the boards hold 2$"):
        assign_clients(read_fleet(tmp_path / "hosts.toml"), ("0", "1", "2"))


def test_a_testbed_takes_as_many_clients_as_the_data_name(tmp_path: Path) -> None:
    from_npz(tmp_path)
    for name, clients in ((tmp_path / "t.npz", []), ("digits", ["data.clients=30"])):
        assert list_default_settings([f"data={name}", "mu=3"]) == [
            "algorithm.name=fedreg",
            *clients,
        ]
