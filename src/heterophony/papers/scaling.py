"""The quick and medium scales of published tables: smaller settings, and estimates of cost.

The quick scale keeps a table's structure on the embedded digits and a small net, in minutes; its
numbers cannot be compared with the printed ones and say nothing about the paper's data.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from functools import cache
from math import sqrt
from statistics import fmean
from typing import Any, Literal

import torch

from ..config.config import Config
from ..config.nets import list_net_groups
from ..config.reading import resolve_config
from ..data.partitions import PerClientDirichlet
from ..data.sources import SOURCES, DatasetSize
from ..data.sources.builtin import TEST_PER_CLASS, TRAIN_PER_CLASS
from ..models import NET_GROUPS, get_default_head_depth, get_model_builder
from ..tools.bench import count_forward_flops, count_training_flops, measure_sgemm_rate
from .claim_list import PaperClaim
from .table import PublishedTable, TableScale, index_cells

TEXT_DATASETS = ("shakespeare",)  # no embedded data set can replace these
CLASS_COUNTS = {"cifar100": 100, "tinyimagenet": 200, "tinyimagenet-32": 200}
STAND_IN_DATASET, STAND_IN_CLASSES = "digits", 10
ROUND_BOUNDS = (10, 50)  # minimum and maximum
TOTAL_EPOCHS = 250  # for a client that is selected in every round
# models with normalisation, which train at higher learning rates than the small net
NORMALISED_MODELS = ("resnet8", "resnet10", "resnet18", "resnet18_imagenet")
LR_DIVISOR = 5
CLIENT_DIVISOR, MIN_CLIENTS, MAX_CLIENTS = 5, 5, 60  # a fifth of the clients, within bounds
MAX_BATCH = 20
MAX_HEAD_DEPTH = 2  # largest head depth of the small net
ROUND_SETTINGS = ("warmup_rounds", "decay_after")  # settings of algorithms that count rounds
QUICK_SCALE_NOTE = (
    "quick scale: the embedded digits replace images, with a small net, a fifth of the clients"
    " and 10 to 50 rounds; nothing here was run as printed, so there is no verdict on the paper"
)


def shrink_to_quick(config: Mapping[str, Any]) -> dict[str, Any]:
    """Shrink the configuration of a cell, by the same rules for every table."""
    small = deepcopy(dict(config))
    data, training = small["data"], small.setdefault("training", {})
    clients = max(MIN_CLIENTS, min(MAX_CLIENTS, round(data["clients"] / CLIENT_DIVISOR)))
    count = small.get("participation", {}).get("count")
    if count is not None:
        small["participation"]["count"] = max(1, round(count * clients / data["clients"]))
    data["clients"] = clients
    training["batch"] = min(training.get("batch", MAX_BATCH), MAX_BATCH)
    if data["name"] in TEXT_DATASETS:
        reduce_text_windows(small)
        small["evaluation"] = {"every": ROUND_BOUNDS[1]}  # once
    else:
        substitute_dataset(small, data)
    reduce_quick_rounds(small, training)
    return small


def reduce_quick_rounds(small: dict[str, Any], training: Mapping[str, Any]) -> None:
    """Reduce the rounds to the quick scale, and with them the algorithm's settings that count rounds."""
    low, high = ROUND_BOUNDS
    before = small["rounds"]
    after = before // 40 if "steps" in training else TOTAL_EPOCHS // training.get("epochs", 1)
    small["rounds"] = min(before, max(low, min(high, after)))
    scale_round_settings(small["algorithm"], small["rounds"], before)


