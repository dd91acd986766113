"""Data that each client has itself: reading, errors, and equal bits on devices and in simulation."""

from __future__ import annotations

import json
import queue
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from helpers.boards import mosquitto
from heterophony import __version__
from heterophony.boards.board import BoardOptions, BoardRun, load_federation
from heterophony.boards.board_data import summarize_client
from heterophony.boards.broker.enrolment import read_enrolment as enrolled
from heterophony.boards.protocol import job_codec
from heterophony.boards.protocol.messages import Hello
from heterophony.boards.server import ServerHooks, find_objection, serve
from heterophony.config.config import Config
from heterophony.config.reading import read_config
from heterophony.config.sections import EngineSection
from heterophony.core import codec
from heterophony.core.errors import ConfigError, DataError
from heterophony.core.files import sort_names
from heterophony.data.folders import (
    ExampleSpec,
    find_client_data,
    load_own_federation,
    read_client_data,
)
from heterophony.runs.folder import RunFolder
from heterophony.runs.summary import Summary
from heterophony.studies.run import execute_plan

CLASSES = ("zero", "one", "two")
KIND = ExampleSpec((1, 8, 8), CLASSES)
PERSONAL = 3 * 100 + 3  # numbers in the head of the mlp
CLIENTS = ["attic", "hall", "kitchen"]
LONG = 120  # seconds; a machine may be busy


@cache
def examples() -> tuple[np.ndarray, np.ndarray]:
    """Noise with a bright row that tells the class."""
    y = np.arange(140) * 7 % 3
    x = np.random.default_rng(0).integers(0, 200, (140, 1, 8, 8)).astype(np.uint8)
    x[np.arange(140), 0, y] = 250
    return x, y


def images(folder: Path, first: int, last: int) -> Path:
    """Some of the digits as files, one folder per class."""
    x, y = examples()
    for i in range(first, last):
        file = folder / CLASSES[y[i]] / f"{i:03}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(x[i, 0]).save(file)
    return folder


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """Three clients: images, images with a test part of their own, and an .npz."""
    folder = tmp_path_factory.mktemp("owndata") / "clients"
    images(folder / "attic", 0, 40)
    images(folder / "kitchen" / "train", 40, 70)
    images(folder / "kitchen" / "test", 70, 85)
    x, y = examples()
    np.savez(folder / "hall.npz", x=x[85:140, 0], y=y[85:140])
    return folder


def configured(*pairs: str, path: Path | None = None) -> Config:
    own = ["data.name=own", f"data.classes={json.dumps(CLASSES)}", "data.shape=[1,8,8]"]
    where = [] if path is None else [f"data.path={path}"]
    few = ["data.clients=3", "rounds=2", "model.name=mlp", "training.epochs=1"]
    return read_config(None, [*own, *where, *few, "participation.count=2", *pairs])


# Where it lies ------------------------------------------------------------------------------


def test_all_clients_of_a_folder_are_found_in_the_order_people_count(home):
    assert list(find_client_data(home)) == CLIENTS
    assert sort_names(["c10", "c2", "b", "1", "01"]) == ["01", "1", "b", "c2", "c10"]


def test_a_device_holds_those_that_it_names(home):
    assert find_client_data(home, ["kitchen", "attic"], "pi") == {
        "attic": home / "attic",
        "kitchen": home / "kitchen",
    }


@pytest.mark.parametrize("which", ["attic", "kitchen", "hall.npz"])
def test_a_single_client_has_the_name_of_its_device_or_another(home, which):
    assert find_client_data(home / which, alone="pi") == {"pi": home / which}
    assert find_client_data(home / which, ["cellar"], "pi") == {"cellar": home / which}


def lonely(path: Path) -> None:
    images(path / "in", 0, 3)


def doubled(path: Path) -> None:
    images(path / "in" / "a", 0, 3)
    (path / "in" / "a.npz").touch()


def unnameable(path: Path) -> None:
    images(path / "in" / "living room", 0, 3)


NOWHERE = {
    "nothing there": (lambda p: None, [], "there is no .*in; give the path of a folder"),
    "empty": (lambda p: (p / "in").mkdir(), [], "in holds no data: neither folders of images"),
    "a file of another kind": (lambda p: (p / "in").write_text("x"), [], "in holds no data"),
    "one client for two names": (lonely, ["a", "b"], "in holds the data of one client; give"),
    "twice": (doubled, [], "in/a and .*in/a.npz name the same client; remove one"),
    "another name": (
        lambda p: images(p / "in" / "attic", 0, 3),
        ["atic"],
        "in holds no data of client 'atic'; did you mean 'attic'",
    ),
    "no name": (unnameable, [], "'living room' cannot be a client's name; use 1 to 64"),
}


