"""The process of a rollout server: how it starts, where it listens, what it reaches, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import stat
import sys
import tempfile
import textwrap
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import aiohttp
import pytest

from osmosis_ai.controller import server_process
from osmosis_ai.controller._server_bootstrap import INSTANCE_ENV
from osmosis_ai.controller.callbacks import CallbackListener, CallbackStore, HttpRolloutDriver
from osmosis_ai.controller.server_process import HEALTH_TIMEOUT_ENV, RolloutServer, ServerSpec, health_timeout
from osmosis_ai.errors import OsmosisError
from osmosis_ai.processes import service
from osmosis_ai.processes.addresses import PrivateSocket, open_server_session, server_url, socket_path
from osmosis_ai.processes.service import ServiceError
from osmosis_ai.rollout.driver import RolloutOutcome, RolloutRunRequest
from osmosis_ai.sandbox.bubblewrap import InnerListener, interpreter_places
from osmosis_ai.sandbox.isolation import check_sandbox
from tests.controller.wire import EchoBridge
from tests.loop_clock import advance_loop_clock
from tests.processes import alive

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
    def build(*sources: str, entrypoint: str = "main.py", **changes: Any) -> ServerSpec:
        path = tmp_path / "rollout" / entrypoint
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(map(textwrap.dedent, sources)))
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


async def ask(server: RolloutServer | str) -> dict[str, Any]:
    """Return the health of a server, or of the server at an address, with its headers."""
    address = server if isinstance(server, str) else server.base_url
    async with (
        open_server_session(address, timeout_s=60) as session,
        session.get(server_url(address, "/health")) as reply,
    ):
        return {**await reply.json(content_type=None), "headers": reply.headers}


async def test_start_environment_and_stop(make_spec: MakeSpec, tmp_path: Path) -> None:
    seen = '{"instance_id": os.environ["_OSMOSIS_ROLLOUT_INSTANCE_ID"], "env": dict(os.environ), "cwd": os.getcwd()}'
    given = {
        "PATH": os.environ["PATH"],
        "MY_SETTING": "1",
        "VIRTUAL_ENV": "/elsewhere",
        "OSMOSIS_TOKEN": "osm_the_users_own",
        "NO_PROXY": "example.org",
    }
    spec = make_spec(plain_server(seen), env=given)
    async with RolloutServer(spec) as server:
        reply = await ask(server)
        port = server.base_url.rsplit(":", 1)[1]
        pid = server.pid
        assert server.capacity is None
    assert not alive(pid)
    assert spec.log_path.read_text() == "serving\n"
    assert stat.S_IMODE(spec.log_path.stat().st_mode) == 0o600
    env = reply["env"]
    assert env["MY_SETTING"] == "1"
    assert "OSMOSIS_TOKEN" not in env
    assert env["_OSMOSIS_ROLLOUT_HOST"] == "127.0.0.1"
    assert "VIRTUAL_ENV" not in env and "_OSMOSIS_LIFELINE_FD" not in env and "HOME" not in env
    assert env["_OSMOSIS_ROLLOUT_PORT"] == env["ROLLOUT_PORT"] == port
    assert env["_OSMOSIS_ROLLOUT_ARTIFACT_ROOT"] == str(tmp_path / "trials")
    assert env["NO_PROXY"] == "example.org,127.0.0.1,localhost"
    assert reply["cwd"] == str(tmp_path / "rollout")


async def test_the_import_path_of_an_entrypoint(make_spec: MakeSpec, tmp_path: Path) -> None:
    spec = make_spec("import beside, packaged, rooted, driver\n" + plain_server(), entrypoint="app/main.py")
    for place in ("app/beside.py", "src/packaged.py", "rooted.py", "app/driver.py"):
        path = tmp_path / "rollout" / place
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
    async with RolloutServer(spec) as server:
        assert await ask(server)


async def test_a_failing_entrypoint_is_explained_without_secrets(make_spec: MakeSpec) -> None:
    spec = make_spec("import json\nimport no_such_sk12345\n", secret_values=frozenset({"sk12345"}))
    with pytest.raises(ServiceError) as caught:
        await RolloutServer(spec).start()
    sentence, *tail = caught.value.message.splitlines()
    assert sentence == (
        "the rollout server `main.py` ended before it was ready (exit status 1): "
        "ModuleNotFoundError: No module named 'no_such_[REDACTED]' (main.py, line 2)"
    )
    assert tail[0] == f"last lines of {spec.log_path}:"
    assert tail[-1] == "  ModuleNotFoundError: No module named 'no_such_[REDACTED]'"
    assert caught.value.details["log_path"] == str(spec.log_path)
    assert "sk12345" not in caught.value.message + json.dumps(caught.value.details) + repr(spec)


async def test_a_server_that_never_becomes_healthy_is_ended(
    make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its socket, on which nobody answers, is asked for longer than the port.
    monkeypatch.setattr(service, "PROBE_TIMEOUT_S", 1200.0)
    server = RolloutServer(make_spec(plain_server(status=503), health_timeout_s=600.0))
    starting = asyncio.create_task(server.start())
    while server._probe_result != "status 503":
        assert not starting.done()
        await asyncio.sleep(0.01)
    advance_loop_clock(600.0)
    with pytest.raises(ServiceError, match=r"not ready after 600 s .*status 503") as caught:
        await starting
    assert caught.value.is_infrastructure
    with pytest.raises(RuntimeError):
        _ = server.pid


async def test_a_missing_interpreter_and_a_port_in_use_are_named(make_spec: MakeSpec) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ServiceError, match=f"port {port} is already in use"):
            await RolloutServer(make_spec(plain_server(), port=port)).start()

    with pytest.raises(ServiceError, match="/no/such/python"):
        await RolloutServer(make_spec(plain_server(), python=Path("/no/such/python"))).start()


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


async def test_instance_id_of_a_fastapi_server(make_spec: MakeSpec) -> None:
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
        headers = (await ask(server))["headers"]
        assert headers["x-osmosis-rollout-instance-id"] == server.spec.env[INSTANCE_ENV]


# No framework: what is tested is where it listens.
APP = """
    import json, os, socket, subprocess, sys, threading
    import uvicorn

    PORT = int(os.environ["_OSMOSIS_ROLLOUT_PORT"])

    def answer():
        return {}

    async def app(scope, receive, send):
        if scope["type"] != "http":
            return
        body = json.dumps({"instance_id": os.environ["_OSMOSIS_ROLLOUT_INSTANCE_ID"], "port": PORT, **answer()}).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": body})
