"""The quick scale: the structure of a table, on the embedded digits and a small net, in minutes.

Numbers at this scale say nothing about those printed; who is above whom may.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from math import sqrt
from typing import Any

TEXT = ("shakespeare",)  # no stand-in for it is embedded
CLASSES = {"cifar100": 100, "tinyimagenet": 200, "tinyimagenet-32": 200}
STAND_IN, ITS_CLASSES = "digits", 10
ROUNDS = (10, 50)  # at least, and at most
EPOCHS = 250  # of a client that always takes part, over all rounds
NORMALISED = ("resnet8", "resnet10", "resnet18")  # which learn at higher rates than the small net
GENTLER = 5  # times
CLIENTS, FEWEST, MOST = 5, 5, 60  # a fifth of them, within bounds
BATCH = 20
DEEPEST = 2  # head of the small net
IN_ROUNDS = ("warmup_rounds", "decay_after")  # algorithms' settings that count rounds
FEDCAC = ("fedcac", "beta")  # so does this one
ABOUT = (
    "quick scale: the embedded digits stand for images, with a small net, a fifth of the clients"
    " and 10 to 50 rounds; only who is above whom can be compared"
)


def smaller(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a cell, made small by the same rules for every table."""
    small = deepcopy(dict(config))
    data, local = small["data"], small.setdefault("local", {})
    few = max(FEWEST, min(MOST, round(data["clients"] / CLIENTS)))
    took_part = small.get("participation", {}).get("count")
    if took_part is not None:
        small["participation"]["count"] = max(1, round(took_part * few / data["clients"]))
    data["clients"] = few
    local["batch"] = min(local.get("batch", BATCH), BATCH)
    if data["name"] in TEXT:
        fewer_windows(small)
    else:
        stand_in(small, data)
    shorten(small, local)
    return small


def shorten(small: dict[str, Any], local: Mapping[str, Any]) -> None:
    """Fewer rounds, and fewer of whatever an algorithm counts in rounds."""
    low, high = ROUNDS
    before = small["rounds"]
    after = before // 40 if "steps" in local else EPOCHS // local.get("epochs", 1)
    small["rounds"] = min(before, max(low, min(high, after)))
    how = small["algorithm"]
    for key in (*IN_ROUNDS, *(FEDCAC[1:] if how["name"] == FEDCAC[0] else ())):
        if key in how:
            how[key] = max(1, how[key] * small["rounds"] // before)


def fewer_windows(small: dict[str, Any]) -> None:
    """A tenth of everybody's text, measured once."""
    rule = small["data"]["partition"]
    for key in ("min_train", "min_test", "train_windows", "test_windows"):
        if key in rule:
            rule[key] //= 10
    small["evaluation"] = {"every": ROUNDS[1]}


def stand_in(small: dict[str, Any], data: dict[str, Any]) -> None:
    """The digits for any images, dealt by the same rule, and the net for them."""
    classes = CLASSES.get(data["name"], ITS_CLASSES)
    kept = {k: v for k, v in data.items() if k in ("clients", "partition", "train_fraction")}
    small["data"] = {**kept, "name": STAND_IN}
    small.pop("evaluation", None)
    rule = small["data"].get("partition", {})
    if rule.get("kind") == "per_client_dirichlet":  # which the digits, without a test set, lack
        small["data"]["partition"] = {
            "kind": "dirichlet",
            "alpha": rule["alpha"],
            "min_size": BATCH,
        }
        small["local"]["drop_last"] = True
    if rule.get("kind") == "shards" and classes > ITS_CLASSES:
        rule["per_client"] = max(1, round(ITS_CLASSES * sqrt(rule["per_client"] / classes)))
    model = small["model"]
    if model["name"] in NORMALISED:
        small["local"]["lr"] /= GENTLER
    model["name"] = "digitsnet"
    if "head_depth" in model:
        model["head_depth"] = min(model["head_depth"], DEEPEST)
