"""Examples that are dicts or tuples of arrays, and sequences of different lengths."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import heterophony as hp
from helpers.support import identical
from heterophony.core.errors import ConfigError, DataError
from heterophony.data.federation import Federation

N = 60
HOW = hp.Training(epochs=1, batch=8, lr=0.05, momentum=0.0, drop_last=False)
SHORT = {"rounds": 2, "training": HOW, "progress": False, "participation": 1.0}


def make_arrays() -> tuple[Any, Any, Any]:
    draw = np.random.default_rng(0)
    image = draw.integers(0, 256, (N, 8, 8, 3), np.uint8)
    table = draw.normal(size=(N, 5)).astype(np.float32)
    return image, table, np.arange(N) % 3


def make_sequences() -> tuple[list[Any], Any]:
    draw = np.random.default_rng(1)
    return [draw.integers(1, 20, n) for n in draw.integers(1, 12, N)], np.arange(N) % 3


class TwoInputs(nn.Module):
    """An image and a table."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.table, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(5, 6), nn.Linear(10, 3)

    def forward(self, image: Tensor, table: Tensor) -> Tensor:
        seen = self.conv(image).relu().mean((2, 3))
        return self.fc(torch.cat([seen, self.table(table).relu()], 1))


class Bag(nn.Module):
    """The mean over the tokens of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.fc = nn.Embedding(20, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
        weight = attention_mask.unsqueeze(-1).float()
        return self.fc((self.embedding(x) * weight).sum(1) / weight.sum(1))


def two_inputs(form: str = "tuple", clients: int = 3) -> Federation:
    image, table, y = make_arrays()
    x = (image, table) if form == "tuple" else {"table": table, "image": image}
    return hp.federate((x, y), clients=clients, partition=hp.IID())


def sequences() -> Federation:
    return hp.federate(make_sequences(), clients=3, partition=hp.IID())


def to_input(image: Any) -> Tensor:
    return (torch.from_numpy(image).permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.5


# What the net is called with ----------------------------------------------------------------------


@pytest.mark.parametrize("form", ["tuple", "dict"])
def test_two_inputs_learn_what_plain_torch_learns(form):
    image, table, y = make_arrays()
    x = (image, table) if form == "tuple" else {"table": table, "image": image}
    one = hp.federate([(x, y, x, y)])
    whole = hp.Training(epochs=2, batch=N, lr=0.05, momentum=0.9)
    result = hp.run("fedavg", one, model=TwoInputs(), **{**SHORT, "training": whole})
    net = TwoInputs()
    optimiser = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    inputs, labels = (to_input(image), torch.from_numpy(table)), torch.from_numpy(y)
    for _ in range(4):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(*inputs), labels).backward()
        optimiser.step()
    model, wanted = result.personal("0"), net(*inputs)
    for given in ((x,), (image, table)) if form == "tuple" else ((x,),):
        assert torch.allclose(model(*given), wanted, rtol=0, atol=1e-6)
    if form == "dict":
        assert torch.equal(model(**x), model(x))
    assert dict(net.named_parameters()).keys() == {
        k.removeprefix("base.").replace("head.", "fc.") for k, _ in model.net.named_parameters()
    }


def test_sequences_are_padded_to_the_longest_of_a_batch_and_masked():
    x, y = make_sequences()
    seen = []

    class Recording(Bag):
        def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
            seen.append((x.clone(), attention_mask.clone()))
            return super().forward(x, attention_mask)

    hp.run("fedavg", hp.federate([(x, y, x, y)]), model=Recording, **{**SHORT, "rounds": 1})
    padded = [
        tuple(row[m].tolist()) for tokens, mask in seen for row, m in zip(tokens, mask, strict=True)
    ]
    assert set(padded) == {tuple(v.tolist()) for v in x}
    for tokens, mask in seen:
        assert mask.dtype == torch.bool
        assert bool(mask.any(0).all())  # no column is padding alone
        assert int(tokens[~mask].abs().sum()) == 0


def test_a_dict_of_sequences_gets_one_mask_unless_it_has_one():
    x, y = make_sequences()
    both = {"x": x, "attention_mask": [np.ones(len(v), np.int64) for v in x]}
    one = hp.federate(({"x": x}, y), clients=3, partition=hp.IID())
    two = hp.federate((both, y), clients=3, partition=hp.IID())
    results = [hp.run("fedavg", f, model=Bag(), **SHORT) for f in (one, two)]
    assert [f.mask for f in one.record.fields] == ["attention_mask"]
    assert [f.mask for f in two.record.fields] == ["", ""]
    assert results[0]._server.model.digest() == results[1]._server.model.digest()
    model = results[0].personal("0")
    padded = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(v) for v in x], True)
    mask = torch.arange(padded.shape[1]) < torch.tensor([len(v) for v in x])[:, None]
    assert torch.equal(model({"x": x}), model(x=padded, attention_mask=mask))
    longer = [np.ones(40, np.int64)]  # than any in the data
    assert model(x=longer).shape == (1, 3)


def test_a_dataset_may_return_tuples_or_dicts():
    image, table, y = make_arrays()

    class Data(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return N

        def __getitem__(self, i: int) -> Any:
            return {"table": table[i], "image": image[i], "labels": int(y[i])}

    found = hp.federate(Data(), clients=3, partition=hp.IID())
    assert found.sha256 == two_inputs("dict").sha256


# Everywhere ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "algorithm", ["fedavg", "ditto", "fedper", "scaffold", "apfl", "fedrod", "local"]
)
@pytest.mark.parametrize("make", [(two_inputs, TwoInputs), (sequences, Bag)], ids=["two", "text"])
def test_any_algorithm_takes_them(algorithm, make):
    federation, model = make[0](), make[1]
    result = hp.run(algorithm, federation, model=model(), **SHORT)
    assert sum(r.total for r in result.clients.values()) == sum(federation.sizes("test").values())


@pytest.mark.parametrize(
    ("make", "engine"),
    [
        ((two_inputs, TwoInputs), "pool"),
        ((sequences, Bag), "pool"),
        ((two_inputs, TwoInputs), "ray"),
    ],
    ids=["two-pool", "text-pool", "two-ray"],
)
def test_the_bits_are_the_same_on_every_engine(make, engine):
    if engine == "ray":
        pytest.importorskip("ray")
    results = [
        hp.run(
            "ditto",
            make[0](),
            model=make[1](),
            engine=e,
            workers=None if e == "serial" else 1,
            **SHORT,
        )
        for e in ("serial", engine)
    ]
    assert identical(*results)


def test_a_stored_federation_is_the_same(tmp_path):
    federation = sequences()
    federation.save(tmp_path)
    stored = Federation.open(tmp_path)
    assert (stored.sha256, stored.record) == (federation.sha256, federation.record)


def test_a_split_net_takes_them_too():
    module = TwoInputs()

    class Base(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.table = module.conv, module.table

        def forward(self, image: Tensor, table: Tensor) -> Tensor:
            return torch.cat([self.conv(image).relu().mean((2, 3)), self.table(table).relu()], 1)

    nets = [deepcopy(module), hp.Net(Base(), module.fc)]
    found = [hp.run("fedper", two_inputs(), model=net, **SHORT) for net in nets]
    assert identical(*found)


def test_a_model_with_two_inputs_is_exported(tmp_path):
    pytest.importorskip("onnx")
    image, table, _ = make_arrays()
    model = hp.run("fedavg", two_inputs(), model=TwoInputs(), **SHORT).personal("0")
    x = (to_input(image[:2]), torch.from_numpy(table[:2]))
    program = torch.export.export(model, x)
    assert torch.allclose(program.module()(*x), model(*x), rtol=0, atol=1e-6)


# Mistakes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ({"image": np.zeros((N, 4)), "table": np.zeros((N - 1, 2))}, "'table' has 59 examples"),
        ({"image": np.array(["a"] * N)}, "'image' of type <U1 cannot be used"),
        ({}, "must be a dict of arrays by name"),
        ([np.zeros((i % 2 + 1, i % 3 + 1)) for i in range(N)], "only the length of a sequence may"),
        ([np.ones(i % 3, np.int64) for i in range(N)], "example 0 of 'x' is an empty sequence"),
        ((np.full((N, 2), np.nan), np.zeros((N, 1))), "'0' holds NaN or infinity"),
    ],
)
def test_wrong_examples_are_one_line(x, message):
    with pytest.raises(DataError, match=message):
        hp.federate((x, np.arange(N) % 3), clients=3, partition=hp.IID())


def test_what_needs_one_array_says_so():
    with pytest.raises(
        ConfigError, match="a named model accepts only one array as input; for examples of 0 3×8×8"
    ):
        hp.run("fedavg", two_inputs(), model="mlp", **SHORT)
    with pytest.raises(ConfigError, match="Linear cannot process examples of 0 3×8×8, 1 5"):
        hp.run("fedavg", two_inputs(), model=nn.Linear(5, 3), **SHORT)
    image, table, y = make_arrays()
    with pytest.raises(DataError, match="needs examples that are one image"):
        hp.federate(((image, table), y), clients=3, transform="fedavg2rep")
    model = hp.run("fedavg", two_inputs(), model=TwoInputs(), **SHORT).personal("0")
    with pytest.raises(DataError, match="the model expects 0 3×8×8, 1 5, not 1 arrays"):
        model(image)
