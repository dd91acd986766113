"""Weights & Biases: writes one W&B run, online or offline as W&B's environment variables choose."""

from __future__ import annotations

import os
import secrets
import shutil
from typing import Any

import wandb

from ..runs.summary import Summary
from . import TrackedRun
from .points import Point, collect_final_values, read_run_id, write_run_id

LOGIN_SECONDS = 30  # time limit for a login


class WandB:
    """Continues the same W&B run after a resume; each round is a row that is sent when complete."""

    def begin(self, run: TrackedRun) -> None:
        file = run.folder / "wandb.json"
        name = read_run_id(file) or secrets.token_hex(4)
        # Offline, what an earlier part of the run has logged is unknown, so this part logs everything.
        # The old part is renamed first, because W&B names folders by the second, and then deleted.
        parts = list((run.folder / "wandb").glob(f"*offline-run-*-{name}"))
        old = [part.rename(part.with_name(f"old-{part.name}")) for part in parts]
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "heterophony"),
            name=run.name,
            id=name,
            resume="allow",
            dir=str(run.folder),
            config=run.config,
            settings=wandb.Settings(silent=True, console="off", login_timeout=LOGIN_SECONDS),
        )
        write_run_id(file, name)
        for part in old:
            shutil.rmtree(part, ignore_errors=True)  # W&B may still be writing its logs
        self.first_step = self.run.step  # earlier steps are already on the server
        self.step, self.row = 0, dict[str, Any]()

    def log(self, point: Point) -> None:
        if point.step != self.step:
            self._send_row()
            self.step = point.step
        self.row |= point.values
        self.row |= {f"clients/{k}": wandb.Histogram(v) for k, v in point.clients.items()}

    def _send_row(self) -> None:
        """Send the numbers of the current step to W&B, unless its run already has them."""
        if self.row and self.step >= self.first_step:
            self.run.log(self.row, step=self.step)
        self.row = {}

    def end(self, summary: Summary | None) -> None:
        if summary is not None:  # the last row of an unfinished run is incomplete
            self._send_row()
            self.run.summary.update(collect_final_values(summary))
        self.run.finish(exit_code=int(summary is None))
