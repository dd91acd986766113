"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..core.errors import ConfigError

ConfigFile = Annotated[
    Path | None,
    typer.Argument(metavar="CONFIG.toml", help="Settings; those left out have a default."),
]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option("-c", "--config", help="One setting, as in local.lr=0.01; repeatable."),
]
EngineOption = Annotated[
    list[str] | None,
    typer.Option("-c", "--config", help="Where jobs run, as in engine.name=ray; repeatable."),
]
OutOption = Annotated[
    Path | None, typer.Option(help="The folder to write; default: a new one in runs/.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
TrackOption = Annotated[
    list[str] | None,
    typer.Option(help="Also write to tensorboard, mlflow or wandb; repeatable."),
]
SAME_COMMAND = "run the same command again to continue"  # for whoever is interrupted


def parse_seeds(text: str) -> list[int]:
    """Parse ``0,1,2``."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--seeds {text}: must be whole numbers, as in 0,1,2") from None


def check_only_engine_settings(pairs: list[str] | None) -> None:
    """Refuse settings that change what an existing run computes; where it runs may change."""
    for pair in pairs or []:
        if not pair.strip().startswith("engine."):
            raise ConfigError(f"-c {pair}: only engine settings can change, as in engine.name=ray")


def select_engine_settings(pairs: list[str] | None) -> list[str]:
    """Select the settings of the section [engine]."""
    return [pair for pair in pairs or [] if pair.strip().startswith("engine.")]


def find_free_folder(name: str) -> Path:
    """Find the first unused runs/NAME-1, runs/NAME-2, …"""
    number = 1
    while (Path("runs") / f"{name}-{number}").exists():
        number += 1
    return Path("runs") / f"{name}-{number}"
