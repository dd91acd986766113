"""What FedReG's augmentations make of a client's images: originals, and the copies of a run."""

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
    count_kept_and_copied,
    rebalance,
)
from ...algorithms.parts.threshold import compute_class_targets, describe_class_target
from ...core.errors import ConfigError, suggest_or_list
from ...core.randomness import seeded
from ...data.federation import Federation
from .style import STYLE, TEXT_COLOR

ORIGINAL = "original"
IMAGE_INCHES = 0.8  # inches of an image
COLUMN_GAP = 0.2  # of an image, between the ways


class ClassCopies(NamedTuple):
    """The first few augmented copies of a class."""

    label: str
    num_examples: int  # examples that the client has of the class
    num_copies: int  # copies that fill it up
    images: dict[str, Tensor]  # ORIGINAL: what was copied; and what every augmentation made of it


class AugmentedCopies(NamedTuple):
    """All classes of a client that are filled up."""

    client: str
    target_rule: str
    max_value: float  # the largest stored value
    classes: list[ClassCopies]


def make_augmented_copies(
    federation: Federation, algorithm: FedReG, seed: int, client: str | None, few: int
) -> AugmentedCopies:
    """Of a client, or of the one who gets most copies; the very copies of a run of that seed."""
    counts, how = federation.counts(), (algorithm.threshold, algorithm.threshold_scope)
    targets = compute_class_targets(torch.tensor(counts), *how)
    goals = dict(zip(federation.clients, targets, strict=True))
    name = find_most_augmented_client(federation, goals) if client is None else client
    if name not in goals:
        raise ConfigError(f"--client: no '{name}' here{suggest_or_list(name, goals)}")
    train = federation.data(name).train
    with seeded(*build_seed_key(seed, name)):
        originals, sources = choose_examples(train, goals[name])
    if not len(sources):
        raise ConfigError(f"client '{name}' has equally much of all its classes: nothing is copied")
    made = {}
    for way in AUGMENTATIONS:
        with seeded(*build_seed_key(seed, name)):
            made[way] = rebalance(train, goals[name], way).get_all_stored()[len(originals) :]
    classes, labels = [], train.labels[sources]
    for c in labels.unique().tolist():
        at = (labels == c).nonzero().flatten()
        held, shown = int((train.labels == c).sum()), at[:few]
        images = {ORIGINAL: train.get_stored(sources[shown])}
        images |= {way: x[shown] for way, x in made.items()}
        classes.append(ClassCopies(federation.labels[c], held, len(at), images))
    return AugmentedCopies(name, describe_class_target(*how), train.scale.unit, classes)


def find_most_augmented_client(federation: Federation, goals: Mapping[str, int]) -> str:
    counts = zip(goals, torch.tensor(federation.counts()), strict=True)
    copied = {c: count_kept_and_copied(row, goals[c])[1] for c, row in counts}
    return max(copied, key=lambda c: copied[c])


# Drawing ------------------------------------------------------------------------------------


def draw_augmented_copies(found: AugmentedCopies, name: str) -> Figure:
    """A row for each class: some originals, and what each way makes of the same images."""
    ways = list(found.classes[0].images)
    few = max(len(c.images[ORIGINAL]) for c in found.classes)
    widths = ([1.0] * few + [COLUMN_GAP]) * len(ways)
    with mpl.rc_context(STYLE):
        figure = Figure(layout="constrained")
        figure.set_size_inches(
            1.6 + IMAGE_INCHES * sum(widths), 0.9 + IMAGE_INCHES * len(found.classes)
        )
        grid = figure.subplots(len(found.classes), len(widths), squeeze=False, width_ratios=widths)
        for line, copied in zip(grid, found.classes, strict=True):
            for i, way in enumerate(ways):
                start = i * (few + 1)
                draw_image_row(line[start : start + few + 1], copied.images[way], found.max_value)
            words = f"{copied.label}\n{copied.num_examples} + {copied.num_copies}"
            label = {
                "rotation": 0,
                "ha": "right",
                "va": "center",
                "fontsize": 10,
                "color": TEXT_COLOR,
            }
            line[0].set_ylabel(words, **label)
        for i, way in enumerate(ways):
            grid[0, i * (few + 1)].set_title(way)
        title = f"{name}, client {found.client}: examples + augmented copies of each class,"
        figure.suptitle(
            f"{title}\nbalanced by FedReG to {found.target_rule}",
            x=0.01,
            ha="left",
            fontweight="bold",
            fontsize=13,
        )
    return figure


def draw_image_row(line: Sequence[Axes], images: Tensor, unit: float) -> None:
    """Images from the left; what is over stays empty."""
    for axes in line:
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
    for axes, image in zip(line, images, strict=False):
        pixels = (image.float() / unit).movedim(0, -1).squeeze(-1).numpy()
        axes.imshow(pixels, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
