"""Check the metrics in a reply from a device: their names, their limits, and which there must be."""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ..core.errors import CodecError
from ..core.scores import LOSS_PREFIX, get_metric_info
from ..core.tensors import Tensors
from ..jobs.client_store import FolderClientStore
from ..jobs.evaluation import is_generic_model_known
from ..jobs.plan import Job, Plan

TEST_COUNT_METRICS = ("G", "P", "P_local", "before")  # correct answers on test examples
VALIDATION_COUNT_METRICS = ("G_valid", "P_valid")
METRIC_NAME = re.compile(r"[A-Za-z]\w{0,40}(/\w{1,40})?")
MAX_METRICS = 32  # in one reply
MAX_VALUE = 1e100  # of a metric: its square, and its sum over all examples, are still finite


def check_metrics(plan: Plan, found: Mapping[str, float], client: str) -> None:
    """Require bounded numbers with valid names, and counts within the number of examples."""
    federation = plan.federation.whole()
    tested, held_out = (federation.sizes(p)[client] for p in ("test", "validation"))
    limits = {
        **dict.fromkeys(TEST_COUNT_METRICS, tested),
        **dict.fromkeys(VALIDATION_COUNT_METRICS, held_out),
    }
    if len(found) > MAX_METRICS:
        raise CodecError(f"the reply has {len(found)} metrics, over {MAX_METRICS}")
    for name, value in found.items():
        if not METRIC_NAME.fullmatch(name):
            raise CodecError(f"metric {name[:80]!r} is not a name")
        if not math.isfinite(value):
            raise CodecError(f"metric {name!r} is not finite")
        if abs(value) > MAX_VALUE:
            raise CodecError(f"metric {name!r} is {value:g}, over {MAX_VALUE:g}")
        if name in limits and not is_possible_score(plan, value, limits[name]):
            raise CodecError(f"metric {name!r} is {value:g}, of {limits[name]} examples")
        if value <= 0 and get_metric_info(name.partition("/")[2]).pooling == "log":
            raise CodecError(f"metric {name!r} is {value:g}, and must be above 0")
        if (measure := name.removeprefix(LOSS_PREFIX)) != name and measure in limits:
            check_loss(measure, value, found)


def check_loss(measure: str, value: float, found: Mapping[str, float]) -> None:
    """Require the score that a loss belongs to; no loss of a task is below 0."""
    if measure not in found:
        raise CodecError(f"metric '{LOSS_PREFIX}{measure}' is there, and {measure!r} is missing")
    if value < 0:
        raise CodecError(f"metric '{LOSS_PREFIX}{measure}' is {value:g}, and must not be negative")


def is_possible_score(plan: Plan, value: float, examples: int) -> bool:
    """Tell whether so many examples can have this sum of scores; R² has no lower limit."""
    if plan.task.name == "classification" and value != int(value):
        return False
    return value <= examples and (value >= 0 or plan.task.name == "regression")


def list_expected_measures(plan: Plan, job: Job, client: str) -> frozenset[str]:
    """List the scores that a client measures in an evaluation: G, P, both or none.

    The client is one of the plan's, whose data the plan has.
    """
    algorithm, found = plan.algorithm, set[str]()
    if job.t == plan.rounds or algorithm.ready(job.t):
        found.add("P")
    if algorithm.common:
        with tempfile.TemporaryDirectory(prefix="heterophony-") as folder:
            store = FolderClientStore(Path(folder) / "clients", Path(folder) / "scratch")
            blank = replace(job, client=client, tensors=Tensors())
            generic = plan.build_client(blank, {"net": job.generic_model}, store)
            if is_generic_model_known(plan, generic):
                found.add("G")
    return frozenset(found)
