"""Configuration: whatever a user writes is taken exactly, or refused with its key, line and remedy."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import torch

from heterophony.algorithms.fedavg import FedAvg
from heterophony.algorithms.fedprox import FedProx
from heterophony.algorithms.fedreg import FedReG
from heterophony.config.config import Config, choose_default_model
from heterophony.config.reading import apply_override, find_line, parse_toml_value, read_config
from heterophony.config.sections import (
    AggregationSection,
    DataSection,
    EngineSection,
    EvaluationSection,
    ModelSection,
    TopSection,
)
from heterophony.core.errors import ConfigError
from heterophony.core.training import Training
from heterophony.population.participation import Uniform

DIRICHLET = {
    "kind": "dirichlet",
    "alpha": 0.1,
    "min_size": 10,
    "max_retries": 2000,
    "top_up": False,
}
EXAMPLE = """\
seed = 0
rounds = 100

[data]
name = "fmnist"
clients = 50
partition = { kind = "dirichlet", alpha = 0.1 }
train_fraction = 0.75

[model]
name = "convnet"
head_depth = 2

[algorithm]
name = "fedreg"
threshold = "mean"

[training]
epochs = 5
batch = 20
lr = 0.01
momentum = 0.9
weight_decay = 0.0

[participation]
rate = 0.2

[evaluation]
every = 1

[engine]
name = "pool"
workers = 2
accelerator = "cpu"
"""


def refused(path: Path | None, *pairs: str) -> str:
    """The one line that a user sees."""
    with pytest.raises(ConfigError) as caught:
        read_config(path, pairs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Writes my.toml where we are."""
    monkeypatch.chdir(tmp_path)

    def write(text: str) -> Path:
        Path("my.toml").write_text(text)
        return Path("my.toml")

    return write


# What is taken ------------------------------------------------------------------------------


def test_without_anything_every_key_has_its_default():
    assert read_config(None) == Config(
        top=TopSection(seed=0, rounds=100),
        data=DataSection("digits", None, 20, DIRICHLET, 0.75),
        model=ModelSection(None, None),
        algorithm=FedAvg(),
        algorithm_name="fedavg",
        training=Training(epochs=5, steps=None, batch=10, lr=0.1, momentum=0.0, weight_decay=0.0),
        participation=Uniform(rate=0.2),
        aggregation=AggregationSection("samples"),
        evaluation=EvaluationSection(1),
        engine=EngineSection("pool", None, "auto"),
    )


def test_the_contracts_example_is_taken_whole(written):
    assert read_config(written(EXAMPLE)) == Config(
        top=TopSection(0, 100),
        data=DataSection("fmnist", None, 50, DIRICHLET, 0.75),
        model=ModelSection("convnet", 2),
        algorithm=FedReG(threshold="mean"),
        algorithm_name="fedreg",
        training=Training(epochs=5, batch=20, lr=0.01, momentum=0.9, weight_decay=0.0),
        participation=Uniform(rate=0.2),
        aggregation=AggregationSection("samples"),
        evaluation=EvaluationSection(1),
        engine=EngineSection("pool", 2, "cpu"),
    )


def keys(table: dict, above: str = "") -> list[str]:
    """All dotted keys of nested tables."""
    return [
        name
        for k, v in table.items()
        for name in (keys(v, f"{above}{k}.") if isinstance(v, dict) else [above + k])
    ]


@pytest.mark.parametrize("key", keys(tomllib.loads(EXAMPLE)))
def test_every_key_of_the_example_is_also_a_pair(key):
    value = tomllib.loads(EXAMPLE)
    for step in key.split("."):
        value = value[step]
    pairs = [f"{key}={value}"]
    if key == "algorithm.threshold":
        pairs.append("algorithm.name=fedreg")
    config = tomllib.loads(read_config(None, pairs).to_toml())
    for step in key.split("."):
        config = config[step]
    assert config == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("fedreg", "fedreg"),
        ('"fedreg"', "fedreg"),
        ("7", 7),
        ("-1", -1),
        ("1e-2", 0.01),
        ("0.5", 0.5),
        (".1", 0.1),
        ("-.5e2", -50.0),
        ("1.", 1.0),
        (".", "."),
        ("true", True),
        ("True", "True"),
        ("my data/x.npz", "my data/x.npz"),
        ("{ kind = 'iid' }", {"kind": "iid"}),
        ("[1, 2]", [1, 2]),
        ("", ""),
    ],
)
def test_a_value_is_toml_or_a_bare_word(text, value):
    assert parse_toml_value(text) == value


