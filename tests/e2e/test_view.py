"""The viewer as a process: opened, found again, used during a run, and ended."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.agent_workspace import copy_sample_workspace
from tests.e2e.turnstile import Turnstile
from tests.warm_osmosis import warm_osmosis

pytestmark = pytest.mark.e2e

VIEW = ("view", "--no-open", "--json")
RUN = ("eval", "run", "configs/eval/multiply.toml", "--yes", "--json", "--name", "watched")


def test_viewer_during_a_run(tmp_path: Path) -> None:
    place = copy_sample_workspace(tmp_path / "workspace").root
    turnstile = Turnstile(place)
    turnstile.hold()

    def start(*words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*warm_osmosis(), *words],
            cwd=place,
            env={**os.environ, "OSMOSIS_CACHE_DIR": str(tmp_path / "cache")},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    with start(*VIEW) as viewer, start(*RUN) as run:
        try:
            first = _opened(viewer)
            base_url = first["url"].partition("/open")[0]
            with httpx.Client(trust_env=False, timeout=300, base_url=base_url) as browser:
                # The port is taken before the address is said, so there is nothing to wait for.
                assert browser.get("/").status_code == 403
                assert browser.get(first["url"]).status_code == 200
                journal = place / ".osmosis/evals/watched/events.jsonl"
                _watch(browser, run, turnstile, journal)
            viewer.send_signal(signal.SIGINT)
            status = viewer.wait(300)
        finally:
            turnstile.close()
            viewer.kill()
            run.terminate()
    assert status == 0


def _opened(viewer: subprocess.Popen[str]) -> dict[str, Any]:
    """Return the JSON output of a viewer, with a numeric address."""
    assert viewer.stdout is not None
    resource: dict[str, Any] = json.loads(viewer.stdout.readline())["resource"]
    return {**resource, "url": re.sub(r"//[^:/]+", "//127.0.0.1", resource["url"])}


def _watch(browser: httpx.Client, run: subprocess.Popen[str], turnstile: Turnstile, journal: Path) -> None:
    """Watch a run until its page has results."""
    while browser.get("/evals/watched/changes").status_code == 404:
        assert run.poll() is None
    # The run records its first results now, and then waits.
    turnstile.hold_after(1, lambda: journal.read_bytes().count(b"\n") if journal.exists() else 0)
    headline = None
    while not headline or not headline["scored"]:
        assert run.poll() is None
        headline = browser.get("/evals/watched/changes").json()["headline"]
    page = browser.get("/evals/watched", headers={"X-Live-Part": "standing,numbers"}).text
    scored = re.search(r"<b>(\d+)</b><small>of \d+ planned", page)
    assert scored is not None and int(scored[1]) >= headline["scored"]