@pytest.mark.parametrize("case", NOWHERE)
def test_data_that_are_not_there_are_said_in_one_line(tmp_path, case):
    make, names, words = NOWHERE[case]
    make(tmp_path)
    with pytest.raises(DataError, match=words) as refused:
        find_client_data(tmp_path / "in", names, "pi")
    assert "\n" not in str(refused.value)


# What it is ---------------------------------------------------------------------------------


def colour(path: Path) -> Path:
    images(path, 0, 3)
    Image.new("RGB", (8, 8)).save(path / "one" / "colour.png")
    return path


def large(path: Path) -> Path:
    images(path, 0, 3)
    Image.new("L", (9, 8)).save(path / "one" / "large.png")
    return path


def torn(path: Path) -> Path:
    images(path, 0, 3)
    whole = (path / "one" / "001.png").read_bytes()
    (path / "one" / "torn.png").write_bytes(whole[:60])
    return path


def foreign(path: Path) -> Path:
    images(path, 0, 3)
    (path / "one").rename(path / "ones")
    return path


def empty(path: Path) -> Path:
    (path / "zero").mkdir(parents=True)
    return path


def numbers(path: Path, **arrays: np.ndarray) -> Path:
    file = path.with_suffix(".npz")
    np.savez(file, **arrays)
    return file


def damaged(path: Path) -> Path:
    file = path.with_suffix(".npz")
    file.write_bytes(b"PK no archive")
    return file


ODD = {
    "in colour": (colour, r"colour.png is 3×8×8; examples of the run are 1×8×8 \(data.shape\)"),
    "another size": (large, r"large.png is 1×8×9; examples of the run are 1×8×8"),
    "cut short": (torn, r"torn.png is not a readable image"),
    "another class": (foreign, r"ones: 'ones' is not among data.classes; did you mean 'one'"),
    "no images": (empty, "holds no folders of images, one per class"),
    "other numbers": (
        lambda p: numbers(p, x=np.zeros((4, 5), np.float32), y=np.arange(4) % 2),
        "has examples of 5; those of the run are 1×8×8",
    ),
    "a class too many": (
        lambda p: numbers(p, x=np.zeros((4, 8, 8), np.uint8), y=np.arange(4)),
        "has label 3, but data.classes has 3 classes, counted from 0",
    ),
    "a negative label": (
        lambda p: numbers(p, x=np.zeros((4, 8, 8), np.uint8), y=np.arange(4) - 1 - 1),
        "label -2 .* is negative",
    ),
    "NaN": (
        lambda p: numbers(p, x=np.full((4, 1, 8, 8), np.nan), y=np.arange(4) % 2),
        "the examples hold NaN or infinity",
    ),
    "damaged": (damaged, "cannot read .*npz"),
}


@pytest.mark.parametrize("case", ODD)
def test_data_of_another_kind_are_refused_in_one_line(tmp_path, case):
    make, words = ODD[case]
    path = make(tmp_path / "client")
    with pytest.raises(DataError, match=words) as refused:
        read_client_data(path, KIND)
    assert "\n" not in str(refused.value)


def test_grey_images_are_welcome_among_those_in_colour(tmp_path):
    found = read_client_data(colour(tmp_path / "client"), ExampleSpec((3, 8, 8), CLASSES))
    assert found.x.shape == (4, 3, 8, 8)
    assert (found.x[:, 0] == found.x[:, 1]).all()


def test_labels_are_those_of_the_run_also_where_a_class_is_missing(tmp_path):
    y = examples()[1]
    images(tmp_path / "client", 0, 20)
    shutil.rmtree(tmp_path / "client" / "zero")
    found = read_client_data(tmp_path / "client", KIND)
    assert sorted(found.y.tolist()) == sorted(y[:20][y[:20] > 0].tolist())
    assert found.labels == CLASSES


def test_types_do_not_mix_and_too_few_examples_are_said(tmp_path):
    plain = numbers(tmp_path / "a", x=np.zeros((4, 8, 8), np.uint8), y=np.arange(4) % 2)
    real = numbers(tmp_path / "b", x=np.zeros((4, 1, 8, 8)), y=np.arange(4) % 2)
    one = numbers(tmp_path / "c", x=np.zeros((1, 8, 8), np.uint8), y=np.zeros(1, int))
    two = numbers(tmp_path / "d", x=np.zeros((2, 8, 8), np.uint8), y=np.zeros(2, int))
    with pytest.raises(
        DataError, match="client b has examples of type float32, but client a of type uint8"
    ):
        load_own_federation({"a": plain, "b": real}, KIND, 0.5, 0)
    with pytest.raises(DataError, match="client c has 1 examples; it needs at least one to train"):
        load_own_federation({"c": one}, KIND, 0.5, 0)
    with pytest.raises(
        DataError, match="client d has only one training example, so none can be held out"
    ):
        load_own_federation({"a": plain, "d": two}, KIND, 0.5, 0, 0.5)


