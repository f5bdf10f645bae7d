"""Reports in one file, opened from a disk in Debian's Chromium: sound, and asking nobody for anything."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.visits import NARROW, WIDE, look_at_pages, visit
from tests.viewer.test_one_file import comparison, judging, training
from tests.viewer.test_report import report, source

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.e2e


def look_at_reports(browser: Browser, directory: Path, **settings: Any) -> None:
    made = {
        "evaluation": report(source()),
        "comparison": comparison(),
        "training": training(),
        "rubric": judging(),
    }
    for name, text in made.items():
        (directory / f"{name}.html").write_text(text)
    thoroughly = frozenset({"evaluation"}) if settings.get("java_script_enabled", True) else frozenset[str]()
    looking = visit(browser, f"file://{directory}", **settings)
    look_at_pages(looking, {name: f"/{name}.html" for name in made}, thoroughly=thoroughly)


def test_every_report_is_sound_in_a_window(browser: Browser, tmp_path: Path) -> None:
    look_at_reports(browser, tmp_path, viewport={"width": WIDE, "height": 900}, color_scheme="light")


@pytest.mark.nightly
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("script", [True, False])
def test_every_report_is_sound_in_a_narrow_window(
    browser: Browser, tmp_path: Path, scheme: str, script: bool
) -> None:
    window = {"width": NARROW, "height": 800}
    look_at_reports(browser, tmp_path, viewport=window, color_scheme=scheme, java_script_enabled=script)
