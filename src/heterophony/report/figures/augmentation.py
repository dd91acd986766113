"""What FedReG's augmentations make of a client's images: originals, and the copies of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from ...algorithms.fedreg import FedReG
from ...algorithms.parts.augmentation import KINDS
from ...algorithms.parts.rebalancing import choose_examples, rebalance
from ...analysis.label_distribution import rule, targets
from ...core.errors import ConfigError, suggestion
from ...core.randomness import seeded
from ...data.federation import Federation
from .style import INK, STYLE

ORIGINAL = "original"
SIDE = 0.8  # inches of an image
GAP = 0.2  # of an image, between the ways


class Copied(NamedTuple):
    """The first few augmented copies of a class."""

    label: str
    held: int  # examples that the client has of the class
    added: int  # copies that fill it up
    images: dict[str, Tensor]  # ORIGINAL: what was copied; and what every augmentation made of it


class Copies(NamedTuple):
    """All classes of a client that are filled up."""

    client: str
    rule: str
    unit: float  # the largest stored value
    classes: list[Copied]


def copies(
    federation: Federation, algorithm: FedReG, seed: int, client: str | None, few: int
) -> Copies:
    """Of a client, or of the one who gets most copies; the very copies of a run of that seed."""
    goals = dict(zip(federation.clients, targets(federation, algorithm), strict=True))
    name = most_filled(federation, goals) if client is None else client
    if name not in goals:
        raise ConfigError(f"--client: no '{name}' here{suggestion(name, goals)}")
    train = federation.data(name).train
    with seeded(*luck(seed, name)):
        originals, sources = choose_examples(train, goals[name])
    if not len(sources):
        raise ConfigError(f"client '{name}' has equally much of all its classes: nothing is copied")
    made = {}
    for way in KINDS:
        with seeded(*luck(seed, name)):
            made[way] = rebalance(train, goals[name], way).stored_all()[len(originals) :]
    classes, labels = [], train.labels[sources]
    for c in labels.unique().tolist():
        at = (labels == c).nonzero().flatten()
        held, shown = int((train.labels == c).sum()), at[:few]
        images = {ORIGINAL: train.stored(sources[shown])}
        images |= {way: x[shown] for way, x in made.items()}
        classes.append(Copied(federation.labels[c], held, len(at), images))
    return Copies(name, rule(algorithm), train.scale.unit, classes)


def luck(seed: int, client: str) -> tuple[object, ...]:
    """What the randomness of a client's balanced set depends on, in ``Client.once``."""
    return seed, "once", client, "rebalanced"


def most_filled(federation: Federation, goals: Mapping[str, int]) -> str:
    counts = zip(goals, federation.counts(), strict=True)
    added = {c: int((goals[c] - n[n > 0]).clip(min=0).sum()) for c, n in counts}
    return max(added, key=lambda c: added[c])


# Drawing ------------------------------------------------------------------------------------


def draw(found: Copies, name: str) -> Figure:
    """A row for each class: some originals, and what each way makes of the same images."""
    ways = list(found.classes[0].images)
    few = max(len(c.images[ORIGINAL]) for c in found.classes)
    widths = ([1.0] * few + [GAP]) * len(ways)
    with mpl.rc_context(STYLE):
        figure = Figure(layout="constrained")
        figure.set_size_inches(1.6 + SIDE * sum(widths), 0.9 + SIDE * len(found.classes))
        grid = figure.subplots(len(found.classes), len(widths), squeeze=False, width_ratios=widths)
        for line, copied in zip(grid, found.classes, strict=True):
            for i, way in enumerate(ways):
                start = i * (few + 1)
                show(line[start : start + few + 1], copied.images[way], found.unit)
            words = f"{copied.label}\n{copied.held} + {copied.added}"
            label = {"rotation": 0, "ha": "right", "va": "center", "fontsize": 10, "color": INK}
            line[0].set_ylabel(words, **label)
        for i, way in enumerate(ways):
            grid[0, i * (few + 1)].set_title(way)
        title = f"{name}, client {found.client}: examples + augmented copies of each class,"
        figure.suptitle(
            f"{title}\nbalanced by FedReG to {found.rule}",
            x=0.01,
            ha="left",
            fontweight="bold",
            fontsize=13,
        )
    return figure


def show(line: Sequence[Axes], images: Tensor, unit: float) -> None:
    """Images from the left; what is over stays empty."""
    for axes in line:
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
    for axes, image in zip(line, images, strict=False):
        pixels = (image.float() / unit).movedim(0, -1).squeeze(-1).numpy()
        axes.imshow(pixels, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
