"""Nets that differ by client: dealt by the seed, refused where an algorithm averages them."""

from pathlib import Path

import pytest
import torch
from torch import nn

import heterophony as hp
from heterophony.algorithms import ALGORITHM_CLASSES, get_algorithm_class
from heterophony.config.nets import assign_nets, list_mixed_algorithms
from heterophony.config.reading import resolve_config
from heterophony.config.sections import NetGroup
from heterophony.core.errors import ConfigError
from heterophony.core.files import read_json
from heterophony.models import NET_GROUPS, find_model_name, get_model_builder
from heterophony.studies.spec import RunSpec

NETS = ("mlp", "digitsnet", "smallcnn")
GROUPS = [{"name": name, "share": 1 / 3} for name in NETS]
SHORT = hp.Training(epochs=1, batch=32)


def make_spec(algorithm: str, groups: object = GROUPS) -> RunSpec:
    raw = {
        "rounds": 2,
        "data": {"name": "digits", "clients": 12},
        "model": {"group": groups},
        "algorithm": {"name": algorithm},
    }
    return RunSpec(resolve_config(raw)).load_data()


def test_nets_are_dealt_by_the_seed_in_their_shares() -> None:
    clients = [str(i) for i in range(12)]
    groups = [
        NetGroup("mlp", ["3"]),
        NetGroup("smallcnn", share=0.25),
        NetGroup("digitsnet", share=0.75),
    ]
    dealt = assign_nets(groups, clients, 0)
    assert list(dealt) == clients
    assert dealt["3"] == "mlp"
    assert sorted(dealt.values()) == ["digitsnet"] * 8 + ["mlp"] + ["smallcnn"] * 3
    assert assign_nets(groups, clients, 0) == dealt != assign_nets(groups, clients, 1)


def test_one_group_is_one_net() -> None:
    plan = make_spec("fedavg", [{"name": "mlp", "share": 1.0}]).build_plan()
    assert not plan.net_of
    assert not plan.nets


def test_a_configuration_names_the_clients_of_every_group() -> None:
    spec = make_spec("local")
    again = resolve_config(
        {
            "data": {"name": "digits", "clients": 12},
            "model": {"groups": "cnn-3"},
            "algorithm": {"name": "local"},
        }
    )
    assert [len(group["clients"]) for group in spec.config.model.group or ()] == [4, 4, 4]
    assert RunSpec(again).load_data().build_plan().nets.keys() == set(NET_GROUPS["cnn-3"])
    assert spec.build_plan().net_of.keys() == set(map(str, range(12)))


@pytest.mark.parametrize(
    ("algorithm", "groups", "message"),
    [
        ("local", [{"name": "mlp", "share": 0.5}], "shares must add up to 1, not 0.5"),
        ("local", [{"name": "mlp", "clients": ["x"]}], "no client 'x'"),
        ("local", [{"name": "mlp", "clients": ["1"]}], "client '0' is in no group"),
        ("local", [{"name": "mlp"}], "either clients or share"),
        ("local", [], "must have a table with a name"),
        ("local", [[1]], "must have a table with a name"),
        ("local", ["mlp"], "must have a table with a name"),
        ("local", [{"name": "mpl", "share": 1.0}], "did you mean 'mlp'"),
        ("local", [{"name": "mlp@0", "share": 1.0}], "the width must be above 0 and at most 1"),
        ("local", [{"name": "resnet8@0.5", "share": 1.0}], "has only one width"),
    ],
)
def test_mistakes_are_one_line(algorithm: str, groups: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        make_spec(algorithm, groups).build_plan()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", [n for n in ALGORITHM_CLASSES if n not in list_mixed_algorithms()])
def test_an_algorithm_that_averages_nets_refuses_different_ones(name: str) -> None:
    with pytest.raises(ConfigError, match=r"or one of .*feddistill, .*fedproto, .*local$"):
        make_spec(name).build_plan()
    assert get_algorithm_class(name).needs_nets == "same"


def test_boards_need_named_clients() -> None:
    config = resolve_config({"data": {"name": "digits"}, "model": {"groups": "cnn-3"}})
    with pytest.raises(ConfigError, match="on boards, every group must list its clients"):
        config.build_board_plan(config.build_federation())


def test_a_narrow_net_has_slices_of_the_whole_one() -> None:
    assert find_model_name("ConvNet@0.50") == "convnet@0.5"
    assert find_model_name("convnet@1") == "convnet"
    nets = []
    for name in ("digitsnet", "digitsnet@0.3"):
        torch.manual_seed(0)
        nets.append(get_model_builder(name)((1, 8, 8), 10, 1))
    whole, narrow = (net.state_dict() for net in nets)
    assert nets[1].width == 0.3
    assert narrow["base.0.weight"].shape == (5, 1, 3, 3)
    assert narrow["head.0.weight"].shape == (10, 20)
    for k, v in narrow.items():
        assert torch.equal(v, whole[k][tuple(map(slice, v.shape))])
    assert nets[1](torch.zeros(2, 1, 8, 8)).shape == (2, 10)


class OwnNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(64, 24), nn.Linear(24, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.out(self.hidden(x.flatten(1)).relu())
        return out


def test_python_takes_a_dict_a_list_or_a_function(tmp_path: Path) -> None:
    clients = hp.federate("digits", clients=4)
    by_name = dict(zip("0123", ("mlp", "smallcnn") * 2, strict=True))
    hashes = [
        hp.run(
            "local", clients, model=model, rounds=1, training=SHORT, out=tmp_path / str(i)
        ).summary.model_sha256
        for i, model in enumerate([by_name, ["mlp", "smallcnn"], lambda c: by_name[c]])
    ]
    assert len(set(hashes)) == 1
    assert read_json(tmp_path / "0" / "partition.json")["nets"] == by_name
    own = hp.run("fedproto", clients, model=["mlp", OwnNet], rounds=1, training=SHORT)
    assert list(own.plan.nets) == ["mlp", "OwnNet"]
    assert own.personal("1").net.base[2].weight.shape == (100, 24)
    with pytest.raises(ConfigError, match="client '3' has no model"):
        hp.run("local", clients, model={"0": "mlp", "1": "mlp", "2": "smallcnn"})
    with pytest.raises(ConfigError, match="no client '7'"):
        hp.run("local", clients, model={"7": "mlp"})
