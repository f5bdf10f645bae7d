"""Take the screenshots of README and docs: an evaluation, a conversation and a training run, light and dark.

Needs the extra `browser`, Chromium, and a platform with runs, for instance the one that `osmosis demo` keeps:

    .venv/bin/python scripts/screenshots.py http://127.0.0.1:8733 --email admin@localhost
"""

from __future__ import annotations

import argparse
import getpass
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urljoin

from playwright.sync_api import Browser, Page, sync_playwright

SCHEMES = ("light", "dark")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--no-first-run"]
PASSWORD = "OSMOSIS_SCREENSHOT_PASSWORD"


def main() -> None:
    options = _options()
    password = os.environ.get(PASSWORD) or getpass.getpass(f"Password of {options.email}: ")
    options.output.mkdir(parents=True, exist_ok=True)
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        addresses: Mapping[str, str] = {}
        for scheme in SCHEMES:
            page = _signed_in(browser, options, password, scheme)
            addresses = addresses or dict(_addresses(page, options))
            for name, address in addresses.items():
                page.goto(address, wait_until="load")
                target = options.output / f"{name}-{scheme}.png"
                page.screenshot(path=target, full_page=options.full_page, animations="disabled")
                print(target)
            page.context.close()
        browser.close()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("url", help="address of the platform")
    parser.add_argument("--email", default="admin@localhost", help=f"user; the password is in {PASSWORD}")
    parser.add_argument("--workspace", default="default", help="workspace with the runs")
    parser.add_argument("--output", type=Path, default=Path("docs/images"), help="directory of the images")
    parser.add_argument("--width", type=int, default=1280, help="width of the window in pixels")
    parser.add_argument("--height", type=int, default=800, help="height of the window in pixels")
    parser.add_argument("--full-page", action="store_true", help="take the whole page, not one screen")
    return parser.parse_args()


def _signed_in(browser: Browser, options: argparse.Namespace, password: str, scheme: str) -> Page:
    """Open a window of a signed-in user."""
    size = {"width": options.width, "height": options.height}
    # Twice as many pixels, for screens of today.
    context = browser.new_context(viewport=size, color_scheme=scheme, device_scale_factor=2)
    page = context.new_page()
    page.goto(urljoin(options.url, "/login"))
    page.fill("[name=email]", options.email)
    page.fill("[name=password]", password)
    page.click("main button.first")
    page.wait_for_load_state()
    if page.url.endswith("/login"):
        raise SystemExit(page.locator(".problem").inner_text())
    return page


def _addresses(page: Page, options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Yield the pages of the newest evaluation, of its first conversation with a tool, and of the newest training run."""
    below = urljoin(options.url, f"/{options.workspace}")
    run = _first_link(page, f"{below}/evals", "tbody th a")
    yield "run", run
    page.goto(f"{run}/samples")
    attempts = page.locator("tbody th a").evaluate_all("links => links.map((link) => link.href)")[:20]
    for address in attempts:
        page.goto(address)
        if page.locator(".exchange").count():
            break
    yield "conversation", page.url
    yield "training", _first_link(page, f"{below}/training", "tbody th a")


def _first_link(page: Page, address: str, selector: str) -> str:
    page.goto(address)
    link = page.locator(selector).first
    if not link.count():
        raise SystemExit(f"{address} lists no run: `osmosis demo` makes some.")
    return str(link.evaluate("link => link.href"))


if __name__ == "__main__":
    main()
