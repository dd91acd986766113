"""The HTML page of a label distribution, as ``heterophony data partition -o page.html`` writes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...analysis.label_distribution import LabelDistribution
from ...core.files import write_atomically
from .html import DRAWING_SCRIPTS, render_page


def write_label_page(distribution: LabelDistribution, path: Path) -> None:
    """Write the page as one file."""
    write_atomically(path, render_label_page(distribution).encode())


def render_label_page(distribution: LabelDistribution) -> str:
    """Render the page as text. It draws with the same script as the report page."""
    return render_page(
        "label_page.html",
        ("label_page.js", *DRAWING_SCRIPTS),
        build_label_page_data(distribution),
        title=distribution.title,
        summary=describe_sizes(distribution),
        colors=describe_colors(distribution),
    )


def build_label_page_data(distribution: LabelDistribution) -> dict[str, Any]:
    """Collect the numbers that the script draws: counts, client sizes, and the table of clients."""
    return {
        "clients": distribution.clients,
        "classes": distribution.classes,
        "counts": distribution.label_counts.tolist(),
        "stacks": build_size_stacks(distribution),
        "table": build_client_table(distribution),
    }


def build_size_stacks(distribution: LabelDistribution) -> list[list[dict[str, Any]]]:
    """One bar per client of its own examples and, if the algorithm rebalances, one of those after."""

    def build_layer(colour: str, label: str, values: Any) -> dict[str, Any]:
        return {"colour": colour, "label": label, "values": values.tolist()}

    stacks = [[build_layer("neutral", "training examples", distribution.train_sizes)]]
    if balanced := distribution.balanced:
        kept = build_layer("c0", "kept", balanced.num_kept)
        stacks.append([kept, build_layer("c1", "augmented copies", balanced.num_copies)])
    return stacks


def build_client_table(distribution: LabelDistribution) -> dict[str, Any]:
    """One row per client: sizes, number of classes, and the largest class."""
    balanced, validation = distribution.balanced, distribution.validation_sizes
    titles = ["client", "training", *(["validation"] if validation is not None else []), "test"]
    titles += ["classes", "largest class", "its share"]
    titles += ["balanced", "of it augmented"] if balanced else []
    rows = []
    for i, (name, counts) in enumerate(
        zip(distribution.clients, distribution.label_counts, strict=True)
    ):
        largest, n = int(counts.argmax()), int(counts.sum())
        share = f"{100 * counts[largest] / n:.0f} %" if n else "–"
        row = [name, n, *([int(validation[i])] if validation is not None else [])]
        row += [int(distribution.test_sizes[i]), int((counts > 0).sum())]
        row += [distribution.classes[largest], share]
        row += [int(balanced.train_sizes[i]), int(balanced.num_copies[i])] if balanced else []
        rows.append(row)
    return {"titles": titles, "rows": rows}


def describe_sizes(distribution: LabelDistribution) -> str:
    train, classes = distribution.train_sizes, (distribution.label_counts > 0).sum(axis=1)
    sizes = distribution.validation_sizes
    validation = "" if sizes is None else f", {sizes.sum()} validation"
    return (
        f"{train.sum()} training{validation} and {distribution.test_sizes.sum()} test examples"
        f" of {len(distribution.classes)} classes; "
        f"{train.min()} to {train.max()} training examples and {classes.min()} to {classes.max()}"
        " classes per client."
    )


def describe_colors(distribution: LabelDistribution) -> str:
    if distribution.balanced is None:
        return "Grey: training examples."
    return (
        "Grey: the client's own training examples. Beside them: the set that FedReG balances to"
        f" {distribution.balanced.target_rule}. Blue: examples that are kept. Orange: augmented copies."
    )
