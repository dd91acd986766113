"""The section ``[participation]``: which clients are selected, and which faults are simulated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..core.errors import ConfigError, choose
from ..core.fields import check_keys, check_settings, construct, list_settings, setting
from ..population.availability import Availability, Diurnal, Trace
from ..population.faults import Faults
from ..population.participation import Participation, Poisson, Skewed, Uniform

DEFAULT_RATE = 0.2  # of the clients that take part in a round, where nobody says
SELECTION_RULES: dict[str, type] = {"uniform": Uniform, "poisson": Poisson}
AVAILABILITY_RULES: dict[str, type[Availability]] = {"diurnal": Diurnal, "trace": Trace}


@dataclass(frozen=True)
class ParticipationSkew:
    """How unevenly clients are selected."""

    gamma: float = setting(
        0.1, "concentration of the Dirichlet distribution of probabilities", above=0
    )

    def __post_init__(self) -> None:
        check_settings(self)


def parse_participation(
    given: Mapping[str, Any],
) -> tuple[Uniform | Skewed | Poisson, Faults]:
    """Read the rule of selection and the faults, which share one section."""
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
            raise ConfigError(f"{where}.skew: not with kind = 'poisson'; leave one out")
        return construct(Poisson, selection, where), faults
    if skew is None:
        return construct(Uniform, selection, where), faults
    if not isinstance(skew, dict):
        raise ConfigError(f"{where}.skew: must be a table, as in {{ gamma = 0.1 }}")
    gamma = construct(ParticipationSkew, skew, f"{where}.skew").gamma
    return construct(Skewed, {**selection, "gamma": gamma}, where), faults


def parse_availability(given: Any, where: str) -> Availability:
    """Read a rule of availability; one with a file is a trace."""
    if not isinstance(given, dict):
        raise ConfigError(f"{where}: must be a number, or a table as in {{ kind = 'diurnal' }}")
    values = dict(given)
    kind = str(values.pop("kind", "trace" if "file" in values else "diurnal"))
    return construct(choose(AVAILABILITY_RULES, kind, f"{where}.kind"), values, where)


def describe_participation(participation: Participation, faults: Faults) -> dict[str, Any]:
    """Return the section that ``parse_participation`` reads."""
    # others cannot be read from a file
    assert isinstance(participation, Uniform | Skewed | Poisson)
    section = asdict(participation) | asdict(faults)
    if isinstance(participation, Poisson):  # the default is not written: older folders can resume
        section = {"kind": "poisson", **section}
    if "gamma" in section:
        section["skew"] = {"gamma": section.pop("gamma")}
    kinds = [k for k, cls in AVAILABILITY_RULES.items() if isinstance(faults.availability, cls)]
    if kinds:
        section["availability"] = {"kind": kinds[0], **section["availability"]}
    return section
