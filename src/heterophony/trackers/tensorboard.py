"""TensorBoard: event files in the run folder, with scalars per round and histograms over clients."""

from __future__ import annotations

import numpy as np
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from ..runs.summary import Summary
from . import TrackedRun
from .points import Point, collect_final_values


class TensorBoard:
    """Rewrites its files from the recorded events at each resume, so that no point occurs twice."""

    def begin(self, run: TrackedRun) -> None:
        self.config = run.config
        folder = run.folder / "tensorboard"
        for old in folder.glob("events.out.tfevents.*"):
            old.unlink()
        # an open TensorBoard then forgets what it read from the old files
        self.writer = SummaryWriter(str(folder), purge_step=0)
        table = "\n".join(f"| {k} | {v} |" for k, v in run.config.items())
        self.writer.add_text("config", f"| setting | value |\n|---|---|\n{table}", 0)

    def log(self, point: Point) -> None:
        for name, value in point.values.items():
            self.writer.add_scalar(name, value, point.step)
        for name, accuracies in point.clients.items():
            self.writer.add_histogram(f"clients/{name}", np.array(accuracies), point.step)
        self.writer.flush()  # users may watch the file live, and the run may be killed

    def end(self, summary: Summary | None) -> None:
        if summary is not None:
            values = collect_final_values(summary)
            self.log(Point(summary.rounds, values))
            # add_hparams would create a second run
            for part in hparams(self.config, values):
                self.writer._get_file_writer().add_summary(part)
        self.writer.close()
