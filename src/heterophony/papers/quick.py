"""The quick scale: a table's structure on the embedded digits and a small net, in minutes.

Its numbers cannot be compared with the printed ones, and say nothing about the paper's data.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from math import sqrt
from typing import Any

TEXT_DATASETS = ("shakespeare",)  # no embedded data set can replace it
CLASS_COUNTS = {"cifar100": 100, "tinyimagenet": 200, "tinyimagenet-32": 200}
STAND_IN_DATASET, STAND_IN_CLASSES = "digits", 10
ROUND_BOUNDS = (10, 50)  # minimum and maximum
TOTAL_EPOCHS = 250  # of a client that is selected in every round
# models with normalisation, which train at higher learning rates than the small net
NORMALISED_MODELS = ("resnet8", "resnet10", "resnet18", "resnet18_imagenet")
LR_DIVISOR = 5
CLIENT_DIVISOR, MIN_CLIENTS, MAX_CLIENTS = 5, 5, 60  # a fifth of the clients, within bounds
MAX_BATCH = 20
MAX_HEAD_DEPTH = 2  # of the small net
ROUND_SETTINGS = ("warmup_rounds", "decay_after")  # settings of algorithms that count rounds
FEDCAC_ROUND_SETTING = ("fedcac", "beta")  # counts rounds in this algorithm only
QUICK_SCALE_NOTE = (
    "quick scale: the embedded digits replace images, with a small net, a fifth of the clients"
    " and 10 to 50 rounds; nothing here was run as printed, so there is no verdict on the paper"
)


def shrink_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Shrink the configuration of a cell, by the same rules for every table."""
    small = deepcopy(dict(config))
    data, local = small["data"], small.setdefault("local", {})
    clients = max(MIN_CLIENTS, min(MAX_CLIENTS, round(data["clients"] / CLIENT_DIVISOR)))
    count = small.get("participation", {}).get("count")
    if count is not None:
        small["participation"]["count"] = max(1, round(count * clients / data["clients"]))
    data["clients"] = clients
    local["batch"] = min(local.get("batch", MAX_BATCH), MAX_BATCH)
    if data["name"] in TEXT_DATASETS:
        reduce_windows(small)
        small["evaluation"] = {"every": ROUND_BOUNDS[1]}  # once
    else:
        substitute_dataset(small, data)
    reduce_rounds(small, local)
    return small


def reduce_rounds(small: dict[str, Any], local: Mapping[str, Any]) -> None:
    """Reduce the rounds, and the settings of algorithms that count rounds."""
    low, high = ROUND_BOUNDS
    before = small["rounds"]
    after = before // 40 if "steps" in local else TOTAL_EPOCHS // local.get("epochs", 1)
    small["rounds"] = min(before, max(low, min(high, after)))
    scale_round_settings(small["algorithm"], small["rounds"], before)


def scale_round_settings(algorithm: dict[str, Any], after: int, before: int) -> None:
    """Scale the settings of an algorithm that count rounds to so many rounds."""
    for key in (
        *ROUND_SETTINGS,
        *(FEDCAC_ROUND_SETTING[1:] if algorithm["name"] == FEDCAC_ROUND_SETTING[0] else ()),
    ):
        if key in algorithm:
            algorithm[key] = max(1, algorithm[key] * after // before)


def reduce_windows(small: dict[str, Any]) -> None:
    """Use a tenth of every client's text."""
    partition = small["data"]["partition"]
    for key in ("min_train", "min_test", "train_windows", "test_windows"):
        if key in partition:
            partition[key] //= 10


def substitute_dataset(small: dict[str, Any], data: dict[str, Any]) -> None:
    """Replace images by the digits, partitioned by the same rule, and use a net for them."""
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
        small["local"]["drop_last"] = True
    reduce_class_shards(partition, classes)
    model = small["model"]
    if model["name"] in NORMALISED_MODELS:
        small["local"]["lr"] /= LR_DIVISOR
    model["name"] = "digitsnet"
    if "head_depth" in model:
        model["head_depth"] = min(model["head_depth"], MAX_HEAD_DEPTH)


def reduce_class_shards(partition: dict[str, Any], classes: int) -> None:
    """Reduce the classes of a client where ten classes stand in for more."""
    if partition.get("kind") == "shards" and classes > STAND_IN_CLASSES:
        share = sqrt(partition["per_client"] / classes)
        partition["per_client"] = max(1, round(STAND_IN_CLASSES * share))
