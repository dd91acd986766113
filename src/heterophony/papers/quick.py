"""The quick scale: the structure of a table, on the embedded digits and a small net, in minutes.

Numbers at this scale say nothing about those printed; who is above whom may.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from math import sqrt
from typing import Any

TEXT_DATASETS = ("shakespeare",)  # no stand-in for it is embedded
CLASS_COUNTS = {"cifar100": 100, "tinyimagenet": 200, "tinyimagenet-32": 200}
STAND_IN_DATASET, STAND_IN_CLASSES = "digits", 10
ROUND_BOUNDS = (10, 50)  # at least, and at most
TOTAL_EPOCHS = 250  # of a client that always takes part, over all rounds
NORMALISED_MODELS = (
    "resnet8",
    "resnet10",
    "resnet18",
)  # which learn at higher rates than the small net
LR_DIVISOR = 5  # times
CLIENT_DIVISOR, MIN_CLIENTS, MAX_CLIENTS = 5, 5, 60  # a fifth of them, within bounds
MAX_BATCH = 20
MAX_HEAD_DEPTH = 2  # head of the small net
ROUND_SETTINGS = ("warmup_rounds", "decay_after")  # algorithms' settings that count rounds
FEDCAC_ROUND_SETTING = ("fedcac", "beta")  # so does this one
QUICK_SCALE_NOTE = (
    "quick scale: the embedded digits stand for images, with a small net, a fifth of the clients"
    " and 10 to 50 rounds; only who is above whom can be compared"
)


def shrink_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a cell, made small by the same rules for every table."""
    small = deepcopy(dict(config))
    data, local = small["data"], small.setdefault("local", {})
    few = max(MIN_CLIENTS, min(MAX_CLIENTS, round(data["clients"] / CLIENT_DIVISOR)))
    took_part = small.get("participation", {}).get("count")
    if took_part is not None:
        small["participation"]["count"] = max(1, round(took_part * few / data["clients"]))
    data["clients"] = few
    local["batch"] = min(local.get("batch", MAX_BATCH), MAX_BATCH)
    if data["name"] in TEXT_DATASETS:
        reduce_windows(small)
    else:
        substitute_dataset(small, data)
    reduce_rounds(small, local)
    return small


def reduce_rounds(small: dict[str, Any], local: Mapping[str, Any]) -> None:
    """Fewer rounds, and fewer of whatever an algorithm counts in rounds."""
    low, high = ROUND_BOUNDS
    before = small["rounds"]
    after = before // 40 if "steps" in local else TOTAL_EPOCHS // local.get("epochs", 1)
    small["rounds"] = min(before, max(low, min(high, after)))
    how = small["algorithm"]
    for key in (
        *ROUND_SETTINGS,
        *(FEDCAC_ROUND_SETTING[1:] if how["name"] == FEDCAC_ROUND_SETTING[0] else ()),
    ):
        if key in how:
            how[key] = max(1, how[key] * small["rounds"] // before)


def reduce_windows(small: dict[str, Any]) -> None:
    """A tenth of everybody's text, measured once."""
    rule = small["data"]["partition"]
    for key in ("min_train", "min_test", "train_windows", "test_windows"):
        if key in rule:
            rule[key] //= 10
    small["evaluation"] = {"every": ROUND_BOUNDS[1]}


def substitute_dataset(small: dict[str, Any], data: dict[str, Any]) -> None:
    """The digits for any images, dealt by the same rule, and the net for them."""
    classes = CLASS_COUNTS.get(data["name"], STAND_IN_CLASSES)
    kept = {k: v for k, v in data.items() if k in ("clients", "partition", "train_fraction")}
    small["data"] = {**kept, "name": STAND_IN_DATASET}
    small.pop("evaluation", None)
    rule = small["data"].get("partition", {})
    if rule.get("kind") == "per_client_dirichlet":  # which the digits, without a test set, lack
        small["data"]["partition"] = {
            "kind": "dirichlet",
            "alpha": rule["alpha"],
            "min_size": MAX_BATCH,
        }
        small["local"]["drop_last"] = True
    if rule.get("kind") == "shards" and classes > STAND_IN_CLASSES:
        rule["per_client"] = max(1, round(STAND_IN_CLASSES * sqrt(rule["per_client"] / classes)))
    model = small["model"]
    if model["name"] in NORMALISED_MODELS:
        small["local"]["lr"] /= LR_DIVISOR
    model["name"] = "digitsnet"
    if "head_depth" in model:
        model["head_depth"] = min(model["head_depth"], MAX_HEAD_DEPTH)
