"""The configuration of a run: all its settings, checked against each other before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import tomli_w
import torch

from ..algorithms import get_display_name
from ..core.algorithm import Algorithm
from ..core.errors import ConfigError, DataError
from ..core.net import Net
from ..core.own_modules import is_library_name, is_own_code
from ..core.randomness import seeded
from ..core.scores import CONFUSION, TaskName
from ..core.tasks import TASKS, Criterion, MetricFunction, choose_metrics
from ..core.training import Training
from ..data.federation import Federation
from ..data.folders import OWN_DATA, ExampleSpec, find_client_data, load_own_federation
from ..data.partitioning import partition_source
from ..data.partitions import Terms, build_partition
from ..data.sources import read_source
from ..data.transforms import build_skew
from ..jobs.dry_runs import check_merge
from ..jobs.plan import Plan, describe_selection
from ..models import MODEL_DESCRIPTIONS, TOKEN_MODELS, get_default_head_depth, get_model_builder
from ..population.attacks import Attack, Faults, check_participation
from ..population.availability import Speeds
from ..population.participation import Participation, Poisson, RandomParticipation
from ..protection import describe_protections, get_kind
from ..protection.base import Protection, RunFacts
from .checkpoint import add_adapter, load_checkpoint_into, use_group_norm
from .nets import (
    ClientNets,
    check_allowed,
    check_nets,
    choose_nets,
    import_own_model,
    list_group_clients,
    make_library_net,
    prepare_own_net,
)
from .sections import (
    AggregationSection,
    DataSection,
    EngineSection,
    EvaluationSection,
    ModelSection,
    StopSection,
    TopSection,
    describe_participation,
    drop_cluster_settings,
)


@dataclass(frozen=True)
class Config:
    """The configuration of a run: all its settings."""

    top: TopSection
    data: DataSection
    model: ModelSection
    algorithm: Algorithm
    algorithm_name: str
    training: Training
    participation: Participation
    aggregation: AggregationSection
    evaluation: EvaluationSection
    engine: EngineSection
    stop: StopSection = StopSection()
    faults: Faults = Faults()
    speeds: Speeds = Speeds()
    protections: tuple[Protection, ...] = ()
    attack: Attack = Attack()

    def __post_init__(self) -> None:
        check_training(self.algorithm, self.algorithm_name, self.training, self.top.rounds)
        check_protections(self)

    @property
    def own_code(self) -> list[str]:
        """The names of modules outside this package that the run imports."""
        return [n for n in (self.algorithm_name, self.model.name or "") if is_own_code(n)]

    # Data -----------------------------------------------------------------------------------
    @property
    def data_seed(self) -> int:
        """The seed that partitions the data."""
        return self.top.seed if self.data.seed is None else self.data.seed

    def build_federation(self) -> Federation:
        """Read the data set and partition it; the result depends only on the section [data] and its seed."""
        data, seed = self.data, self.data_seed
        if data.name == OWN_DATA:
            federation = self.load_client_folders(locate_client_data(data))
        else:
            federation = partition_source(
                read_source(
                    data.name, data.path, data.classes, data.task, data.users, data.tokenizer
                ),
                build_partition(data.partition),
                Terms(data.clients, data.train_fraction, data.split, seed),
                None if data.feature_skew is None else build_skew(data.feature_skew),
                data.validation_fraction,
            ).with_transform(data.transform, data.frozen_augment)
        recipe = {**asdict(data), "seed": seed}
        return (
            federation.set_aside_new_clients(data.new_clients, seed)
            .encode_table()
            .with_recipe(recipe)
        )

    def load_client_folders(self, paths: Mapping[str, Path]) -> Federation:
        """Load these clients' local data; each client's split is independent of the other clients."""
        data, spec = self.data, ExampleSpec.from_config(self.data.shape, self.data.classes)
        shares = (data.train_fraction, self.data_seed, data.validation_fraction)
        return load_own_federation(paths, spec, *shares).with_transform(data.transform)

    # The plan -------------------------------------------------------------------------------
    def build_plan(
        self,
        federation: Federation,
        net: Callable[[], Net] | ClientNets | None = None,
        loss: Criterion | None = None,
        metrics: Sequence[str | MetricFunction] | None = None,
        on_boards: bool = False,
    ) -> Plan:
        """Build the plan of a run; raise ConfigError if its parts are incompatible.

        ``net`` builds a user's net, or one per client, instead of the net that [model] names. ``loss``
        and ``metrics`` are the user's functions. ``on_boards`` skips the dry run of protections.
        """
        check_task(self.algorithm, self.algorithm_name, federation.task, loss)
        self.check_validation(federation)
        configured = self.evaluation.metrics if metrics is None else metrics
        chosen = TASKS[federation.task].metrics if configured is None else configured
        check_participation(self.faults, self.speeds, self.participation, federation.clients)
        self.attack.check_run(federation.clients, federation.task)
        own, nets = (None, net) if isinstance(net, ClientNets) else (net, None)
        if net is None:
            depth = self.algorithm.head_depth
            nets = choose_nets(self.model, federation, self.top.seed, depth)
        built = self.prepare_builders(federation, own, nets)
        plan = Plan(
            algorithm=self.algorithm,
            model=next(iter(built.values())),
            nets={} if nets is None else built,
            net_of={} if nets is None else nets.net_of,
            federation=federation,
            rounds=self.top.rounds,
            participation=self.participation,
            training=self.training,
            seed=self.top.seed,
            evaluate_every=self.evaluation.every,
            weights=self.aggregation.weights,
            buffers=self.model.buffers,
            new_client_rounds=self.evaluation.new_client_rounds,
            faults=self.faults,
            speeds=self.speeds,
            name=self.algorithm_name,
            loss=loss,
            metrics=choose_metrics(chosen, federation.task),
            confusion=CONFUSION in [str(m).lower() for m in chosen],
            protections=tuple(p for p in self.protections if not p.is_identity),
            attack=self.attack,
            choose_by=self.evaluation.choose_by,
            keep_best=self.evaluation.keep_best,
            patience=self.stop.patience,
        )
        check_nets(plan)
        if not on_boards:
            check_merge(plan)
        return plan

    def with_checkpoint(self, checkpoint: Path | None) -> Config:
        """Return the configuration with ``model.init`` set to a checkpoint; None changes nothing."""
        if checkpoint is None:
            return self
        return replace(self, model=replace(self.model, init=str(checkpoint)))

    def build_board_plan(self, federation: Federation) -> Plan:
        """Build the plan of a run on boards, where faults are real rather than simulated."""
        if self.evaluation.keep_best:
            raise ConfigError(
                "evaluation.keep_best: boards keep only their newest state, not the best; remove it"
            )
        groups = self.model.group or ()
        if self.model.groups or any("share" in group for group in groups):
            raise ConfigError(
                "model.group: on boards, every group must list its clients, as in clients = ['0', '1']"
            )
        plan = replace(self, faults=Faults(), attack=Attack()).build_plan(
            federation, on_boards=True
        )
        return replace(plan, clients_on_boards=True, share_personal=self.evaluation.share_personal)

    def prepare_builders(
        self, federation: Federation, net: Callable[[], Net] | None, nets: ClientNets | None
    ) -> dict[str, Callable[[], Net]]:
        """Return the builders of the run's nets by name; a net common to all clients has the empty name."""
        if nets is None:
            built = {"": net or self.choose_net_builder(federation)}
        else:
            check_allowed(self.algorithm, self.algorithm_name)
            built = dict(nets.builders)
            for name in built:
                self.try_net(name, built[name], federation)
        if self.model.norm == "group":
            built = {name: use_group_norm(build) for name, build in built.items()}
        start = partial(load_checkpoint_into, path=self.model.init)
        return {
            name: add_adapter(start(build), self.model.adapter) for name, build in built.items()
        }

    def check_validation(self, federation: Federation) -> None:
        """Raise ConfigError if a setting needs validation scores, but the run has none."""
        chosen = {
            "evaluation.keep_best": self.evaluation.keep_best,
            "stop.patience": self.stop.patience,
        }
        for key, value in chosen.items():
            if value and not federation.validates:
                raise ConfigError(
                    f"{key}: needs validation examples; hold out some with"
                    " data.validation_fraction = 0.2"
                )
            if value and self.evaluation.choose_by == "G" and not self.algorithm.common:
                raise ConfigError(
                    f"evaluation.choose_by: {get_display_name(self.algorithm_name)} has no generic"
                    " model, so there is no G; set it to 'P'"
                )

    def choose_net_builder(self, federation: Federation) -> Callable[[], Net]:
        """Return a function that builds the net of [model]; raise ConfigError if it does not match the data."""
        if is_own_code(self.model.name or ""):
            own = import_own_model(str(self.model.name))
            return prepare_own_net(own, self.algorithm, federation, self.top.seed)
        if is_library_name(self.model.name or ""):
            own = make_library_net(self.model, federation, self.top.seed)
            return prepare_own_net(own, self.algorithm, federation, self.top.seed)
        if federation.record is not None:
            raise ConfigError(
                f"model.name: a named model accepts only one array as input; for examples of"
                f" {federation.record.describe()}, pass a model of your own: hp.run(model=…),"
                " model.name = 'package.module:function', or 'transformers:NAME'"
            )
        model = self.fill_model_defaults(federation).model
        assert model.name is not None
        assert model.head_depth is not None
        build = partial(
            get_model_builder(model.name), federation.shape, federation.classes, model.head_depth
        )
        self.try_net(model.name, build, federation)
        return build

    def try_net(self, name: str, build: Callable[[], Net], federation: Federation) -> None:
        """Build a named model once, so that a mistake is reported here rather than by a worker."""
        check_model_task(name, federation.task)
        check_model_input(name, federation)
        with seeded(self.top.seed, "init"):  # leaves the state of torch's generator unchanged
            build()

    def fill_model_defaults(self, federation: Federation) -> Config:
        """Return the configuration with the defaults of [model] filled in."""
        model = list_group_clients(self.model, list(federation.train), self.top.seed)
        if model.group is not None:
            return replace(self, model=model)
        if is_own_code(model.name or "") or is_library_name(model.name or ""):
            return self
        name = model.name or choose_default_model(
            federation.shape, federation.x.dtype, federation.task, has_characters(federation)
        )
        depth = self.model.head_depth or self.algorithm.head_depth
        depth = depth or get_default_head_depth(get_model_builder(name))
        return replace(self, model=replace(model, name=name, head_depth=depth))

    def count_selected_clients(self, clients: int) -> int:
        """Return how many of ``clients`` are selected per round."""
        assert isinstance(self.participation, RandomParticipation)  # like all rules from files
        return self.participation.compute_sample_size(clients)

    # Text -----------------------------------------------------------------------------------
    def to_toml(self, objects: Mapping[str, str] | None = None) -> str:
        """Format the configuration as TOML; without ``objects``, the text is enough to repeat the run.

        ``objects`` maps the place of each Python object that TOML cannot hold to the object's name;
        these objects are listed in the section [objects].
        """
        objects = objects or {}
        sections: dict[str, dict[str, Any]] = {
            "data": self.describe_data("data" in objects),
            "model": self.describe_model(),
            "algorithm": {"name": self.algorithm_name, **asdict(self.algorithm)},
            "training": self.training.to_settings(),
            "participation": {}
            if "participation" in objects
            else describe_participation(self.participation, self.faults),
            "speeds": asdict(self.speeds),
            "aggregation": asdict(self.aggregation),
            "evaluation": asdict(self.evaluation),
            "stop": asdict(self.stop),
            "engine": self.describe_engine(),
            "attack": asdict(self.attack) if self.attack.is_active else {},
            "objects": dict(objects),
        }
        if "model" in objects:
            sections["model"]["name"] = objects["model"]
        if "algorithm" in objects:  # settings of a user's own types become text
            sections["algorithm"] = {k: to_toml_value(v) for k, v in sections["algorithm"].items()}
        kept = {s: {k: v for k, v in d.items() if v is not None} for s, d in sections.items()}
        protections = {} if "protection" in objects else describe_protections(self.protections)
        filled = {s: d for s, d in kept.items() if d}
        return tomli_w.dumps({**asdict(self.top), **filled, **protections})

    def describe_data(self, own: bool) -> dict[str, Any]:
        """Return the section [data] for TOML; with a federation from Python, only the settings that describe it."""
        section = asdict(self.data)
        if own:
            section = {
                k: section[k] for k in ("name", "clients", "transform", "frozen_augment", "task")
            }
        if not self.data.validation_fraction:
            section.pop("validation_fraction", None)
        if self.data.task == "classification":
            del section["task"]
        if self.data.seed == self.top.seed:
            section.pop("seed", None)
        return section

    def describe_model(self) -> dict[str, Any]:
        """Return the section [model] for TOML."""
        section = asdict(self.model)
        if self.model.norm == "batch":
            del section["norm"]
        return section

    def describe_engine(self) -> dict[str, Any]:
        """Return the section [engine] for TOML, with ``auto`` resolved: a resumed run stays on its accelerator."""
        section = {"name": self.engine.name, **asdict(self.engine)}
        if self.engine.accelerator == "auto":
            section["accelerator"] = self.engine.choose_compute().device.type
        for key in ("precision", "deterministic", "fast"):
            if getattr(self.engine, key) == getattr(EngineSection, key):
                del section[key]
        if self.engine.name != "ray":
            drop_cluster_settings(section)
        return section


