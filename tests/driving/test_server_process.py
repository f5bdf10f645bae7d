from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from osmosis_ai.driving import server_process
from osmosis_ai.driving._server_bootstrap import INSTANCE_ENV
from osmosis_ai.driving.server_process import (
    HEALTH_TIMEOUT_ENV,
    MAX_RESTARTS,
    RolloutServer,
    ServerSpec,
    capacity_of,
    health_timeout,
)
from osmosis_ai.errors import OsmosisError
from osmosis_ai.supervision import (
    ServiceDiedError,
    ServiceError,
    open_server_session,
    server_url,
    service,
)
from tests.loop_clock import advance_loop_clock
from tests.processes import alive, gone

pytestmark = pytest.mark.integration

# A rollout server of a few lines and no imports: tests start dozens of them.
PLAIN_SERVER = """
import http.server, json, os

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps({health}).encode()
        self.send_response({status})
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass

print("serving", flush=True)
port = int(os.environ["_OSMOSIS_ROLLOUT_PORT"])
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""

MakeSpec = Callable[..., ServerSpec]


def plain_server(
    health: str = '{"status": "ok", "instance_id": os.environ["_OSMOSIS_ROLLOUT_INSTANCE_ID"]}',
    *,
    status: int = 200,
) -> str:
    return PLAIN_SERVER.replace("{health}", health).replace("{status}", str(status))


@pytest.fixture
def make_spec(tmp_path: Path) -> MakeSpec:
    def build(source: str, *, entrypoint: str = "main.py", **changes: Any) -> ServerSpec:
        path = tmp_path / "rollout" / entrypoint
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))
        fields: dict[str, Any] = {
            "rollout_dir": tmp_path / "rollout",
            "entrypoint": entrypoint,
            "python": Path(sys.executable),
            "env": dict(os.environ),
            "artifact_root": tmp_path / "trials",
            "port": None,
            "log_path": tmp_path / "logs" / "server.log",
            **changes,
        }
        return ServerSpec(**fields)

    return build


@asynccontextmanager
async def asked(server: RolloutServer, path: str) -> AsyncIterator[aiohttp.ClientResponse]:
    address = server.base_url
    async with (
        open_server_session(address, timeout_s=60) as session,
        session.get(server_url(address, path)) as reply,
    ):
        yield reply


async def ask(server: RolloutServer, path: str = "/health") -> Any:
    async with asked(server, path) as reply:
        return await reply.json(content_type=None)


async def test_a_server_is_started_known_healthy_and_stopped(make_spec: MakeSpec, tmp_path: Path) -> None:
    spec = make_spec(plain_server())
    async with RolloutServer(spec) as server:
        assert (await ask(server))["status"] == "ok"
        assert server.capacity is None
        pid = server.pid
    assert not alive(pid)
    assert spec.log_path.read_text() == "serving\n"
    assert stat.S_IMODE(spec.log_path.stat().st_mode) == 0o600


async def test_the_environment_is_the_one_given_and_what_the_protocol_defines(
    make_spec: MakeSpec, tmp_path: Path
) -> None:
    seen = '{"instance_id": os.environ["_OSMOSIS_ROLLOUT_INSTANCE_ID"], "env": dict(os.environ), "cwd": os.getcwd()}'
    given = {
        "PATH": os.environ["PATH"],
        "MY_SETTING": "1",
        "VIRTUAL_ENV": "/elsewhere",
        "OSMOSIS_TOKEN": "osm_the_users_own",
        "NO_PROXY": "example.org",
    }
    async with RolloutServer(make_spec(plain_server(seen), env=given)) as server:
        reply = await ask(server)
        port = server.base_url.rsplit(":", 1)[1]
    env = reply["env"]
    assert env["MY_SETTING"] == "1"
    assert "OSMOSIS_TOKEN" not in env
    assert env["_OSMOSIS_ROLLOUT_HOST"] == "127.0.0.1"
    assert "VIRTUAL_ENV" not in env and "_OSMOSIS_LIFELINE_FD" not in env and "HOME" not in env
    assert env["_OSMOSIS_ROLLOUT_PORT"] == env["ROLLOUT_PORT"] == port
    assert env["_OSMOSIS_ROLLOUT_ARTIFACT_ROOT"] == str(tmp_path / "trials")
    assert env["NO_PROXY"] == "example.org,127.0.0.1,localhost"
    assert reply["cwd"] == str(tmp_path / "rollout")


async def test_modules_beside_the_entrypoint_in_src_and_in_the_project_can_be_imported(
    make_spec: MakeSpec, tmp_path: Path
) -> None:
    spec = make_spec("import beside, packaged, rooted, driver\n" + plain_server(), entrypoint="app/main.py")
    for place in ("app/beside.py", "src/packaged.py", "rooted.py", "app/driver.py"):
        path = tmp_path / "rollout" / place
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
    async with RolloutServer(spec) as server:
        assert await ask(server)


async def test_an_entrypoint_that_fails_on_import_is_explained_in_one_sentence(make_spec: MakeSpec) -> None:
    spec = make_spec("import json\nimport no_such_module\n")
    with pytest.raises(ServiceError) as caught:
        await RolloutServer(spec).start()
    sentence, *tail = caught.value.message.splitlines()
    assert sentence == (
        "the rollout server `main.py` ended before it was ready (exit status 1): "
        "ModuleNotFoundError: No module named 'no_such_module' (main.py, line 2)"
    )
    assert tail[0] == f"last lines of {spec.log_path}:"
    assert tail[-1] == "  ModuleNotFoundError: No module named 'no_such_module'"
    assert caught.value.details["log_path"] == str(spec.log_path)


async def test_a_syntax_error_names_its_line(make_spec: MakeSpec) -> None:
    with pytest.raises(ServiceError, match=r"SyntaxError: .* \(main\.py, line 2\)"):
        await RolloutServer(make_spec("x = 1\ndef (:\n")).start()


async def test_an_entrypoint_that_returns_at_once_is_told_to_keep_serving(make_spec: MakeSpec) -> None:
    with pytest.raises(ServiceError, match=r"exit status 0") as caught:
        await RolloutServer(make_spec("print('done')")).start()
    assert "keep running" in (caught.value.hint or "")


async def test_secrets_are_blotted_out_of_the_quoted_log(make_spec: MakeSpec) -> None:
    spec = make_spec("raise RuntimeError('key sk-12345 refused')", secret_values=frozenset({"sk-12345"}))
    with pytest.raises(ServiceError) as caught:
        await RolloutServer(spec).start()
    assert "sk-12345" not in caught.value.message + json.dumps(caught.value.details) + repr(spec)
    assert "key [REDACTED] refused" in caught.value.message


async def test_a_server_that_never_becomes_healthy_is_ended(
    make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its socket, on which nobody answers, is asked for longer than the port.
    monkeypatch.setattr(service, "PROBE_TIMEOUT_S", 1200.0)
    server = RolloutServer(make_spec(plain_server(status=503)), health_timeout_s=600.0)
    starting = asyncio.create_task(server.start())
    while server._seen != "status 503":
        assert not starting.done()
        await asyncio.sleep(0.01)
    advance_loop_clock(600.0)
    with pytest.raises(ServiceError, match=r"not ready after 600 s .*status 503") as caught:
        await starting
    assert caught.value.is_infrastructure
    with pytest.raises(RuntimeError):
        _ = server.pid


@pytest.mark.parametrize(("wished", "seconds"), [("", 90.0), ("300", 300.0), (" 0.5 ", 0.5)])
def test_the_user_decides_how_long_a_server_may_take_to_start(wished: str, seconds: float) -> None:
    assert health_timeout({HEALTH_TIMEOUT_ENV: wished}) == seconds
    assert health_timeout({}) == 90.0


@pytest.mark.parametrize("wished", ["0", "-1", "nan", "inf", "a minute"])
def test_a_start_timeout_that_is_no_duration_is_refused(wished: str) -> None:
    with pytest.raises(OsmosisError, match="must be a number of seconds above 0"):
        health_timeout({HEALTH_TIMEOUT_ENV: wished})


async def test_a_server_that_listens_elsewhere_is_reported(make_spec: MakeSpec) -> None:
    sleeper = "import threading; print('on port 8000'); threading.Event().wait()"
    with pytest.raises(ServiceError, match="no answer") as caught:
        await RolloutServer(make_spec(sleeper), health_timeout_s=0.3).start()
    assert "_OSMOSIS_ROLLOUT_PORT" in (caught.value.hint or "")


async def test_a_port_in_use_is_named(make_spec: MakeSpec) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ServiceError, match=f"port {port} is already in use"):
            await RolloutServer(make_spec(plain_server(), port=port)).start()


async def test_the_given_port_is_used(make_spec: MakeSpec, unused_tcp_port: int) -> None:
    async with RolloutServer(make_spec(plain_server(), port=unused_tcp_port)) as server:
        assert server.base_url == f"http://127.0.0.1:{unused_tcp_port}"


async def test_a_foreign_server_on_the_port_is_refused(make_spec: MakeSpec) -> None:
    spec = make_spec(plain_server('{"status": "ok", "instance_id": "another"}'))
    with pytest.raises(ServiceError, match="already listening"):
        await RolloutServer(spec).start()


async def test_a_port_lost_to_another_process_is_picked_again(
    make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch, unused_tcp_port: int
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        ports = [other.getsockname()[1], unused_tcp_port]
        monkeypatch.setattr(server_process, "free_port", lambda: ports.pop(0))
        # The port looks free when it is picked and is taken when the server wants it.
        monkeypatch.setattr(server_process, "is_free", lambda port: True)
        async with RolloutServer(make_spec(plain_server())) as server:
            assert server.base_url.endswith(f":{unused_tcp_port}")


@pytest.mark.e2e
async def test_a_server_killed_while_it_starts_is_started_again(make_spec: MakeSpec, tmp_path: Path) -> None:
    dying = """
