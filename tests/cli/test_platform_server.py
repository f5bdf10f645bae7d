"""Starting, asking about and stopping a platform, as an operator does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import respx
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from osmosis_ai._version import __version__
from osmosis_ai.api.credentials import CredentialStore
from osmosis_ai.platform.config import PlatformConfig, RayCluster, from_environment
from osmosis_ai.platform.process_state import PlatformProcess, only_platform_of
from osmosis_ai.platform.ray_jobs import cluster_problem
from osmosis_ai.platform.server import run_platform
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.platform.worker.client import WorkerClient
from osmosis_ai.ui.numbers import date
from tests.cli.conftest import Cli
from tests.e2e.platform_process import PATIENT_WORKER
from tests.platform.fake_ray import TOKEN, FakeRay
from tests.platform.fake_worker import claim_request
from tests.platform.worker.fake_platform import serving


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSMOSIS_HOME", str(tmp_path / "platform"))
    monkeypatch.setenv("OSMOSIS_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("OSMOSIS_TOKEN_STORE", "file")


class Started:
    """A platform's process and the line it began with."""

    def __init__(self, *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "osmosis_ai", "platform", "start", "--port", "0", "--json", *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.ready: dict[str, Any] = json.loads(line) if line else {}
        self.resource: dict[str, Any] = self.ready.get("resource", {})

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=300)
        return self.process.returncode, out, err


@pytest.fixture
def starting() -> Iterator[Any]:
    started: list[Started] = []

    def start(*options: str) -> Started:
        started.append(Started(*options))
        return started[-1]

    yield start
    for platform in started:
        if platform.process.poll() is None:
            platform.process.kill()
        platform.process.communicate()


@pytest.mark.e2e
def test_start_status_and_stop(cli: Cli, starting: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSMOSIS_RAY_ADDRESS", "http://127.0.0.1:8265")
    platform = starting("--login")
    url = platform.resource["url"]
    assert platform.ready["operation"] == "platform.start"
    assert platform.resource["pid"] == platform.process.pid
    assert platform.resource["first_login"]["email"] == "admin@localhost"
    assert platform.resource["login"] == {"token_store": "file"}
    token = CredentialStore().load(url)
    assert token is not None
    who = httpx.get(f"{url}/api/cli/verify", headers={"Authorization": f"Bearer {token.token}"}, timeout=300)
    assert who.json()["user"]["email"] == "admin@localhost"

    status = cli("platform", "status", "--json")
    assert status.status == 0
    data = status.data
    assert (data["status"], data["url"], data["pid"]) == ("running", url, platform.process.pid)
    [warned] = data["warnings"]
    assert "OSMOSIS_RAY_ADDRESS is set and OSMOSIS_EXECUTOR is not" in warned
    assert f"Warning: {warned}" in cli("platform", "status", "--plain").out

    services = PlatformServices(from_environment())
    _, plain = services.worker_access.create_token("gpu")
    machine = claim_request(machine="box-1", labels=["a100"], cpus=1, sandbox=True)
    services.worker_access.authorize(plain, machine)
    services.db.dispose()
    (worker,) = cli("platform", "status", "--json").data["workers"]
    assert (worker["machine"], worker["pool"], worker["labels"]) == ("box-1", "gpu", ["a100"])
    asked = f"box-1 of gpu [a100]: 1 CPU, sandbox; idle, last request {date(worker['seen_at'])}"
    assert asked in cli("platform", "status", "--plain").out

    # What administration prints is the platform that runs, not the one the environment describes.
    made = cli("platform", "token", "create", "--json").resource
    assert made["platform_url"] == url
    added = cli("platform", "user", "add", "mara@fern.example")
    assert f"{url}/device" in added.out + added.err

    second = starting()
    code, out, err = second.end()
    assert (code, out) == (1, "")
    assert json.loads(err)["error"]["code"] == "CONFLICT"

    stopped = cli("platform", "stop", "--json")
    assert stopped.resource["pid"] == platform.process.pid
    code, out, err = platform.end()
    assert (code, out) == (0, "")
    said = [json.loads(line)["log"]["message"] for line in err.splitlines()]
    said = [message for message in said if os.geteuid() != 0 or "runs as root" not in message]
    assert said == [warned]
    assert cli("platform", "status").status == 1
    assert cli("platform", "stop", "--json").json["status"] == "noop"


HANGS = {
    "loading": """
class Slow:
    def find_spec(self, name, *rest):
        if name == "osmosis_ai.platform.server":
            subprocess.run(sys.argv[1])

sys.meta_path.insert(0, Slow())
""",
    "self-test": """
from osmosis_ai.sandbox import isolation

isolation.TIMEOUT_S = 600
isolation.find_bwrap = lambda: Path(sys.argv[1])
""",
}
"""Code that hangs in a program while the platform is being loaded, or while its sandbox is being tested."""


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("moment", "number"), [("loading", signal.SIGINT), ("self-test", signal.SIGTERM)], ids=HANGS
)
def test_signal_before_bootstrap(
    cli: Cli, starting: Any, tmp_path: Path, moment: str, number: signal.Signals
) -> None:
    home, program, started = tmp_path / "platform", tmp_path / "program", tmp_path / "started"
    os.mkfifo(fifo := tmp_path / "fifo")
    program.write_text(f"#!/bin/sh\ntouch {started}\nexec cat {fifo}\n")
    program.chmod(0o755)
    code = (
        f"import subprocess, sys; from pathlib import Path; from osmosis_ai.cli.main import main\n{HANGS[moment]}"
        "sys.exit(main(['platform', 'start', '--port', '0', '--plain']))"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(program)], stderr=subprocess.PIPE, text=True)
    try:
        while not started.exists() and process.poll() is None:
            time.sleep(0.01)
        if moment == "self-test":
            assert cli("platform", "status", "--json").data["pid"] == process.pid
        process.send_signal(number)
        assert process.wait(300) == 0
    finally:
        process.kill()
        os.close(os.open(fifo, os.O_RDWR))
    *before, said = process.communicate()[1].splitlines()
    assert said == "Stopped before the platform was ready."
    if moment == "loading":
        assert before == [] and not home.exists()
    else:
        assert [each.name for each in home.iterdir()] == ["platform.lock"]
    assert starting().resource["first_login"]["email"] == "admin@localhost"