def to_toml_value(value: Any) -> bool | int | float | str | None:
    """Convert a setting's value to a type of TOML; values of other types become text."""
    return value if isinstance(value, bool | int | float | str | None) else repr(value)


# Checks -----------------------------------------------------------------------------------------


def check_training(algorithm: Algorithm, name: str, training: Training, rounds: int) -> None:
    """Raise ConfigError if the algorithm or the number of rounds rules out the training settings."""
    shown, chosen = get_display_name(name), training.optimizer
    if chosen not in algorithm.optimizers:
        allowed = " or ".join(f"'{o}'" for o in algorithm.optimizers)
        raise ConfigError(
            f"algorithm.name: {shown} is only defined for training.optimizer = {allowed}, not"
            f" '{chosen}'; set training.optimizer, or choose another algorithm"
        )
    if training.clip_norm is not None and not algorithm.allows_clipping:
        raise ConfigError(
            f"training.clip_norm: {shown} is not defined for clipped gradients; remove"
            " training.clip_norm"
        )
    if training.nesterov and not training.momentum:
        raise ConfigError(
            "training.nesterov: needs training.momentum above 0; raise training.momentum"
        )
    algorithm.check_training(training)
    if training.warmup and training.warmup >= rounds:
        raise ConfigError(
            f"training.warmup: must be below rounds, which is {rounds}, not {training.warmup}"
        )
    if training.decay_rounds and training.warmup + training.decay_rounds >= rounds:
        raise ConfigError(
            f"training.decay_rounds: with {training.decay_rounds}, the rate never falls in {rounds}"
            f" rounds, of which {training.warmup} are warm-up; lower training.decay_rounds"
        )