"""
SERVE = """
    if __name__ == "__main__":
        uvicorn.run(app, host="0.0.0.0", port=PORT, log_level="warning", lifespan="off")
"""


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def test_uvicorn_gets_a_private_socket_and_no_port(make_spec: MakeSpec) -> None:
    notes: list[str] = []
    what_children_inherit = """
        def answer():
            listed = subprocess.run(["ls", "-l", "/proc/self/fd"], capture_output=True, text=True).stdout
            return {"children": listed.count("socket:"), "variables": [name for name in os.environ if "LISTENER" in name]}
    """
    async with RolloutServer(make_spec(APP, what_children_inherit, SERVE, note=notes.append)) as server:
        path = Path(socket_path(server.base_url) or "")
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        health = await ask(server)
        assert not listens(health["port"])
        assert (health["children"], health["variables"]) == (0, [])
    assert not path.parent.exists() and not notes
    with pytest.raises(aiohttp.ClientConnectorError):
        await ask(server)


async def test_an_entrypoint_without_uvicorn_listens_on_its_port(make_spec: MakeSpec) -> None:
    by_other_means = """
        import asyncio

        async def reply(reader, writer):
            await reader.readuntil(b"\\r\\n\\r\\n")
            writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\nConnection: close\\r\\n\\r\\n{}")
            await writer.drain()
            writer.close()

        async def serve():
            async with await asyncio.start_server(reply, "127.0.0.1", PORT) as server:
                await server.serve_forever()

        asyncio.run(serve())
    """
    notes: list[str] = []
    async with RolloutServer(make_spec(APP, by_other_means, note=notes.append)) as server:
        assert server.base_url.startswith("http://127.0.0.1:")
        os.kill(server.pid, signal.SIGKILL)
        await asyncio.wait_for(server.death(), 60)
        await server.revive()
    (note,) = notes
    assert "listens on a port, so every user of this machine" in note


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory in which the address of a socket has its 107 bytes at most."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        yield Path(made)


def test_sockets_of_killed_processes_are_removed(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(short_path))
    in_use = PrivateSocket()
    left = short_path / "osmosis-socket-left"
    left.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(left / "server.sock"))
    elsewhere = short_path / "elsewhere"
    elsewhere.mkdir()
    (short_path / "osmosis-socket-link").symlink_to(elsewhere)
    another = PrivateSocket()
    assert not left.exists() and elsewhere.is_dir()
    for listener in (in_use, another):
        assert Path(socket_path(listener.address) or "").is_socket()
        listener.remove()
    assert [path.name for path in short_path.glob("*-socket-*")] == ["osmosis-socket-link"]


ENTRYPOINT = """
    import json, os, socket
    import uvicorn
    from osmosis_ai import evaluate_rubric
    from osmosis_ai.rollout import AgentWorkflow, Grader, LocalBackend, get_rollout_context
    from osmosis_ai.rollout.server import create_rollout_server

    def is_socket(fd):
        try:
            return os.readlink(f"/proc/self/fd/{fd}").startswith("socket:")
        except OSError:
            return False

    SOCKETS = sum(map(is_socket, os.listdir("/proc/self/fd")))

    class Curious(AgentWorkflow):
        async def run(self, ctx):
            with socket.socket() as probe:
                reached = probe.connect_ex(("127.0.0.1", int(ctx.prompt[-1]["content"]))) == 0
            reply = await get_rollout_context().http().post("/chat/completions", json={"model": "m"})
            found = {"reached": reached, "model": reply.json()["body"]["model"], "sockets": SOCKETS}
            return [*ctx.prompt, {"role": "assistant", "content": json.dumps(found)}]

    class Judged(Grader):
        async def grade(self, ctx):
            try:
                await evaluate_rubric(solution_str="x", rubric="Be kind.", model="openai/judge", api_key="k")
            except Exception as error:
                ctx.set_reward(1.0, notes=str(error))

    if __name__ == "__main__":
        app = create_rollout_server(backend=LocalBackend(workflow=Curious, grader=Judged))
        uvicorn.run(app, host="127.0.0.1", port=int(os.environ["_OSMOSIS_ROLLOUT_PORT"]), log_level="error")
