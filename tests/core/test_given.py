"""Given parameters, which are frozen when a run begins: never trained, sent or stored; and tied weights."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import heterophony as hp
from helpers.support import digits, identical, memory, played
from heterophony.algorithms import ALGORITHM_CLASSES
from heterophony.core.errors import ConfigError, DataError, FolderError
from heterophony.models.resnets import resnet18

HOW = hp.Training(epochs=2, batch=64, lr=0.02, momentum=0.9, weight_decay=0.01)
STEPS = 2 * 2  # of two rounds in which a batch holds all examples


class Perceptron(nn.Module):
    """A backbone of two layers, and a classifier."""

    def __init__(self, shape: tuple[int, ...] = (1, 8, 8)) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(int(np.prod(shape)), 16), nn.BatchNorm1d(16)
        self.second, self.fc = nn.Linear(16, 12), nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.second(self.norm(self.first(x.flatten(1))).relu()).relu())


def frozen_backbone() -> Perceptron:
    net = Perceptron().requires_grad_(False)
    net.fc.requires_grad_(True)
    return net


def frozen_resnet() -> hp.Net:
    net = resnet18((3, 32, 32), 10, 1)
    net.base.requires_grad_(False)
    return net


def with_lora() -> nn.Module:
    peft = pytest.importorskip("peft")
    low_rank = peft.LoraConfig(
        r=2, lora_alpha=4, target_modules=["second"], modules_to_save=["fc"], lora_dropout=0.0
    )
    return peft.get_peft_model(Perceptron(), low_rank)


def one_client(shape: tuple[int, ...], n: int) -> tuple[hp.Federation, Tensor, Tensor]:
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(n, *shape)).astype(np.float32), np.arange(n) % 10
    return hp.federate([(x, y, x, y)], classes=10), torch.from_numpy(x), torch.from_numpy(y)


def train_in_torch(net: nn.Module, x: Tensor, y: Tensor) -> nn.Module:
    """What anybody would write: an optimiser of what has a gradient, and a loop."""
    net = deepcopy(net).train()
    learned = [p for p in net.parameters() if p.requires_grad]
    optimiser = torch.optim.SGD(learned, lr=0.02, momentum=0.9, weight_decay=0.01)
    for _ in range(STEPS):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimiser.step()
    return net


def find(net: hp.Net, name: str) -> Tensor:
    """The tensor of a net that was cut before ``fc``, by its name in one piece."""
    tensors = net.state_dict()
    names = (name, f"base.{name}", f"head.{name.partition('fc.')[2]}")
    return next(tensors[k] for k in names if k in tensors)


@pytest.mark.parametrize(
    ("make", "shape", "n"),
    [(frozen_backbone, (1, 8, 8), 40), (with_lora, (1, 8, 8), 40), (frozen_resnet, (3, 8, 8), 10)],
)
def test_it_learns_what_plain_torch_learns_and_sends_what_learns(make, shape, n):
    given, (federation, x, y) = make(), one_client(shape, n)
    how = {"model": given, "rounds": 2, "participation": 1.0, "evaluate_every": 2}
    result = hp.run("fedavg", federation, training=HOW, progress=False, **how)
    net, expected = result.personal("0").net, train_in_torch(given, x, y)
    for name, right in expected.state_dict().items():  # BatchNorm's statistics move in both
        assert torch.allclose(find(net, name), right, rtol=1e-6, atol=1e-6), name
    learned = [p for p in given.parameters() if p.requires_grad]
    size = 4 * sum(p.numel() for p in learned)
    assert 0 < size < 4 * sum(p.numel() for p in given.parameters())
    assert result.summary.bytes == {"up": 2 * size, "down": 2 * size}
    assert 4 * result.summary.shared_parameters == size
    for name, p in given.named_parameters():
        assert p.requires_grad or torch.equal(find(net, name), p), name
    assert sum(v.numel() for v in memory(result, "0")["momentum/main"].values()) == size // 4


# What is given ------------------------------------------------------------------------------------


def test_tensors_that_are_frozen_are_listed_as_given_and_copies_of_them_too():
    kinds = {t.name: t.kind for t in hp.list_tensors(frozen_backbone(), "ditto")}
    given = ("first.weight", "first.bias", "norm.weight", "norm.bias", "second.weight")
    assert {kinds[f"{part}base.{k}"] for part in ("", "own.") for k in given} == {"given"}
    assert kinds["base.norm.running_mean"] == kinds["own.base.norm.running_var"] == "buffer"
    assert (kinds["head.weight"], kinds["own.head.weight"]) == ("shared", "personal")


def test_running_statistics_of_a_frozen_layer_are_personal_or_averaged_as_of_any_other():
    results = [
        played("fedavg", model=frozen_backbone(), rounds=1, buffers=how)
        for how in ("local", "average")
    ]
    personal, shared = ("base.norm.running_mean", "base.norm.running_var"), results[1]._server.model
    assert set(results[0]._server.model) == {"head.weight", "head.bias"}
    assert set(shared) == {"head.weight", "head.bias", *personal}


def test_a_net_is_left_as_it_was():
    given = frozen_backbone()
    net = hp.Net(nn.Sequential(nn.Flatten(), given.first), nn.Linear(16, 10))
    hp.list_tensors(net, "ditto")
    played("ditto", model=net, rounds=1)
    assert {k for k, _ in net.named_children()} == {"base", "head"}
    assert hp.weights(net).keys() == dict(net.named_parameters()).keys()


def test_frozen_parameters_stay_given_if_a_conversion_replaces_them():
    """With this switch of torch, ``net.to`` makes new parameters, without the marks of the old ones."""
    switch = torch.__future__.set_overwrite_module_params_on_conversion
    before = torch.__future__.get_overwrite_module_params_on_conversion()
    net = hp.split(nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 10)))
    net.base.requires_grad_(False)
    expected = played("ditto", model=net, rounds=2)
    switch(True)
    try:
        result = played("ditto", model=net, rounds=2)
    finally:
        switch(before)
    assert set(result.plan.given) == {
        f"{own}base.0.{k}" for own in ("", "own.") for k in ("weight", "bias")
    }
    assert set(result._server.model) == {"head.0.weight", "head.0.bias"}
    assert identical(expected, result)


def test_weights_params_and_state_leave_out_what_is_given_also_while_other_parts_rest():
    seen = []

    class Curious(hp.Algorithm):
        def local(self, client):
            net = client.net

            def look():
                seen.extend(set(f(m)) for f in (hp.weights, hp.params) for m in (net, teacher))
                seen.append({k for k in hp.state(net) if "norm" not in k})

            teacher = hp.frozen(net)
            client.fit(train=net.base, after=look)
            return client.shared()

    net = frozen_backbone()
    net.second.requires_grad_(True)
    played(Curious(), model=net, rounds=1)
    learned = {f"{part}.{k}" for part in ("base.second", "head") for k in ("weight", "bias")}
    assert seen
    assert all(names == learned for names in seen)


def test_clients_share_the_memory_of_what_is_given():
    found = []

    class Looking(hp.Algorithm):
        def local(self, client):
            found.append({k: p.data_ptr() for k, p in client.net.named_parameters()})
            found.append({k: p.data_ptr() for k, p in hp.frozen(client.net).named_parameters()})
            client.fit()
            return client.shared()

    result = played(Looking(), model=frozen_backbone(), rounds=1)
    template = {k: p.data_ptr() for k, p in result.plan.template.named_parameters()}
    for of_client in found:
        same = {k for k, place in of_client.items() if place == template[k]}
        assert same == {k for k in template if not k.startswith("head.")}


def test_a_reply_never_has_what_is_given():
    class Everything(hp.Algorithm):
        def local(self, client):
            client.fit()
            return hp.Tensors(client.net.state_dict())

    result = played(Everything(), model=frozen_backbone(), rounds=1)
    assert not any(k.startswith(("base.first", "base.second")) for k in result._server.model)


@pytest.mark.parametrize(
    ("train", "said"),
    [
        (lambda net: [net.base.first.weight], "base.first.weight"),
        (lambda net: net.base.parameters(), "base.first.weight"),
        (lambda net: [net.head, [net.base.second.bias]], "base.second.bias"),
    ],
)
def test_a_frozen_parameter_that_fit_is_told_to_train_is_an_error(train, said):
    class Thawing(hp.Algorithm):
        def local(self, client):
            client.fit(train=train(client.net))
            return client.shared()

    with pytest.raises(ConfigError) as caught:
        played(Thawing(), model=frozen_backbone())
    assert str(caught.value) == (
        f"client.fit: train contains '{said}', which is frozen (requires_grad=False) when the run"
        " starts; unfreeze it before the run, or remove it from train"
    )


@pytest.mark.parametrize(
    ("algorithm", "frozen", "said"),
    [
        ("fedavg", ("first", "norm", "second", "fc"), "model: all of its parameters are frozen ("),
        ("pfedgate", ("first", "norm", "second", "fc"), "pfedgate: all parameters of the model"),
        ("fedgen", ("fc",), "fedgen: the head is frozen, so it cannot be trained"),
        (
            "fixhead",
            ("fc",),
            "model: this algorithm replaces the last layer of the head, which is frozen;",
        ),
        (
            hp.MOON(projection=True),
            ("fc",),
            "algorithm.projection: the projection replaces the head",
        ),
    ],
)
def test_what_makes_no_sense_with_a_frozen_part_is_refused_in_one_line(algorithm, frozen, said):
    net = Perceptron()
    for name in frozen:
        net.get_submodule(name).requires_grad_(False)
    with pytest.raises(ConfigError) as caught:
        played(algorithm, model=net)
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)


def test_a_frozen_layer_keeps_its_weight_where_others_are_factorised_or_drawn_anew():
    net = Perceptron()
    net.first.requires_grad_(False)
    for name in ("feddecomp", "fedpara", "pfedpara"):
        names = {t.name for t in hp.list_tensors(net, name)}
        assert "base.first.weight" in names
        assert any("parametrizations" in k for k in names) == (name != "fedpara")
    built = played(hp.IFCA(clusters=2), model=net, rounds=0).plan.template.state_dict()
    assert torch.equal(built["clusters.0.base.first.weight"], net.first.weight)
    assert not torch.equal(built["clusters.0.base.second.weight"], net.second.weight)


# The same everywhere -----------------------------------------------------------------------------


class StopError(Exception):
    pass


def stop(event):
    if event["event"] == "round":
        raise StopError


def test_workers_and_a_resumed_run_have_the_values_of_the_user(tmp_path):
    net, folder = frozen_backbone(), tmp_path / "run"
    expected = played("ditto", model=net, rounds=2)
    assert identical(expected, played("ditto", model=net, rounds=2, engine="pool", workers=2))
    with pytest.raises(StopError):
        played("ditto", model=net, rounds=2, out=folder, resume=True, on_event=stop)
    other = deepcopy(net)
    other.first.weight.data[0, 0] += 1
    with pytest.raises(FolderError, match="the net is not the one the run was started with"):
        played("ditto", model=other, rounds=2, out=folder, resume=True)
    assert identical(expected, played("ditto", model=net, rounds=2, out=folder, resume=True))
    loaded = hp.load(folder, federation=digits(), model=net).personal("1").net.state_dict()
    assert torch.equal(loaded["own.base.first.weight"], net.first.weight)
    with pytest.raises(DataError, match="pass the model with the weights the run was started with"):
        hp.load(folder, federation=digits(), model=other).personal("1")


def test_the_hash_of_the_models_covers_what_is_given():
    """With no training at all, nothing else tells the two runs apart."""
    net, still = frozen_backbone(), hp.Training(steps=0)
    hashes = []
    for _ in range(2):
        hashes.append(played("fedavg", model=net, rounds=1, training=still).model_sha256)
        net.first.weight.data[0, 0] += 1
    assert hashes[0] != hashes[1]


# Tied weights ------------------------------------------------------------------------------------


class Tied(nn.Module):
    """The classifier's weight is the embedding's, and two inner layers are one."""

    def __init__(self, across: bool = True) -> None:
        super().__init__()
        self.embed, self.inner = nn.Linear(64, 10, bias=False), nn.Linear(64, 64)
        self.again, self.fc = nn.Linear(64, 64), nn.Linear(64, 10)
        self.again.weight = self.inner.weight
        if across:
            self.fc.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(x.flatten(1)).relu() + self.embed(x.flatten(1)).sum(1, keepdim=True)
        return self.fc(self.again(x).relu())


def test_tied_weights_across_the_cut_are_refused_where_one_part_is_personal():
    with pytest.raises(ConfigError) as caught:
        played("fedper", model=Tied())
    assert str(caught.value) == (
        "model: 'base.embed.weight' and 'head.weight' are one tensor (tied weights), and FedPer treats"
        " base and head differently; give each part a separate tensor, or choose an algorithm that"
        " shares both, such as fedavg"
    )
    with pytest.raises(ConfigError, match="are one tensor"):
        hp.list_tensors(Tied(), "fedper")


TREAT_THE_HEAD_APART = {
    "fedas", "fedavg2rep", "fedbabu", "fedcp", "fedgen", "fedgh", "fedpac", "fedper", "fedreg",
    "fedrep", "fedrep_full", "gpfl", "lgfedavg", "pfakd",
}  # fmt: skip
REPLACE_THE_LAST_LAYER = {"fedetf", "fixhead", "gausshead", "pfedfda"}


@pytest.mark.parametrize("name", sorted(ALGORITHM_CLASSES))
def test_every_algorithm_takes_tied_weights_or_refuses_them_in_one_line(name):
    how = {"model": Tied(), "training": hp.Training(steps=1, batch=8), "rounds": 1}
    how |= {"evaluate_every": 2}
    few = digits(clients=2, examples=60)
    if name in TREAT_THE_HEAD_APART:
        with pytest.raises(ConfigError, match=r"^model: 'base.embed.weight' and 'head.weight' are"):
            played(name, few, **how)
        return
    result = played(name, few, **how)
    net = result.personal("0").net
    if name not in ("feddecomp", "feddpa"):  # which add a personal part to each use
        assert net.base.again.weight is net.base.inner.weight
        assert name in REPLACE_THE_LAST_LAYER or net.head.weight is net.base.embed.weight
    assert not {"base.again.weight", "head.weight"} & set(memory(result, "0").get("net", {}))


def test_an_alias_is_of_the_kind_of_its_tensor_and_neither_sent_nor_stored():
    kinds = {t.name: t.kind for t in hp.list_tensors(Tied(), "fedavg")}
    assert set(kinds.values()) == {"shared"}
    assert kinds.keys() >= {"base.again.weight", "head.weight"}
    inside = {t.name: t.kind for t in hp.list_tensors(Tied(across=False), "fedper")}
    assert inside["base.again.weight"] == "shared"
    assert inside["head.weight"] == "personal"
    result = played("fedper", model=Tied(across=False), rounds=1, participation=1.0)
    assert "base.again.weight" not in result._server.model
    assert set(memory(result, "0")["net"]) == {"head.weight", "head.bias"}


def test_a_tied_tensor_that_is_given_may_cross_the_cut():
    net = Tied()
    net.embed.weight.requires_grad_(False)
    kinds = {t.name: t.kind for t in hp.list_tensors(net, "fedper")}
    assert kinds["base.embed.weight"] == kinds["head.weight"] == "given"