def check_model_task(model: str, task: TaskName) -> None:
    """Raise ConfigError if a model does not predict what the task requires."""
    if (model == "tokenlstm") != (task == "sequence"):
        how = (
            "predicts a token at every position" if model == "tokenlstm" else "predicts one answer"
        )
        raise ConfigError(f"model.name: {model} {how}, but the task is '{task}'; leave it out")


def check_task(algorithm: Algorithm, name: str, task: TaskName, loss: Criterion | None) -> None:
    """Raise ConfigError if an algorithm for classification gets a different task or loss."""
    if not algorithm.needs_classes:
        return
    shown = get_display_name(name)
    if task != "classification":
        raise ConfigError(
            f"algorithm.name: {shown} needs classes, but the task is '{task}'; choose another"
            " algorithm, such as FedAvg, Ditto or FedPer"
        )
    if loss is not None:
        raise ConfigError(
            f"loss: {shown} is defined with the cross-entropy; leave it out (outputs of log_softmax"
            " have the same cross-entropy as their logits)"
        )


def choose_default_model(
    shape: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
    task: TaskName = "classification",
    characters: bool = True,
) -> str:
    """Choose the default model by task and by the examples' shape and type; integer rows count as text.

    ``characters`` is True if the integers in a row are class numbers.
    """
    if task == "sequence":
        return "tokenlstm"
    if len(shape) == 1 and not dtype.is_floating_point and dtype != torch.uint8:
        return "charlstm" if characters else "text_tiny"
    if len(shape) == 3 and min(shape[1:]) >= 16:
        return "convnet"
    return "digitsnet" if len(shape) == 3 and min(shape[1:]) >= 4 else "mlp"