def test_remote_access_needs_tls(cli: Cli) -> None:
    done = cli("platform", "start", "--host", "0.0.0.0", "--port", "0")
    assert (done.status, done.out) == (1, "")
    assert "clients refuse" in done.err and "--public-url https://" in done.err
    done = cli("platform", "start", "--host", "0.0.0.0", "--public-url", "http://osmosis.example")
    assert done.status == 1 and "Insecure platform URL" in done.err
    assert cli("platform", "start", "--public-url", "https://user:pw@osmosis.example").status == 1


def test_status_and_stop_without_a_platform(cli: Cli, tmp_path: Path) -> None:
    done = cli("platform", "status", "--json")
    assert done.error["code"] == "NOT_FOUND"
    assert not (tmp_path / "platform").exists()
    assert cli("platform", "stop").status == 0


@pytest.mark.e2e
def test_json_log(starting: Any) -> None:
    platform = starting("--log-format", "json")
    password = platform.resource["first_login"]["password"]
    reply = httpx.get(f"{platform.resource['url']}/api/nothing-here", timeout=300)
    platform.process.send_signal(signal.SIGTERM)
    code, _, err = platform.end()
    lines = [json.loads(line) for line in err.splitlines()]
    assert code == 0 and password not in err
    assert all(line.keys() >= {"time", "level", "logger", "message"} for line in lines)
    (asked,) = [line for line in lines if "/nothing-here" in line["message"]]
    assert asked["request_id"] == reply.headers["x-request-id"]
    assert "-> 404" in asked["message"]


