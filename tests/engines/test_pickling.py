"""What the pool's workers receive: classes that only this process has, and what cannot be sent."""

from __future__ import annotations

import pickle
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from threading import Lock

import pytest
from torch import nn

import heterophony as hp
from helpers.support import digits, identical, played
from heterophony.core.errors import EngineError
from heterophony.engines import wire as pickling
from heterophony.engines.wire import pickle_for_children, unpickle_from_parent

POOL = {"engine": "pool", "workers": 2}


def said(value: object) -> str:
    """The error of pickling; it has one line."""
    with pytest.raises(EngineError) as caught:
        pickle_for_children(value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def in_main(monkeypatch):
    """Puts a class into ``__main__``, which a notebook or a prompt cannot be imported from."""

    def put(cls: type, importable: bool = False) -> type:
        main = sys.modules["__main__"]
        cls.__module__, cls.__qualname__ = "__main__", cls.__name__
        monkeypatch.setattr(main, cls.__name__, cls, raising=False)
        if importable:
            monkeypatch.setattr(main, "__file__", "script.py", raising=False)
        elif hasattr(main, "__file__"):
            monkeypatch.delattr(main, "__file__")
        return cls

    return put


def test_a_class_and_a_model_that_no_file_has_run_on_the_pool_with_the_serial_bits():
    @dataclass(frozen=True)
    class Mine(hp.Algorithm):
        part: float = hp.setting(0.5, "how far", low=0, high=1)

        def merge(self, server, replies):
            return server.update(server.model + self.part * (hp.mean(replies) - server.model))

    how = {"model": lambda: hp.Net(nn.Flatten(), nn.Linear(64, 10)), "rounds": 2}
    assert identical(played(Mine(0.25), **how, **POOL), played(Mine(0.25), **how))


def test_what_a_module_defines_is_sent_by_its_name():
    content = pickle_for_children(hp.FedProx(mu=0.1))
    assert content == pickle.dumps(hp.FedProx(mu=0.1))


@pytest.mark.parametrize("importable", [False, True])
def test_a_class_of_a_notebook_or_a_script_is_sent_by_value(in_main, monkeypatch, importable):
    class Mine(hp.Algorithm):
        def ready(self, t):
            return t > 2

    content = pickle_for_children(in_main(Mine, importable)())
    monkeypatch.delattr(sys.modules["__main__"], "Mine")
    received = unpickle_from_parent(content)
    assert [received.ready(t) for t in (2, 3)] == [False, True]


def test_a_class_of_a_script_is_sent_by_name_where_its_value_cannot_be(in_main):
    lock = Lock()

    class Mine(hp.Algorithm):
        def local(self, client):
            with lock:
                return super().local(client)

    content = pickle_for_children(in_main(Mine, importable=True)())
    assert type(unpickle_from_parent(content)) is Mine


# What cannot be sent --------------------------------------------------------------------------


@dataclass(frozen=True)
class Locked(hp.Algorithm):
    """Holds a lock."""

    def __post_init__(self):
        object.__setattr__(self, "notes", {"lock": Lock()})


WHY = (
    "(cannot pickle '_thread.lock' object); create it inside the method that uses it, or use the"
    " serial engine"
)


def test_an_own_algorithm_that_cannot_be_sent_is_named_and_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(EngineError) as caught:
        played(Locked(), rounds=1, **POOL)
    assert not any(tmp_path.glob("heterophony-*"))
    words = f"the pool engine cannot send algorithm.notes['lock'] to its workers {WHY}"
    assert str(caught.value) == words


def test_what_an_own_model_uses_is_named():
    lock = Lock()
    with pytest.raises(EngineError) as caught:
        played("fedavg", model=lambda: lock and hp.Net(nn.Flatten(), nn.Linear(64, 10)), **POOL)
    assert "cannot send 'lock', which test_what_an_own_model_uses_is_named." in str(caught.value)
    assert str(caught.value).endswith(WHY)


def test_what_a_method_or_a_function_uses_is_named(in_main):
    lock = Lock()

    class Mine(hp.Algorithm):
        def local(self, client):
            with lock:
                return super().local(client)

    words = f"the pool engine cannot send 'lock', which Mine.local uses, to its workers {WHY}"
    Mine.local.__qualname__ = "Mine.local"
    assert said([in_main(Mine)()]) == words
    assert "'lock', which " in said(partial(lambda: lock))


@pytest.mark.filterwarnings("ignore:hp.sweep")
def test_a_sweep_names_it_too():
    with pytest.raises(EngineError, match=r"^the pool engine cannot send algorithm\.notes\['lock'"):
        hp.sweep(Locked(), digits(), {"lr": [0.1, 0.2]}, rounds=1, **POOL)


def test_without_cloudpickle_the_extra_is_named(in_main, monkeypatch):
    monkeypatch.setattr(pickling, "find_spec", lambda name: None)

    class Mine(hp.Algorithm): ...

    text = said(Mine())
    assert text.startswith("the pool engine needs cloudpickle to send its workers a class or func")
    assert text.endswith("pip install 'heterophony[notebook]', or use the serial engine")
    assert "Mine" in text
    assert said(in_main(Mine)()) == text.replace(text[text.index(" (") : text.index(";")], "")
    in_main(Mine, importable=True)
    assert pickle_for_children(hp.FedAvg())
