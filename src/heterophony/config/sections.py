"""The sections of a configuration: their settings, defaults and ranges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import torch

from ..core.accelerator import Compute, Precision, check_device_name, find_device
from ..core.adapters import build_adapter
from ..core.errors import ConfigError, choose, match_name
from ..core.own_modules import is_library_name
from ..core.scores import TaskName
from ..core.settings import (
    CheckedSettings,
    check_keys,
    check_settings,
    construct,
    list_settings,
    setting,
)
from ..core.training import Training
from ..data.folders import OWN_DATA, ExampleSpec
from ..data.partitions import PARTITIONS, build_partition
from ..data.source import parse_class_names
from ..data.sources import find_dataset_name
from ..data.sources.arrays import Request
from ..data.sources.registry import check_request
from ..data.transforms import SKEWS, build_skew
from ..engines.base import LOCAL_CLUSTER, Cluster
from ..models import NET_GROUPS, find_model_name
from ..population.attacks import Faults
from ..population.availability import Availability, Diurnal, Speeds, Trace
from ..population.participation import Participation, Poisson, Skewed, Uniform

DEFAULT_RATE = 0.2  # fraction of the clients selected per round
SELECTION_RULES: dict[str, type] = {"uniform": Uniform, "poisson": Poisson}
AVAILABILITY_RULES: dict[str, type[Availability]] = {"diurnal": Diurnal, "trace": Trace}


@dataclass(frozen=True)
class ParticipationSkew(CheckedSettings):
    """Unequal selection probabilities for clients."""

    gamma: float = setting(
        0.1, "concentration of the Dirichlet distribution of probabilities", above=0
    )


def parse_participation(given: Mapping[str, Any]) -> tuple[Uniform | Skewed | Poisson, Faults]:
    """Parse the section [participation]: the selection rule and the simulated faults."""
    where, fault_keys = "participation", [f.name for f in list_settings(Faults)]
    known = [*(f.name for f in list_settings(Uniform)), "kind", "skew", *fault_keys]
    check_keys(given, known, f"{where}.")
    faulty = {k: v for k, v in given.items() if k in fault_keys}
    if isinstance(faulty.get("availability"), dict | list | str | bool):
        faulty["availability"] = parse_availability(faulty["availability"], f"{where}.availability")
    selection = {k: v for k, v in given.items() if k not in fault_keys}
    if not {"rate", "count"} & selection.keys():
        selection["rate"] = DEFAULT_RATE
    faults, skew = construct(Faults, faulty, where), selection.pop("skew", None)
    kind = choose(SELECTION_RULES, str(selection.pop("kind", "uniform")), f"{where}.kind")
    if kind is Poisson:
        if skew is not None:
            raise ConfigError(
                f"{where}.skew: cannot be combined with kind = 'poisson'; remove one of them"
            )
        return construct(Poisson, selection, where), faults
    if skew is None:
        return construct(Uniform, selection, where), faults
    if not isinstance(skew, dict):
        raise ConfigError(f"{where}.skew: must be a table, as in {{ gamma = 0.1 }}")
    gamma = construct(ParticipationSkew, skew, f"{where}.skew").gamma
    return construct(Skewed, {**selection, "gamma": gamma}, where), faults


def parse_availability(given: Any, where: str) -> Availability:
    """Parse the rule in ``participation.availability``; a rule with a file is a trace."""
    if not isinstance(given, dict):
        raise ConfigError(f"{where}: must be a number, or a table as in {{ kind = 'diurnal' }}")
    values = dict(given)
    kind = str(values.pop("kind", "trace" if "file" in values else "diurnal"))
    return construct(choose(AVAILABILITY_RULES, kind, f"{where}.kind"), values, where)


def describe_participation(participation: Participation, faults: Faults) -> dict[str, Any]:
    """Return a section [participation] from which ``parse_participation`` can read these settings."""
    # a user's own rule is listed in the section [objects] instead
    assert isinstance(participation, Uniform | Skewed | Poisson)
    section = asdict(participation) | asdict(faults)
    if isinstance(participation, Poisson):
        section = {"kind": "poisson", **section}
    if "gamma" in section:
        section["skew"] = {"gamma": section.pop("gamma")}
    kinds = [k for k, cls in AVAILABILITY_RULES.items() if isinstance(faults.availability, cls)]
    if kinds:
        section["availability"] = {"kind": kinds[0], **section["availability"]}
    return section


@dataclass(frozen=True)
class TopSection(CheckedSettings):
    """The keys outside all sections."""

    seed: int = setting(0, "seed of all random draws", low=0)
    rounds: int = setting(100, "communication rounds", low=0)


@dataclass(frozen=True)
class DataSection(CheckedSettings):
    """The data set, and how it is partitioned among the clients."""

    name: str = setting(
        "digits",
        "a data set's name, a path to an .npz file or a folder; own: each client has its own",
    )
    path: str | None = setting(None, "the folder or archive that holds the data set's files")
    clients: int = setting(20, "number of clients", low=1)
    partition: dict[str, Any] = field(default_factory=lambda: {"kind": "dirichlet", "alpha": 0.1})
    train_fraction: float = setting(
        0.75, "share of a client's examples for training", above=0, high=1
    )
    validation_fraction: float = setting(
        0.0,
        "share of a client's training examples held out for validation, to choose the best round",
        low=0,
        below=1,
    )
    transform: Literal["half", "fedavg2rep", "feddecomp"] = setting(
        "half", "how stored examples become input of the net: scaled to [-1, 1], or as in a paper"
    )
    frozen_augment: bool = setting(
        False,
        "randomly transform each training image once for the whole run, not anew each time it is used",
    )
    split: Literal["merged", "official"] = setting(
        "merged", "partition training and test set as one, or the test set like the training set"
    )
    feature_skew: dict[str, Any] | None = setting(
        None, "how each client's examples are changed, as in { kind = 'rotation' }"
    )
    new_clients: float = setting(
        0.0, "share of the clients that join only after training", low=0, high=1
    )
    classes: list[str] | int | None = setting(
        None, "own data and .npz: the names of the classes in their order, or their number", low=1
    )
    task: TaskName = setting(
        "classification", ".npz: what the targets are; named data sets are for classification"
    )
    users: str | None = setting(
        None,
        "the column or array that names each example's client; default: the one named 'client', if there is one",
    )
    tokenizer: str | None = setting(
        None, "texts: the name or folder of a tokenizer of transformers; default: bytes are tokens"
    )
    shape: list[int] | None = setting(None, "own data: shape of one example, as in [3, 32, 32]")
    seed: int | None = setting(None, "seed of the partition; default: the run's seed", low=0)


@dataclass(frozen=True)
class NetGroup:
    """A group of clients with the same net, in a run whose clients have different nets."""

    name: str = setting("", "the model's name")
    clients: list[str] | None = setting(None, "names of the clients with this net")
    share: float | None = setting(
        None, "share of the clients that no group lists, drawn with the seed", above=0, high=1
    )

    def __post_init__(self) -> None:
        check_settings(self)
        if not self.name:
            raise ConfigError("name: missing; set it to the name of a model")
        if (self.clients is None) == (self.share is None):
            raise ConfigError("share: set either clients or share")


@dataclass(frozen=True)
class ModelSection:
    """The net; by default, the one that suits the data and the algorithm's paper."""

    name: str | None = setting(None, "name of a model; default: chosen by the shape of the data")
    head_depth: int | None = setting(
        None, "number of layers in the head; default: as in the algorithm's paper", low=1
    )
    buffers: Literal["local", "average"] = setting(
        "local", "running statistics are personal, or shared and averaged"
    )
    norm: Literal["batch", "group"] = setting(
        "batch", "normalisation: batch, as in the model, or GroupNorm in place of each BatchNorm"
    )
    init: str | None = setting(None, "checkpoint (.safetensors) of initial weights")
    pretrained: bool | str | None = setting(
        None, "nets of timm and transformers: true for their weights, or a file or folder"
    )
    adapter: dict[str, Any] | None = setting(
        None, "train only an adapter and the head: {kind = 'lora', rank = 8, alpha = 16}"
    )
    groups: str | None = setting(None, "for different nets by client: the name of a list of nets")
    group: list[dict[str, Any]] | None = setting(
        None, "for different nets by client: [[model.group]] with name, and clients or share"
    )

    def __post_init__(self) -> None:
        check_settings(self)
        chosen = [key for key in ("name", "groups", "group") if getattr(self, key) is not None]
        if len(chosen) > 1:
            raise ConfigError(
                f"{chosen[1]}: cannot be combined with model.{chosen[0]}; remove one of them"
            )
        if self.groups is not None:
            choose(NET_GROUPS, self.groups, "groups")
        if self.group == [] or not all(isinstance(group, dict) for group in self.group or ()):
            raise ConfigError("group: must have a table with a name, as in [[model.group]]")
        for group in self.group or ():
            find_model_name(construct(NetGroup, group, "group").name, "group.name")
        if self.init is not None and chosen[-1:] in (["groups"], ["group"]):
            raise ConfigError("init: cannot be combined with different nets; remove it")
        if self.pretrained is not None and not is_library_name(self.name or ""):
            raise ConfigError(
                "pretrained: only for nets of timm and transformers; for others, set model.init to a"
                " checkpoint"
            )
        if self.adapter is not None:
            build_adapter(self.adapter)  # raises an error if it cannot be built