@pytest.mark.parametrize(
    ("pair", "value"),
    [
        ("evaluation.metrics=confusion", ["confusion"]),
        ("evaluation.metrics=f1,auc", ["f1", "auc"]),
        ("evaluation.metrics=[f1, 'auc']", ["f1", "auc"]),
        ("data.classes=ill, well", ["ill", "well"]),
        ("data.classes=1,2", ["1", "2"]),
        ("data.classes=4", 4),
        ("data.shape=3,32,32", [3, 32, 32]),
        ("data.shape=8", [8]),
        ("training.betas=.9,.99", [0.9, 0.99]),
        ("training.lr=.1", 0.1),
        ("training.optimizer=adam", "adam"),
    ],
)
def test_a_list_needs_no_brackets(pair, value):
    raw: dict = {}
    section, _, key = apply_override(raw, pair).partition(".")
    assert raw == {section: {key: value}}


def test_pairs_override_the_file_and_later_pairs_earlier_ones(written):
    path = written("seed = 3\n[training]\nlr = 0.5\nbatch = 8\n")
    config = read_config(path, ["training.lr=0.1", " seed = 4 ", "training.lr=0.2"])
    assert (config.top.seed, config.training.lr, config.training.batch) == (4, 0.2, 8)


def test_a_path_with_an_equals_sign_is_a_value():
    assert read_config(None, ["data.name=a=b.npz"]).data.name == "a=b.npz"


@pytest.mark.parametrize(
    "pairs",
    [
        ["data.partition={kind='classes', per_client=3}"],
        ["data.partition.kind=classes", "data.partition.per_client=3"],
        ["data.partition.per_client=3", "data.partition.kind=classes"],
        ["data.partition={kind='classes'}", "data.partition.per_client=3"],
    ],
)
def test_a_partition_is_given_whole_or_key_by_key(pairs):
    assert read_config(None, pairs).data.partition == {
        "kind": "classes",
        "per_client": 3,
        "balanced": True,
        "min_size": 10,
    }


def test_another_feature_skew_leaves_the_files_settings_of_the_old_one(written):
    path = written("[data.feature_skew]\nkind = 'rotation'\ndegrees = 10\n")
    assert read_config(path).data.feature_skew == {"kind": "rotation", "degrees": 10}
    noise = read_config(path, ["data.feature_skew.kind=noise"]).data.feature_skew
    assert noise == {"kind": "noise", "level": 0.2}


def test_the_federation_is_the_same_whatever_the_algorithm():
    some = ["data.clients=5", "data.feature_skew.kind=noise", "data.partition.min_size=2"]
    names = ("fedavg", "fedreg", "local", "feddecomp")
    found = {
        read_config(None, [*some, f"algorithm.name={n}"]).build_federation().sha256 for n in names
    }
    others = {read_config(None, [*some, f"seed={s}"]).build_federation().sha256 for s in range(3)}
    assert len(found) == 1
    assert len(others | found) == 3


def test_of_rate_and_count_the_newer_pair_counts(written):
    assert read_config(None, ["participation.count=3"]).participation == Uniform(count=3)
    both = ["participation.count=3", "participation.rate=0.5"]
    assert read_config(None, both).participation == Uniform(rate=0.5)
    assert read_config(None, both[::-1]).participation == Uniform(count=3)
    path = written("[participation]\ncount = 7\n")
    assert read_config(path).participation == Uniform(count=7)
    assert read_config(path, ["participation.rate=1"]).participation == Uniform(rate=1)


def test_another_algorithm_leaves_the_files_settings_of_the_old_one(written):
    path = written('[algorithm]\nname = "fedreg"\nthreshold = "max"\n')
    assert read_config(path, ["algorithm.name=fedavg"]).algorithm == FedAvg()
    assert read_config(path, ["algorithm.name=fedreg"]).algorithm == FedReG(threshold="max")
    assert read_config(path, ["algorithm.augment=auto"]).algorithm == FedReG("max", augment="auto")
    given = ["algorithm.mu=0.5", "algorithm.name=fedprox"]
    assert read_config(path, given).algorithm == FedProx(mu=0.5)
    unnamed = written("[algorithm]\nmu = 0.5\n")
    assert read_config(unnamed, ["algorithm.name=fedprox"]).algorithm == FedProx(mu=0.5)


