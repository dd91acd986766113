"""One TOML file, every key also as ``-c``: read, checked, completed, and written back whole."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import tomli_w
import torch

from ..algorithms import get_algorithm_class
from ..core.algorithm import Algorithm
from ..core.errors import ConfigError, DataError, suggest_or_list
from ..core.fields import check_settings, construct, list_settings, setting
from ..core.training import Training
from ..data.client_folders import OWN_DATA, ExampleSpec, find_client_data, load_own_federation
from ..data.federation import Federation
from ..data.partitioning import partition_source
from ..data.partitions import build_partition
from ..data.skew import build_skew
from ..data.sources import read_source
from ..engines.base import LOCAL_CLUSTER, Cluster
from ..jobs.plan import Plan
from ..models import get_default_head_depth, get_model_builder
from ..population.device_speeds import Devices
from ..population.faults import Faults, check_participation
from ..population.participation import Skewed, Uniform
from .checkpoint import begin_with_checkpoint
from .participation import describe_participation, parse_participation


@dataclass(frozen=True)
class DataSection:
    """Which data, and how they are dealt."""

    name: str = setting(
        "digits",
        "a data set's name, a path to an .npz file or a folder; own: every client has its own",
    )
    path: str | None = setting(None, "the folder or archive that holds the data set's files")
    clients: int = setting(20, "number of clients", low=1)
    partition: dict[str, Any] = field(default_factory=lambda: {"kind": "dirichlet", "alpha": 0.1})
    train_fraction: float = setting(0.75, "share of a client's examples to train", above=0, high=1)
    validation_fraction: float = setting(
        0.0, "share of a client's training examples that is held out to choose by", low=0, below=1
    )
    transform: Literal["half", "fedavg2rep", "feddecomp"] = setting(
        "half", "how stored examples become input: to [-1, 1], or as in a work"
    )
    frozen_augment: bool = setting(
        False, "move each training image in one random way for the whole run, not anew every time"
    )
    split: Literal["merged", "official"] = setting(
        "merged", "deal training and test set as one, or the test set like the training set"
    )
    feature_skew: dict[str, Any] | None = setting(None, "how each client sees its examples")
    new_clients: float = setting(
        0.0, "share of the clients that join only after training", low=0, high=1
    )
    classes: list[str] | int | None = setting(
        None, "own data: the classes' names in their order, or how many", low=1
    )
    shape: list[int] | None = setting(None, "own data: what one example is, as in [3, 32, 32]")

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True)
class ModelSection:
    """Which network; by default the one that suits the data and the algorithm's paper."""

    name: str | None = setting(None, "a model's name; default: by the shape of the data")
    head_depth: int | None = setting(None, "layers of the head; default: the paper's", low=1)
    buffers: Literal["local", "average"] = setting("local", "running statistics stay or travel")
    init: str | None = setting(None, "a checkpoint (.safetensors) to begin with")

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True)
class AggregationSection:
    """How clients count."""

    weights: Literal["samples", "uniform"] = setting("samples", "what a client counts in a mean")

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True)
class EvaluationSection:
    """When G and P are measured."""

    every: int = setting(1, "rounds between evaluations", low=1)
    new_client_rounds: int = setting(1, "rounds that a new client plays alone", low=0)
    share_personal: bool = setting(
        False, "on devices: send what stays, where G takes an average of it, only to measure G"
    )

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True)
class EngineSection(Cluster):
    """Where it runs; never changes the result."""

    name: Literal["serial", "pool", "ray"] = setting(
        "pool", "one process, one per core, or a Ray cluster"
    )
    workers: int | None = setting(
        None, "jobs at a time; default: one per core, or as many as fit on the cluster", low=1
    )
    device: Literal["cpu"] = setting("cpu", "what computes")

    def __post_init__(self) -> None:
        super().__post_init__()
        for key, usual in asdict(LOCAL_CLUSTER).items():
            if self.name != "ray" and getattr(self, key) != usual:
                raise ConfigError(f"{key}: only with engine.name = 'ray'; leave it out")


