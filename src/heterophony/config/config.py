"""Check local training against the algorithm and the rounds of a run, before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import tomli_w
import torch

from ..algorithms import get_display_name
from ..core.adapters import Adapter, build_adapter
from ..core.algorithm import Algorithm
from ..core.codec import BLOB_LIMIT, from_safetensors, to_safetensors
from ..core.errors import CodecError, ConfigError, DataError
from ..core.files import read_regular_file, write_atomically
from ..core.net import Net
from ..core.randomness import seeded
from ..core.scores import TaskName
from ..core.tasks import Criterion, MetricFunction, choose_metrics, get_task
from ..core.tensors import Tensors, load_into_net
from ..core.training import Training
from ..data.client_folders import OWN_DATA, ExampleSpec, find_client_data, load_own_federation
from ..data.federation import Federation
from ..data.partitioning import partition_source
from ..data.partitions import build_partition
from ..data.sources import read_source
from ..data.transforms import build_skew
from ..jobs.plan import Plan
from ..jobs.trials import check_merge
from ..models import get_default_head_depth, get_model_builder
from ..population.attacks import Attack
from ..population.availability import Devices
from ..population.faults import Faults, check_participation
from ..population.participation import Participation, RandomParticipation
from ..protection import describe_protections
from ..protection.base import Protection
from .old_settings import describe_algorithm
from .protection import check_protections
from .sections import (
    AggregationSection,
    DataSection,
    EngineSection,
    EvaluationSection,
    ModelSection,
    TopSection,
    describe_participation,
    drop_cluster_settings,
)


def check_training(algorithm: Algorithm, name: str, training: Training, rounds: int) -> None:
    """Refuse settings of local training that the algorithm's rule or the rounds do not allow."""
    shown, chosen = get_display_name(name), training.optimizer
    if chosen not in algorithm.optimizers:
        allowed = " or ".join(f"'{o}'" for o in algorithm.optimizers)
        raise ConfigError(
            f"algorithm.name: the rule of {shown} does not hold for local.optimizer = '{chosen}';"
            f" set local.optimizer = {allowed}"
        )
    if training.clip_norm is not None and not algorithm.allows_clipping:
        raise ConfigError(
            f"local.clip_norm: the rule of {shown} does not hold for clipped gradients; leave it out"
        )
    algorithm.check_training(training)
    if training.warmup and training.warmup >= rounds:
        raise ConfigError(
            f"local.warmup: must be below rounds, which is {rounds}, not {training.warmup}"
        )
    if training.decay_rounds and training.warmup + training.decay_rounds >= rounds:
        raise ConfigError(
            f"local.decay_rounds: no step in {rounds} rounds, of which {training.warmup} are warm-up;"
            f" lower it, it is {training.decay_rounds}"
        )


def begin_with_checkpoint(build: Callable[[], Net], path: str | None) -> Callable[[], Net]:
    """Return a builder of the same nets with the checkpoint's weights; raise if they do not fit."""
    if path is None:
        return build
    checkpoint = read_checkpoint(Path(path).expanduser())
    build_with_weights = partial(build_from_checkpoint, build, checkpoint, path)
    build_with_weights()  # so that a mistake is reported here, not by a worker
    return build_with_weights


def add_adapter(build: Callable[[], Net], table: Mapping[str, Any] | None) -> Callable[[], Net]:
    """Return a builder of the same nets with an adapter; raise if the net has no layer for it."""
    if table is None:
        return build
    build_adapted = partial(build_with_adapter, build, build_adapter(table))
    build_adapted()  # so that a mistake is reported here, not by a worker
    return build_adapted


def build_with_adapter(build: Callable[[], Net], adapter: Adapter) -> Net:
    return adapter.apply(build())


def build_from_checkpoint(build: Callable[[], Net], checkpoint: Tensors, path: str) -> Net:
    """Build a net and load the checkpoint; layers of the head with another shape keep new weights."""
    net = build()
    own = Tensors(net.state_dict())
    checkpoint = name_by_part(checkpoint, own)
    for name in sorted(own.keys() ^ checkpoint.keys()):
        has = "has no" if name in own else "has a"
        raise ConfigError(
            f"model.init: {path} {has} tensor '{name}', unlike this model; it must come from the"
            " same model.name and model.head_depth"
        )
    reshaped = [k for k, v in own.items() if v.shape != checkpoint[k].shape]
    for name in reshaped:
        if not name.startswith("head."):
            shapes = [tuple(t[name].shape) for t in (checkpoint, own)]
            raise ConfigError(
                f"model.init: tensor '{name}' of {path} has the shape {shapes[0]}, here it is"
                f" {shapes[1]}; only the head may differ"
            )
    new_layers = {name.rpartition(".")[0] for name in reshaped}
    load_into_net(
        net,
        Tensors({k: v for k, v in checkpoint.items() if k.rpartition(".")[0] not in new_layers}),
    )
    return net


