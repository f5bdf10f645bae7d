"""A service is ready when it says so, is explained when it is not, and is started again as often as it may be."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.supervision import Service, ServiceDiedError, ServiceError, ServiceSpec, free_port, is_free
from tests.loop_clock import advance_loop_clock
from tests.processes import alive

pytestmark = pytest.mark.integration

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


async def test_an_announced_service_is_ready_when_it_has_said_so(tmp_path: Path) -> None:
    async with Service(announcing(tmp_path, f"print('first')\n{READY}")) as service:
        assert service.answer == {"url": "here"}
        assert service.log_tail() == ["first", '{"url": "here"}']
        assert service.failure() is None
        with pytest.raises(RuntimeError, match="was started before"):
            await service.start()
        pid = service.pid
    assert not alive(pid)
    assert (service.answer, service.failure()) == (None, None)


async def test_a_service_with_an_address_is_ready_when_that_answers(tmp_path: Path) -> None:
    async with Service(answering(tmp_path)) as service:
        assert service.answer == {"whose": "ours"}
    assert (tmp_path / "thing.log").read_text() == "serving\n"


def test_a_service_can_be_started_in_one_event_loop_and_stopped_in_another(tmp_path: Path) -> None:
    service = Service(announcing(tmp_path, READY))
    asyncio.run(service.start())
    pid = service.pid
    assert alive(pid)
    asyncio.run(service.stop())
    assert not alive(pid)


async def test_one_that_ends_before_it_is_ready_is_explained_by_its_last_words(tmp_path: Path) -> None:
    error = await refused(announcing(tmp_path, "import nowhere"))
    assert (error.cause, error.status) == ("ended", 1)
    sentence, quoted, *_, last = error.message.splitlines()
    reason = "ModuleNotFoundError: No module named 'nowhere'"
    assert sentence == f"the thing ended before it was ready (exit status 1): {reason}"
    assert (quoted, last) == ("last lines of its output:", f"  {reason}")
    assert error.details["reason"] == reason


async def test_one_that_returns_at_once_is_told_to_go_on(tmp_path: Path) -> None:
    error = await refused(announcing(tmp_path, ""))
    assert error.message == "the thing ended before it was ready (exit status 0)."
    assert error.hint == "it must start a server and keep running."


async def test_last_words_are_heard_although_a_grandchild_holds_the_output_open(tmp_path: Path) -> None:
    source = (
        "import subprocess; subprocess.Popen(['sleep', '600']); raise SystemExit('I left somebody behind')"
    )
    error = await refused(announcing(tmp_path, source))
    assert error.message.endswith("\n  I left somebody behind")


async def test_one_that_is_late_is_said_to_be_late_and_nothing_else(tmp_path: Path) -> None:
    silent = announcing(
        tmp_path, "import threading; threading.Event().wait()", start_timeout_s=0.1, late_hint="wait"
    )
    error = await refused(silent)
    assert (error.cause, error.status, error.hint) == ("late", None, "wait")
    assert error.message == "the thing was not ready after 0.1 s."


async def test_one_that_is_late_shows_what_it_answered_last(tmp_path: Path) -> None:
    service = Service(answering(tmp_path, status=503, start_timeout_s=600.0))
    starting = asyncio.create_task(service.start())
    while service._seen != "status 503":
        assert not starting.done()
        await asyncio.sleep(0.01)
    advance_loop_clock(600.0)
    with pytest.raises(ServiceError) as late:
        await starting
    assert re.match(
        r"the thing was not ready after 600 s \(`GET /health` on port \d+: status 503\)", late.value.message
    )


async def test_one_ended_by_force_is_told_from_one_that_failed(tmp_path: Path) -> None:
    error = await refused(announcing(tmp_path, "import os; os.kill(os.getpid(), 9)"))
    assert error.cause == "killed"
    assert "(signal 9, as when the machine has no memory left)" in error.message


async def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    error = await refused(ServiceSpec("the thing", ["/nowhere/thing"], {}, tmp_path))
    assert error.cause == "not started"
    assert error.message == "the thing could not be started with `/nowhere/thing`: No such file or directory."


async def test_a_port_that_is_another_services_is_said(tmp_path: Path) -> None:
    port = free_port()
    async with Service(answering(tmp_path, port=port)):
        assert not is_free(port)
        stranger = answering(
            tmp_path, port=port, is_ours=lambda _headers, body: body.get("whose") == "another's"
        )
        error = await refused(stranger)
    assert error.cause == "address in use"
    assert f"port {port}" in error.message or "another process listens on its port" in error.message


async def test_secrets_are_blotted_out_of_what_is_quoted(tmp_path: Path) -> None:
    spec = announcing(tmp_path, "raise SystemExit('the key sk-1')", secret_values=frozenset({"", "sk-1"}))
    error = await refused(spec)
    assert error.message.endswith("\n  the key [REDACTED]")
    assert "sk-1" not in str(error.details)


async def test_only_what_this_start_wrote_is_quoted(tmp_path: Path) -> None:
    log = tmp_path / "thing.log"
    log.write_text("ValueError: of an earlier run\n")
    async with Service(
        announcing(tmp_path, "raise SystemExit('now')", announces=None, log_path=log)
    ) as service:
        error = await service.death()
    assert error.message == f"the thing ended (exit status 1).\nlast lines of {log}:\n  now"


async def test_a_death_is_noticed_and_explained(tmp_path: Path) -> None:
    async with Service(announcing(tmp_path, READY)) as service:
        dying = asyncio.create_task(service.death())
        os.kill(service.pid, signal.SIGTERM)
        assert (await dying).message.startswith("the thing ended (signal 15).")
        failure = service.failure()
        assert failure is not None
        assert failure.status == -signal.SIGTERM


async def test_what_a_service_writes_about_other_addresses_does_not_explain_its_death(tmp_path: Path) -> None:
    source = READY.split(";")[0] + "; print('OSError: Address already in use', flush=True); " + READY
    async with Service(announcing(tmp_path, source)) as service:
        os.kill(service.pid, signal.SIGKILL)
        error = await service.death()
    assert (error.cause, error.status) == ("killed", -signal.SIGKILL)
    assert error.message.startswith("the thing ended (signal 9, as when the machine has no memory left)")


async def test_a_dead_service_is_revived_as_often_as_it_may_be(tmp_path: Path) -> None:
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


async def test_a_start_that_is_cancelled_leaves_nothing_and_can_be_taken_up_again(tmp_path: Path) -> None:
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
