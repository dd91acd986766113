"""How large an audit is: the words of the command line. It needs no torch."""

from enum import StrEnum


class AuditPreset(StrEnum):
    """Minutes on small data, or the size of the published table."""

    quick = "quick"
    paper = "paper"
