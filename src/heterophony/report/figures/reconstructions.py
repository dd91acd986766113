"""A contact sheet of an audit: originals, and what every attack made of them."""

from __future__ import annotations

import base64
from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ..page.audit_section import Record, shelf
from .style import INK, MUTED, STYLE

SIDE = 0.95  # inches of an image


def sheet(records: Sequence[Record]) -> Figure:
    """A row for every image: the original, and what each attack made of it, with its PSNR."""
    originals, columns, found = shelf(records)
    shape = tuple(records[0]["shape"])
    with mpl.rc_context(STYLE):
        figure = Figure(layout="constrained")
        wide = 1 + len(columns)
        figure.set_size_inches(1.0 + SIDE * 1.15 * wide, 1.4 + SIDE * 1.3 * len(originals))
        grid = figure.subplots(len(originals), wide, squeeze=False)
        for line, original in zip(grid, originals, strict=True):
            show(line[0], original["original"], shape, f"client {original['client']}")
            for axes, (name, private) in zip(line[1:], columns, strict=True):
                r = found[name, private, original["client"], original["image"]]
                show(axes, r["picture"], shape, f"{r['psnr']:.1f} dB")
        heads = ["original", *(f"{name}\n{private}" for name, private in columns)]
        for axes, head in zip(grid[0], heads, strict=True):
            axes.set_title(head, fontsize=10, loc="center")
        last = originals[0]["round"]
        figure.suptitle(
            f"{records[0]['data']} after {last} rounds: images recovered from what is sent;"
            "\nthe parts that stay are unknown or known to the attacker",
            x=0.01,
            ha="left",
            fontweight="bold",
            fontsize=12,
        )
    return figure


def show(axes: Axes, packed: str, shape: tuple[int, ...], below: str) -> None:
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    axes.imshow(unpacked(packed, shape), cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    axes.set_xlabel(below, fontsize=9, color=INK if below.endswith("dB") else MUTED, labelpad=2)


def unpacked(packed: str, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Rows, columns and, of colour images, channels."""
    values = np.frombuffer(base64.b64decode(packed), np.uint8).reshape(shape)
    return values.transpose(1, 2, 0).squeeze(-1) if shape[0] == 1 else values.transpose(1, 2, 0)
