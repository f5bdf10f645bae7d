"""The command line in this process, with a group of sample commands in its registry."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.cli.main import main
from osmosis_ai.cli.registry import COMMANDS, CommandEntry
from tests.api.blob_server import BlobServer, serve
from tests.cli.eval_downloads import DownloadableRun
from tests.cli.maze import Maze, open_maze
from tests.cli.outcome import Outcome
from tests.cli.rubric_judging import open_judge
from tests.logins import hash_passwords_quickly
from tests.platform.databases import put_migrated_database
from tests.rubric.judge_server import JudgeServer

Cli = Callable[..., Outcome]


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the sample group."""
    monkeypatch.setitem(
        COMMANDS, "fleet", CommandEntry("group", "tests.cli.fleet:app", "Ships and what they carry.")
    )
    monkeypatch.setitem(
        COMMANDS,
        "fleece",
        CommandEntry("command", "tests.cli.fleet:launch", "A hidden command.", hidden=True),
    )


@pytest.fixture
def logging_as_it_was() -> Iterator[None]:
    """Take out the handlers that a command leaves behind because its process would end with it."""
    root = logging.getLogger()
    before = root.handlers[:]
    yield
    root.handlers[:] = before


@pytest.fixture
def cli(fleet: None, logging_as_it_was: None, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run one command line and return what it gave."""

    def run(*arguments: str) -> Outcome:
        status = main(arguments)
        captured = capsys.readouterr()
        return Outcome(status, captured.out, captured.err)

    return run


@pytest.fixture
def maze(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Maze]:
    """The workspace ``fern/maze`` on a platform that answers what the test writes down."""
    with open_maze(tmp_path, monkeypatch, capsys) as maze:
        yield maze


@pytest.fixture
def store() -> Iterator[BlobServer]:
    """An object store over real sockets."""
    with serve() as store:
        yield store


@pytest.fixture
def stored(maze: Maze, store: BlobServer) -> DownloadableRun:
    """A run of a platform whose files the store has."""
    return DownloadableRun(maze, store)


@pytest.fixture
def judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JudgeServer]:
    """A judge that the environment names, with the key to look for afterwards."""
    with open_judge(tmp_path, monkeypatch) as judge:
        yield judge


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The services of a platform that was started once, whose data directory the environment names."""
    from osmosis_ai.platform.accounts import bootstrap
    from osmosis_ai.platform.config import PlatformConfig
    from osmosis_ai.platform.services import PlatformServices

    home = tmp_path / "platform"
    monkeypatch.setenv("OSMOSIS_HOME", str(home))
    hash_passwords_quickly(monkeypatch)
    put_migrated_database(home)
    services = PlatformServices(PlatformConfig(home=home))
    bootstrap(services.db, services.clock)
    return services
