"""Fixtures for tests in a browser: the browser, and a tab that records complaints."""

from helpers.live_browser import chromium, tab

__all__ = ["chromium", "tab"]
