"""Take the screenshots of README and docs: an evaluation, a conversation and a training run, light and dark.

Needs the extra `browser`, Chromium, and a platform with runs, for example the one that `osmosis demo` keeps:

    OSMOSIS_SCREENSHOT_PASSWORD=... python scripts/screenshots.py http://127.0.0.1:8733 [EMAIL [WORKSPACE]]
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

FOLDER = Path(__file__).parents[1] / "docs" / "images"


def main(url: str, email: str = "admin@localhost", workspace: str = "default") -> None:
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        for scheme in ("light", "dark"):
            size = {"width": 1280, "height": 800}
            page = browser.new_page(viewport=size, color_scheme=scheme, device_scale_factor=2)
            page.goto(f"{url}/login")
            page.fill("[name=email]", email)
            page.fill("[name=password]", os.environ["OSMOSIS_SCREENSHOT_PASSWORD"])
            page.click("main button.first")
            page.wait_for_load_state()
            if page.url.endswith("/login"):
                raise SystemExit(page.locator(".problem").inner_text())
            for name, address in list(addresses(page, f"{url}/{workspace}")):
                page.goto(address, wait_until="load")
                page.screenshot(path=FOLDER / f"{name}-{scheme}.png", animations="disabled")


def addresses(page: Page, workspace: str) -> Iterator[tuple[str, str]]:
    """Yield the pages of the newest evaluation, of its first conversation with a tool, and of the newest training run."""

    def links(address: str) -> list[str]:
        page.goto(address)
        found = page.locator("tbody th a").evaluate_all("links => links.map((link) => link.href)")
        if not found:
            raise SystemExit(f"{address} lists no run: `osmosis demo` makes some.")
        return list(found)

    run = links(f"{workspace}/evals")[0]
    yield "run", run
    for address in links(f"{run}/samples")[:20]:
        page.goto(address)
        if page.locator(".exchange").count():
            break
    yield "conversation", page.url
    yield "training", links(f"{workspace}/training")[0]


if __name__ == "__main__":
    main(*sys.argv[1:])
