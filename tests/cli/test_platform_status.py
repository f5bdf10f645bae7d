"""`osmosis platform status`: what a line on a worker says, and what is said of a Ray cluster."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.cli.platform.server import _describe_worker
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.process_state import PlatformProcess
from osmosis_ai.platform.ray_cluster import RayCluster
from osmosis_ai.platform.runs.execute.ray_jobs import cluster_problem
from osmosis_ai.platform.runs.work.http_link import HttpLink
from osmosis_ai.platform.server import run_platform
from tests.cli.conftest import Cli
from tests.e2e.platform_process import PATIENT_WORKER
from tests.platform.runs.desk.desk_workers import offer

pytestmark = pytest.mark.integration

NOW = datetime(2031, 5, 4, 12, 0, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("silent_s", "runs", "said"),
    [
        (0, 0, "idle, asked last"),
        (90, 1, "works on 1 run, asked last"),
        (600, 0, "not heard of for 10m 0s, asked last"),
        (600, 1, "not heard of for 10m 0s, asked last"),
    ],
)
def test_a_worker_that_nobody_has_heard_of_for_long_is_not_shown_as_busy(
    silent_s: int, runs: int, said: str
) -> None:
    heard = NOW - timedelta(seconds=silent_s)
    worker = {
        "machine": "box-1",
        "pool": "gpu",
        "labels": [],
        "cpus": 8,
        "gpus": 0,
        "memory_gb": None,
        "sandbox": None,
        "runs": runs,
        "seen_at": "2031-05-04T11:50:00Z",
        "heard_at": heard.isoformat().replace("+00:00", "Z"),
    }
    assert _describe_worker(worker, NOW) == f"box-1 of gpu: 8 cpus; {said} 2031-05-04T11:50:00Z"


TOKEN = "the-token-of-the-cluster"


class Dashboard(BaseHTTPRequestHandler):
    """The part of a Ray dashboard that says who may ask it."""

    def do_GET(self) -> None:
        given = self.headers.get("Authorization")
        if self.server.is_open or given == f"Bearer {TOKEN}":  # type: ignore[attr-defined]
            status, body = 200, b'{"ray_version": "2.60.0"}'
        else:
            status, body = (403 if given else 401), b"Unauthorized"
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def dashboard(*, is_open: bool = False) -> Iterator[str]:
    """Serve a dashboard, and yield its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Dashboard)
    server.is_open = is_open  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def nobody(*, hears: bool) -> Iterator[str]:
    """Yield an address at which nobody answers, be it that connections are taken."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if hears:
            listener.listen()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "ray-token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o600)
    return file


def test_whoever_asks_is_told_of_the_cluster_that_the_platform_was_started_with(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token_file: Path
) -> None:
    home = tmp_path / "platform"
    # Whoever asks knows the directory, and nothing else of how the platform was set.
    monkeypatch.setenv("OSMOSIS_HOME", str(home))
    with dashboard() as address:
        config = PlatformConfig(home=home, port=0, ray=RayCluster(address, token_file))
        with run_platform(config):
            data = json.loads(cli("platform", "status", "--json").out)["data"]
            lines = cli("platform", "status", "--plain").out
    assert (data["status"], data["ray"]) == ("running", {"address": address, "problem": None})
    assert f"Runs on: the Ray cluster at {address}" in lines and "Its cluster" not in lines
    assert TOKEN not in lines + json.dumps(data)


def test_what_a_start_from_this_shell_would_lack_keeps_nobody_from_the_platform_that_runs(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "platform"
    monkeypatch.setenv("OSMOSIS_HOME", str(home))
    token = tmp_path / "token"
    with run_platform(PlatformConfig(home=home, port=0)) as platform:
        assert cli("platform", "worker-token", "create", "--pool", "gpu", "--output", str(token)).status == 0
        link = HttpLink(platform.config.base_url, token.read_text().strip())
        assert link.claim(offer(machine="box-1")) is None
        link.close()
        monkeypatch.setenv("OSMOSIS_EXECUTOR", "ray")
        monkeypatch.setenv("OSMOSIS_EXECUTOR_SLOTS", "many")
        done = cli("platform", "status", "--json")
    assert done.status == 0, done.err
    data = json.loads(done.out)["data"]
    assert (data["status"], [worker["machine"] for worker in data["workers"]]) == ("running", ["box-1"])
    assert cli("platform", "stop").out.startswith("No platform runs in")
    assert "OSMOSIS_RAY_ADDRESS must say where" in cli("platform", "start").err


@pytest.mark.parametrize("how", ["SIGTERM", "idle exit"])
def test_a_worker_that_has_ended_is_listed_no_more(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    home, token = tmp_path / "platform", tmp_path / "token"
    monkeypatch.setenv("OSMOSIS_HOME", str(home))

    def listed() -> tuple[list[str], bool]:
        shown = json.loads(cli("platform", "status", "--json").out)["data"]["workers"]
        return [worker["pool"] for worker in shown], "Worker: " in cli("platform", "status", "--plain").out

    with run_platform(PlatformConfig(home=home, port=0)) as platform:
        assert cli("platform", "worker-token", "create", "--pool", "gpu", "--output", str(token)).status == 0
        words = ["platform", "worker", "--url", platform.config.base_url, "--pool", "gpu"]
        words += ["--token-file", str(token)]
        ends = ["--idle-exit", "2s"] if how == "idle exit" else []
        with subprocess.Popen(
            [sys.executable, "-c", PATIENT_WORKER, *words, *ends],
            env={**os.environ, "OSMOSIS_HOME": str(tmp_path / "machine")},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as worker:
            assert worker.stderr is not None
            assert any("takes runs of" in line for line in worker.stderr)
            if how == "SIGTERM":
                assert listed() == (["gpu"], True)
                worker.send_signal(signal.SIGTERM)
            assert worker.wait(300) == 0
        assert listed() == ([], False)
        # Started again, it is there at once.
        link = HttpLink(platform.config.base_url, token.read_text().strip())
        assert link.claim(offer()) is None
        link.close()
        assert listed() == (["gpu"], True)


def test_a_platform_of_a_release_that_notes_more_of_itself_is_shown_and_stopped(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "platform"
    home.mkdir()
    monkeypatch.setenv("OSMOSIS_HOME", str(home))
    keeps = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", keeps, str(home / "platform.lock")]
    with (
        nobody(hears=False) as address,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as newer,
    ):
        assert newer.stdout is not None and newer.stdout.readline()
        known = PlatformProcess(newer.pid, "2031-05-04T12:00:00Z", "99.0.0")
        ray = {"address": address, "token_file": None, "allow_open": False, "of_a_newer_one": True}
        written = {**asdict(known), "ray": ray, "of_a_newer_one": [1]}
        (home / "platform.json").write_text(json.dumps(written))
        done = cli("platform", "status", "--json")
        assert done.status == 0, done.err
        data = json.loads(done.out)["data"]
        assert (data["version"], data["ray"]["address"]) == ("99.0.0", address)
        done = cli("platform", "stop")
        assert done.status == 0, done.err
        assert newer.wait(300) == -signal.SIGTERM


def told(cli: Cli, monkeypatch: pytest.MonkeyPatch, cluster: RayCluster) -> str:
    """Return what the status of a platform says of its cluster, the same in lines and for scripts."""
    process = PlatformProcess(4711, "2031-05-04T12:00:00Z", "0.3.77", ray=cluster.to_json())
    monkeypatch.setattr("osmosis_ai.platform.process_state.running_platform", lambda _home: process)
    done = cli("platform", "status", "--json")
    assert done.status == 0, done.err
    found = json.loads(done.out)["data"]["ray"]
    assert found["address"] == cluster.address
    assert f"Its cluster: {found['problem']}" in cli("platform", "status", "--plain").out
    return str(found["problem"])


@pytest.mark.parametrize(
    ("is_open", "token", "said", "remedy"),
    [
        (False, "of-another", "refuses the token in ", "OSMOSIS_RAY_TOKEN_FILE names the file"),
        (False, None, "asks for a token", "OSMOSIS_RAY_TOKEN_FILE names the file"),
        (True, TOKEN, "answers without a token, so nothing is sent to it", "RAY_AUTH_MODE=token"),
        (False, "", "holds no token", "it must be one line"),
    ],
)
def test_a_cluster_that_refuses_the_token_or_asks_for_none_is_told_with_what_mends_it(
    cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
    token_file: Path,
    is_open: bool,
    token: str | None,
    said: str,
    remedy: str,
) -> None:
    token_file.write_text(token or "")
    with dashboard(is_open=is_open) as address:
        cluster = RayCluster(address, token_file if token is not None else None, allow_open=token is None)
        problem = told(cli, monkeypatch, cluster)
    assert said in problem and remedy in problem and (not token or token not in problem)


@pytest.mark.parametrize(
    ("hears", "said"), [(False, "cannot be reached: "), (True, "has not answered within 0.1 s")]
)
def test_a_cluster_that_does_not_answer_is_told_within_seconds(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, token_file: Path, hears: bool, said: str
) -> None:
    if hears:
        monkeypatch.setitem(cluster_problem.__kwdefaults__, "within_s", 0.1)
    with nobody(hears=hears) as address:
        problem = told(cli, monkeypatch, RayCluster(address, token_file))
    assert problem.startswith(f"the Ray cluster at {address} {said}")
    assert "another with OSMOSIS_RAY_ADDRESS; its runs go on when it answers again" in problem
