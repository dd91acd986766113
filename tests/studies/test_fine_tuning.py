"""Fine-tuning of a frozen net: what moves, what is stored, and the bits on every engine."""

from __future__ import annotations

import warnings
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import heterophony as hp
from helpers.support import identical
from heterophony.core.errors import ConfigError

HOW = hp.Training(epochs=1, batch=64, lr=0.05, momentum=0.9, drop_last=False)
SHORT = {"rounds": 2, "training": HOW, "progress": False, "participation": 1.0}


def make_text(n: int = 48) -> tuple[dict[str, Any], Any]:
    draw = np.random.default_rng(0)
    tokens = [draw.integers(1, 50, length) for length in draw.integers(3, 9, n)]
    return {"input_ids": tokens}, np.arange(n) % 2


def make_bert() -> nn.Module:
    """Make DistilBERT of random weights, with adapters of ``peft``."""
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    config = transformers.DistilBertConfig(
        vocab_size=50,
        max_position_embeddings=16,
        n_layers=1,
        n_heads=2,
        dim=16,
        hidden_dim=32,
        dropout=0.0,
        attention_dropout=0.0,
        seq_classif_dropout=0.0,
    )
    low_rank = peft.LoraConfig(
        task_type="SEQ_CLS", r=2, lora_alpha=4, target_modules=["q_lin", "v_lin"], lora_dropout=0.0
    )
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # between the two packages
        net: nn.Module = peft.get_peft_model(
            transformers.DistilBertForSequenceClassification(config), low_rank
        )
    return net


def test_a_peft_distilbert_learns_what_plain_torch_learns():
    (x, y), net = make_text(), make_bert()
    result = hp.run("fedavg", hp.federate([(x, y, x, y)]), model=net, **SHORT)
    tokens = nn.utils.rnn.pad_sequence([torch.from_numpy(v) for v in x["input_ids"]], True)
    plain = deepcopy(net).train()
    learned = [p for p in plain.parameters() if p.requires_grad]
    optimiser = torch.optim.SGD(learned, lr=0.05, momentum=0.9)
    for _ in range(2):
        optimiser.zero_grad()
        logits = plain(input_ids=tokens, attention_mask=tokens > 0).logits
        nn.functional.cross_entropy(logits, torch.from_numpy(y)).backward()
        optimiser.step()
    expected = plain.eval()(input_ids=tokens, attention_mask=tokens > 0).logits
    found = result.personal("0")(x)
    assert torch.allclose(found, expected, rtol=0, atol=1e-6)
    size = 4 * sum(p.numel() for p in learned)
    assert result.summary.bytes == {"up": 2 * size, "down": 2 * size}


@pytest.mark.parametrize("engine", ["pool", "ray", "resumed"])
def test_a_peft_distilbert_has_the_same_bits_on_every_engine(engine, tmp_path):
    if engine == "ray":
        pytest.importorskip("ray")
    x, y = make_text()
    federation = hp.federate((x, y), clients=3, partition=hp.IID())

    def run(**how: Any) -> Any:
        return hp.run("fedsa_lora", federation, model=make_bert(), **SHORT, **how)

    def interrupt(event: Any) -> None:
        if event["event"] == "round":
            raise KeyboardInterrupt

    if engine == "resumed":
        with pytest.raises(KeyboardInterrupt):
            run(out=tmp_path / "run", on_event=interrupt)
        other = run(out=tmp_path / "run", resume=True)
    else:
        other = run(engine=engine, workers=1)
    assert identical(run(), other)


class Wide(nn.Module):
    """A hundred times more frozen than trained numbers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(64, 400), nn.Linear(400, 72)
        self.fc = nn.Linear(72, 7)
        for layer in (self.first, self.second):
            layer.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.second(self.first(x).relu()).relu())


@pytest.mark.parametrize("engine", ["serial", "pool"])
def test_only_what_is_trained_moves_and_is_stored(engine, tmp_path):
    net = Wide()
    trained = 4 * sum(p.numel() for p in net.fc.parameters())
    assert 4 * sum(p.numel() for p in net.parameters()) > 100 * trained
    draw = np.random.default_rng(0)
    data = draw.normal(size=(84, 64)).astype(np.float32), np.arange(84) % 7
    federation = hp.federate(data, clients=3, partition=hp.IID())
    how = {"engine": engine, "workers": 1 if engine == "pool" else None, "out": tmp_path / "run"}
    result = hp.run("ditto", federation, model=net, **SHORT, **how)
    assert result.summary.bytes == {"up": 6 * trained, "down": 6 * trained}
    stored = [p.stat().st_size for p in (tmp_path / "run" / "commits").rglob("*") if p.is_file()]
    assert len(stored) == 2 + 3 * 2  # of the server, and of each client
    assert max(stored) < 4 * trained  # a personal model and two momenta; nothing that is given


def make_adapted() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    return hp.LoRA(rank=2).apply(net)


@pytest.mark.parametrize("algorithm", ["fedavg", "ffa_lora", "fedsa_lora"])
def test_example_dp_protects_adapters(algorithm):
    pytest.importorskip("opacus")
    how = {"protection": [hp.ExampleDP(noise=2.0, delta=1e-5)], "model": make_adapted()}
    result = hp.run(algorithm, hp.federate("digits", clients=3), **{**SHORT, "rounds": 1}, **how)
    assert result.summary.privacy["unit"] == "example"


def test_example_dp_says_why_it_cannot_protect_feddpa():
    pytest.importorskip("opacus")
    how = {"protection": [hp.ExampleDP(noise=2.0, delta=1e-5)], "model": make_adapted()}
    with pytest.raises(ConfigError, match="does not come from single examples"):
        hp.run("feddpa", hp.federate("digits", clients=3), **SHORT, **how)


def test_a_merged_model_is_exported_without_its_adapter():
    result = hp.run("fedsa_lora", hp.federate("digits", clients=3), model=make_adapted(), **SHORT)
    merged = result.personal("0", merge=True)
    program = torch.export.export(merged, (torch.rand(2, 1, 8, 8),))
    assert not [name for name in program.state_dict if "lora" in name]
