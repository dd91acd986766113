"""A real browser for tests of the page and the dashboard."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

QUIET = "--disable-gpu --disable-background-networking --disable-component-update --disable-sync --no-first-run"


def find_browser() -> str:
    """Return the path of a browser. Without one, skip the test; in CI, fail it."""
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if not path and os.environ.get("CI") == "true":
        pytest.fail("there is no browser")
    if not path:
        pytest.skip("no browser; install one with `apt-get install chromium`")
    return path


def dump_dom(folder: Path, text: str) -> str:
    """Return the body of a page after its script ran, up to its data."""
    (folder / "page.html").write_text(text)
    profile = f"--user-data-dir={folder / 'profile'}"
    options = ["--headless", "--no-sandbox", *QUIET.split(), profile, "--dump-dom"]
    command = [find_browser(), *options, f"file://{folder / 'page.html'}"]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    return dom.split('<script type="application/json"')[0]