def scale_round_settings(algorithm: dict[str, Any], after: int, before: int) -> None:
    """Scale the settings of an algorithm that count rounds, from ``before`` to ``after`` rounds."""
    for key in (*ROUND_SETTINGS, *(["beta"] if algorithm["name"] == "fedcac" else [])):
        if key in algorithm:
            algorithm[key] = max(1, algorithm[key] * after // before)


def reduce_text_windows(small: dict[str, Any]) -> None:
    """Reduce every client's text to a tenth of its windows."""
    partition = small["data"]["partition"]
    for key in ("min_train", "min_test", "train_windows", "test_windows"):
        if key in partition:
            partition[key] //= 10


def substitute_dataset(small: dict[str, Any], data: dict[str, Any]) -> None:
    """Replace images by the digits at the quick scale, with the same partition and a smaller net."""
    classes = CLASS_COUNTS.get(data["name"], STAND_IN_CLASSES)
    kept = {k: v for k, v in data.items() if k in ("clients", "partition", "train_fraction")}
    small["data"] = {**kept, "name": STAND_IN_DATASET}
    small.pop("evaluation", None)
    partition = small["data"].get("partition", {})
    if partition.get("kind") == "per_client_dirichlet":  # needs a test set, which digits lack
        small["data"]["partition"] = {
            "kind": "dirichlet",
            "alpha": partition["alpha"],
            "min_size": MAX_BATCH,
        }
        small["training"]["drop_last"] = True
    reduce_class_shards(partition, classes)
    model = small["model"]
    if "groups" in model:
        substitute_groups(model)
    else:
        if model["name"] in NORMALISED_MODELS:
            small["training"]["lr"] /= LR_DIVISOR
        model["name"] = "digitsnet"
    if "head_depth" in model:
        model["head_depth"] = min(model["head_depth"], MAX_HEAD_DEPTH)


def substitute_groups(model: dict[str, Any]) -> None:
    """Replace a group of different nets by nets for 8x8 images, of several kinds or widths."""
    names = NET_GROUPS[model.pop("groups")]
    if any("@" in name for name in names):
        names = tuple(name.replace(name.split("@")[0], "digitsnet") for name in names)
    else:
        names = NET_GROUPS["cnn-3"]
    model["group"] = [{"name": name, "share": 1 / len(names)} for name in names]


def reduce_class_shards(partition: dict[str, Any], classes: int) -> None:
    """Reduce the number of classes per client if a data set of ten classes replaces one with more."""
    if partition.get("kind") == "shards" and classes > STAND_IN_CLASSES:
        share = sqrt(partition["per_client"] / classes)
        partition["per_client"] = max(1, round(STAND_IN_CLASSES * share))


SMALL_DATASETS = {  # up to 1,000 images per class at half their side: data/sources/builtin.py
    "fmnist": "fmnist-small",
    "emnist": "emnist-small",
    "emnist-balanced": "emnist-small",
    "cifar10": "cifar10-small",
    "cifar100": "cifar100-small",
    "tinyimagenet": "cifar100-small",  # 200 classes at half of 64x64 are too much work
    "tinyimagenet-32": "cifar100-small",
}
STAND_INS = {  # replacements of data sets that are not on this machine
    "emnist-small": "fmnist-small",
    "cifar100-small": "cifar10-small",
}
SMALL_MODELS = {  # the same structure with a quarter of the channels
    "convnet": "convnet_small",
    "resnet8": "resnet8_small",
    "resnet10": "resnet10_small",
    "resnet18": "resnet10_small",
    "resnet18_imagenet": "resnet10_small",
    "pfakd_cnn": "pfakd_fmnist",  # pfakd_cnn needs 24x24; pfakd_fmnist has two of its three convolutions
}
SMALL_CLASSES = 10  # number of classes of a stand-in
StandInUse = Literal["never", "if missing", "always"]
MAX_ROUNDS, MAX_EPOCHS = 50, 500  # for a client that is selected in every round
MAX_EPOCHS_OF_TEXT, MAX_EPOCHS_OF_MANY, MANY_IMAGES = 10, 100, 20_000  # if an epoch takes longer
MAX_ROUNDS_OF_SINGLES = 20  # if a batch is one image
STEPS_ROUND_DIVISOR = 10  # if a round consists of a few steps, not of epochs
EVALUATIONS = 25  # most evaluations in a run that counts epochs
# if clients share fewer images than in the paper, a round has fewer steps; larger steps make up for that
LR_FACTOR = 3
CENTRALISED = "centralized"
# clients of this partition draw their own images, as many as in the paper
OWN_SIZE_PARTITION = "per_client_dirichlet"
MIN_SEEDS = 5  # the paper's own seeds, then the numbers after them, up to this count
MEDIUM_SCALE_NOTE = (
    "medium scale: the paper's data, partition, clients and kind of net, with at most 1,000 images per"
    " class at half their side, a quarter of the channels and at most 50 rounds: it decides orderings,"
    " not levels"
)


def shrink_to_medium(
    config: Mapping[str, Any], stand_ins: StandInUse = "if missing"
) -> dict[str, Any]:
    """Shrink the configuration of a cell, by the same rules for every table.

    ``stand_ins`` controls when a data set is replaced by a similar one: by default, if it is not
    on this machine.
    """
    small = deepcopy(dict(config))
    if small["data"]["name"] in TEXT_DATASETS:
        reduce_text_windows(small)
    else:
        shrink_dataset(small["data"], stand_ins)
        shrink_model(small["model"])
        raise_learning_rate(small, config["data"]["name"])
    reduce_medium_rounds(small)
    return small


def shrink_dataset(data: dict[str, Any], stand_ins: StandInUse) -> None:
    """Replace a cell's data set by its small version, or by a stand-in if that is not on this machine."""
    full = data["name"]
    if full in SMALL_DATASETS.values():
        return  # a table on a small data set stays as it is
    small = SMALL_DATASETS[full]
    missing = stand_ins == "if missing" and not SOURCES[small].available
    if small in STAND_INS and (missing or stand_ins == "always"):
        small = STAND_INS[small]
        reduce_class_shards(data.get("partition", {}), CLASS_COUNTS.get(full, SMALL_CLASSES))
    data["name"] = small
    limit_own_images(data.get("partition", {}), small)
    # papers' transforms are for images of 32x32; without a transform, uint8 values become [-1, 1]
    data.pop("transform", None)
    data.pop("frozen_augment", None)


def limit_own_images(partition: dict[str, Any], small: str) -> None:
    """Limit how many images a client draws to the size of a class, because all of them may be of one class."""
    if partition.get("kind") != OWN_SIZE_PARTITION:
        return
    usual, of_class = (
        PerClientDirichlet(),
        SOURCES[small].size.examples // SOURCES[small].size.classes,
    )
    drawn = TRAIN_PER_CLASS + TEST_PER_CLASS
    for part, share in (("train", TRAIN_PER_CLASS), ("test", TEST_PER_CLASS)):
        most = of_class * share // drawn
        if partition.get(part, getattr(usual, part)) > most:
            partition[part] = most


def keeps_dataset(full: str, small: str) -> bool:
    """Return True if a small data set is a version of the paper's own, not a stand-in."""
    own = f"{full.removesuffix('-balanced')}-small"
    return full in TEXT_DATASETS or small in (full, own)


def shrink_model(model: dict[str, Any]) -> None:
    """Replace a cell's net by the small net of the same kind, with the same number of layers in the head."""
    full = model.get("name")  # different nets stay as they are
    if full in SMALL_MODELS:
        model.setdefault("head_depth", get_default_head_depth(get_model_builder(full)))
        model["name"] = SMALL_MODELS[full]
        model.pop("init", None)  # the weights of the full net do not match


def raise_learning_rate(small: dict[str, Any], full: str) -> None:
    """Raise a cell's learning rate if clients have fewer images and so take fewer steps in a round."""
    images = SOURCES[small["data"]["name"]].size.examples
    if shares_images(small) and images < SOURCES[full].size.examples / 2:
        small["training"]["lr"] = round(LR_FACTOR * small["training"]["lr"], 9)


def shares_images(small: Mapping[str, Any]) -> bool:
    """Return True if a cell divides the images among clients that each train on all their images in a round."""
    own_size = small["data"].get("partition", {}).get("kind") == OWN_SIZE_PARTITION
    steps, pooled = "steps" in small["training"], small["algorithm"]["name"] == CENTRALISED
    return not (own_size or steps or pooled)


def reduce_medium_rounds(small: dict[str, Any]) -> None:
    """Reduce the rounds and evaluations to the medium scale, and the settings that count rounds."""
    before, training = small["rounds"], small["training"]
    if "steps" in training:
        after = before // STEPS_ROUND_DIVISOR
    else:
        after = min(MAX_ROUNDS, choose_most_epochs(small) // training.get("epochs", 1))
        if training.get("batch") == 1:
            after = min(after, MAX_ROUNDS_OF_SINGLES)
    small["rounds"] = max(1, min(before, after))
    scale_round_settings(small["algorithm"], small["rounds"], before)
    if "steps" not in training:
        small["evaluation"] = {"every": max(1, small["rounds"] // EVALUATIONS)}


def choose_most_epochs(small: Mapping[str, Any]) -> int:
    """Return the limit on a client's epochs in a run at medium scale, which is lower for larger data sets."""
    name = small["data"]["name"]
    if name in TEXT_DATASETS:
        return MAX_EPOCHS_OF_TEXT
    many = SOURCES[name].size.examples > MANY_IMAGES
    return MAX_EPOCHS_OF_MANY if many and shares_images(small) else MAX_EPOCHS


SHRINK_CONFIG = {TableScale.quick: shrink_to_quick, TableScale.medium: shrink_to_medium}
SCALE_NOTES = {TableScale.quick: QUICK_SCALE_NOTE, TableScale.medium: MEDIUM_SCALE_NOTE}


def choose_seeds(published: PublishedTable, scale: TableScale) -> tuple[int, ...]:
    """Return the default seeds of a table at a scale."""
    own = tuple(published.measured.seeds)
    if scale is TableScale.medium:
        return (*own, *range(own[-1] + 1, own[-1] + 1 + MIN_SEEDS - len(own)))
    return own if scale is TableScale.full else own[:1]


TRAINING_EFFICIENCY = 0.45  # speed of training relative to a matrix product (`heterophony bench`)
SECONDS_PER_STEP = 0.0025  # overhead of a mini-batch
SECONDS_TO_START = 2.0  # overhead of a run
RELATIVE_WORK = {  # time of local training relative to FedAvg with five epochs, measured on idle cores
    **dict.fromkeys(("apfl", "ditto", "feddecomp", "fedpac"), 2.0),
    **dict.fromkeys(("moon", "perfedavg", "pfedgate", "pfedpara"), 1.7),
    **dict.fromkeys(("fedproto", "pfakd", "pfedsd"), 1.5),
    "fedreg": 3.0,
    "pfedme": 4.4,
}
REFERENCE_SPEED = 90e9  # operations per second of one core, from benchmarks/README.md
HOUR = 3600


def estimate_seconds(raw: Mapping[str, Any], speed: float, cores: int) -> float:
    """Estimate the seconds of one run of a cell on this number of cores."""
    config = resolve_config(dict(raw))
    size = SOURCES[config.data.name].size
    clients, rounds = config.data.clients, config.top.rounds
    train, test = count_examples(config, size)
    everybody = config.algorithm.everybody
    participants = clients if everybody else config.count_selected_clients(clients)
    samples = train / clients * config.training.epochs
    if config.training.steps is not None:
        samples = config.training.steps * config.training.batch
    if config.algorithm.pooled:
        participants, samples = 1, train * config.training.epochs
    samples *= participants * RELATIVE_WORK.get(config.algorithm_name, 1.0)
    names = [group.name for group in list_net_groups(config.model)] or [str(config.model.name)]
    counted = [count_flops(name, size.shape, size.classes) for name in names]
    training_flops, testing_flops = (fmean(flops) for flops in zip(*counted, strict=True))
    evaluated = 2 * test / config.evaluation.every  # G and P
    flops = samples * training_flops + evaluated * testing_flops
    arithmetic = flops / (TRAINING_EFFICIENCY * speed)
    return (
        SECONDS_TO_START
        + rounds * (arithmetic + SECONDS_PER_STEP * samples / config.training.batch) / cores
    )


def count_examples(config: Config, size: DatasetSize) -> tuple[float, float]:
    """Estimate the training and test examples of all clients; some partitions use only a part."""
    partition, clients = config.data.partition, config.data.clients
    for train, test in (("train", "test"), ("train_windows", "test_windows")):
        if partition.get(train):
            return partition[train] * clients, partition[test] * clients
    fraction = config.data.train_fraction
    return size.examples * fraction, size.examples * (1 - fraction)


@cache
def count_flops(model: str, shape: tuple[int, ...], classes: int) -> tuple[int, int]:
    """Count a model's floating-point operations to train on one example and to test on one."""
    build = get_model_builder(model)
    net = build(shape, classes, get_default_head_depth(build))
    return count_training_flops(net, shape), sum(count_forward_flops(net, shape))


def measure_speed() -> float:
    """Measure the speed of one core in floating-point operations per second."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return measure_sgemm_rate()
    finally:
        torch.set_num_threads(before)


# Claims -------------------------------------------------------------------------------------


def estimate_core_hours(claim: PaperClaim) -> dict[str, float | None]:
    """Estimate the core-hours to decide a claim, by scale; None if it cannot be decided at a scale."""
    return {
        scale.value: estimate_at_scale(claim, scale)
        for scale in (TableScale.medium, TableScale.full)
    }


def estimate_at_scale(claim: PaperClaim, scale: TableScale) -> float | None:
    """Estimate the core-hours of all cells of a claim; None if a cell cannot be run at this scale."""
    cells = index_cells(claim.table.name)
    # claims without comparisons are read from the whole table
    found = [cells[key] for key in claim.cells or cells]
    if not found or claim.command or any(cell.needs for cell in found):
        return None
    seeds = max(MIN_SEEDS, len(claim.table.measured.seeds))
    each = [estimate_cell(claim.table.name, cell.row, cell.column, scale) for cell in found]
    known = [seconds for seconds in each if seconds is not None]
    return seeds * sum(known) / HOUR if len(known) == len(each) else None


@cache
def estimate_cell(table: str, row: str, column: str, scale: TableScale) -> float | None:
    """Estimate the seconds of one run of a cell at a scale; None if other data would replace its own."""
    config = index_cells(table)[row, column].config
    if scale is TableScale.medium:
        small = shrink_to_medium(config, stand_ins="never")
        if not keeps_dataset(config["data"]["name"], small["data"]["name"]):
            return None
        config = small
    return estimate_seconds(config, REFERENCE_SPEED, 1)


def format_duration(seconds: float) -> str:
    """Format a duration, as in ``40 s``, ``12 min``, ``3 h`` or ``5 days``."""
    for size, word in ((86_400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.0f} {word}"
    return f"{max(1, seconds):.0f} s"


def format_core_hours(hours: float | None) -> str:
    """Format core-hours, as in ``0.4``, ``12`` or ``1,300``; ``–`` if unknown."""
    if hours is None:
        return "–"
    return f"{hours:.1f}" if hours < 10 else f"{hours:,.0f}"


def explain_missing_cost(claim: PaperClaim) -> str:
    """Explain why a claim has no estimated cost at either scale."""
    if claim.command:
        return f"by `{claim.command}`"
    cells = index_cells(claim.table.name)
    needs = dict.fromkeys(c.needs for c in (cells[key] for key in claim.cells or cells) if c.needs)
    return f"needs {'; '.join(n for n in needs if n)}" if needs else ""
