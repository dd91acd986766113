"""A run's events as named numbers at steps: the same names in every tracker."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..run.summary import Event, Fairness, Summary, compute_accuracy


@dataclass(frozen=True)
class Point:
    """Numbers after ``step`` rounds; ``clients`` has accuracies by client, in client order."""

    step: int
    values: dict[str, float]
    clients: dict[str, list[float]] = field(default_factory=dict)


class PointBuilder:
    """Makes points of events, in their order: bytes and seconds are added up."""

    def __init__(self) -> None:
        self.test_sizes: list[int] = []
        self.validation_sizes: list[int] = []  # examples held out for validation
        self.totals = {"bytes/up": 0, "bytes/down": 0, "seconds": 0.0}

    def convert_event(self, event: Event) -> Point | None:
        """What there is to tell of an event; nothing of some."""
        if event["event"] == "start":
            self.test_sizes, self.validation_sizes = event["test"], event.get("validation", [])
        elif event["event"] == "evaluation":
            return self._convert_evaluation(event)
        elif event["event"] == "round":
            return self._convert_round(event)
        return None

    def _convert_evaluation(self, event: Event) -> Point:
        known = {k: event[k] for k in ("G", "P") if event[k] is not None}
        values = {
            f"accuracy/{k}": compute_accuracy(right, self.test_sizes) for k, right in known.items()
        }
        held_out = {k: event[k] for k in ("G_valid", "P_valid") if event.get(k) is not None}
        values |= {
            f"accuracy/{k}": compute_accuracy(v, self.validation_sizes) for k, v in held_out.items()
        }
        clients = {
            k: [c / n for c, n in zip(right, self.test_sizes, strict=True) if c is not None]
            for k, right in known.items()
        }
        if "P" in clients:
            values["accuracy/P_worst10"] = Fairness.from_accuracies(clients["P"]).worst10
        return Point(event["t"], values, clients)

    def _convert_round(self, event: Event) -> Point:
        self.totals["bytes/up"] += event["bytes_up"]
        self.totals["bytes/down"] += event["bytes_down"]
        self.totals["seconds"] += event["seconds"]
        values = {**self.totals}
        values |= {
            f"{kind}/{k}": v for kind in ("loss", "measures") for k, v in event[kind].items()
        }
        if event["P_local"]:
            right, seen = (sum(pair[i] for pair in event["P_local"]) for i in (0, 1))
            values["accuracy/P_local"] = right / seen
        if "clock" in event:
            values["simulated_seconds"] = event["clock"]
        return Point(event["t"] + 1, values)


def collect_final_values(summary: Summary) -> dict[str, float]:
    """What the run amounts to: never only the best."""
    out: dict[str, float] = {}
    for name, a in (("G", summary.G), ("P", summary.P), ("P_local", summary.P_local)):
        if a is not None:
            out |= {f"best/{name}": a.best, f"best_round/{name}": a.best_round}
            out |= {f"last/{name}": a.last, f"last10/{name}": a.last10.mean}
    out |= {f"worst10/{k}": f.worst10 for k, f in summary.fairness.items() if f is not None}
    if new := summary.new_clients:
        out |= {"new_clients/before": new.before, "new_clients/P": new.P}
    return out
