"""The text of ``config.toml`` of a run that was begun from Python, by which it is recognised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass, replace
from typing import Any

import tomli_w

from ..config.config import Config, choose_default_model
from ..config.old_settings import describe_algorithm
from ..core.metrics import MetricFunction
from ..core.tasks import Criterion
from ..data.federation import Federation
from ..population.device_speeds import Devices
from ..population.faults import Faults
from ..protection import describe_protections
from .own_functions import name_function
from .own_model import OwnModel

Model = str | OwnModel


def format_run_toml(
    config: Config, federation: Federation, model: Model | None, own: Mapping[str, str]
) -> str:
    """Format the configuration of a run begun from Python: for people to read, without its data."""
    net = model or choose_default_model(federation.shape, federation.x.dtype, federation.task)
    rule, transform = config.participation, federation.transform
    sections: dict[str, dict[str, Any]] = {
        "data": {
            "name": federation.name,
            "clients": len(federation.clients),
            "transform": transform and transform.name,
            "frozen_augment": transform and transform.moves and transform.moves.frozen,
            "validation": sum(federation.sizes("validation").values()) or None,
            "task": None if federation.task == "classification" else federation.task,
        },
        "model": {
            "name": net if isinstance(net, str) else type(net).__name__,
            "head_depth": config.model.head_depth,
            "buffers": config.model.buffers,
            "init": config.model.init,
        },
        "algorithm": describe_algorithm(config.algorithm_name, config.algorithm),
        "local": config.local.to_settings(),
        "aggregation": asdict(config.aggregation),
        "evaluation": {
            "every": config.evaluation.every,
            "new_client_rounds": config.evaluation.new_client_rounds,
        },
        # the default repr holds an address, which differs between processes
        "library": {
            "participation": repr(rule) if is_dataclass(rule) else type(rule).__name__,
            **own,
        },
    }
    if config.engine.precision != "float32":
        sections["library"]["precision"] = config.engine.precision
    if config.faults != Faults():
        sections["library"]["faults"] = repr(config.faults)
    if config.devices != Devices():
        sections["library"]["devices"] = repr(config.devices)
    if config.attack.is_active:
        sections["library"]["attack"] = repr(config.attack)
    plain = {
        k: {n: to_toml_value(v) for n, v in d.items() if v is not None} for k, d in sections.items()
    }
    plain["local"] = sections["local"]  # plain already; its lists stay lists
    return tomli_w.dumps(
        {**asdict(config.top), **plain, **describe_protections(config.protections)}
    )


def list_accepted_texts(
    config: Config, federation: Federation, model: Model | None, own: Mapping[str, str]
) -> list[str]:
    """List the texts that describe the same run.

    Older runs name the class, as in ``fedrepfull``, and do not say the depth of the head.
    """
    names = (config.algorithm_name, type(config.algorithm).__name__.lower())
    models = (config.model, replace(config.model, head_depth=None))
    older = [replace(config, algorithm_name=n, model=m) for n in names for m in models]
    return [format_run_toml(c, federation, model, own) for c in older]


def name_own_functions(
    loss: Criterion | None, metrics: Sequence[str | MetricFunction] | None
) -> dict[str, str]:
    """Name the loss and the metrics that the user chose."""
    chosen = {} if loss is None else {"loss": name_function(loss)}
    if metrics is not None:
        chosen["metrics"] = ", ".join(
            m if isinstance(m, str) else name_function(m) for m in metrics
        )
    return chosen


def to_toml_value(value: Any) -> bool | int | float | str:
    """Return a setting as TOML can hold it; one of a user's own type as text."""
    return value if isinstance(value, bool | int | float | str) else repr(value)
