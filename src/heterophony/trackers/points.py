"""Convert a run's events into named numbers per step, with the same names for every tracker."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from ..core.files import read_text_file, write_atomically
from ..core.scores import LOSS_PREFIX, get_metric_info
from ..runs import curves
from ..runs.events import MEASURES, VALIDATION_MEASURES, EvaluationEvent, Event, RoundEvent
from ..runs.summary import Summary


@dataclass(frozen=True)
class Point:
    """A run's numbers for trackers after ``step`` rounds; ``clients`` has accuracies in client order."""

    step: int
    values: dict[str, float]
    clients: dict[str, list[float]] = field(default_factory=dict)


class PointBuilder:
    """Converts a run's events to points for trackers; bytes and seconds are running totals."""

    def __init__(self) -> None:
        self.sizes: dict[str, list[int]] = {}  # examples of each client, by measure
        self.totals = {"bytes/up": 0, "bytes/down": 0, "seconds": 0.0}

    def convert_event(self, event: Event) -> Point | None:
        """Convert a run's next event to a point; return None if it has no numbers for trackers."""
        if event["event"] == "start":
            self.sizes = curves.list_sizes(event)
        elif event["event"] == "evaluation":
            return self._convert_evaluation(event)
        elif event["event"] == "round":
            return self._convert_round(event)
        return None

    def _convert_evaluation(self, event: EvaluationEvent) -> Point:
        """Convert an evaluation to a point with its accuracies, losses and metrics."""
        values, clients = dict[str, float](), dict[str, list[float]]()
        for measure in (*MEASURES, *VALIDATION_MEASURES):
            if (counts := event.get(measure)) is not None:
                sizes = self.sizes[measure]
                values[f"accuracy/{measure}"] = curves.compute_accuracy(counts, sizes)
                if measure in MEASURES:
                    pairs = zip(counts, sizes, strict=True)
                    clients[measure] = [c / n for c, n in pairs if c is not None]
        losses = curves.pool_losses(event, self.sizes)
        values |= {f"{LOSS_PREFIX}{measure}": loss for measure, loss in losses.items()}
        for measure_name, metrics in event.get("metrics", {}).items():
            for name, of in metrics.items():
                if (pooled := get_metric_info(name).pool(of, self.sizes[measure_name])) is not None:
                    values[f"{name}/{measure_name}"] = pooled
        if "P" in clients:
            values["accuracy/P_worst10"] = curves.Fairness.from_accuracies(clients["P"]).worst10
        return Point(event["t"], values, clients)

    def _convert_round(self, event: RoundEvent) -> Point:
        """Convert a training round to a point with its losses, its measures and the running totals."""
        self.totals["bytes/up"] += event["bytes_up"]
        self.totals["bytes/down"] += event["bytes_down"]
        self.totals["seconds"] += event["seconds"]
        values = {**self.totals}
        values |= {f"loss/{k}": v for k, v in event["loss"].items()}
        values |= {f"measures/{k}": v for k, v in event["measures"].items()}
        if (local := curves.compute_local_accuracy(event)) is not None:
            values["accuracy/P_local"] = local
        if "clock" in event:
            values["simulated_seconds"] = event["clock"]
        return Point(event["t"] + 1, values)


def collect_final_values(summary: Summary) -> dict[str, float]:
    """Collect the final numbers of a run for trackers, by name: best, last and last ten."""
    out: dict[str, float] = {}
    for name, a in (("G", summary.G), ("P", summary.P), ("P_local", summary.P_local)):
        if a is not None:
            out |= {f"best/{name}": a.best, f"best_round/{name}": a.best_round}
            out |= {f"last/{name}": a.last, f"last10/{name}": a.last10.mean}
    out |= {f"worst10/{k}": f.worst10 for k, f in summary.fairness.items() if f is not None}
    if new := summary.new_clients:
        out |= {"new_clients/before": new.before, "new_clients/P": new.P}
    return out


def read_run_id(path: Path) -> str | None:
    """Read the id of a tracker's run from a file; return None if the file is missing or damaged."""
    try:
        content = json.loads(read_text_file(path))
    except (OSError, ValueError):
        return None
    run_id = content.get("id") if isinstance(content, dict) else None
    return run_id if isinstance(run_id, str) else None


def write_run_id(path: Path, id: str) -> None:
    """Store the id of a tracker's run, so that a resume continues this run."""
    write_atomically(path, (json.dumps({"id": id}) + "\n").encode())