def test_another_partition_leaves_the_files_settings_of_the_old_one(written):
    path = written('[data.partition]\nkind = "dirichlet"\nalpha = 5.0\n')
    assert read_config(path, ["data.partition.kind=iid"]).data.partition == {"kind": "iid"}
    assert read_config(
        path, ["data.partition.seed=4", "data.partition.kind=iid"]
    ).data.partition == {
        "kind": "iid",
        "seed": 4,
    }
    assert read_config(path, ["data.partition.min_size=2"]).data.partition == {
        **DIRICHLET,
        "alpha": 5.0,
        "min_size": 2,
    }


@pytest.mark.parametrize(
    "pairs",
    [
        [],
        ["seed=9", "rounds=0", "data.path=/some where/ü", "training.steps=4", "engine.workers=3"],
        ["algorithm.name=fedreg", "algorithm.variant=b", "data.partition.kind=iid"],
        ["data.split=official", "data.partition.seed=3", "data.feature_skew.kind=noise"],
        ["data.partition={kind='natural', test_windows=4}", "data.feature_skew={kind='rotation'}"],
        [
            "participation.count=2",
            "training.drop_last=false",
            "training.lr=1e-05",
            "model.name=mlp",
        ],
    ],
)
def test_what_is_resolved_reads_back_as_the_same(written, pairs):
    config = read_config(None, [*pairs, "engine.accelerator=cpu"])
    again = read_config(written(config.to_toml()))
    assert again == config
    assert again.to_toml() == config.to_toml()


def test_a_run_stays_on_the_kind_of_device_that_it_began_on(written, monkeypatch):
    config = read_config(None, ["engine.precision=bfloat16", "engine.deterministic=false"])
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert config.engine.choose_compute().device.type == "cuda"
    again = read_config(written(config.to_toml())).engine
    assert (again.accelerator, again.precision, again.deterministic) == ("cuda", "bfloat16", False)
    old = read_config(written('[engine]\nname = "pool"\ndevice = "cpu"\n'))
    assert old.engine.choose_compute().is_cpu
    assert "precision" not in old.to_toml()


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ("engine.accelerator=gpu", "engine.accelerator: must be auto, cpu, cuda,"),
        ("engine.accelerator=cuda:x", "engine.accelerator: must be auto"),
        ("engine.accelerator=mps:1", "engine.accelerator: must be auto"),
        ("engine.precision=half", "engine.precision: "),
    ],
)
def test_a_device_that_cannot_be_meant_is_refused(pair, message):
    with pytest.raises(ConfigError, match=message):
        read_config(None, [pair])


def test_a_device_on_ray_agrees_with_what_a_job_reserves():
    ray = ["engine.name=ray", "engine.gpus=0.5"]
    assert read_config(None, ray).engine.choose_compute().device.type == "cuda"
    assert read_config(None, ray[:1]).engine.choose_compute().is_cpu
    with pytest.raises(ConfigError, match=r"needs engine\.gpus above 0"):
        read_config(None, [*ray[:1], "engine.accelerator=cuda"])
    with pytest.raises(ConfigError, match="Ray assigns the GPUs"):
        read_config(None, [*ray, "engine.accelerator=cuda:1"])


def test_the_resolved_text_has_every_default():
    assert tomllib.loads(read_config(None).to_toml()) == {
        "seed": 0,
        "rounds": 100,
        "data": {
            "name": "digits",
            "clients": 20,
            "train_fraction": 0.75,
            "transform": "half",
            "frozen_augment": False,
            "split": "merged",
            "new_clients": 0.0,
            "partition": DIRICHLET,
        },
        "model": {"buffers": "local"},
        "algorithm": {"name": "fedavg"},
        "training": {
            "epochs": 5,
            "batch": 10,  # batch, lr and momentum are those of digits
            "lr": 0.1,
            "momentum": 0.0,
            "weight_decay": 0.0,
            "momentum_state": "persist",
            "drop_last": True,
        },
        "participation": {"rate": 0.2, "replacement": False, "dropout": 0.0},
        "speeds": {"sample_seconds": 0.0, "spread": 0.0},
        "aggregation": {"weights": "samples"},
        "evaluation": {
            "every": 1,
            "new_client_rounds": 1,
            "keep_best": False,
            "choose_by": "P",
            "share_personal": False,
        },
        "engine": {"name": "pool", "accelerator": "cpu"},
    }


