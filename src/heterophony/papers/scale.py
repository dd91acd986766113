"""At which scale a published table is run. Imports no torch, so that --help is quick."""

from enum import StrEnum


class TableScale(StrEnum):
    """quick: in minutes, on digits; medium: to decide orderings; full: as in the paper."""

    quick = "quick"
    medium = "medium"
    full = "full"
