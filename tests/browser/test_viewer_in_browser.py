"""The viewer in Debian's Chromium: it says nothing on the console, asks nobody else, fits, and works with keys alone.

Without a browser or the extra ``browser`` these tests skip; ``OSMOSIS_TEST_BROWSER=required`` makes that a failure.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.site import PAGES, a_site, served
from tests.conftest import SOAK

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

pytestmark = pytest.mark.e2e

WIDE, NARROW, NARROWEST = 1280, 390, 320
# The others are made of the same parts: `make soak` asks axe about each of them, in each window.
PAGES_OF_EACH_KIND = {"runs", "evaluation", "conversation"}
AXE = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
PATIENCE_MS = 60_000


@dataclass
class Visit:
    """A window of the browser, and all that went wrong in it."""

    page: Page
    base: str
    wrong: list[str] = field(default_factory=list)

    def open(self, path: str) -> None:
        """Open a page; what it says on the console, refuses, or asks of others is wrong."""
        self.page.goto(self.base + path, wait_until="load")

    def seen(self, where: str) -> None:
        """Remember a page that is wider than its window."""
        width = self.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        if width > 0:
            self.wrong.append(f"{where}: {width} pixels beyond the window")

    def focused(self) -> str:
        """Return the text of what has the focus."""
        return str(self.page.evaluate("document.activeElement.innerText ?? ''")).strip()


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


@pytest.fixture(scope="module")
def opened(browser: Browser) -> Iterator[tuple[str, Any]]:
    """Serve the viewer, and keep the cookie that its one-time address gave."""
    with served(a_site()) as address:
        context = browser.new_context()
        page = context.new_page()
        page.goto(address)
        page.wait_for_url(lambda url: "/open" not in url, timeout=PATIENCE_MS)
        base = address.partition("/open")[0]
        yield base, context.storage_state()
        context.close()


def visit(browser: Browser, opened: tuple[str, Any], **settings: Any) -> Visit:
    base, state = opened
    context: BrowserContext = browser.new_context(storage_state=state, **settings)
    context.set_default_timeout(PATIENCE_MS)
    made = Visit(context.new_page(), base)
    made.page.on("console", lambda message: made.wrong.append(f"console: {message.text}"))
    made.page.on("pageerror", lambda error: made.wrong.append(f"error: {error}"))
    # Who leaves a page ends its stream, which the browser calls a failure.
    made.page.on(
        "requestfailed",
        lambda asked: (
            asked.failure == "net::ERR_ABORTED" or made.wrong.append(f"failed: {asked.url} {asked.failure}")
        ),
    )
    made.page.on(
        "request", lambda asked: _is_ours(asked.url, base) or made.wrong.append(f"asked: {asked.url}")
    )
    return made


def _is_ours(url: str, base: str) -> bool:
    return url.startswith((f"{base}/", "data:"))


def look_at_every_page(browser: Browser, opened: tuple[str, Any], **settings: Any) -> None:
    from axe_playwright_python.sync_playwright import Axe

    looking, axe, runs = visit(browser, opened, **settings), Axe(), settings.get("java_script_enabled", True)
    for name, path in PAGES.items():
        looking.open(path)
        looking.seen(name)
        assert looking.page.locator("h1").count() == 1, name
        if runs and (SOAK or name in PAGES_OF_EACH_KIND):
            violations = axe.run(looking.page, options=AXE).response["violations"]
            looking.wrong += [
                f"{name}: {each['id']}: {each['nodes'][0]['html'][:200]}" for each in violations
            ]
    # Chromium says on the console that a page was not found, which it was not.
    assert "\n".join(each for each in looking.wrong if "404" not in each) == ""
    looking.page.context.close()


def test_every_page_is_sound_in_a_window(browser: Browser, opened: tuple[str, Any]) -> None:
    look_at_every_page(browser, opened, viewport={"width": WIDE, "height": 900}, color_scheme="light")


@pytest.mark.soak
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [WIDE, NARROW, NARROWEST])
def test_every_page_is_sound_in_every_window(
    browser: Browser, opened: tuple[str, Any], width: int, scheme: str
) -> None:
    look_at_every_page(browser, opened, viewport={"width": width, "height": 800}, color_scheme=scheme)


@pytest.mark.soak
def test_every_page_is_there_without_script(browser: Browser, opened: tuple[str, Any]) -> None:
    look_at_every_page(browser, opened, viewport={"width": NARROW, "height": 800}, java_script_enabled=False)


def test_the_way_from_the_list_to_a_conversation_needs_keys_alone(
    browser: Browser, opened: tuple[str, Any]
) -> None:
    looking = visit(browser, opened, viewport={"width": WIDE, "height": 900})
    page = looking.page
    looking.open("/evals")
    page.keyboard.press("j")
    page.keyboard.press("j")
    assert looking.focused() == "new"
    page.keyboard.press("Enter")
    page.wait_for_url("**/evals/new")
    looking.open("/evals")
    page.keyboard.press("/")
    page.keyboard.type("new")
    page.keyboard.press("Enter")
    page.wait_for_url("**/evals?q=new")
    looking.open("/evals/new/samples")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.type") == "search"
    page.keyboard.press("Escape")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**/samples/5.0*")
    page.keyboard.press("n")
    page.wait_for_url("**/samples/6.0*")
    page.keyboard.press("p")
    page.wait_for_url("**/samples/5.0*")
    page.keyboard.press("j")
    assert page.evaluate("'step' in document.activeElement.dataset")
    assert looking.wrong == []
    page.context.close()


def test_single_keys_can_be_switched_off_and_stay_off(browser: Browser, opened: tuple[str, Any]) -> None:
    looking = visit(browser, opened)
    page = looking.page
    looking.open("/evals")
    page.keyboard.press("?")
    page.locator("#keys-help input").uncheck()
    page.keyboard.press("Escape")
    looking.open("/evals")
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement === document.body")
    # What is off can be switched on again, with no key of its own.
    page.locator("#keys").click()
    page.locator("#keys-help input").check()
    page.keyboard.press("Escape")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("j")
    assert not page.evaluate("document.activeElement === document.body")
    assert looking.wrong == []
    page.context.close()


def test_the_theme_that_was_chosen_is_that_of_the_next_page(
    browser: Browser, opened: tuple[str, Any]
) -> None:
    looking = visit(browser, opened, color_scheme="light")
    page = looking.page
    looking.open("/")
    page.locator("#theme").click()
    looking.open("/evals")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 22, 27)"
    assert looking.wrong == []
    page.context.close()


def test_the_numbers_of_a_curve_are_told_where_the_pointer_is(
    browser: Browser, opened: tuple[str, Any]
) -> None:
    looking = visit(browser, opened, viewport={"width": WIDE, "height": 900})
    looking.open("/training/keen-owl-2")
    looking.page.locator(".plot svg[data-x]").first.hover()
    said = looking.page.locator(".hover").first
    assert said.text_content()
    assert looking.wrong == []
    looking.page.context.close()
