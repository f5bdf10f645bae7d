"""Streams of a run by the hundred: from one browser and from many people, who do not read, and who vanish."""

from __future__ import annotations

import os
import re
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from osmosis_ai.platform import app
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.db import engine
from osmosis_ai.platform.server import RunningPlatform, run_platform
from osmosis_ai.viewer.live import MAX_STREAMS, LiveHub
from tests.platform.conftest import Member, World
from tests.platform.databases import put_migrated_database
from tests.platform.evaluations import wait_until
from tests.platform.viewer.runs_world import add_run, add_samples

pytestmark = pytest.mark.integration

CONNECTIONS = 200


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> LiveHub:
    """What knows the platform's streams."""
    made = LiveHub()
    monkeypatch.setattr(app, "LiveHub", lambda: made)
    return made


@pytest.fixture
def platform(tmp_path: Path, hub: LiveHub) -> Iterator[RunningPlatform]:
    put_migrated_database(tmp_path / "platform")
    with run_platform(PlatformConfig(home=tmp_path / "platform", port=0, executor_slots=0)) as running:
        yield running


@pytest.fixture
def member(platform: RunningPlatform) -> Member:
    mara = World(platform.services).member()
    run = add_run(platform.services, mara, "mine", status="running", completed_at=None)
    add_samples(platform.services, run, [{"row": row, "attempt": 0, "reward": 1.0} for row in range(3)])
    return mara


def session_of(platform: RunningPlatform, member: Member) -> str:
    return platform.services.accounts.create_token(member.user.id, "web", name="browser")[1]


def listens(platform: RunningPlatform, stack: ExitStack, session: str) -> socket.socket:
    """Ask for a run's stream, as somebody's browser, and read nothing."""
    connection = socket.create_connection(("127.0.0.1", platform.config.port), timeout=300)
    stack.callback(connection.close)
    connection.sendall(
        b"GET /fern/evals/mine/changes HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n"
        b"Cookie: osmosis_session=" + session.encode() + b"\r\n\r\n"
    )
    return connection


def status_of(connection: socket.socket) -> int:
    found = re.match(rb"HTTP/1.1 (\d+) ", connection.recv(4096))
    assert found
    return int(found[1])


def open_files() -> list[str]:
    """Return what the descriptors of this process, which is the platform's, lead to."""
    found = []
    for each in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.append(os.readlink(each))
    return found


def connections() -> int:
    return sum(each.startswith("socket:") for each in open_files())


def test_of_all_that_one_browser_asks_for_at_once_four_are_streams(
    platform: RunningPlatform, hub: LiveHub, member: Member
) -> None:
    session = session_of(platform, member)
    with ExitStack() as stack:
        asked = [listens(platform, stack, session) for _ in range(CONNECTIONS)]
        said = Counter(map(status_of, asked))
        # Those that came in the same moment are ended again: who comes back is refused.
        assert MAX_STREAMS <= said[200] < CONNECTIONS / 4 and said[200] + said[429] == CONNECTIONS
        wait_until(lambda: hub._streams.total() == MAX_STREAMS)
    wait_until(lambda: hub._streams.total() == 0)
    with ExitStack() as stack:
        assert status_of(listens(platform, stack, session)) == 200


def test_people_who_read_nothing_and_vanish_leave_nothing(
    platform: RunningPlatform, hub: LiveHub, member: Member
) -> None:
    sessions = [session_of(platform, member) for _ in range(CONNECTIONS // MAX_STREAMS)]
    before, left_open = connections(), []
    for _ in range(2):
        with ExitStack() as stack:
            for session in sessions * MAX_STREAMS:
                listens(platform, stack, session)
            wait_until(lambda: hub._streams.total() == CONNECTIONS)
            assert len(hub._readers) == 1
        wait_until(lambda: hub._streams.total() == 0)
        # The database keeps a few connections for the next, of two files each; nothing is kept of who looked.
        wait_until(lambda: connections() <= before)
        left_open.append(sum("platform.db" not in each for each in open_files()))
    assert left_open[1] <= left_open[0] + 10 and not hub._streams
    most = engine._POOL_SIZE + engine._POOL_OVERFLOW
    assert sum(each.endswith("platform.db") for each in open_files()) <= most