@pytest.mark.parametrize("fraction", [0.0, 0.3])
def test_a_client_alone_has_the_examples_that_it_has_among_others(home, fraction):
    config = configured(f"data.validation_fraction={fraction}", path=home)
    together = config.build_federation()
    assert together.clients == tuple(CLIENTS)
    assert together.sizes("test")["kitchen"] == 15  # as it says itself
    assert together.sizes("test")["attic"] == 10
    for client in CLIENTS:
        alone = config.load_client_folders({client: find_client_data(home)[client]})
        assert summarize_client(alone, client) == summarize_client(together, client)
        for part in ("train", "test", *(["validation"] if fraction else [])):
            a, b = (f.samples(client, part) for f in (alone, together))
            assert torch.equal(a.get_all_stored(), b.get_all_stored())
            assert torch.equal(a.labels, b.labels)
            assert a.scale == b.scale


# What a configuration says ------------------------------------------------------------------

WRONG = {
    "data.classes=[]": "data.classes: must be names or a number, not []",
    "data.classes=[1,2]": "data.classes: must be names or a number, not [1, 2]",
    'data.classes=["a","a"]': "data.classes: a name is listed twice",
    "data.classes=0": "data.classes: must be at least 1, not 0",
    "data.classes=many": "data.classes: must be a list or a whole number, not 'many'",
    "data.shape=[]": "data.shape: must be whole numbers above 0, not []",
    "data.shape=[3,-1]": "data.shape: must be whole numbers above 0, not [3, -1]",
    "data.shape=big": "data.shape: must be whole numbers above 0, not ['big']",
    "data.partition.kind=iid": "data.partition: cannot be set with data.name = 'own'; leave it out",
    "data.split=official": "data.split: cannot be set with data.name = 'own'; leave it out",
    "data.frozen_augment=true": "data.frozen_augment: cannot be set with data.name = 'own'; leave it out",
    "data.name=digits": "data.classes: digits has its own classes; leave it out",
}


@pytest.mark.parametrize("pair", WRONG)
def test_a_wrong_configuration_of_own_data_is_said(pair):
    with pytest.raises(ConfigError) as refused:
        configured(pair)
    assert str(refused.value) == WRONG[pair]


def test_what_is_missing_is_said(home):
    with pytest.raises(
        ConfigError, match=r"data\.classes: missing; set it to the names of the classes"
    ):
        read_config(None, ["data.name=own", "data.shape=[5]"])
    with pytest.raises(
        ConfigError, match=r"data\.shape: missing; set it to the shape of one example"
    ):
        read_config(None, ["data.name=own", "data.classes=5"])
    with pytest.raises(ConfigError, match=r"data\.path: missing; a simulation"):
        configured().build_federation()
    with pytest.raises(DataError, match=r"holds the data of 3 clients, but data\.clients is 4"):
        configured("data.clients=4", path=home).build_federation()


def test_a_configuration_of_own_data_can_be_written_and_read(tmp_path, home):
    config = configured("evaluation.share_personal=true", "engine.accelerator=cpu", path=home)
    (tmp_path / "config.toml").write_text(config.to_toml())
    assert read_config(tmp_path / "config.toml") == config
    assert configured("data.classes=3").data.classes == 3


# On devices ---------------------------------------------------------------------------------


def hello(config: Config, home: Path, *clients: str) -> Hello:
    held = config.load_client_folders({c: find_client_data(home)[c] for c in clients})
    shown = tuple(summarize_client(held, c) for c in clients)
    return Hello("s1", 1, __version__, "ab" * 32, shown)


def test_who_comes_first_takes_part_until_the_run_is_complete(home):
    config = configured("data.clients=2", "participation.count=1")
    first, late = hello(config, home, "attic", "hall"), hello(config, home, "kitchen")
    assert find_objection(config, {}, first) == ""
    held = {c.name: c for c in first.clients}
    assert find_objection(config, held, first) == ""
    whole = "the run of 2 clients is complete, and 'kitchen' is not among them"
    assert find_objection(config, held, late) == whole
    three = hello(config, home, *CLIENTS)
    assert "can take 2 more, and" in find_objection(config, {}, three)


