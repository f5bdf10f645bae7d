"""Administration in a shell that names another database than the platform that runs has."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai._version import __version__
from osmosis_ai.platform.process_state import PlatformProcess, only_platform_of
from tests.cli.conftest import Cli

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def platform_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OSMOSIS_HOME", str(tmp_path / "platform"))
    return tmp_path / "platform"


@pytest.mark.parametrize(
    "command",
    [
        ["user", "add", "ada@fern.example"],
        ["worker-token", "list"],
        ["backup", "all.tar.gz"],
        ["user", "list"],
    ],
)
def test_a_shell_without_the_database_of_the_platform_that_runs_makes_no_other_one(
    cli: Cli, platform_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with running_on(platform_home, "postgresql://osmosis@db.internal/osmosis"):
        done = cli("platform", *command)
        assert done.status == 1
        assert "has its rows in postgresql://osmosis@db.internal/osmosis" in done.err
        assert "OSMOSIS_DATABASE_URL" in done.err
        assert not (platform_home / "platform.db").exists()
    assert not (tmp_path / "all.tar.gz").exists()


def test_a_status_without_the_database_says_why_it_lists_no_workers(cli: Cli, platform_home: Path) -> None:
    with running_on(platform_home, "postgresql://osmosis@db.internal/osmosis"):
        done = cli("platform", "status")
    assert done.status == 0
    assert "its workers are not looked up" in done.err
    assert "OSMOSIS_DATABASE_URL" in done.err


@contextmanager
def running_on(home: Path, database: str) -> Iterator[None]:
    """Hold a data directory as a platform does that has its rows in ``database``, and answer as it does."""
    home.mkdir(parents=True, exist_ok=True)

    class Ready(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b'{"status": "ready", "checks": {}}'
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Ready) as server, only_platform_of(home) as note:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        at = f"http://127.0.0.1:{server.server_address[1]}"
        note(
            PlatformProcess(
                os.getpid(), "2031-05-04T12:00:00Z", __version__, url=at, local_url=at, database=database
            )
        )
        yield
        server.shutdown()
