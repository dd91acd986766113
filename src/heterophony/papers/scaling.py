"""What a scale changes: the settings of cells, the seeds, and the note below a table."""

from __future__ import annotations

from . import medium, quick
from .scale import TableScale
from .table import PublishedTable

SHRINK_CONFIG = {TableScale.quick: quick.shrink_config, TableScale.medium: medium.shrink_config}
SCALE_NOTES = {
    TableScale.quick: quick.QUICK_SCALE_NOTE,
    TableScale.medium: medium.MEDIUM_SCALE_NOTE,
}


def choose_seeds(published: PublishedTable, scale: TableScale) -> tuple[int, ...]:
    """Return the seeds that a table is run with, if nobody names them."""
    own = tuple(published.measured.seeds)
    if scale is TableScale.medium:
        return medium.choose_seeds(own)
    return own if scale is TableScale.full else own[:1]