@pytest.mark.parametrize(
    ("pairs", "model"),
    [
        ([], ModelSection("digitsnet", 1)),
        (["algorithm.name=fedreg"], ModelSection("digitsnet", 2)),
        (["algorithm.name=fedreg", "model.head_depth=1"], ModelSection("digitsnet", 1)),
        (["model.name=mlp"], ModelSection("mlp", 1)),
    ],
)
def test_the_model_is_decided_by_the_data_and_the_paper(pairs, model):
    config = read_config(None, ["data.clients=2", "data.partition.kind=iid", *pairs])
    assert config.fill_model_defaults(config.build_federation()).model == model


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ((1, 28, 28), "convnet"),
        ((3, 16, 16), "convnet"),
        ((3, 15, 40), "digitsnet"),
        ((1, 8, 8), "digitsnet"),
        ((1, 3, 8), "mlp"),
        ((561,), "mlp"),
    ],
)
def test_a_suitable_model(shape, name):
    assert choose_default_model(shape) == name


def test_rows_of_whole_numbers_are_read_as_characters():
    assert (
        choose_default_model((80,), torch.int8)
        == choose_default_model((80,), torch.int64)
        == "charlstm"
    )
    assert choose_default_model((80,), torch.int64, characters=False) == "text_tiny"
    assert (
        choose_default_model((80,), torch.uint8)
        == choose_default_model((80,), torch.float64)
        == "mlp"
    )


# What is refused ----------------------------------------------------------------------------

REFUSED = [  # section, line, what is said
    ("", "sead = 1", "sead: unknown key; did you mean 'seed'?"),
    ("", "seed = 'x'", "seed: must be a whole number, not 'x'"),
    ("", "seed = -1", "seed: must be at least 0, not -1"),
    ("", "seed = true", "seed: must be a whole number, not True"),
    ("", "rounds = 1.5", "rounds: must be a whole number, not 1.5"),
    ("", "training = 3", "training: must be a section, as in [training]"),
    ("trainin", "lr = 1", "trainin: unknown key; did you mean 'training'?"),
    (
        "training",
        "learning = 1",
        "training.learning: unknown key; choose from: batch, betas, clip_norm,",
    ),
    ("training", "momentun = 1", "training.momentun: unknown key; did you mean 'momentum'?"),
    ("local", "lr = 'fast'", "training.lr: must be a number, not 'fast'"),
    ("local", "lr = -0.1", "training.lr: must be at least 0, not -0.1"),
    ("local", "lr = nan", "training.lr: must be a finite number, at least 0, not nan"),
    ("local", "batch = 0", "training.batch: must be at least 1, not 0"),
    ("local", "drop_last = 1", "training.drop_last: must be true or false, not 1"),
    ("data", "clients = 0", "data.clients: must be at least 1, not 0"),
    ("data", "partition = 3", "data.partition: must be a table, not 3"),
    (
        "data",
        "partition = { kind = 'dirichlett' }",
        "data.partition.kind: unknown name 'dirichlett'; did you mean 'dirichlet'?",
    ),
    ("data", "partition = { kind = ['iid'] }", "data.partition.kind: unknown name '['iid']'"),
    ("data", "split = 'train'", "data.split: must be one of merged, official, not 'train'"),
    ("data", "feature_skew = 3", "data.feature_skew: must be a table, not 3"),
    (
        "data",
        "feature_skew = {}",
        "data.feature_skew.kind: unknown name ''; choose from: noise, rotation",
    ),
    (
        "data",
        "feature_skew = { kind = 'rotation', degrees = 200 }",
        "data.feature_skew.degrees: must be at least 0 and at most 180, not 200",
    ),
    ("data", "partition = { kind = 'shards', mode = 'x' }", "data.partition.mode: must be one of"),
    ("data", "partition = { seed = -1 }", "data.partition.seed: must be at least 0, not -1"),
    ("data", "partition = { alpha = 0 }", "data.partition.alpha: must be above 0, not 0"),
    (
        "data",
        "partition = { aplha = 1 }",
        "data.partition.aplha: unknown key; did you mean 'alpha'?",
    ),
    (
        "data",
        "train_fraction = 1.5",
        "data.train_fraction: must be above 0 and at most 1, not 1.5",
    ),
    ("model", "name = 'convnett'", "model.name: unknown name 'convnett'; did you mean 'convnet'?"),
    ("model", "head_depth = 0", "model.head_depth: must be at least 1, not 0"),
    (
        "algorithm",
        "name = 'fedregg'",
        "algorithm.name: unknown name 'fedregg'; did you mean 'fedreg'?",
    ),
    (
        "algorithm",
        "name = 3",
        "algorithm.name: unknown name '3'; choose from: apfl, apple, centralized,",
    ),
    ("algorithm", "mu = 3", "algorithm.mu: unknown key"),
    ("participation", "rate = 2", "participation.rate: must be above 0 and at most 1, not 2"),
    ("participation", "count = 0", "participation.count: must be at least 1, not 0"),
    ("evaluation", "every = 0", "evaluation.every: must be at least 1, not 0"),
    ("engine", "workers = 0", "engine.workers: must be at least 1, not 0"),
    (
        "engine",
        "name = 'pol'",
        "engine.name: must be one of serial, pool, ray, not 'pol'; did you mean 'pool'?",
    ),
]


