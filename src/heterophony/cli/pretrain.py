"""``pretrain``: train one model on the data of all clients, as a checkpoint that runs begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import terminal
from .options import SAME_COMMAND, ConfigArgument, JsonOption, SettingsOption, read_settings
from .result_tables import show_run


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command()(pretrain)


def pretrain(
    out: Annotated[Path, typer.Option("-o", help="The checkpoint to write (.safetensors).")],
    file: ConfigArgument = None,
    pairs: SettingsOption = None,
    json: JsonOption = False,
) -> None:
    """Train one model on the data of all clients, for `model.init`. Re-run to continue."""
    from ..engines.base import prepare_engine
    from ..experiments.pretrain import prepare_pretraining, save_pretrained
    from ..experiments.tasks import run_sequentially

    config = read_settings(file, pairs)
    prepare_engine(config.engine)
    task = prepare_pretraining(config, out)
    with terminal.show_interruptible_progress(SAME_COMMAND, [task.folder]) as shown:
        (summary,) = run_sequentially([task], shown, warn=terminal.print_note)
    save_pretrained(task, out)
    show_run(summary, task.folder.path, json)
    terminal.print_note(f"wrote {out}; begin with it: -c model.init={out}")
