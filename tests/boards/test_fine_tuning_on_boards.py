"""Fine-tuning on boards, over Mosquitto: frozen nets, several inputs, and given tensors that are sent once."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers.boards import compute_one_at_a_time, mosquitto, on_boards, simulated, small
from heterophony.boards import board as board_module
from heterophony.boards.board import BoardOptions, BoardRun
from heterophony.boards.broker.enrolment import Enrolment
from heterophony.boards.journal import parse_journal_line, read_journal
from heterophony.boards.protocol.blobs import GivenStore
from heterophony.config.checkpoint import save_checkpoint
from heterophony.core.tensors import Tensors

MODULE = '''
import warnings

import torch
from torch import nn

from heterophony.models.resnets import resnet18


class Both(nn.Module):
    """A net that takes an image and a table; most of it is frozen."""

    def __init__(self):
        super().__init__()
        self.image, self.table = nn.Linear(48, 8), nn.Linear(5, 8)
        self.head = nn.Linear(8, 2)
        self.image.requires_grad_(False)

    def forward(self, image, table):
        return self.head((self.image(image.flatten(1)) + self.table(table)).relu())


def make_resnet():
    net = resnet18((3, 8, 8), 2, 1)
    net.base.requires_grad_(False)
    return net


def make_bert():
    import peft
    import transformers

    config = transformers.DistilBertConfig(
        vocab_size=50, max_position_embeddings=16, n_layers=1, n_heads=2, dim=16, hidden_dim=32
    )
    low_rank = peft.LoraConfig(
        task_type="SEQ_CLS", r=2, target_modules=["q_lin", "v_lin"], lora_dropout=0.0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # between the two packages
        net = transformers.DistilBertForSequenceClassification(config)
        return peft.get_peft_model(net, low_rank)
'''


class TrustingBoard(BoardRun):
    """A board started with ``--trust``."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments, BoardOptions(trust=True))


@pytest.fixture(scope="module")
def known(tmp_path_factory) -> Iterator[dict[str, Enrolment]]:
    with mosquitto(tmp_path_factory.mktemp("broker"), "one", "two") as (_, known):
        yield known


@pytest.fixture
def nets(tmp_path, monkeypatch) -> Iterator[Path]:
    """A folder on the import path with the module and the data of every net."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "frozen_nets.py").write_text(MODULE)
    monkeypatch.syspath_prepend(folder)
    compute_one_at_a_time(monkeypatch)
    draw, y = np.random.default_rng(0), np.arange(48) % 2
    image = draw.integers(0, 256, (48, 3, 8, 8), np.uint8)
    table = draw.normal(size=(48, 5)).astype(np.float32)
    tokens = draw.integers(1, 50, (48, 8)) * (np.arange(8) < draw.integers(3, 9, (48, 1)))
    np.savez(folder / "make_resnet.npz", x=image, y=y)
    np.savez(folder / "Both.npz", y=y, **{"x.image": image[:, :, :4, :4], "x.table": table})
    both = {"x.input_ids": tokens, "x.attention_mask": (tokens > 0).astype(np.int64)}
    np.savez(folder / "make_bert.npz", y=y, **both)
    yield folder
    sys.modules.pop("frozen_nets", None)


@pytest.mark.parametrize(
    ("net", "algorithm"),
    [("make_resnet", "fedper"), ("Both", "ditto"), ("make_bert", "fedsa_lora")],
)
def test_frozen_nets_have_the_bits_of_a_simulation(net, algorithm, known, nets, tmp_path):
    if net == "make_bert":
        pytest.importorskip("peft")
        pytest.importorskip("transformers")
    how = {"data.name": nets / f"{net}.npz", "model.name": f"frozen_nets:{net}"}
    how |= {"training.steps": 1, "training.batch": 4}
    if net == "make_resnet":  # every trial of the server trains it
        how |= {"rounds": 1, "training.steps": 1}
    config = small(algorithm, trust=True, **how)
    alone, _ = simulated(config, tmp_path / "alone")
    kinds = dict.fromkeys(known, TrustingBoard)
    result, _ = on_boards(config, known, tmp_path / net, kinds=kinds)
    assert result.model_sha256 == alone.model_sha256
    assert result.bytes == alone.bytes


def test_a_checkpoint_is_sent_once_and_kept_for_later_runs(known, tmp_path, monkeypatch):
    compute_one_at_a_time(monkeypatch)
    start = {
        f"{k}.weight": torch.randn(n) for k, n in (("base.1", (100, 64)), ("head.0", (10, 100)))
    }
    start |= {"base.1.bias": torch.zeros(100), "head.0.bias": torch.zeros(10)}
    save_checkpoint(tmp_path / "start.safetensors", Tensors(start))
    adapter = '{kind="lora",rank=2}'
    config = small(
        "fedsa_lora", **{"model.init": tmp_path / "start.safetensors"} | {"model.adapter": adapter}
    )
    alone, _ = simulated(config, tmp_path / "alone")
    # on another machine there is no such file
    monkeypatch.setattr(
        board_module, "parse_config", lambda text, trust: config.begin_with(Path("/no"))
    )
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / "boards").symlink_to(tmp_path / "first" / "boards")
    for name, boards in (("first", ["one", "two"]), ("second", [])):
        lines = []
        result, _ = on_boards(config, known, tmp_path / name, say=lines.append)
        assert result.model_sha256 == alone.model_sha256
        assert result.bytes == alone.bytes
        facts = [parse_journal_line(line) for line in read_journal(tmp_path / name / "run")]
        given = {f.board: f.details["bytes"] for f in facts if f.kind == "given"}
        size = (tmp_path / "start.safetensors").stat().st_size
        assert given == dict.fromkeys(boards, size)
        assert (
            f"boards that lack the checkpoint {tmp_path}/start.safetensors receive it once: 0.0 MB"
            in lines
        )


def test_a_damaged_checkpoint_on_disk_is_fetched_again(tmp_path):
    store, sha256 = GivenStore(tmp_path / "given"), hashlib.sha256(b"weights").hexdigest()
    assert store.find(sha256) is None
    store.put(sha256, b"weights")
    assert (
        GivenStore(tmp_path / "given").find(sha256) == tmp_path / "given" / f"{sha256}.safetensors"
    )
    (tmp_path / "given" / f"{sha256}.safetensors").write_bytes(b"wrong")
    assert GivenStore(tmp_path / "given").find(sha256) is None