def test_other_data_another_form_or_an_odd_name_is_refused(home):
    config = configured()
    good = hello(config, home, "attic")
    held = {"attic": good.clients[0]}

    def against(before: dict, **changes: object) -> str:
        other = replace(good.clients[0], **changes)
        return find_objection(config, before, replace(good, clients=(other,)))

    assert against(held, data_sha256="0" * 64).endswith("differ from those it started the run with")
    assert against(held, name="hall") == ""
    assert "have a different format" in against(held, name="hall", type="float32")
    assert "do not match data.shape" in against({}, shape=(1, 9, 9))
    assert against({}, name="../attic") == "'../attic' cannot be a client's name"


def test_data_and_configuration_must_agree(home):
    with pytest.raises(ConfigError, match="--data: missing; this run uses the clients"):
        load_federation(configured(), None)
    with pytest.raises(
        ConfigError, match="--data: the run uses the data set digits; leave out --data"
    ):
        load_federation(read_config(None), find_client_data(home))


def test_a_device_that_is_refused_ends_with_the_words_of_the_server():
    refused = object.__new__(BoardRun)
    refused.plan, refused.results = None, queue.Queue()
    refused.session = SimpleNamespace(
        has_everything=False, control=None, refusal_reason="the run is complete"
    )
    with pytest.raises(
        ConfigError, match="the server refuses this board: the run is complete"
    ) as ended:
        refused.advance()
    assert ended.value.exit_code == 3


@pytest.fixture(scope="module")
def broker(tmp_path_factory) -> Iterator[Path]:
    """A folder with the enrolments of a server and two devices; the broker is up."""
    folder = tmp_path_factory.mktemp("owndata-broker")
    with mosquitto(folder, "pi", "hall") as (made, _):
        shutil.copy(made.server_enrolment_file, folder)
        yield folder


def on_devices(config: Config, home: Path, enrolments: Path, folder: Path) -> Summary:
    """A server and two devices, each in a thread."""
    done: queue.Queue[Summary | BaseException | None] = queue.Queue()

    def device(name: str, data: dict[str, Path]) -> None:
        known = enrolled(enrolments / f"{name}.toml")
        say = [].append
        options = BoardOptions(data=data)
        BoardRun(known, folder.name, folder / name, list(data), say, options).run()

    def server() -> Summary:
        run = RunFolder(folder / "run")
        run.create(config.to_toml())
        known = enrolled(enrolments / "server.toml")
        try:
            return serve(config, run, known, folder.name, ServerHooks([].append))
        finally:
            run.close()

    def told(function, *args) -> None:
        try:
            done.put(function(*args))
        except BaseException as error:
            done.put(error)

    here = [(device, "pi", find_client_data(home, ["kitchen", "attic"])), (server,)]
    here.append((device, "hall", find_client_data(home / "hall.npz", alone="hall")))
    for words in here:
        threading.Thread(target=told, args=words, daemon=True).start()
    ends = []
    for _ in here:
        ends.append(done.get(timeout=LONG))
        if isinstance(ends[-1], BaseException):
            raise ends[-1]
    return next(s for s in ends if s is not None)


@cache
def simulated(home: Path, folder: Path, *pairs: str) -> Summary:
    config = configured(*pairs, path=home)
    run = RunFolder(folder / "serial")
    run.create(config.to_toml())
    try:
        engine = EngineSection(name="serial")
        return execute_plan(config.build_plan(config.build_federation()), run, engine)
    finally:
        run.close()


@pytest.mark.parametrize("shares", [False, True])
def test_devices_with_own_data_have_the_bits_of_a_simulation_and_g_where_they_may(
    monkeypatch, broker, home, tmp_path, shares
):
    sent: list[set[str]] = []

    def recorded(reply, aside):
        blob = encode(reply, aside)
        sent.append(set(codec.decode_blob(blob)[0]))
        return blob

    encode = job_codec.encode_reply
    monkeypatch.setattr(job_codec, "encode_reply", recorded)
    pairs = ("algorithm.name=fedper", f"evaluation.share_personal={str(shares).lower()}")
    there = on_devices(configured(*pairs), home, broker, tmp_path)
    alone = simulated(home, tmp_path, *pairs)
    assert list(there.clients) == list(alone.clients) == CLIENTS
    assert there.model_sha256 == alone.model_sha256
    assert there.P == alone.P
    assert there.bytes == alone.bytes
    travelled = set[str]().union(*sent)
    asides = {k for k in travelled if k.startswith("aside:")}
    assert any(k.startswith("base.") for k in travelled)
    assert not any(k.startswith("head.") for k in travelled)
    assert alone.personal_bytes is None
    if shares:
        assert there.G == alone.G is not None
        assert asides == {"aside:head.0.weight", "aside:head.0.bias"}
        assert there.personal_bytes == 2 * 2 * 4 * PERSONAL  # rounds, clients, bytes
    else:
        assert there.G is None
        assert not asides
        assert there.personal_bytes is None
