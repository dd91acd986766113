"""Names of audit presets, for the command line. Imports no torch, so that --help is quick."""

from enum import StrEnum


class AuditPreset(StrEnum):
    """quick: minutes on small data; medium: the published table, made small; paper: its size."""

    quick = "quick"
    medium = "medium"
    paper = "paper"
