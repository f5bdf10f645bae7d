"""A viewer under a name of its own below ``localhost``, which Chromium knows wherever the system does not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from osmosis_ai.viewer.serving import server
from tests.browser.site import a_site
from tests.browser.visits import PATIENCE_MS, visit

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.e2e


def test_a_name_of_its_own_opens_once_and_its_cookie_is_no_other_s(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []

    @contextmanager
    def noted(serving: Any) -> Iterator[None]:
        started.append(serving)
        yield

    monkeypatch.setattr(server, "name_leads_here", lambda _name: True)
    monkeypatch.setattr(server, "ended_by_signals", noted)
    running = server.prepare_viewer(a_site(), tmp_path, cache_dir=tmp_path / "cache")
    assert running.has_own_name and ".localhost:" in running.viewer.url
    serving = threading.Thread(target=running.run, daemon=True)
    serving.start()
    looking = visit(browser, running.viewer.url)
    page = looking.page
    try:
        page.goto(running.address("/evals/new"))
        page.wait_for_url(f"{running.viewer.url}/evals/new", timeout=PATIENCE_MS)
        assert page.locator("h1").count() == 1
        assert [cookie["domain"] for cookie in page.context.cookies()] == [
            running.viewer.url.partition("://")[2].partition(":")[0]
        ]
        looking.open("/evals/new/samples")
        assert looking.wrong == []
        # By its number it is the same server, and a stranger to this cookie.
        reply = page.goto(f"http://127.0.0.1:{running.viewer.port}/evals")
        assert reply is not None and reply.status == 403
    finally:
        page.context.close()
        started[0].should_exit = True
        serving.join(60)
