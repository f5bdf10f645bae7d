"""The process of a rollout server: how it starts, where it listens, what it reaches, and how it ends."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
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

import aiohttp
import pytest
from aiohttp import web

from osmosis_ai.controller import server_process
from osmosis_ai.controller._server_bootstrap import INSTANCE_ENV
from osmosis_ai.controller.callbacks import (
    CallbackListener,
    CallbackStore,
    HttpRolloutDriver,
)
from osmosis_ai.controller.server_process import (
    HEALTH_TIMEOUT_ENV,
    RolloutServer,
    ServerSpec,
    health_timeout,
)
from osmosis_ai.errors import OsmosisError
from osmosis_ai.processes import (
    PrivateSocket,
    ServiceError,
    open_server_session,
    server_url,
    service,
)
from osmosis_ai.processes.addresses import socket_path
from osmosis_ai.rollout.driver import RolloutOutcome, RolloutRunRequest
from osmosis_ai.sandbox import InnerListener, Sandbox, SandboxCapability, check_sandbox, interpreter_places
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


async def test_a_server_is_started_known_healthy_and_stopped(make_spec: MakeSpec) -> None:
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
        headers = (await ask(server))["headers"]
        assert headers["x-osmosis-rollout-instance-id"] == server.spec.env[INSTANCE_ENV]


async def test_the_death_of_the_server_is_noticed_and_explained(make_spec: MakeSpec) -> None:
    async with RolloutServer(make_spec(plain_server())) as server:
        os.kill(server.pid, signal.SIGKILL)
        error = await asyncio.wait_for(server.death(), 60)
    assert (error.cause, error.status) == ("killed", -signal.SIGKILL)
    sentence = "the rollout server `main.py` ended (signal 9, as when the machine has no memory left)."
    assert error.message.startswith(sentence)


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


async def test_uvicorn_is_handed_a_socket_that_nobody_else_reaches_and_no_port(make_spec: MakeSpec) -> None:
    notes: list[str] = []
    what_children_inherit = """
        def answer():
            listed = subprocess.run(["ls", "-l", "/proc/self/fd"], capture_output=True, text=True).stdout
            return {"children": listed.count("socket:"), "variables": [name for name in os.environ if "LISTENER" in name]}
    """
    async with RolloutServer(make_spec(APP, what_children_inherit, SERVE, note=notes.append)) as server:
        path = Path(socket_path(server.base_url) or "")
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        told = await ask(server)
        assert not listens(told["port"])
        assert (told["children"], told["variables"]) == (0, [])
    assert not path.parent.exists() and not notes
    with pytest.raises(aiohttp.ClientConnectorError):
        await ask(server)


async def test_an_entrypoint_that_serves_by_other_means_listens_on_its_port_and_that_is_said_once(
    make_spec: MakeSpec,
) -> None:
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


def test_what_killed_processes_left_is_removed_and_what_is_in_use_is_not(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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

    def reached(family, kind, address):
        try:
            with socket.socket(family, kind) as probe:
                probe.settimeout(2)
                probe.connect(address)
                probe.send(b"hello")
                return True
        except OSError:
            return False

    def resolves(name):
        try:
            return bool(socket.getaddrinfo(name, 443))
        except OSError:
            return False

    class Curious(AgentWorkflow):
        async def run(self, ctx):
            there = json.loads(ctx.prompt[-1]["content"])
            found = [name for name, (family, kind, address) in there.items()
                     if reached(family, kind, tuple(address) if isinstance(address, list) else address)]
            found += [name for name in ("example.org", "pypi.org") if resolves(name)]
            reply = await get_rollout_context().http().post("/chat/completions", json={"model": "m"})
            said = {"reached": found, "model": reply.json()["answer"], "sockets": SOCKETS}
            return [*ctx.prompt, {"role": "assistant", "content": json.dumps(said)}]

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


class AnsweringBridge:
    """A model that says the same to everybody."""

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/rollouts/{rollout_id}/chat/completions", self.complete)]

    async def complete(self, request: web.Request) -> web.Response:
        return web.json_response({"answer": "42"})


@pytest.fixture(scope="module")
def capability() -> SandboxCapability:
    found = check_sandbox()
    if not found.works:
        pytest.skip(found.said)
    return found


@pytest.fixture
def sandbox(capability: SandboxCapability, tmp_path: Path) -> Sandbox:
    source = tmp_path / "source"
    source.mkdir()
    (source / "main.py").write_text(textwrap.dedent(ENTRYPOINT))
    made = capability.sandbox(source, readable=interpreter_places(Path(sys.executable)))
    return replace(made, network="none")


def server_of(sandbox: Sandbox, directory: Path) -> RolloutServer:
    spec = ServerSpec(
        rollout_dir=sandbox.source,
        entrypoint="main.py",
        python=Path(sys.executable),
        env={"PATH": os.environ["PATH"]},
        artifact_root=directory / "trials",
        port=None,
        log_path=directory / "server.log",
        sandbox=sandbox,
    )
    return RolloutServer(spec)


@pytest.fixture
async def store() -> CallbackStore:
    async def commit(_result: object) -> None:
        pass

    return CallbackStore(on_terminal_commit=commit)


@pytest.fixture
async def listener(store: CallbackStore) -> AsyncIterator[CallbackListener]:
    async with CallbackListener(
        store, auth_token="K1", bridge=AnsweringBridge(), bridge_token="K2"
    ) as listening:
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
    try:
        messages = [{"role": "user", "content": prompt}]
        return await driver.run(RolloutRunRequest(messages=messages, label="x", rollout_id=name))
    finally:
        await driver.aclose()


async def test_it_reaches_the_model_and_leaves_its_result_and_no_address_but_that(
    sandbox: Sandbox, store: CallbackStore, listener: CallbackListener, tmp_path: Path
) -> None:
    abstract = "\0osmosis-" + secrets.token_hex(8)
    server = server_of(sandbox, tmp_path)
    server.callbacks = listener
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as unix,
    ):
        udp.bind(("127.0.0.1", 0))
        unix.bind(abstract)
        unix.listen()
        there: dict[str, Any] = {
            "a service on loopback": (socket.AF_INET, socket.SOCK_STREAM, tcp.getsockname()),
            "the machine's metadata": (socket.AF_INET, socket.SOCK_STREAM, ("169.254.169.254", 80)),
            "the internet": (socket.AF_INET, socket.SOCK_STREAM, ("192.0.2.1", 443)),
            "the internet by UDP": (socket.AF_INET, socket.SOCK_DGRAM, ("192.0.2.1", 53)),
            "the internet by IPv6": (socket.AF_INET6, socket.SOCK_STREAM, ("2001:db8::1", 443)),
            "an abstract socket": (socket.AF_UNIX, socket.SOCK_STREAM, abstract),
            "a UDP port on loopback": (socket.AF_INET, socket.SOCK_DGRAM, udp.getsockname()),
        }
        async with server:
            outcome = await sandboxed_rollout(server, store, listener, json.dumps(there), "r1")
        udp.setblocking(False)
        with pytest.raises(BlockingIOError):
            udp.recv(1)
    assert outcome.sample is not None, outcome.error
    found = json.loads(outcome.sample.messages[-1]["content"])
    # A datagram to its own, empty loopback leaves a program and arrives nowhere.
    assert set(found.pop("reached")) <= {"a UDP port on loopback"}
    assert found == {"model": "42", "sockets": 1}, "the server's own socket, and no channel from the sandbox"
    notes = outcome.sample.extra_fields["grader_notes"]["notes"]
    assert 'network = "none"' in notes and "openai/judge" in notes


async def test_a_server_that_is_started_again_is_let_in_again(
    sandbox: Sandbox, store: CallbackStore, listener: CallbackListener, tmp_path: Path
) -> None:
    server = server_of(sandbox, tmp_path)
    server.callbacks = listener
    async with server:
        assert (await sandboxed_rollout(server, store, listener, "{}", "r1")).sample is not None
        assert server._process is not None
        server._process.kill()
        await asyncio.wait_for(server.death(), 60)
        assert await server.revive()
        assert (await sandboxed_rollout(server, store, listener, "{}", "r2")).sample is not None


async def test_an_entrypoint_that_serves_by_other_means_is_told_to_serve_with_uvicorn(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    (sandbox.source / "main.py").write_text("import threading; threading.Event().wait()")
    server = RolloutServer(replace(server_of(sandbox, tmp_path).rollout, health_timeout_s=0.5))
    with pytest.raises(ServiceError) as late:
        await server.start()
    assert "must serve with uvicorn" in (late.value.hint or "")


@pytest.mark.parametrize("sent", ["nothing", "a pipe", "a socket elsewhere"])
def test_whatever_else_comes_out_of_a_sandbox_is_refused(sent: str) -> None:
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
def test_a_start_timeout_that_is_no_duration_is_refused(wished: str) -> None:
    with pytest.raises(OsmosisError, match="must be a number of seconds above 0"):
        health_timeout({HEALTH_TIMEOUT_ENV: wished})


def test_a_socket_is_made_where_its_path_is_short_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    listener = PrivateSocket()
    path = Path(socket_path(listener.address) or "")
    assert path.is_socket() and not path.is_relative_to(deep)
    assert not any(deep.iterdir())
    listener.remove()
    assert not path.parent.exists()