def name_by_part(checkpoint: Tensors, own: Tensors) -> Tensors:
    """Name the tensors of a model in one piece, as torchvision does, by the parts that they are in.

    Such a checkpoint has ``conv1.weight`` where the net has ``base.conv1.weight``.
    """
    whole = {name.partition(".")[2]: name for name in own}
    if len(whole) < len(own) or checkpoint.keys() != whole.keys():
        return checkpoint
    return Tensors({whole[k]: v for k, v in checkpoint.items()})


def read_checkpoint(path: Path) -> Tensors:
    """Read the tensors of a safetensors file; nothing is ever unpickled."""
    try:
        return from_safetensors(read_regular_file(path, BLOB_LIMIT))
    except OSError as error:
        raise ConfigError(f"model.init: cannot read {path}: {error.strerror}") from None
    except CodecError as error:
        raise ConfigError(f"model.init: {path}: {error}") from None


def save_checkpoint(path: Path, net: Tensors) -> None:
    """Write all tensors of a net as plain safetensors."""
    write_atomically(path, to_safetensors(net))


@dataclass(frozen=True)
class Config:
    """Everything that describes a run."""

    top: TopSection
    data: DataSection
    model: ModelSection
    algorithm: Algorithm
    algorithm_name: str
    local: Training
    participation: Participation
    aggregation: AggregationSection
    evaluation: EvaluationSection
    engine: EngineSection
    faults: Faults = Faults()
    devices: Devices = Devices()
    protections: tuple[Protection, ...] = ()
    attack: Attack = Attack()

    def __post_init__(self) -> None:
        check_training(self.algorithm, self.algorithm_name, self.local, self.top.rounds)
        check_protections(self)

    def build_federation(self) -> Federation:
        """Read the data and partition them. Depends on the seed and the section [data] alone."""
        data, seed = self.data, self.top.seed
        if data.name == OWN_DATA:
            paths = locate_client_data(data)
            return self.load_client_folders(paths).keeping_out(data.new_clients, seed)
        federation = partition_source(
            read_source(data.name, data.path, data.classes, data.task, data.users),
            data.clients,
            build_partition(data.partition),
            data.train_fraction,
            seed,
            data.split,
            None if data.feature_skew is None else build_skew(data.feature_skew),
            data.validation_fraction,
        ).transformed(data.transform, data.frozen_augment)
        return federation.keeping_out(data.new_clients, seed)

    def load_client_folders(self, paths: Mapping[str, Path]) -> Federation:
        """Load the own data of these clients. Each client's split is independent of the others."""
        data, spec = self.data, ExampleSpec.from_config(self.data.shape, self.data.classes)
        shares = (data.train_fraction, self.top.seed, data.validation_fraction)
        return load_own_federation(paths, spec, *shares).transformed(data.transform)

    def build_plan(
        self,
        federation: Federation,
        net: Callable[[], Net] | None = None,
        loss: Criterion | None = None,
        metrics: Sequence[str | MetricFunction] | None = None,
    ) -> Plan:
        """Build the plan of a simulation; raise if its algorithm and protections do not fit."""
        plan = self.make_plan(federation, net, loss, metrics)
        check_merge(plan)
        return plan

    def make_plan(
        self,
        federation: Federation,
        net: Callable[[], Net] | None = None,
        loss: Criterion | None = None,
        metrics: Sequence[str | MetricFunction] | None = None,
    ) -> Plan:
        """Make the plan of the run, with every default decided.

        ``net`` builds a network of the user's own, in place of the one the section [model] names.
        ``loss`` and ``metrics`` are functions of the user's own.
        """
        check_task(self.algorithm, self.algorithm_name, federation.task, loss)
        chosen = self.evaluation.metrics if metrics is None else metrics
        if chosen is None:
            chosen = get_task(federation.task).metrics
        check_participation(self.faults, self.devices, self.participation, federation.clients)
        self.attack.check_run(federation.clients, federation.task)
        build = net or self.choose_net_builder(federation)
        return Plan(
            algorithm=self.algorithm,
            model=add_adapter(begin_with_checkpoint(build, self.model.init), self.model.adapter),
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
            name=self.algorithm_name,
            loss=loss,
            metrics=choose_metrics(chosen, federation.task),
            protections=tuple(p for p in self.protections if not p.is_identity),
            attack=self.attack,
        )

    def choose_net_builder(self, federation: Federation) -> Callable[[], Net]:
        """Return a function that builds the network; raise if it does not fit the data."""
        model = self.fill_model_defaults(federation).model
        assert model.name is not None
        assert model.head_depth is not None
        check_model_task(model.name, federation.task)
        build = partial(
            get_model_builder(model.name), federation.shape, federation.classes, model.head_depth
        )
        with seeded(self.top.seed, "init"):  # leaves torch's generator as it was
            build()  # so that a mistake is reported here, not by a worker
        return build

    def count_selected_clients(self, clients: int) -> int:
        """Count the clients that are selected in a round, of so many."""
        assert isinstance(self.participation, RandomParticipation)  # every rule of a file is
        return self.participation.compute_sample_size(clients)

    def build_device_plan(self, federation: Federation) -> Plan:
        """Build the plan of a run on devices, where faults are real and not simulated."""
        plan = replace(self, faults=Faults(), attack=Attack()).make_plan(federation)
        return replace(plan, clients_on_devices=True, share_personal=self.evaluation.share_personal)

    def fill_model_defaults(self, federation: Federation) -> Config:
        """Return the configuration with the defaults of [model] filled in."""
        name = self.model.name or choose_default_model(
            federation.shape, federation.x.dtype, federation.task
        )
        depth = self.model.head_depth or self.algorithm.head_depth
        depth = depth or get_default_head_depth(get_model_builder(name))
        return replace(self, model=replace(self.model, name=name, head_depth=depth))

    def to_toml(self) -> str:
        """Format the configuration as TOML; the run can be repeated from this text alone."""
        sections = {
            "data": asdict(self.data),
            "model": asdict(self.model),
            "algorithm": describe_algorithm(self.algorithm_name, self.algorithm),
            "local": self.local.to_settings(),
            "participation": describe_participation(self.participation, self.faults),
            "devices": asdict(self.devices),
            "aggregation": asdict(self.aggregation),
            "evaluation": asdict(self.evaluation),
            "engine": {"name": self.engine.name, **asdict(self.engine)},
        }
        # later keys are left out at their default: folders of runs begun before them can resume
        if not self.data.validation_fraction:
            del sections["data"]["validation_fraction"]
        if self.data.task == "classification":
            del sections["data"]["task"]
        if not self.evaluation.share_personal:
            del sections["evaluation"]["share_personal"]
        if self.engine.device == "auto":  # a run stays on the kind of device that it began on
            sections["engine"]["device"] = self.engine.choose_compute().device.type
        for key in ("precision", "deterministic"):
            if getattr(self.engine, key) == getattr(EngineSection, key):
                del sections["engine"][key]
        if self.engine.name != "ray":
            drop_cluster_settings(sections["engine"])
        if self.attack.is_active:
            sections["attack"] = asdict(self.attack)
        kept = {s: {k: v for k, v in d.items() if v is not None} for s, d in sections.items()}
        return tomli_w.dumps({**asdict(self.top), **kept, **describe_protections(self.protections)})