def check_model_input(model: str, federation: Federation) -> None:
    """Raise ConfigError if a named model cannot use the whole numbers in the examples."""
    name = model.partition("@")[0]
    if name not in MODEL_DESCRIPTIONS or not has_whole_numbers(federation):
        return
    low, high = federation.value_range
    found = f"whole numbers from {low} to {high}"
    if name not in TOKEN_MODELS or low < 0:
        raise ConfigError(
            f"model.name: {model} cannot read the examples, which are {found}; store images as bytes"
            " (x.astype(np.uint8)) and other numbers as floats (x.astype(np.float32)); only rows of"
            " tokens, from 0, stay integers"
        )
    if name == "charlstm" and high >= federation.classes:
        raise ConfigError(
            f"model.name: {model} predicts the next of the characters that it reads, but the examples"
            f" are {found} and there are {federation.classes} classes; use text_tiny"
        )


def has_whole_numbers(federation: Federation) -> bool:
    """Return True if a federation's examples are integers other than uint8."""
    dtype = federation.x.dtype
    return not dtype.is_floating_point and dtype != torch.uint8


def has_characters(federation: Federation) -> bool:
    """Return True if examples consist of class numbers, as in texts whose label is the next character."""
    if not has_whole_numbers(federation):
        return False
    low, high = federation.value_range
    return low >= 0 and high < federation.classes


