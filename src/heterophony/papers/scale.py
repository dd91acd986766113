"""How much of a published table is run."""

from enum import StrEnum


class TableScale(StrEnum):
    """In minutes, on small data; or as printed."""

    quick = "quick"
    full = "full"