@pytest.mark.parametrize(("section", "line", "said"), REFUSED)
def test_in_a_file_a_mistake_is_said_with_its_line(written, section, line, said):
    header = [f"[{section}]"] if section else []
    path = written("\n".join(["# mine", "", *header, "# a remark", line, ""]))
    at = 3 if said.startswith("trainin:") else 4 + len(header)  # of an unknown section: its header
    assert refused(path).startswith(f"my.toml:{at}: {said}")


@pytest.mark.parametrize(("section", "line", "said"), REFUSED)
def test_as_a_pair_a_mistake_is_said_with_its_key(written, section, line, said):
    pair = f"{section}.{line}" if section else line
    assert refused(None, pair).startswith(said)
    assert refused(written("rounds = 3\n"), pair).startswith(said)


def test_a_mistake_in_a_pair_is_not_blamed_on_the_file(written):
    path = written("[training]\nlr = 0.1\nbatch = 0\n")
    assert refused(path, "training.batch=-1") == "training.batch: must be at least 1, not -1"
    assert refused(path, "local.b=1").startswith("training.b: unknown key")
    assert refused(path, "training.lr=0.2").startswith("my.toml:3: training.batch: ")


def test_rate_and_count_in_one_file_exclude_each_other(written):
    path = written("[participation]\nrate = 0.5\ncount = 3\n")
    assert refused(path) == "my.toml:2: participation.rate: set either rate or count"


@pytest.mark.parametrize("pair", ["rounds", "=3", "", " = "])
def test_a_pair_must_be_key_and_value(pair):
    assert refused(None, pair) == f"-c {pair}: must be key=value, as in -c training.lr=0.01"


def test_a_pair_cannot_go_below_a_value(written):
    path = written("seed = 1\n")
    assert refused(path, "seed.x=1") == "-c seed.x=1: 'seed' is not a section"
    assert refused(None, "seed.x=1") == "seed: must be a whole number, not {'x': 1}"


def test_invalid_toml_is_said_with_its_line(written):
    path = written("seed = 1\nrounds = \n")
    assert refused(path) == "my.toml: not valid TOML: Invalid value (at line 2, column 10)"


def test_a_file_that_is_no_text_is_said(written):
    path = written("")
    path.write_bytes(b"\xff\xfe\x00")
    assert refused(path) == "my.toml: not valid TOML: it is not text (UTF-8)"


def test_a_file_that_cannot_be_read_is_said(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert refused(Path("no.toml")) == "cannot read no.toml: No such file or directory"
    Path("folder").mkdir()
    assert refused(Path("folder")) == "cannot read folder: Is a directory"


def test_more_participants_than_clients_is_said():
    config = read_config(
        None, ["participation.count=9", "data.clients=4", "data.partition.kind=iid"]
    )
    with pytest.raises(ConfigError) as caught:
        config.build_plan(config.build_federation())
    assert str(caught.value) == (
        "participation.count: 9 clients are selected per round, but there are only 4"
    )


def test_a_model_that_does_not_fit_the_data_is_said():
    config = read_config(None, ["model.name=convnet", "data.clients=2", "data.partition.kind=iid"])
    with pytest.raises(ConfigError, match=r"^model\.name: convnet needs "):
        config.build_plan(config.build_federation())


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("seed", 1),
        ("data.clients", 2),
        ("data", None),
        ("training", 3),
        ("training.lr", 4),
        ("training.batch", 3),
        ("engine.name", 6),
        ("data.partition.alpha", 7),
        ("rounds", None),
    ],
)
def test_the_line_of_a_key_or_of_what_is_above_it(key, line):
    text = "seed = 1\ndata.clients = 2\n[training]\nlr = 3\n[engine]\n'name' = 'pool'\n[data.partition]\n"
    assert find_line(text, key) == line
