"""Services: start, readiness, errors, restarts and logs."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.processes import service
from osmosis_ai.processes.service import (
    Service,
    ServiceDiedError,
    ServiceError,
    ServiceSpec,
    free_port,
    is_free,
    shorten_log,
)
from tests.processes import alive

READY = 'import threading; print(\'{"url": "here"}\', flush=True); threading.Event().wait()'
HEALTHY = """
import http.server, sys

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(int(sys.argv[2]))
        self.end_headers()
        self.wfile.write(b'{"whose": "ours"}')

    def log_message(self, *args):
        pass

print("serving", flush=True)
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def announcing(tmp_path: Path, source: str, **changes: Any) -> ServiceSpec:
    fields: dict[str, Any] = {"announces": '{"url"', "start_timeout_s": 60.0, **changes}
    command = [sys.executable, "-c", textwrap.dedent(source)]
    return ServiceSpec("the thing", command, dict(os.environ), tmp_path, **fields)


def answering(tmp_path: Path, *, status: int = 200, port: int | None = None, **changes: Any) -> ServiceSpec:
    port = port or free_port()
    return ServiceSpec(
        "the thing",
        [sys.executable, "-c", HEALTHY, str(port), str(status)],
        dict(os.environ),
        tmp_path,
        log_path=tmp_path / "thing.log",
        addresses=[f"http://127.0.0.1:{port}"],
        **changes,
    )


async def refused(spec: ServiceSpec) -> ServiceError:
    service = Service(spec)
    with pytest.raises(ServiceError) as caught:
        await service.start()
    assert service.failure() is caught.value
    with pytest.raises(RuntimeError, match="the thing is not running"):
        _ = service.pid
    return caught.value


@pytest.mark.integration
async def test_announced_service(tmp_path: Path) -> None:
    async with Service(announcing(tmp_path, f"print('first')\n{READY}")) as service:
        assert service.answer == {"url": "here"}
        assert service.log_tail() == ["first", '{"url": "here"}']
        assert service.failure() is None
        with pytest.raises(RuntimeError, match="was started before"):
            await service.start()
        pid = service.pid
    assert not alive(pid)
    assert (service.answer, service.failure()) == (None, None)


@pytest.mark.integration
async def test_service_with_address(tmp_path: Path) -> None:
    async with Service(answering(tmp_path)) as service:
        assert service.answer == {"whose": "ours"}
    assert (tmp_path / "thing.log").read_text() == "serving\n"


@pytest.mark.integration
async def test_service_ends_before_it_is_ready(tmp_path: Path) -> None:
    error = await refused(announcing(tmp_path, "import nowhere"))
    assert (error.cause, error.status) == ("ended", 1)
    sentence, quoted, *_, last = error.message.splitlines()
    reason = "ModuleNotFoundError: No module named 'nowhere'"
    assert sentence == f"the thing ended before it was ready (exit status 1): {reason}"
    assert (quoted, last) == ("last lines of its output:", f"  {reason}")
    assert error.details["reason"] == reason


@pytest.mark.integration
async def test_output_held_open_by_a_grandchild(tmp_path: Path) -> None:
    source = (
        "import subprocess; subprocess.Popen(['sleep', '600']); raise SystemExit('I left somebody behind')"
    )
    error = await refused(announcing(tmp_path, source))
    assert error.message.endswith("\n  I left somebody behind")


@pytest.mark.integration
async def test_killed_service(tmp_path: Path) -> None:
    error = await refused(announcing(tmp_path, "import os; os.kill(os.getpid(), 9)"))
    assert error.cause == "killed"
    assert "(signal 9, as when the machine has no memory left)" in error.message


@pytest.mark.integration
async def test_port_in_use(tmp_path: Path) -> None:
    port = free_port()
    async with Service(answering(tmp_path, port=port)):
        assert not is_free(port)
        stranger = answering(
            tmp_path, port=port, is_ours=lambda _headers, body: body.get("whose") == "another's"
        )
        error = await refused(stranger)
    assert error.cause == "address in use"
    assert f"port {port}" in error.message or "another process listens on its port" in error.message


