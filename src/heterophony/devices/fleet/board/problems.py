"""The error that a board reports as one line."""

from __future__ import annotations

import errno

FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class ProblemError(Exception):
    """What is wrong on the board, in one line."""


def describe_os_error(error: OSError) -> str:
    """Describe a failed file operation; a full disk is said in plain words."""
    where = f" ({error.filename})" if error.filename else ""
    if error.errno in FULL_DISK:
        return f"its disk is full{where}"
    return f"{error.strerror or error}{where}"
