"""Names of audit presets, for the command line. Imports no torch, so that --help is quick."""

from enum import StrEnum


class AuditPreset(StrEnum):
    """quick: minutes on small data; paper: the size of the published table."""

    quick = "quick"
    paper = "paper"
