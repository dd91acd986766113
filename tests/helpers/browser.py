"""A real browser for tests of the page and the dashboard."""

from __future__ import annotations

import os
import shutil

import pytest


def browser() -> str:
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if not found and os.environ.get("CI") == "true":
        pytest.fail("there is no browser")
    if not found:
        pytest.skip("no browser; install one with `apt-get install chromium`")
    return found
