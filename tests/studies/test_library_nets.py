"""Nets of timm and transformers by name, and texts read by a tokenizer: offline, from folders."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import nn

import heterophony as hp
from helpers.commands import refused
from helpers.support import digits, identical, played
from heterophony.config.reading import read_config
from heterophony.core.errors import ConfigError

SMALL = {"rounds": 1, "participation": 1.0, "training": hp.Training(steps=2, batch=4, lr=0.05)}
WORDS = {
    "spam": ["win", "money", "now", "free", "offer"],
    "ham": ["see", "you", "at", "nine", "today"],
}


@pytest.fixture(scope="module")
def transformers() -> ModuleType:
    return pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def bert(transformers, tmp_path_factory) -> Path:
    """A folder with a small DistilBERT that was trained for another task, and its tokenizer."""
    tokenizers = pytest.importorskip("tokenizers")
    folder = tmp_path_factory.mktemp("hub") / "tiny-bert"
    sizes = {"n_layers": 1, "n_heads": 2, "dim": 16, "hidden_dim": 32}
    config = transformers.DistilBertConfig(vocab_size=300, max_position_embeddings=256, **sizes)
    torch.manual_seed(1)
    transformers.DistilBertForMaskedLM(config).save_pretrained(folder)
    known = ["[PAD]", "[UNK]", *WORDS["spam"], *WORDS["ham"]]
    model = tokenizers.models.WordLevel({w: i for i, w in enumerate(known)}, unk_token="[UNK]")
    plain = tokenizers.Tokenizer(model)
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="[PAD]", unk_token="[UNK]"
    )
    fast.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> Path:
    """A table of texts with a column of clients."""
    draw, file = np.random.default_rng(0), tmp_path_factory.mktemp("texts") / "mail.csv"
    rows = [("ann", "spam"), ("ann", "ham"), ("bob", "spam"), ("bob", "ham")] * 6
    lines = [f"{' '.join(draw.choice(WORDS[y], draw.integers(1, 9)))},{y},{c}" for c, y in rows]
    file.write_text("\n".join(["text,label,client", *lines]))
    return file


def federate_texts(texts: Path, bert: Path) -> hp.Federation:
    return hp.federate(str(texts), tokenizer=str(bert))


# Texts ------------------------------------------------------------------------------------------


def test_a_column_of_texts_is_read_once_by_the_tokenizer(texts, bert):
    read = federate_texts(texts, bert)
    assert list(read.train) == ["ann", "bob"]
    assert read.labels == ("ham", "spam")
    (field,) = read.record.fields
    assert (field.name, field.is_sequence, field.mask) == ("input_ids", True, "attention_mask")
    first = texts.read_text().splitlines()[1].split(",")[0].split()
    known = ["[PAD]", "[UNK]", *WORDS["spam"], *WORDS["ham"]]
    tokens = read.record.unpack(read.x[:1])["input_ids"][0]
    assert [known[t] for t in tokens] == first


def test_without_a_tokenizer_a_column_of_texts_is_bytes(texts):
    read = hp.federate(str(texts))
    first = texts.read_text().splitlines()[1].split(",")[0]
    assert bytes(int(t) - 1 for t in read.x[0][: len(first)]) == first.encode()
    assert read.x.shape == (24, 256)


def test_folders_of_texts_take_a_tokenizer(bert, tmp_path):
    for client in ("ann", "bob"):
        for label, words in WORDS.items():
            (tmp_path / client / label).mkdir(parents=True)
            for i in range(len(words)):
                (tmp_path / client / label / f"{i}.txt").write_text(" ".join(words[: i + 1]))
            (tmp_path / client / label / "empty.txt").write_text("")
    read = hp.federate(str(tmp_path), tokenizer=str(bert))
    assert sorted(map(int, read.x[:, 0]))[:3] == [1, 1, 1]  # the length is in the first word
    assert list(read.train) == ["ann", "bob"]


def test_a_column_called_text_beside_numbers_may_be_of_categories(tmp_path):
    rows = [f"{i},{'high' if i % 3 else 'low'},{i % 2}" for i in range(12)]
    (tmp_path / "t.csv").write_text("\n".join(["size,text,label", *rows]))
    assert hp.federate(str(tmp_path / "t.csv"), clients=2, partition="iid").x.shape == (12, 3)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["data.name=digits", "data.tokenizer=x"], "data.tokenizer: digits has no texts; leave it"),
        (["data.name=t.csv", "data.tokenizer=x"], "data.tokenizer: t.csv has no text, that is, no"),
        (
            ["data.name=mail.csv", "data.tokenizer=no/such"],
            "data.tokenizer: no/such is not in the cache of Hugging Face on this machine; a run"
            " downloads nothing: get it with 'hf download no/such', or give a folder that contains",
        ),
        (["data.name=mail.csv", "data.tokenizer=empty"], "data.tokenizer: empty holds no readable"),
    ],
)
def test_a_wrong_tokenizer_is_one_line(settings, said, transformers, tmp_path, monkeypatch):
    (tmp_path / "t.csv").write_text("a,label\n1,0\n2,1\n")
    (tmp_path / "mail.csv").write_text("text,label\nsee you,0\nwin now,1\n")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    line = refused(3, "run", "fedavg", *(w for s in settings for w in ("-c", s)))
    assert line.startswith(said)


# transformers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["pool", "ray", "resumed"])
def test_a_named_net_has_the_serial_bits_everywhere(engine, texts, bert, tmp_path):
    if engine == "ray":
        pytest.importorskip("ray")
    federation = federate_texts(texts, bert)
    how = {**SMALL, "rounds": 2, "model": f"transformers:{bert}"}

    def interrupt(event: hp.Event) -> None:
        if event["event"] == "round":
            raise KeyboardInterrupt

    if engine == "resumed":
        with pytest.raises(KeyboardInterrupt):
            played("fedper", federation, out=tmp_path / "run", on_event=interrupt, **how)
        other = played("fedper", federation, out=tmp_path / "run", resume=True, **how)
    else:
        other = played("fedper", federation, engine=engine, workers=1, **how)
    assert identical(other, played("fedper", federation, **how))


def build_net(*settings: str) -> hp.Net:
    config = read_config(None, [*settings, "data.split=merged"])
    return config.build_plan(config.build_federation()).model()


def test_pretrained_loads_the_weights_and_draws_the_head(texts, bert, transformers):
    words = [f"data.name={texts}", f"data.tokenizer={bert}", f"model.name=transformers:{bert}"]
    expected = transformers.DistilBertForMaskedLM.from_pretrained(bert).state_dict()
    name = "distilbert.transformer.layer.0.attention.q_lin.weight"
    nets = {how: build_net(*words, *how) for how in ((), ("model.pretrained=true",))}
    found = {how: dict(net.state_dict()) for how, net in nets.items()}
    weights = {how: next(v for k, v in d.items() if k.endswith(name)) for how, d in found.items()}
    assert torch.equal(weights[("model.pretrained=true",)], expected[name])
    assert not torch.equal(weights[()], expected[name])
    heads = [nets[how].head.weight for how in nets]
    assert {h.shape for h in heads} == {(2, 16)}
    folder = ("model.name=transformers:distilbert-base-uncased", f"model.pretrained={bert}")
    again = build_net(*words[:2], *folder)
    assert torch.equal(again.head.weight, nets[("model.pretrained=true",)].head.weight)


def test_a_net_of_texts_reads_rows_of_bytes_and_takes_an_adapter(texts, bert):
    targets = '{kind="lora",rank=2,targets=["*.q_lin","*.v_lin"]}'
    name = f"model.name=transformers:{bert}"
    net = build_net(f"data.name={texts}", name, f"model.adapter={targets}")
    trained = [k for k, p in net.named_parameters() if p.requires_grad]
    assert {k.rpartition(".")[2] for k in trained if k.startswith("base.")} == {"lora_A", "lora_B"}
    rows = torch.zeros(2, 256, dtype=torch.int64)
    rows[1, :5] = 7
    logits = net.eval()(rows)
    assert logits.shape == (2, 2)
    assert logits.isfinite().all()  # also of an empty text


def test_a_vision_transformer_takes_the_shape_of_the_images(transformers, tmp_path):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.ViTConfig(**sizes, intermediate_size=32, patch_size=4)
    config.save_pretrained(tmp_path / "vit")
    result = played("fedper", digits(clients=2), model=f"transformers:{tmp_path / 'vit'}", **SMALL)
    assert result.personal("0")(torch.rand(3, 1, 8, 8)).shape == (3, 10)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            ["model.name=transformers:no/such-net"],
            "model.name: transformers:no/such-net is not in the cache of Hugging Face on this machine;"
            " a run downloads nothing: get it with 'hf download no/such-net', or give a folder that"
            " contains it, as in transformers:path/to/folder",
        ),
        (["model.name=transformers:./nowhere"], "model.name: there is no folder ./nowhere"),
        (
            ["model.name=transformers:."],
            "model.name: transformers:. cannot be read: ",
        ),
        (
            ["model.name=transformers:"],
            "model.name: 'transformers:' lacks the name of a net; write transformers:distilbert-base-uncased",
        ),
        (["model.name=mlp", "model.pretrained=true"], "model.pretrained: only for nets of timm"),
        (
            ['model.group=[{name="transformers:x",share=1.0}]'],
            "model.group.name: transformers:x can only be the net of all clients",
        ),
    ],
)
def test_a_net_that_cannot_be_had_is_one_line(settings, said, transformers, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = refused(3, "run", "fedavg", *(w for s in settings for w in ("-c", s)))
    assert line.startswith(said)


# timm -------------------------------------------------------------------------------------------


def create_model(name, pretrained=False, pretrained_cfg_overlay=None, **how):
    """Build a net as timm does; its first bias says how it was called."""
    if name != "resnet18":
        raise RuntimeError(f"Unknown model ({name})")
    net = nn.Sequential(nn.Flatten(), nn.LazyLinear(8), nn.ReLU(), nn.Linear(8, how["num_classes"]))
    net(torch.zeros(1, how["in_chans"], 8, 8))
    if pretrained:
        file = (pretrained_cfg_overlay or {}).get("file", "")
        nn.init.constant_(net[1].bias, float(len(Path(file).name)))
    return net


@pytest.fixture
def timm(monkeypatch) -> None:
    """A stand-in for timm: the package needs torchvision."""
    module = ModuleType("timm")
    module.__spec__ = ModuleSpec("timm", None)
    module.create_model = create_model
    monkeypatch.setitem(sys.modules, "timm", module)


def test_a_net_of_timm_is_built_for_the_images_and_classes(timm, tmp_path):
    name, file = "timm:resnet18", tmp_path / "weights.pth"
    file.touch()
    assert build_net("data.name=digits", f"model.name={name}").head[0].weight.shape == (10, 8)
    found = build_net("data.name=digits", f"model.name={name}", f"model.pretrained={file}")
    assert torch.equal(found.base[1].bias, torch.full((8,), float(len(file.name))))
    assert played("fedper", digits(clients=2), model=name, **SMALL).G is not None


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["model.name=timm:resnet19"], "model.name: timm:resnet19 cannot be built: Unknown model"),
        (
            ["model.name=timm:resnet18", "model.pretrained=no.pth"],
            "model.pretrained: there is no file no.pth",
        ),
    ],
)
def test_a_mistake_with_timm_is_one_line(settings, said, timm):
    with pytest.raises(ConfigError) as caught:
        build_net("data.name=digits", *settings)
    assert str(caught.value).startswith(said)


def test_without_timm_its_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ConfigError, match=r"timm:resnet18 needs timm; install it with pip install"):
        read_config(None, ["model.name=timm:resnet18"])