@dataclass(frozen=True)
class TopSection:
    """The keys outside all sections."""

    seed: int = setting(0, "decides everything random", low=0)
    rounds: int = setting(100, "communication rounds", low=0)

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True)
class Config:
    """A run, wholly described."""

    top: TopSection
    data: DataSection
    model: ModelSection
    algorithm: Algorithm
    algorithm_name: str
    local: Training
    participation: Uniform | Skewed
    aggregation: AggregationSection
    evaluation: EvaluationSection
    engine: EngineSection
    faults: Faults = Faults()
    devices: Devices = Devices()

    def build_federation(self) -> Federation:
        """The data, dealt. Depends on the seed and the data section alone."""
        how = self.data
        if how.name == OWN_DATA:
            return self.load_client_folders(locate_client_data(how)).keeping_out(
                how.new_clients, self.top.seed
            )
        found = read_source(how.name, how.path)
        dealt = partition_source(
            found,
            how.clients,
            build_partition(how.partition),
            how.train_fraction,
            self.top.seed,
            how.split,
            None if how.feature_skew is None else build_skew(how.feature_skew),
            how.validation_fraction,
        ).transformed(how.transform, how.frozen_augment)
        return dealt.keeping_out(how.new_clients, self.top.seed)

    def load_client_folders(self, paths: Mapping[str, Path]) -> Federation:
        """The clients whose own data lie there; others change nothing in it."""
        how, kind = self.data, ExampleSpec.from_config(self.data.shape, self.data.classes)
        shares = (how.train_fraction, self.top.seed, how.validation_fraction)
        return load_own_federation(paths, kind, *shares).transformed(how.transform)

    def build_plan(self, federation: Federation) -> Plan:
        """What is to be played, with every default decided."""
        check_participation(self.faults, self.devices, self.participation, federation.clients)
        model = self.fill_model_defaults(federation).model
        assert model.name is not None
        assert model.head_depth is not None
        build = partial(
            get_model_builder(model.name), federation.shape, federation.classes, model.head_depth
        )
        build()  # a model that does not fit the data is said here, not in a worker
        begun = begin_with_checkpoint(build, model.init)
        return Plan(
            algorithm=self.algorithm,
            model=begun,
            federation=federation,
            rounds=self.top.rounds,
            participation=self.participation,
            training=self.local,
            seed=self.top.seed,
            evaluate_every=self.evaluation.every,
            weights=self.aggregation.weights,
            buffers=self.model.buffers,
            new_client_rounds=self.evaluation.new_client_rounds,
            faults=self.faults,
            devices=self.devices,
        )

    def build_device_plan(self, federation: Federation) -> Plan:
        """The same where clients are on devices: what goes wrong is real there."""
        plan = replace(self, faults=Faults()).build_plan(federation)
        return replace(plan, clients_on_devices=True, share_personal=self.evaluation.share_personal)

    def fill_model_defaults(self, federation: Federation) -> Config:
        """The same with the model's defaults filled in."""
        name = self.model.name or choose_default_model(federation.shape, federation.x.dtype)
        wanted = self.model.head_depth or self.algorithm.head_depth
        depth = wanted or get_default_head_depth(get_model_builder(name))
        return replace(self, model=replace(self.model, name=name, head_depth=depth))

    def to_toml(self) -> str:
        """Everything resolved: a run can be repeated from this text alone."""
        named = {"name": self.algorithm_name, **asdict(self.algorithm)}
        sections = {
            "data": asdict(self.data),
            "model": asdict(self.model),
            "algorithm": named,
            "local": asdict(self.local),
            "participation": describe_participation(self.participation, self.faults),
            "devices": asdict(self.devices),
            "aggregation": asdict(self.aggregation),
            "evaluation": asdict(self.evaluation),
            "engine": {"name": self.engine.name, **asdict(self.engine)},
        }
        if not self.data.validation_fraction:  # as before there was one: old runs can go on
            del sections["data"]["validation_fraction"]
        if not self.evaluation.share_personal:
            del sections["evaluation"]["share_personal"]
        if self.engine.name != "ray":
            drop_cluster_settings(sections["engine"])
        kept = {s: {k: v for k, v in d.items() if v is not None} for s, d in sections.items()}
        return tomli_w.dumps({**asdict(self.top), **kept})


TOP_KEYS = ("seed", "rounds")
SECTIONS: dict[str, type] = {
    "data": DataSection,
    "model": ModelSection,
    "local": Training,
    "aggregation": AggregationSection,
    "evaluation": EvaluationSection,
    "engine": EngineSection,
    "devices": Devices,
}


