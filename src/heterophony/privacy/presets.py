"""Presets of an audit: minutes on small data, and the published table, made small or as printed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..papers.medium import shrink_config
from ..papers.table import load_table
from .attack_job import AttackSettings
from .audit import Victims
from .preset_names import AuditPreset

LEAKAGE_TABLE = "feddecomp-table7"
# candidates for the rounds, and the losses at which algorithms are compared
MEDIUM_VICTIMS = Victims(tuple(range(1, 17)), 5, 2, (0.5, 0.4))


@dataclass(frozen=True)
class AuditSetup:
    """The runs to train, the clients to attack, and the settings of the attacks."""

    settings: dict[str, Any]
    algorithms: tuple[str, ...]
    victims: Victims
    attack_settings: AttackSettings


QUICK_AUDIT = AuditSetup(
    {
        "data": {
            "name": "photos",
            "clients": 4,
            "partition": {"kind": "dirichlet", "alpha": 0.5},
        },
        "model": {"name": "smallcnn", "head_depth": 1},
        "local": {"epochs": 3, "batch": 20, "lr": 0.02},
        "participation": {"rate": 1.0},
    },
    ("fedavg", "fedper", "fedrod", "fedreg", "feddecomp"),
    Victims((5, 10), 3, 2),
    AttackSettings(),
)


def get_preset(name: AuditPreset) -> AuditSetup:
    """Return the preset of that name."""
    if name is AuditPreset.quick:
        return QUICK_AUDIT
    table = load_table(LEAKAGE_TABLE)
    rows = [row["algorithm"]["name"] for row in table.rows.values()]
    settings = {**table.settings, "seed": table.measured.seeds[0]}
    if name is AuditPreset.medium:
        small = shrink_config({**settings, "algorithm": table.cells[0].config["algorithm"]})
        settings = {k: v for k, v in small.items() if k != "algorithm"}
        return AuditSetup(settings, tuple(rows), MEDIUM_VICTIMS, AttackSettings(iterations=500))
    victims = Victims((10, 20, 30, 40, 50), table.settings["data"]["clients"], 5)
    return AuditSetup(settings, tuple(rows), victims, AttackSettings(iterations=4800))


def get_algorithm_settings(name: AuditPreset, algorithm: str) -> dict[str, Any]:
    """Return the settings of one algorithm in the published table; none for other presets."""
    rows = () if name is AuditPreset.quick else load_table(LEAKAGE_TABLE).rows.values()
    return next((dict(r["algorithm"]) for r in rows if r["algorithm"]["name"] == algorithm), {})