def check_model_task(model: str, task: TaskName) -> None:
    """Refuse a model that does not predict what the task asks for."""
    if (model == "tokenlstm") != (task == "sequence"):
        how = "predicts a token at every place" if model == "tokenlstm" else "predicts one answer"
        raise ConfigError(f"model.name: {model} {how}, and the task is '{task}'; leave it out")


def check_task(algorithm: Algorithm, name: str, task: TaskName, loss: Criterion | None) -> None:
    """Refuse an algorithm that needs classes for another task or with another loss."""
    if not algorithm.needs_classes:
        return
    shown = get_display_name(name)
    if task != "classification":
        raise ConfigError(
            f"algorithm.name: {shown} needs classes, and the task is '{task}'; choose another"
            " algorithm, such as FedAvg, Ditto or FedPer"
        )
    if loss is not None:
        raise ConfigError(
            f"loss: {shown} is defined by the cross-entropy; leave it out (outputs of log_softmax"
            " have the same cross-entropy as their logits)"
        )


def choose_default_model(
    shape: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
    task: TaskName = "classification",
) -> str:
    """Choose a model by the task, and the shape and type of an example; a row of integers is text."""
    if task == "sequence":
        return "tokenlstm"
    if len(shape) == 1 and not dtype.is_floating_point and dtype != torch.uint8:
        return "charlstm"
    if len(shape) == 3 and min(shape[1:]) >= 16:
        return "convnet"
    return "digitsnet" if len(shape) == 3 and min(shape[1:]) >= 4 else "mlp"


def locate_client_data(data: DataSection) -> dict[str, Path]:
    """Find the own data of every client in one folder, for a simulation."""
    if data.path is None:
        raise ConfigError(
            "data.path: missing; a simulation of clients with own data needs a folder that holds"
            " one folder or .npz file for each client"
        )
    paths = find_client_data(Path(data.path))
    if len(paths) != data.clients:
        raise DataError(
            f"{data.path} holds the data of {len(paths)} clients, data.clients is {data.clients};"
            " make them equal"
        )
    return paths
