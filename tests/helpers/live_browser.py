"""A browser tab that records what its console complained of, for tests of the dashboard."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright import sync_api as playwright

from helpers.browser import browser

LONG = 120_000  # milliseconds; a machine may be busy


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    path = browser()
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def tab(chromium: Any) -> Iterator[Any]:
    """A page that keeps what its console complained of, and what it asked whom for."""
    page = chromium.new_page()
    page.set_default_timeout(LONG)
    page.complaints, page.asked = [], set()
    page.on("console", lambda m: page.complaints.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.on("request", lambda request: page.asked.add(request.url))
    yield page
    page.close()


def until(tab: Any, text: str, within: str = "main") -> None:
    """Wait for the words."""
    tab.wait_for_function(
        "([where, text]) => document.querySelector(where)?.textContent.includes(text)",
        arg=[within, text],
    )
