"""A contact sheet of a privacy audit: original images beside their reconstructions."""

from __future__ import annotations

import base64
from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ...algorithms import get_display_name
from ..page.audit_section import AuditRecord, describe_shown_rounds, select_images
from .style import MUTED_COLOR, STYLE, TEXT_COLOR

IMAGE_INCHES = 0.95  # side of an image


def draw_contact_sheet(records: Sequence[AuditRecord]) -> Figure:
    """Draw one row per image: the original, and each reconstruction with its PSNR."""
    originals, columns, attacks = select_images(records)
    shape = tuple(records[0]["shape"])
    with mpl.rc_context(STYLE):
        figure = Figure(layout="constrained")
        wide = 1 + len(columns)
        figure.set_size_inches(
            1.0 + IMAGE_INCHES * 1.15 * wide, 1.4 + IMAGE_INCHES * 1.3 * len(originals)
        )
        grid = figure.subplots(len(originals), wide, squeeze=False)
        for row, original in zip(grid, originals, strict=True):
            draw_image(row[0], original["original"], shape, f"client {original['client']}")
            for axes, (name, private) in zip(row[1:], columns, strict=True):
                r = attacks[name, private, original["client"], original["image"]]
                draw_image(axes, r["picture"], shape, f"{r['psnr']:.1f} dB")
        titles = [
            "original",
            *(f"{get_display_name(name)}\n{private}" for name, private in columns),
        ]
        for axes, title in zip(grid[0], titles, strict=True):
            axes.set_title(title, fontsize=10, loc="center")
        figure.suptitle(
            f"{records[0]['data']} {describe_shown_rounds(records)}: images recovered from what clients send;"
            "\nthe attacker draws the personal parameters anew (fresh), takes their initial values, or knows them",
            x=0.01,
            ha="left",
            fontweight="bold",
            fontsize=12,
        )
    return figure


def draw_image(axes: Axes, encoded: str, shape: tuple[int, ...], caption: str) -> None:
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    axes.imshow(
        decode_pixels(encoded, shape), cmap="gray", vmin=0, vmax=255, interpolation="nearest"
    )
    axes.set_xlabel(
        caption, fontsize=9, color=TEXT_COLOR if caption.endswith("dB") else MUTED_COLOR, labelpad=2
    )


def decode_pixels(encoded: str, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Decode to rows × columns or, for colour images, rows × columns × channels."""
    values = np.frombuffer(base64.b64decode(encoded), np.uint8).reshape(shape)
    return values.transpose(1, 2, 0).squeeze(-1) if shape[0] == 1 else values.transpose(1, 2, 0)