@pytest.mark.integration
async def test_secrets_are_redacted(tmp_path: Path) -> None:
    spec = announcing(tmp_path, "raise SystemExit('the key sk-1')", secret_values=frozenset({"", "sk-1"}))
    error = await refused(spec)
    assert error.message.endswith("\n  the key [REDACTED]")
    assert "sk-1" not in str(error.details)


@pytest.mark.integration
async def test_death(tmp_path: Path) -> None:
    async with Service(announcing(tmp_path, READY)) as service:
        dying = asyncio.create_task(service.death())
        os.kill(service.pid, signal.SIGTERM)
        assert (await dying).message.startswith("the thing ended (signal 15).")
        failure = service.failure()
        assert failure.status == -signal.SIGTERM


@pytest.mark.integration
async def test_revive(tmp_path: Path) -> None:
    notes: list[str] = []
    async with Service(announcing(tmp_path, READY, restarts=2)) as service:
        assert not await service.revive()
        for round_ in range(4):
            if round_ == 2:
                service.made_progress()
            os.kill(service.pid, signal.SIGTERM)
            await service.death()
            assert sorted(
                await asyncio.gather(service.revive(notes.append), service.revive(notes.append))
            ) == [False, True]
            assert service.answer == {"url": "here"}
        os.kill(service.pid, signal.SIGTERM)
        await service.death()
        with pytest.raises(
            ServiceDiedError, match=r"^the thing died 3 times. The last time: the thing ended"
        ):
            await service.revive()
    assert notes == ["the thing ended (signal 15). Starting it again."] * 4


@pytest.mark.integration
async def test_revive_unresponsive(tmp_path: Path) -> None:
    notes: list[str] = []
    async with Service(announcing(tmp_path, READY, restarts=1)) as service:
        pid = service.pid
        assert await service.revive(notes.append, unresponsive=True)
        assert service.pid != pid
        assert not alive(pid)
        with pytest.raises(ServiceDiedError, match=r"^the thing died 2 times"):
            await service.revive(notes.append, unresponsive=True)
    assert notes == ["the thing does not respond. Starting it again."]


@pytest.mark.integration
async def test_cancelled_start(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    source = f"import os, time\nprint(os.getpid(), flush=True)\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.02)\n"
    service = Service(announcing(tmp_path, source + READY))
    starting = asyncio.create_task(service.revive())
    while not service.log_tail():  # noqa: ASYNC110 - another process's output
        await asyncio.sleep(0.02)
    pid = service.pid
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not alive(pid)
    gate.touch()
    assert await service.revive()
    await service.stop()


WRITER = """
import itertools, sys, time
for number in itertools.count():
    print(f"line {number:012}", flush=True)
    time.sleep(0.0001)
"""


def test_shorten_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "LOG_REMAINDER_BYTES", 25)
    monkeypatch.setattr(service, "MAX_LOG_BYTES", 10_000)
    log = tmp_path / "a.log"
    with log.open("ab", buffering=0) as writer:
        writer.write(b"".join(b"line %04d\n" % number for number in range(1000)))
        assert not shorten_log(log)
        monkeypatch.setattr(service, "MAX_LOG_BYTES", 9_999)
        assert shorten_log(log)
        writer.write(b"next\n")
    assert log.read_bytes() == (
        b"[9980 bytes were left out here: the log had grown too large]\nline 0998\nline 0999\nnext\n"
    )


@pytest.mark.integration
async def test_log_size_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "LOG_CHECK_S", 0.01)
    monkeypatch.setattr(service, "MAX_LOG_BYTES", 4000)
    monkeypatch.setattr(service, "LOG_REMAINDER_BYTES", 1000)
    log = tmp_path / "thing.log"
    async with Service(announcing(tmp_path, WRITER, announces=None, log_path=log)) as writing:
        dying = asyncio.create_task(writing.death())
        while not (log.exists() and log.read_bytes().startswith(b"[")):  # noqa: ASYNC110 - a file has no event
            await asyncio.sleep(0.01)
        os.kill(writing.pid, signal.SIGKILL)
        error = await dying
    assert "line 0" in error.message.splitlines()[-1]
