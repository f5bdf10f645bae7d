"""Bucket and database go away in mid-run and come back: the run goes on, nothing is lost, and everybody is told why."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import httpx
import pytest

from tests.e2e.gate import Gate
from tests.e2e.platform_checkout import prepare_scratch
from tests.e2e.platform_process import Kill, Platform, Run
from tests.e2e.test_demo_platform import numbers, samples
from tests.e2e.test_platform_kill import published
from tests.e2e.turnstile import held
from tests.platform.postgres_server import PostgresCluster
from tests.platform.s3_server import CREDENTIALS, OTHER_STORE, S3Server
from tests.warm_osmosis import warm_osmosis

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(OTHER_STORE), reason="another one's store is not stopped"),
]
CONFIG = "configs/eval/outage.toml"
ROWS, ATTEMPTS = 30, 4
LEASE_S = 3
ASKS = 60
"""So often has a model been asked when a run waits in its middle: over ten attempts are through by then."""


class World(NamedTuple):
    """A platform with its parts, and a run that nothing befell."""

    platform: Platform
    store: S3Server
    postgres: PostgresCluster
    calm: Run
    gate: Gate

    def under_way(self) -> Run:
        """Submit a run, and return it in its middle, where it waits until the gate is open."""
        self.gate.close(after=ASKS)
        run = self.platform.submit(CONFIG)
        assert run.await_moment(Kill(10, "nobody", 0.0))
        return run

    def get(self, path: str, **headers: str) -> httpx.Response:
        return httpx.get(
            self.platform.env["OSMOSIS_PLATFORM_URL"] + path, headers=headers, timeout=300, trust_env=False
        )

    def refused(self, *words: str) -> dict[str, Any]:
        """Return the error of a command that fails."""
        done = subprocess.run(
            [*warm_osmosis(), "--json", *words],
            cwd=self.platform.workspace,
            env=self.platform.env,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 1, done.stdout
        error: dict[str, Any] = json.loads(done.stderr.splitlines()[-1])["error"]
        return error

    def status(self) -> dict[str, Any]:
        told: dict[str, Any] = self.platform.command("platform", "status")["data"]
        return told

    def require_equal(self, run: Run) -> None:
        """Wait for a run's end, and hold that it is that of the calm one."""
        assert run.finish()["status"] == "finished"
        assert len(run.journal()) == ROWS * ATTEMPTS, "none was lost, and none made twice"
        assert published(run.results) == published(self.calm.results)
        assert numbers(run.results) == numbers(self.calm.results)
        assert samples(run.results) == samples(self.calm.results)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    root = tmp_path_factory.mktemp("outages")
    scratch = prepare_scratch(root / "demo")
    sample = (scratch.workspace / "configs/eval/multiply.toml").read_text()
    # Few at once, so that it comes to ten results before it waits.
    for key, value in held(ATTEMPTS).items():
        sample = re.sub(rf"(?m)^{key} = \d+", f"{key} = {value}", sample)
    (scratch.workspace / CONFIG).write_text(sample.replace("limit = 100", f"limit = {ROWS}"))
    gate = Gate(scratch)
    scratch.push()
    with ExitStack() as stack:
        postgres = PostgresCluster()
        stack.callback(postgres.close)
        postgres.start()
        store = S3Server()
        stack.callback(store.close)
        store.start()
        settings = {"OSMOSIS_DATABASE_URL": postgres.url, "OSMOSIS_BLOBS_URL": store.bucket, **CREDENTIALS}
        settings |= {"OSMOSIS_LEASE_SECONDS": str(LEASE_S), "OSMOSIS_ISOLATION": "off"}
        platform = Platform(scratch, settings=settings)
        stack.callback(platform.process.wait)
        stack.callback(platform.process.terminate)
        platform.command("platform", "connect", str(scratch.origin))
        platform.command("dataset", "upload", "data/multiply.jsonl", "--wait", "--yes")
        calm = platform.submit(CONFIG)
        assert calm.finish()["status"] == "finished"
        yield World(platform, store, postgres, calm, gate)


@contextmanager
def busy_at(endpoint: str) -> Iterator[threading.Semaphore]:
    """Answer 503 where a store was; gives what counts how often that was."""
    asked = threading.Semaphore(0)

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            asked.release()
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(503)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer

        def log_message(self, format: str, *args: object) -> None:
            pass

    port = int(endpoint.rpartition(":")[2])
    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield asked
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def away(part: S3Server | PostgresCluster) -> Iterator[None]:
    """Kill a part of the platform, and start it again behind the block, whatever became of that."""
    part.kill()
    try:
        yield
    finally:
        part.start()


@pytest.mark.nightly
def test_a_run_goes_on_while_its_bucket_is_away_and_busy_and_loses_nothing(world: World) -> None:
    def log() -> str:
        return (world.platform.home.parent / "platform.log").read_text()

    run = world.under_way()
    with away(world.store):
        recorded = len(run.journal())
        assert recorded < ROWS * ATTEMPTS, "it fell in mid-run"
        world.gate.open()

        status = world.status()
        assert status["status"] == "not ready" and set(status["problems"]) == {"blobs"}
        assert world.get("/health").status_code == 200
        assert world.refused("eval", "download", world.calm.name, "--output", "elsewhere")[
            "message"
        ].startswith("the platform cannot get at its stored files now")
        assert world.platform.command("eval", "list")["items"][0]["status"] == "running"
        assert run.await_moment(Kill(ROWS * ATTEMPTS, "nobody", 0.0)), "it did not end without its files"

        with busy_at(world.store.url) as asked:
            for time in range(5):
                assert asked.acquire(timeout=120), (
                    f"nobody asks the store any more, after {time} times: {log()}"
                )
    world.require_equal(run)
    assert world.status()["status"] in ("running", "not ready")  # what was found is told for some seconds
    assert "cannot be reached" in log() and "Traceback" not in log() and "X-Amz-" not in log()


@pytest.mark.nightly
def test_a_run_outlives_its_database(world: World) -> None:
    run = world.under_way()
    with away(world.postgres):
        assert len(run.journal()) < ROWS * ATTEMPTS, "it fell in mid-run"
        world.gate.open()

        reply = world.get("/health")
        assert (reply.status_code, reply.json()["code"]) == (503, "DATABASE_BUSY")
        assert reply.json()["error"].startswith("the platform's database cannot be used now")
        page = world.get("/default/evals", Accept="text/html", Cookie="osmosis_session=planted")
        assert page.status_code == 503 and "database cannot be used now" in page.text
        for told in (reply.text, page.text):
            assert str(world.postgres.data) not in told and "postgresql" not in told, (
                "where it is, is nobody's business"
            )
        status = world.status()
        assert status["status"] == "not ready" and {"database"} <= set(status["problems"])
        assert "database" in world.refused("eval", "info", run.name)["message"]

    world.require_equal(run)
    log = (world.platform.home.parent / "platform.log").read_text()
    assert "Traceback" not in log
