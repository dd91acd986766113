"""A figure of FedReG's augmentations: images of a client beside the copies that a run trains on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import matplotlib as mpl
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from ...algorithms.fedreg import FedReG
from ...algorithms.parts.augmentation import AUGMENTATIONS
from ...algorithms.parts.rebalancing import (
    build_seed_key,
    choose_examples,
    compute_class_targets,
    count_kept_and_copied,
    describe_class_target,
    rebalance,
)
from ...core.errors import ConfigError, choose
from ...core.randomness import seeded
from ...data.federation import Federation
from .style import STYLE, TEXT_COLOR, set_figure_title

ORIGINAL = "original"
IMAGE_INCHES = 0.8  # side of an image
COLUMN_GAP = 0.2  # between two augmentations, as a fraction of an image


class ClassCopies(NamedTuple):
    """The first augmented copies of one class."""

    label: str
    num_examples: int  # the client's own examples of the class
    num_copies: int  # augmented copies that are added to them
    images: dict[str, Tensor]  # by augmentation; under ORIGINAL the images that are copied


class AugmentedCopies(NamedTuple):
    """All classes of a client that get copies."""

    client: str
    target_rule: str
    max_value: float  # the largest stored value
    classes: list[ClassCopies]


def make_augmented_copies(
    federation: Federation, algorithm: FedReG, seed: int, client: str | None, few: int
) -> AugmentedCopies:
    """Make the copies that a run with this seed trains on.

    ``client`` defaults to the one with the most copies; ``few`` limits the copies per class.
    """
    rule = (algorithm.threshold, algorithm.threshold_scope)
    by_client = compute_class_targets(torch.tensor(federation.counts()), *rule)
    targets = dict(zip(federation.clients, by_client, strict=True))
    name = find_most_augmented_client(federation, targets) if client is None else client
    choose(targets, name, "--client")
    train = federation.data(name).train
    with seeded(*build_seed_key(seed, name)):
        originals, sources = choose_examples(train, targets[name])
    if not len(sources):
        raise ConfigError(
            f"client '{name}' has equally many examples of all its classes, so nothing is copied"
        )
    copies = {}
    for augmentation in AUGMENTATIONS:
        with seeded(*build_seed_key(seed, name)):
            made = rebalance(train, targets[name], augmentation, algorithm.magnitude)
        copies[augmentation] = made.get_all_stored()[len(originals) :]
    classes, labels = [], train.labels[sources]
    for c in labels.unique().tolist():
        at = (labels == c).nonzero().flatten()
        num_examples, shown = int((train.labels == c).sum()), at[:few]
        images = {ORIGINAL: train.get_stored(sources[shown])}
        images |= {augmentation: x[shown] for augmentation, x in copies.items()}
        classes.append(ClassCopies(federation.labels[c], num_examples, len(at), images))
    return AugmentedCopies(name, describe_class_target(*rule), train.scale.unit, classes)


def find_most_augmented_client(federation: Federation, targets: Mapping[str, int]) -> str:
    """Return the client that gets the most augmented copies."""
    counts = zip(targets, torch.tensor(federation.counts()), strict=True)
    copied = {c: count_kept_and_copied(row, targets[c])[1] for c, row in counts}
    return max(copied, key=lambda c: copied[c])


# Drawing ------------------------------------------------------------------------------------


def draw_augmented_copies(copies: AugmentedCopies, name: str) -> Figure:
    """Draw one row per class: some originals, and what each augmentation makes of them."""
    columns = list(copies.classes[0].images)
    few = max(len(c.images[ORIGINAL]) for c in copies.classes)
    widths = ([1.0] * few + [COLUMN_GAP]) * len(columns)
    with mpl.rc_context(STYLE):
        figure = Figure(layout="constrained")
        figure.set_size_inches(
            1.6 + IMAGE_INCHES * sum(widths), 0.9 + IMAGE_INCHES * len(copies.classes)
        )
        grid = figure.subplots(len(copies.classes), len(widths), squeeze=False, width_ratios=widths)
        for row, copied in zip(grid, copies.classes, strict=True):
            for i, column in enumerate(columns):
                start = i * (few + 1)
                draw_image_row(
                    row[start : start + few + 1], copied.images[column], copies.max_value
                )
            text = f"{copied.label}\n{copied.num_examples} + {copied.num_copies}"
            label = {
                "rotation": 0,
                "ha": "right",
                "va": "center",
                "fontsize": 10,
                "color": TEXT_COLOR,
            }
            row[0].set_ylabel(text, **label)
        for i, column in enumerate(columns):
            grid[0, i * (few + 1)].set_title(column)
        title = f"{name}, client {copies.client}: examples + augmented copies of each class,"
        set_figure_title(figure, f"{title}\nbalanced by FedReG to {copies.target_rule}")
    return figure


def draw_image_row(row: Sequence[Axes], images: Tensor, max_value: float) -> None:
    """Draw images from the left; the other axes stay empty."""
    for axes in row:
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
    for axes, image in zip(row, images, strict=False):
        pixels = (image.float() / max_value).movedim(0, -1).squeeze(-1).numpy()
        axes.imshow(pixels, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
