"""Weights & Biases: one of its runs, online or not as its own environment says."""

from __future__ import annotations

import os
import secrets
import shutil
from typing import Any

import wandb

from ..run.summary import Summary
from . import TrackedRun
from .identity import read_run_id, write_run_id
from .points import Point, collect_final_values

LOGIN_SECONDS = 30  # seconds that it may wait for somebody to log in


class WandB:
    """Goes on with the same id after a resume; a round is a row, sent when it is whole."""

    def begin(self, run: TrackedRun) -> None:
        file = run.folder / "wandb.json"
        name = read_run_id(file) or secrets.token_hex(4)
        # without a network nobody can say what an earlier part has: this one will have it all.
        # Aside before it begins, as W&B names a folder by the second; gone once it has begun.
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
            shutil.rmtree(part, ignore_errors=True)  # its logs may still be written
        self.first_step = self.run.step  # of those the server does not have
        self.step, self.row = 0, dict[str, Any]()

    def log(self, point: Point) -> None:
        if point.step != self.step:
            self._send_row()
            self.step = point.step
        self.row |= point.values
        self.row |= {f"clients/{k}": wandb.Histogram(v) for k, v in point.clients.items()}

    def _send_row(self) -> None:
        if self.row and self.step >= self.first_step:
            self.run.log(self.row, step=self.step)
        self.row = {}

    def end(self, summary: Summary | None) -> None:
        if summary is not None:  # else the last row is not whole
            self._send_row()
            self.run.summary.update(collect_final_values(summary))
        self.run.finish(exit_code=int(summary is None))
