"""``pretrain``: one model on everybody's data, as a checkpoint that runs can begin with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ..core.errors import FolderError
from . import terminal
from .result_tables import show_run
from .runs import ConfigFile, JsonOption, SettingsOption, run_sequentially, warm_up_engine


def register(app: typer.Typer) -> None:
    """Put the command into the app."""
    app.command()(pretrain)


def pretrain(
    out: Annotated[Path, typer.Option("-o", help="The checkpoint to write (.safetensors).")],
    file: ConfigFile = None,
    pairs: SettingsOption = None,
    json: JsonOption = False,
) -> None:
    """Train one model on everybody's data, for `model.init`; the same again goes on."""
    from ..algorithms.centralized import Centralized
    from ..config.checkpoint import save_checkpoint
    from ..config.reading import read_config
    from ..run.store import RunFolder

    config = read_config(file, pairs or [])
    warm_up_engine(config)
    federation = config.build_federation()
    config = config.fill_model_defaults(
        federation
    )  # the head's depth is that of the algorithm to come
    if not isinstance(config.algorithm, Centralized):
        config = replace(config, algorithm=Centralized(), algorithm_name="centralized")
    folder = RunFolder(out.with_name(f"{out.name}.run"))
    plan = config.build_plan(federation)
    if not folder.config_file.exists():
        folder.create(config.to_toml())
    elif folder.reopen() != config.to_toml():
        folder.close()
        raise FolderError(f"{folder.path} holds a training with other settings; choose another -o")
    (summary,) = run_sequentially([(folder, config, plan)], folder.path, quiet=json)
    server = folder.restore_newest_commit(federation.sizes())
    assert server is not None  # it has just been committed
    save_checkpoint(out, server.average | server.model)
    show_run(summary, folder.path, json)
    terminal.print_note(f"wrote {out}; begin with it: -c model.init={out}")