def locate_client_data(data: DataSection) -> dict[str, Path]:
    """Find all clients' data in the folder ``data.path``, for a simulation of clients with local data."""
    if data.path is None:
        raise ConfigError(
            "data.path: missing; a simulation of clients with their own data needs a folder that holds"
            " one folder or .npz file for each client"
        )
    paths = find_client_data(Path(data.path))
    if len(paths) != data.clients:
        raise DataError(
            f"{data.path} holds the data of {len(paths)} clients, but data.clients is {data.clients};"
            " make them equal"
        )
    return paths


# Protections ------------------------------------------------------------------------------------


def check_protections(config: Config) -> None:
    """Raise ConfigError if the protections do not match each other or the run."""
    active = [p for p in config.protections if not p.is_identity]
    kinds = [get_kind(p) for p in active]
    for kind in kinds:
        if kinds.count(kind) > 1:
            raise ConfigError(f"protection.{kind}: is listed twice; remove one of the two")
    if active and config.algorithm.pooled:
        raise ConfigError(
            f"protection.{kinds[0]}: {config.algorithm_name} trains on pooled data, so nothing is sent;"
            " remove this protection"
        )
    check_protection_order(active)
    for protection in active:
        check_replacement(config, protection)
        check_reply_count(config, protection)
        protection.check_run(describe_run(config, tuple(active)))