def choose_default_model(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> str:
    """The model for examples of that shape and type; whole numbers in a row are characters."""
    if len(shape) == 1 and not dtype.is_floating_point and dtype != torch.uint8:
        return "charlstm"
    if len(shape) == 3 and min(shape[1:]) >= 16:
        return "convnet"
    return "digitsnet" if len(shape) == 3 and min(shape[1:]) >= 4 else "mlp"


def read_config(path: Path | None, overrides: Sequence[str] = ()) -> Config:
    """A configuration from a file and ``key=value`` pairs; errors say file and line."""
    try:
        text = "" if path is None else path.read_text()
        raw = tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not valid TOML: it is not text (UTF-8)") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    drop_replaced_settings(raw, overrides)
    written = [apply_override(raw, pair) for pair in overrides]
    try:
        return resolve_config(raw)
    except ConfigError as error:
        key = str(error).split(":")[0]
        ours = any(f"{key}.".startswith(f"{w}.") for w in written)
        line = None if ours else find_line(text, key)
        raise ConfigError(f"{path}:{line}: {error}" if line else str(error)) from None


def drop_replaced_settings(raw: dict[str, Any], overrides: Sequence[str]) -> None:
    """Where ``-c`` chooses another algorithm or partition, the file's settings of the old one go."""
    data = raw["data"] if isinstance(raw.get("data"), dict) else {}
    sections = {
        "algorithm.name": raw.get("algorithm"),
        "data.partition.kind": data.get("partition"),
        "data.feature_skew.kind": data.get("feature_skew"),
    }
    for key, section in sections.items():
        pairs, name = (p.partition("=") for p in overrides), key.split(".")[-1]
        chosen = [parse_toml_value(value.strip()) for k, _, value in pairs if k.strip() == key]
        if chosen and isinstance(section, dict) and section.get(name, chosen[-1]) != chosen[-1]:
            section.clear()


def resolve_config(raw: Mapping[str, Any]) -> Config:
    """A configuration from nested plain data."""
    known = [*TOP_KEYS, *SECTIONS, "algorithm", "participation"]
    for key, value in raw.items():
        if key not in known:
            raise ConfigError(f"{key}: unknown key{suggest_or_list(key, known)}")
        if key not in TOP_KEYS and not isinstance(value, dict):
            raise ConfigError(f"{key}: must be a section, as in [{key}]")
    chosen = dict(raw.get("algorithm", {}))
    name = chosen.pop("name", "fedavg")
    made: dict[str, Any] = {k: construct(c, raw.get(k, {}), k) for k, c in SECTIONS.items()}
    made["data"] = fill_data_defaults(made["data"])
    if made["model"].name is not None:
        get_model_builder(made["model"].name)  # a wrong name is said before any data are read
    participation, faults = parse_participation(raw.get("participation", {}))
    return Config(
        top=TopSection(**{k: v for k, v in raw.items() if k in TOP_KEYS}),
        algorithm=construct(get_algorithm_class(str(name)), chosen, "algorithm"),
        algorithm_name=str(name),
        participation=participation,
        faults=faults,
        **made,
    )


def fill_data_defaults(data: DataSection) -> DataSection:
    """The section with every default of its rules filled in; a wrong one is said here."""
    rule, seen = data.partition, data.feature_skew
    if data.name == OWN_DATA:
        return clear_partition_settings(data)
    for key in ("classes", "shape"):
        if getattr(data, key) is not None:
            raise ConfigError(f"data.{key}: only where data.name = '{OWN_DATA}'; leave it out")
    return replace(
        data,
        partition={
            "kind": rule.get("kind", "dirichlet"),
            **list_rule_settings(build_partition(rule)),
        },
        feature_skew=None
        if seen is None
        else {"kind": seen.get("kind"), **list_rule_settings(build_skew(seen))},
    )


def clear_partition_settings(data: DataSection) -> DataSection:
    """The section of own data; what is for dealing, or needs a view of all data, is refused."""
    ExampleSpec.from_config(data.shape, data.classes)
    usual = DataSection()
    for key in ("partition", "split", "feature_skew", "frozen_augment"):
        if getattr(data, key) not in (getattr(usual, key), {}):
            raise ConfigError(f"data.{key}: not with data.name = '{OWN_DATA}'; leave it out")
    return replace(data, partition={})


def locate_client_data(data: DataSection) -> dict[str, Path]:
    """Where every client's own data lie, when they are all in one place."""
    if data.path is None:
        raise ConfigError(
            "data.path: missing; a simulation of clients with data of their own needs a folder"
            " with one folder or .npz file for each"
        )
    found = find_client_data(Path(data.path))
    if len(found) != data.clients:
        raise DataError(
            f"{data.path} holds the data of {len(found)} clients, data.clients is {data.clients};"
            " make them equal"
        )
    return found


def list_rule_settings(rule: Any) -> dict[str, Any]:
    """A rule's settings, but for those that say nothing: TOML has no word for it."""
    said = {f.name: getattr(rule, f.name) for f in list_settings(type(rule))}
    return {k: v for k, v in said.items() if v is not None}


def apply_override(raw: dict[str, Any], pair: str) -> str:
    """Put ``key=value`` into the raw configuration; returns the key."""
    key, sign, value = pair.partition("=")
    key = key.strip()
    if not sign or not key:
        raise ConfigError(f"-c {pair}: must be key=value, as in -c local.lr=0.01")
    *path, last = key.split(".")
    at = raw
    for step in path:
        at = at.setdefault(step, {})
        if not isinstance(at, dict):
            raise ConfigError(f"-c {pair}: '{step}' is not a section")
    if path == ["participation"]:  # rate and count exclude each other: the newer one counts
        at.pop({"rate": "count", "count": "rate"}.get(last, ""), None)
    at[last] = parse_toml_value(value.strip())
    if key == "engine.name" and at[last] != "ray":  # a run that leaves its cluster
        drop_cluster_settings(at)
    return key


def drop_cluster_settings(engine: dict[str, Any]) -> None:
    """Take out what only the Ray engine knows."""
    for key in asdict(LOCAL_CLUSTER):
        engine.pop(key, None)


def parse_toml_value(text: str) -> Any:
    """A TOML value, or a bare word as text."""
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        return text


def find_line(text: str, key: str) -> int | None:
    """The line of a TOML text where a dotted key, or the nearest thing above it, is written."""
    section, found, depth = "", None, 0
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[([^\]]+)\]", line):
            section = header[1].strip()
            here = section
        elif pair := re.match(r"\s*([\w.\"'-]+)\s*=", line):
            here = ".".join(filter(None, [section, pair[1].strip("\"'")]))
        else:
            continue
        if (key == here or key.startswith(f"{here}.")) and len(here) > depth:
            found, depth = number, len(here)
    return found
