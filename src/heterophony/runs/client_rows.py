"""The measurements of every client in every evaluated round, as rows of a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

from ..core.errors import ConfigError
from .events import MEASURES, VALIDATION_MEASURES, Event, get_start, select_evaluations


def iterate_client_rows(events: Sequence[Event]) -> Iterator[dict[str, Any]]:
    """Iterate over rows: round, client, test size, then correct answers and accuracies of G and P.

    Their losses are named ``G_loss`` and ``P_loss``. What was not measured is None. A run with validation examples has the same of them. Other tasks
    than classification have scores alone; further metrics are named as in ``P_f1``.
    """
    start = get_start(events)
    counted = "task" not in start
    validation = start.get("validation")
    for event in select_evaluations(events):
        for i, client in enumerate(start["clients"]):
            row: dict[str, Any] = {"round": event["t"], "client": client, "test": start["test"][i]}
            for measure in MEASURES:
                add_measure(row, measure, event[measure], i, row["test"], counted)
            if validation is not None:
                row["validation"] = validation[i]
                for held_out in VALIDATION_MEASURES:
                    add_measure(row, held_out, event.get(held_out), i, validation[i], counted)
            for measured, losses in event.get("loss", {}).items():
                row[f"{measured}_loss"] = losses[i]
            for measured, values in event.get("metrics", {}).items():
                row |= {f"{measured}_{name}": v[i] for name, v in values.items()}
            yield row


def add_measure(
    row: dict[str, Any],
    name: str,
    counts: Sequence[float | None] | None,
    i: int,
    examples: int,
    counted: bool,
) -> None:
    """Add a client's correct answers and its accuracy to its row."""
    correct = None if counts is None else counts[i]
    if counted:
        row[f"{name}_correct"] = correct
    row[name] = None if correct is None or not examples else correct / examples


def make_frame(rows: Iterator[dict[str, Any]]) -> Any:
    """Make a pandas DataFrame of the rows; counts that are missing stay whole numbers."""
    try:
        pandas = import_module("pandas")
    except ImportError:
        raise ConfigError(
            "result.to_frame() needs pandas; install it with pip install 'heterophony[pandas]',"
            " or use result.rows()"
        ) from None
    frame = pandas.DataFrame(list(rows))
    counts = [name for name in frame.columns if name.endswith("_correct")]
    return frame.astype(dict.fromkeys(counts, "Int64"))