@pytest.mark.integration
def test_status_ignores_settings_of_the_shell(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    with run_platform(PlatformConfig(home=tmp_path / "platform", port=0)) as platform:
        assert cli("platform", "worker-token", "create", "--pool", "gpu", "--output", str(token)).status == 0
        claim(platform.config, token, machine="box-1")
        monkeypatch.setenv("OSMOSIS_EXECUTOR", "ray")
        monkeypatch.setenv("OSMOSIS_EXECUTOR_SLOTS", "many")
        done = cli("platform", "status", "--json")
    assert done.status == 0, done.err
    data = done.data
    assert (data["status"], [worker["machine"] for worker in data["workers"]]) == ("running", ["box-1"])
    assert cli("platform", "stop").out.startswith("No platform is running in")
    assert "OSMOSIS_RAY_ADDRESS must be the address" in cli("platform", "start").err


def claim(config: PlatformConfig, token: Path, **machine: Any) -> None:
    client = WorkerClient(config.base_url, token.read_text().strip())
    assert client.claim(claim_request(**machine)).assignment is None
    client.close()


@pytest.mark.integration
def test_ended_worker_is_not_listed(cli: Cli, tmp_path: Path) -> None:
    token = tmp_path / "token"

    def listed() -> tuple[list[str], bool]:
        shown = cli("platform", "status", "--json").data["workers"]
        return [worker["pool"] for worker in shown], "Worker: " in cli("platform", "status", "--plain").out

    with run_platform(PlatformConfig(home=tmp_path / "platform", port=0)) as platform:
        assert cli("platform", "worker-token", "create", "--pool", "gpu", "--output", str(token)).status == 0
        words = ["platform", "worker", "--url", platform.config.base_url, "--pool", "gpu"]
        words += ["--token-file", str(token)]
        with subprocess.Popen(
            [sys.executable, "-c", PATIENT_WORKER, *words],
            env={**os.environ, "OSMOSIS_HOME": str(tmp_path / "machine")},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as worker:
            assert worker.stderr is not None
            assert any("executes runs of" in line for line in worker.stderr)
            assert listed() == (["gpu"], True)
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(300) == 0
        assert listed() == ([], False)
        # Started again, it is there at once.
        claim(platform.config, token)
        assert listed() == (["gpu"], True)


@pytest.mark.integration
@pytest.mark.parametrize(
    "command", ["user add ada@fern.example", "worker-token list", "backup all.tar.gz", "user list"]
)
def test_shell_without_the_database_setting(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    platform_home = tmp_path / "platform"
    with running_on(platform_home):
        done = cli("platform", *command.split())
        assert done.status == 1 and f"has its rows in {DATABASE}" in done.err
        assert "OSMOSIS_DATABASE_URL" in done.err
        assert not (platform_home / "platform.db").exists()
    assert not (tmp_path / "all.tar.gz").exists()


@pytest.mark.integration
def test_status_of_a_ray_cluster(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cluster_problem.__kwdefaults__, "within_s", 300.0)  # the machine may be busy
    ray, token = FakeRay(), tmp_path / "ray-token"
    token.write_text("a-token-of-another-cluster")
    cluster = RayCluster("http://ray.example:8265", token)
    with running_on(tmp_path / "platform", ray=cluster.to_json()), respx.mock() as router:
        router.route(host="127.0.0.1").pass_through()
        router.route(host="ray.example").mock(side_effect=ray.handle_request)
        refused = cli("platform", "status", "--json")
        shown = " ".join(cli("platform", "status", "--plain").out.split())
        token.write_text(TOKEN)
        accepted = cli("platform", "status", "--json").data["ray"]
    data = refused.data
    problem = f"the Ray cluster at {cluster.address} refuses the token in {token}."
    assert (refused.status, data["ray"]["address"]) == (0, cluster.address)
    assert data["ray"]["problem"].startswith(problem) and f"Cluster: {problem}" in shown
    assert "another-cluster" not in refused.out + refused.err + shown
    assert accepted == {"address": cluster.address, "problem": None}


DATABASE = "postgresql://osmosis@db.internal/osmosis"


@contextmanager
def running_on(home: Path, **noted: Any) -> Iterator[None]:
    """Hold a data directory as a platform does that has its rows in ``DATABASE``, and answer as it does."""
    home.mkdir(parents=True, exist_ok=True)
    ready = Route("/{path:path}", lambda _: JSONResponse({"status": "ready", "checks": {}}))
    with serving(Starlette(routes=[ready])) as at, only_platform_of(home) as note:
        started = "2031-05-04T12:00:00Z"
        noted |= {"url": at, "local_url": at, "database": DATABASE}
        note(PlatformProcess(os.getpid(), started, __version__, **noted))
        yield
