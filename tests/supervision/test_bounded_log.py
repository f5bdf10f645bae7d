"""A log without end keeps its last lines, and the process that writes it goes on writing them."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from osmosis_ai.supervision import Service, service
from osmosis_ai.supervision.bounded_log import shorten_log
from tests.supervision.test_service import announcing

WRITER = """
import itertools, sys, time
for number in itertools.count():
    print(f"line {number:012}", flush=True)
    time.sleep(0.0001)
"""


def test_the_last_whole_lines_are_kept_and_what_is_appended_next_stands_behind_them(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    assert not shorten_log(log)
    with log.open("ab", buffering=0) as writer:
        writer.write(b"".join(b"line %04d\n" % number for number in range(1000)))
        assert not shorten_log(log, most_bytes=10_000)
        assert shorten_log(log, most_bytes=9_999, kept_bytes=25)
        writer.write(b"next\n")
    assert log.read_bytes() == (
        b"[9980 bytes were left out here: the log had grown too large]\nline 0998\nline 0999\nnext\n"
    )


def test_a_log_that_is_one_line_without_end_is_bounded_too(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"x" * 1000)
    assert shorten_log(log, most_bytes=500, kept_bytes=100)
    assert log.stat().st_size < 100


@pytest.mark.integration
async def test_the_log_of_a_service_stays_within_bounds_and_still_explains_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "LOG_LOOK_S", 0.01)
    monkeypatch.setattr(
        service, "shorten_log", lambda path: shorten_log(path, most_bytes=4000, kept_bytes=1000)
    )
    log = tmp_path / "thing.log"
    async with Service(announcing(tmp_path, WRITER, announces=None, log_path=log)) as writing:
        dying = asyncio.create_task(writing.death())
        while not (log.exists() and log.read_bytes().startswith(b"[")):  # noqa: ASYNC110 - a file has no event
            await asyncio.sleep(0.01)
        os.kill(writing.pid, signal.SIGKILL)
        error = await dying
    assert "line 0" in error.message.splitlines()[-1]