@dataclass(frozen=True)
class AggregationSection(CheckedSettings):
    """How clients are weighted in a mean."""

    weights: Literal["samples", "uniform"] = setting("samples", "weight of a client in a mean")


@dataclass(frozen=True)
class EvaluationSection(CheckedSettings):
    """When G and P are measured, and by which metrics."""

    every: int = setting(1, "rounds between evaluations", low=1)
    new_client_rounds: int = setting(1, "number of rounds that a new client trains alone", low=0)
    keep_best: bool = setting(
        False, "keep the models of the best round on validation examples, not of the last round"
    )
    choose_by: Literal["P", "G"] = setting(
        "P", "the validation score that decides which round is best"
    )
    share_personal: bool = setting(
        False, "on boards: send personal parameters if G is computed from their average"
    )
    metrics: list[str] | None = setting(
        None, "metrics besides the score: f1, auc, …; default: those of the task"
    )


@dataclass(frozen=True)
class StopSection(CheckedSettings):
    """Conditions for stopping a run before its last round."""

    patience: int | None = setting(
        None, "evaluations in a row without a better validation score; default: never", low=1
    )


@dataclass(frozen=True)
class EngineSection(Cluster):
    """Where jobs run; only ``precision`` changes the result, but another GPU may change its last bits."""

    name: Literal["serial", "pool", "ray"] = setting(
        "pool", "one process, one per core, or a Ray cluster"
    )
    workers: int | None = setting(
        None,
        "number of jobs at a time; default: one per core, or as many as fit on the cluster",
        low=1,
    )
    accelerator: str = setting(
        "auto",
        "where nets compute: cpu, cuda, cuda:1 or mps; auto: cuda if torch sees it, else cpu",
    )
    precision: Precision = setting(
        "float32", "number type of the forward pass and the loss; bfloat16 changes results"
    )
    deterministic: bool = setting(
        True, "on GPUs: compute the same bits every time; false is faster"
    )
    fast: Literal["auto", "off"] = setting(
        "auto", "train plain nets without autograd and small ones together; the bits are the same"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_device_name(self.accelerator)
        for key, usual in asdict(LOCAL_CLUSTER).items():
            if self.name != "ray" and getattr(self, key) != usual:
                raise ConfigError(f"{key}: only with engine.name = 'ray'; leave it out")
        if self.name == "ray":
            self.check_ray_accelerator()

    def check_ray_accelerator(self) -> None:
        """Raise ConfigError if the accelerator contradicts what a job reserves on a Ray cluster."""
        if self.accelerator not in ("auto", "cpu", "cuda"):
            raise ConfigError(
                f"accelerator: must be auto, cpu or cuda with engine.name = 'ray', not"
                f" {self.accelerator!r}:"
                " Ray assigns the GPUs that engine.gpus reserves"
            )
        if self.accelerator == "cuda" and not self.gpus:
            raise ConfigError(
                "accelerator: cuda on Ray needs engine.gpus above 0, as in engine.gpus=0.25"
            )

    def choose_compute(self) -> Compute:
        """Return the device and precision of jobs; raise ConfigError if this machine lacks the accelerator.

        On a Ray cluster, each job determines where it runs.
        """
        if self.name == "ray":
            on_gpu = self.accelerator == "cuda" or (self.accelerator == "auto" and self.gpus > 0)
            device = torch.device("cuda" if on_gpu else "cpu")
        else:
            device = find_device(self.accelerator)
        return Compute(device, self.precision, self.deterministic, self.fast == "auto")


SECTIONS: dict[str, type] = {
    "data": DataSection,
    "model": ModelSection,
    "training": Training,
    "aggregation": AggregationSection,
    "evaluation": EvaluationSection,
    "stop": StopSection,
    "engine": EngineSection,
    "speeds": Speeds,
}


# Completing the section [data] ----------------------------------------------------------------


def fill_data_defaults(data: DataSection) -> DataSection:
    """Return the section [data] with all settings of partition and skew; raise ConfigError if any are wrong."""
    if data.name == OWN_DATA:
        return clear_partition_settings(data)
    check_request(
        find_dataset_name(data.name), Request(data.classes, data.task, data.users, data.tokenizer)
    )
    if data.classes is not None:
        parse_class_names(data.classes)
    if data.shape is not None:
        raise ConfigError(f"data.shape: is only for data.name = '{OWN_DATA}'; remove it")
    partition, skew = data.partition, data.feature_skew
    rule = build_partition(partition)  # raises an error if the kind is unknown
    kind = match_name(PARTITIONS, str(partition.get("kind", "dirichlet")))
    complete = {"kind": kind, **list_rule_settings(rule)}
    if skew is not None:
        kind = match_name(SKEWS, str(skew.get("kind")))
        skew = {"kind": kind, **list_rule_settings(build_skew(skew))}
    name = find_dataset_name(data.name)
    return replace(data, name=name, partition=complete, feature_skew=skew)


def clear_partition_settings(data: DataSection) -> DataSection:
    """Return the section [data], without a partition, for clients with local data.

    Raise ConfigError if settings need all data in one place.
    """
    ExampleSpec.from_config(data.shape, data.classes)
    if data.task != "classification":
        raise ConfigError(
            f"data.task: cannot be set with data.name = '{OWN_DATA}', which is for classification; leave it out"
        )
    usual = DataSection()
    for key in ("partition", "split", "feature_skew", "frozen_augment", "users", "tokenizer"):
        if getattr(data, key) not in (getattr(usual, key), {}):
            raise ConfigError(
                f"data.{key}: cannot be set with data.name = '{OWN_DATA}'; leave it out"
            )
    return replace(data, partition={})


def list_rule_settings(rule: Any) -> dict[str, Any]:
    """List the settings of a partition or skew; leave out None, which TOML cannot express."""
    values = {f.name: getattr(rule, f.name) for f in list_settings(type(rule))}
    return {k: v for k, v in values.items() if v is not None}


def drop_cluster_settings(engine: dict[str, Any]) -> None:
    """Delete the keys of the section [engine] that only Ray uses."""
    for key in asdict(LOCAL_CLUSTER):
        engine.pop(key, None)