def check_protection_order(active: Sequence[Protection]) -> None:
    """Raise ConfigError if protections exclude each other or are in the wrong order.

    At most one protection may give privacy and one may encode; none may run on the client after encoding.
    """
    private = [get_kind(p) for p in active if p.guards_replies]
    if len(private) > 1:
        raise ConfigError(f"protection: {' and '.join(private)} each have their own ε; choose one")
    encoding = [i for i, p in enumerate(active) if p.encodes]
    if len(encoding) > 1:
        both = " and ".join(get_kind(active[i]) for i in encoding)
        raise ConfigError(f"protection: {both} both encode what is sent; choose one")
    for protection in active[encoding[0] + 1 :] if encoding else ():
        if protection.works_on_client:
            raise ConfigError(
                f"protection.{get_kind(protection)}: must come before {get_kind(active[encoding[0]])},"
                " which encodes what is sent"
            )


def check_replacement(config: Config, protection: Protection) -> None:
    """Raise ConfigError if a protection allows one reply per round, but clients may be drawn twice."""
    if protection.once_per_round and getattr(config.participation, "replacement", False):
        raise ConfigError(
            f"protection.{get_kind(protection)}: a client must not be drawn twice in a round; set"
            " participation.replacement = false"
        )


def check_reply_count(config: Config, protection: Protection) -> None:
    """Raise ConfigError if a protection needs more replies than a round has."""
    rule = config.participation
    if config.algorithm.everybody:
        replies = config.data.clients
    elif isinstance(rule, RandomParticipation):
        replies = rule.compute_sample_size(config.data.clients)
    else:
        return  # a user's own rule
    if why := protection.check_replies(replies):
        about = "about " if isinstance(rule, Poisson) else ""
        raise ConfigError(
            f"protection.{get_kind(protection)}: {why}, and a round has {about}{replies};"
            " lower f, or raise participation"
        )


def describe_run(config: Config, active: tuple[Protection, ...]) -> RunFacts:
    """Collect the settings of a configuration on which protections may depend."""
    clients = config.data.clients
    kind, rate = describe_selection(config.algorithm, config.participation, clients)
    return RunFacts(
        rounds=config.top.rounds,
        clients=clients,
        participation_kind=kind,
        rate=rate,
        weights=config.aggregation.weights,
        batch=config.training.batch,
        shares_buffers=config.model.buffers == "average",
        unreliable=config.faults.is_unreliable,
        attacked=config.attack.is_active,
        protections=active,
    )


def settle_protections(config: Config) -> Config:
    """Replace a target ε with the noise that reaches it, and end the run where its privacy budget ends.

    The result holds noise and rounds as numbers, so that its readers, such as boards, need no accounting.
    """
    settled, rounds = list[Protection](), config.top.rounds
    for protection in config.protections:
        if protection.is_identity:
            settled.append(protection)
            continue
        active = tuple(p for p in config.protections if not p.is_identity)
        own, most = protection.settle(describe_run(config, active))
        settled.append(own)
        rounds = min(rounds, most)
    if tuple(settled) == config.protections and rounds == config.top.rounds:
        return config
    top = replace(config.top, rounds=rounds)
    return replace(config, top=top, protections=tuple(settled))


def check_participation_kind(protections: Sequence[Protection], participation: Any) -> None:
    """Raise ConfigError if a target ε is set without ``participation.kind``, on which the noise depends."""
    targets = [p for p in protections if getattr(p, "epsilon", None) is not None]
    if targets and not (isinstance(participation, dict) and "kind" in participation):
        raise ConfigError(
            f"protection.{get_kind(targets[0])}.epsilon: the noise depends on how clients are selected;"
            " set participation.kind = 'poisson', or 'uniform', which needs more noise"
        )
