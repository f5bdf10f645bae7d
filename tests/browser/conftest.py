"""Debian's Chromium. Without it or the extra ``browser`` these tests skip; ``OSMOSIS_TEST_BROWSER=required`` makes
that a failure."""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        path = None
    if path is None:
        missing = "no Chromium, or not the extra `browser`: `make browser` adds it"
        (pytest.fail if os.environ.get("OSMOSIS_TEST_BROWSER") == "required" else pytest.skip)(missing)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield started
        started.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Report each skip at one place, so that the summary folds them into one line."""
    report = yield
    if report.when == "setup" and isinstance(report.longrepr, tuple):
        report.longrepr = (__file__, 1, report.longrepr[2])
    return report
