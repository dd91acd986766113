"""Fixtures: a browser, and a tab that records console errors and requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright import sync_api as playwright

from helpers.browser import find_browser

TIMEOUT_MILLISECONDS = 120_000  # a machine may be busy


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """Start a browser."""
    path = find_browser()
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def tab(chromium: Any) -> Iterator[Any]:
    """A page that records the errors of its console (complaints) and its requests (asked)."""
    page = chromium.new_page()
    page.set_default_timeout(TIMEOUT_MILLISECONDS)
    page.complaints, page.asked = [], set()
    page.on("console", lambda m: page.complaints.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.on("request", lambda request: page.asked.add(request.url))
    yield page
    page.close()


def until(tab: Any, text: str, within: str = "main") -> None:
    """Wait until an element contains the text."""
    tab.wait_for_function(
        "([where, text]) => document.querySelector(where)?.textContent.includes(text)",
        arg=[within, text],
    )
