"""A run that is looked at while it goes on, on a viewer that is then ended."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import httpx
import pytest
from httpx_sse import EventSource

from osmosis_ai.workspace.samples import copy_sample_workspace
from tests.e2e.turnstile import Turnstile
from tests.warm_osmosis import warm_osmosis

pytestmark = pytest.mark.e2e

RUN = ("eval", "run", "configs/eval/multiply.toml", "--yes", "--json", "--name", "watched")


def test_samples_are_on_the_page_when_they_are_told_and_a_viewer_that_ends_waits_for_no_watcher(
    tmp_path: Path,
) -> None:
    place = copy_sample_workspace(tmp_path / "workspace").root
    environment = {**os.environ, "OSMOSIS_CACHE_DIR": str(tmp_path / "cache")}
    journal = place / ".osmosis/evals/watched/events.jsonl"
    turnstile = Turnstile(place)
    turnstile.hold()

    def start(*words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*warm_osmosis(), *words],
            cwd=place,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    with start("view", "--no-open", "--json") as viewer, start(*RUN) as run:
        try:
            assert viewer.stdout is not None
            opened = json.loads(viewer.stdout.readline())["resource"]["url"]
            address = re.sub(r"//[^:/]+", "//127.0.0.1", opened)
            with httpx.Client(
                trust_env=False, timeout=300, base_url=address.partition("/open")[0]
            ) as browser:
                browser.get(address)
                told = _watched(browser, viewer, run, turnstile, journal)
            assert told, "no sample was told of before the run ended"
            status = viewer.wait(300)
        finally:
            turnstile.close()
            viewer.kill()
            run.terminate()
    assert status == 0


def _watched(
    browser: httpx.Client,
    viewer: subprocess.Popen[str],
    run: subprocess.Popen[str],
    turnstile: Turnstile,
    journal: Path,
) -> list[list[int]]:
    """Watch a run until samples are told of and seen, end the viewer, and read the stream to its end."""
    while browser.get("/evals/watched/changes").status_code == 404:
        assert run.poll() is None
    told: list[list[int]] = []
    with browser.stream("GET", "/evals/watched/changes", headers={"Accept": "text/event-stream"}) as stream:
        # The run records its first results now, and then waits.
        turnstile.hold_after(1, lambda: journal.read_bytes().count(b"\n") if journal.exists() else 0)
        # A reply that is cut off raises here: the server ends its streams, and does not drop them.
        for event in EventSource(stream).iter_sse():
            changes = json.loads(event.data)
            if told or not changes.get("samples"):
                continue
            told = changes["samples"]
            page = browser.get("/evals/watched", headers={"X-Live-Part": "standing,numbers"}).text
            scored = re.search(r"; (\d+) of \d+ planned scored", page)
            assert scored is not None and int(scored[1]) >= changes["headline"]["scored"] > 0
            viewer.send_signal(signal.SIGINT)
    return told