"""


@pytest.fixture
def make_sandboxed(make_spec: MakeSpec) -> Callable[..., RolloutServer]:
    """Return a function that makes a server in a sandbox without a network."""
    capability = check_sandbox()
    if not capability.works:
        pytest.skip(capability.said)

    def build(source: str, **changes: Any) -> RolloutServer:
        spec = make_spec(source, env={"PATH": os.environ["PATH"]}, **changes)
        sandbox = capability.sandbox(spec.rollout_dir, readable=interpreter_places(spec.python))
        return RolloutServer(replace(spec, sandbox=replace(sandbox, network="none")))

    return build


@pytest.fixture
async def store() -> CallbackStore:
    return CallbackStore(on_terminal_commit=AsyncMock(return_value=None))


@pytest.fixture
async def listener(store: CallbackStore) -> AsyncIterator[CallbackListener]:
    bridge = EchoBridge()
    async with CallbackListener(store, auth_token="K1", bridge=bridge, bridge_token="K2") as listening:
        yield listening


async def sandboxed_rollout(
    server: RolloutServer, store: CallbackStore, listener: CallbackListener, prompt: str, name: str
) -> RolloutOutcome:
    driver = HttpRolloutDriver(
        rollout_base_url=server.base_url,
        callback_store=store,
        completion_url_for=listener.completion_url,
        grader_url_for=listener.grader_url,
        chat_completions_url_for=listener.chat_completions_url,
        chat_api_key="K2",
        controller_api_key="K1",
        callback_timeout_sec=60.0,
    )
    async with contextlib.aclosing(driver):
        messages = [{"role": "user", "content": prompt}]
        return await driver.run(RolloutRunRequest(messages=messages, label="x", rollout_id=name))


async def test_a_sandboxed_server_reaches_only_the_model_and_callbacks_also_after_a_restart(
    make_sandboxed: Callable[..., RolloutServer], store: CallbackStore, listener: CallbackListener
) -> None:
    server = make_sandboxed(ENTRYPOINT)
    server.callbacks = listener
    with socket.create_server(("127.0.0.1", 0)) as another:
        port = str(another.getsockname()[1])
        async with server:
            outcome = await sandboxed_rollout(server, store, listener, port, "r1")
            assert server._process is not None
            server._process.kill()
            await asyncio.wait_for(server.death(), 60)
            assert await server.revive()
            assert (await sandboxed_rollout(server, store, listener, port, "r2")).sample is not None
    assert outcome.sample is not None, outcome.error
    # One socket: the server's own, and no channel from the sandbox.
    found = json.loads(outcome.sample.messages[-1]["content"])
    assert found == {"reached": False, "model": "m", "sockets": 1}
    notes = outcome.sample.extra_fields["grader_notes"]["notes"]
    assert 'network = "none"' in notes and "openai/judge" in notes


async def test_a_sandboxed_server_without_uvicorn(make_sandboxed: Callable[..., RolloutServer]) -> None:
    server = make_sandboxed("import threading; threading.Event().wait()", health_timeout_s=0.5)
    with pytest.raises(ServiceError) as late:
        await server.start()
    assert "must serve with uvicorn" in (late.value.hint or "")


@pytest.mark.parametrize("sent", ["nothing", "a pipe", "a socket elsewhere"])
def test_foreign_descriptors_of_a_sandbox_are_refused(sent: str) -> None:
    inner = InnerListener(4711)
    pipe = os.pipe()
    with (
        socket.create_server(("127.0.0.1", 0)) as elsewhere,
        socket.socket(fileno=os.dup(inner.fileno())) as out,
    ):
        if sent != "nothing":
            socket.send_fds(out, [b"."], [pipe[0] if sent == "a pipe" else elsewhere.fileno()])
        out.close()
        with pytest.raises(OSError, match="from the sandbox"):
            inner.take()
    inner.close()
    for end in pipe:
        os.close(end)


@pytest.mark.parametrize("wished", ["0", "-1", "nan", "inf", "a minute"])
def test_invalid_start_timeouts(wished: str) -> None:
    with pytest.raises(OsmosisError, match="must be a number of seconds above 0"):
        health_timeout({HEALTH_TIMEOUT_ENV: wished})


def test_the_path_of_a_socket_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    listener = PrivateSocket()
    path = Path(socket_path(listener.address) or "")
    assert path.is_socket() and not path.is_relative_to(deep)
    assert not any(deep.iterdir())
    listener.remove()
    assert not path.parent.exists()
