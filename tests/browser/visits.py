"""A window of the browser that remembers all that goes wrong in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.conftest import NIGHTLY

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

WIDE, NARROW = 1280, 390
PATIENCE_MS = 60_000
# What is written beyond its place: headings of tables that reach into the next column, a heading below the way to it.
OVERLAPPING = """
() => {
  const found = [...document.querySelectorAll("th")].filter((each) => each.scrollWidth > each.clientWidth + 1);
  const way = document.querySelector(".crumbs")?.getBoundingClientRect();
  const heading = document.querySelector("h1").getBoundingClientRect();
  return [...found.map((each) => each.innerText), ...(way && way.bottom > heading.top ? ["h1"] : [])];
}
"""
# Whether the page is visible, as a test sets it.
SEEN_OR_NOT = """
window.seen = (is) => {
  Object.defineProperty(document, "hidden", { configurable: true, get: () => !is });
  document.dispatchEvent(new Event("visibilitychange"));
};
"""
AXE = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}


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
        """Remember a page that is wider than its window, or on which one text lies over another."""
        width = self.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        if width > 0:
            self.wrong.append(f"{where}: {width} pixels beyond the window")
        self.wrong += [f"{where}: over another: {each[:60]}" for each in self.page.evaluate(OVERLAPPING)]

    def focused(self) -> str:
        """Return the text of what has the focus."""
        return str(self.page.evaluate("document.activeElement.innerText ?? ''")).strip()


def visit(browser: Browser, base: str, state: Any = None, **settings: Any) -> Visit:
    """Open a window; ``state`` is what another one kept, and ``settings`` are the browser's."""
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


def look_at_pages(looking: Visit, pages: Mapping[str, str], *, thoroughly: frozenset[str]) -> None:
    """Open each page in a window and close it; axe looks at those of ``thoroughly``, and at all of them in ``make nightly``.

    Args:
        looking: the window.
        pages: paths by what they are.
        thoroughly: what the others are made of; nothing where no script runs.
    """
    from axe_playwright_python.sync_playwright import Axe

    axe = Axe()
    for name, path in pages.items():
        looking.open(path)
        looking.seen(name)
        assert looking.page.locator("h1").count() == 1, name
        if thoroughly and (NIGHTLY or name in thoroughly):
            violations = axe.run(looking.page, options=AXE).response["violations"]
            looking.wrong += [
                f"{name}: {each['id']}: {each['nodes'][0]['html'][:200]}" for each in violations
            ]
    # Chromium says on the console that a page was refused or not found, which it was.
    refused = ("status of 404", "status of 400", "status of 403", "status of 409")
    wrong = [each for each in looking.wrong if not any(status in each for status in refused)]
    assert not wrong, "\n".join(wrong)
    looking.page.context.close()


def _is_ours(url: str, base: str) -> bool:
    return url.startswith((f"{base}/", "data:"))