import os, pathlib, signal
seen = pathlib.Path(os.environ["SEEN"])
seen.write_text(seen.read_text() + "x")
if len(seen.read_text()) < {starts}:
    os.kill(os.getpid(), signal.SIGKILL)
"""
    seen = tmp_path / "seen"
    seen.touch()
    environment = {**os.environ, "SEEN": str(seen)}
    once = make_spec(dying.replace("{starts}", "3") + plain_server(), env=environment)
    async with RolloutServer(once):
        assert seen.read_text() == "xxx"
    again_and_again = make_spec(dying.replace("{starts}", "99") + plain_server(), env=environment)
    with pytest.raises(
        ServiceError, match=r"before it was ready \(signal 9, as when the machine has no memory left\)"
    ):
        await RolloutServer(again_and_again).start()
    assert seen.read_text() == "xxx" * 2


async def test_the_health_of_a_fastapi_server_proves_whose_it_is(make_spec: MakeSpec) -> None:
    source = """
        import os
        import uvicorn
        from fastapi import FastAPI

        app = FastAPI()

        @app.get("/health")
        def health():
            return {"concurrency": {"max_concurrent": 4}}

        if __name__ == "__main__":
            uvicorn.run(app, host="0.0.0.0", port=int(os.environ["_OSMOSIS_ROLLOUT_PORT"]))
    """
    async with RolloutServer(make_spec(source)) as server:
        assert server.capacity == 4
        async with asked(server, "/health") as reply:
            assert reply.headers["x-osmosis-rollout-instance-id"] == server.spec.env[INSTANCE_ENV]


async def test_an_agents_own_clients_share_one_tls_context_and_do_not_fill_the_log(
    make_spec: MakeSpec,
) -> None:
    source = """
        import logging
        import httpx

        def context(**options):
            return httpx.AsyncClient(**options)._transport._pool._ssl_context

        assert context() is context(), "each costs 40 ms"
        assert context(verify=False) is not context()
        assert httpx.create_ssl_context() is not context(), "one to be changed is one's own"
        logging.basicConfig(level=logging.INFO)
        logging.getLogger("httpx").info("a line for every request")
    """ + textwrap.indent(plain_server(), " " * 8)
    async with RolloutServer(make_spec(source)) as server:
        assert "a line for every request" not in "\n".join(server.log_tail())


async def test_the_death_of_the_server_is_noticed_and_explained(make_spec: MakeSpec) -> None:
    async with RolloutServer(make_spec(plain_server())) as server:
        os.kill(server.pid, signal.SIGKILL)
        error = await asyncio.wait_for(server.death(), 60)
    assert (error.cause, error.status) == ("killed", -signal.SIGKILL)
    sentence = "the rollout server `main.py` ended (signal 9, as when the machine has no memory left)."
    assert error.message.startswith(sentence)


async def test_a_port_that_was_lost_with_the_server_ends_the_restarts(
    make_spec: MakeSpec, unused_tcp_port: int
) -> None:
    async with RolloutServer(make_spec(plain_server(), port=unused_tcp_port)) as server:
        os.kill(server.pid, signal.SIGKILL)
        await asyncio.wait_for(server.death(), 60)
        with socket.create_server(("127.0.0.1", unused_tcp_port)):
            for _ in range(MAX_RESTARTS):
                with pytest.raises(ServiceError, match="already in use") as refused:
                    await server.revive()
                assert not isinstance(refused.value, ServiceDiedError)
            with pytest.raises(ServiceDiedError, match="already in use"):
                await server.revive()


async def test_a_missing_interpreter_is_named(make_spec: MakeSpec) -> None:
    with pytest.raises(ServiceError, match="/no/such/python"):
        await RolloutServer(make_spec(plain_server(), python=Path("/no/such/python"))).start()


@pytest.mark.e2e
async def test_a_killed_supervisor_takes_the_server_with_it(make_spec: MakeSpec, tmp_path: Path) -> None:
    spec = make_spec(plain_server())
    program = f"""
        import asyncio, os
        from pathlib import Path
        from osmosis_ai.driving.server_process import RolloutServer, ServerSpec

        async def main():
            spec = ServerSpec(
                rollout_dir=Path({str(spec.rollout_dir)!r}), entrypoint="main.py", python=Path({sys.executable!r}),
                env=dict(os.environ), artifact_root=Path({str(spec.artifact_root)!r}), port=None,
                log_path=Path({str(spec.log_path)!r}),
            )
            server = RolloutServer(spec)
            await server.start()
            print(server.pid, flush=True)
            await server.death()

        asyncio.run(main())
    """
    with subprocess.Popen(  # noqa: ASYNC220 - it starts at once and is read one line from
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True
    ) as supervisor:
        assert supervisor.stdout is not None
        pid = int(supervisor.stdout.readline())
        assert alive(pid)
        supervisor.kill()
    await asyncio.wait_for(gone(pid), 60)


@pytest.mark.parametrize(
    ("health", "capacity"),
    [
        ({"max_queue_depth": 7, "concurrency": {"max_concurrent": 4}}, 7),
        ({"concurrency": {"max_concurrent": 4, "queued": 0, "running": 0}}, 4),
        ({"concurrency": {"max_concurrent": None}}, None),
        ({"max_queue_depth": True}, None),
        ({"max_queue_depth": 0, "concurrency": {"max_concurrent": -1}}, None),
        ({"max_queue_depth": "7", "concurrency": "4"}, None),
        ({"status": "ok"}, None),
    ],
)
def test_capacity_is_a_positive_integer_or_unknown(health: dict[str, Any], capacity: int | None) -> None:
    assert capacity_of(health) == capacity
