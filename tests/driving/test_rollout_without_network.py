"""With `network = "none"` a rollout reaches its run's model and callbacks, and nothing else."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
import sys
import textwrap
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from osmosis_ai.driving.callback_registry import CallbackStore
from osmosis_ai.driving.callback_server import CallbackListener
from osmosis_ai.driving.driver import RolloutOutcome, RolloutRunRequest
from osmosis_ai.driving.http_driver import HttpRolloutDriver
from osmosis_ai.driving.server_process import RolloutServer, ServerSpec
from osmosis_ai.sandbox import InnerListener, Sandbox, SandboxCapability, check_sandbox, interpreter_places
from osmosis_ai.supervision import ServiceError

pytestmark = pytest.mark.integration

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
async def listener() -> AsyncIterator[CallbackListener]:
    async def commit(_result: object) -> None:
        pass

    async with CallbackListener(
        CallbackStore(on_terminal_commit=commit), auth_token="K1", bridge=AnsweringBridge(), bridge_token="K2"
    ) as listening:
        yield listening


async def rollout(
    server: RolloutServer, listener: CallbackListener, prompt: str, name: str
) -> RolloutOutcome:
    driver = HttpRolloutDriver(
        rollout_base_url=server.base_url,
        callback_store=listener._store,
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
    sandbox: Sandbox, listener: CallbackListener, tmp_path: Path
) -> None:
    abstract = "\0osmosis-" + secrets.token_hex(8)
    server = server_of(sandbox, tmp_path)
    server.let_in(listener)
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
            outcome = await rollout(server, listener, json.dumps(there), "r1")
        udp.setblocking(False)
        with pytest.raises(BlockingIOError):
            udp.recv(1)
    assert outcome.sample is not None, outcome.error
    found = json.loads(outcome.sample.messages[-1]["content"])
    # A datagram to its own, empty loopback leaves a program and arrives nowhere.
    assert set(found.pop("reached")) <= {"a UDP port on loopback"}
    assert found == {"model": "42", "sockets": 1}, (
        "the server's own socket, and no channel out of the sandbox"
    )
    notes = outcome.sample.extra_fields["grader_notes"]["notes"]
    assert 'network = "none"' in notes and "openai/judge" in notes


async def test_a_server_that_is_started_again_is_let_in_again(
    sandbox: Sandbox, listener: CallbackListener, tmp_path: Path
) -> None:
    server = server_of(sandbox, tmp_path)
    server.let_in(listener)
    async with server:
        assert (await rollout(server, listener, "{}", "r1")).sample is not None
        assert server._process is not None
        server._process.kill()
        await asyncio.wait_for(server.death(), 60)
        assert await server.revive()
        assert (await rollout(server, listener, "{}", "r2")).sample is not None


async def test_an_entrypoint_that_serves_by_other_means_is_told_to_serve_with_uvicorn(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    (sandbox.source / "main.py").write_text("import threading; threading.Event().wait()")
    server = RolloutServer(server_of(sandbox, tmp_path).rollout, health_timeout_s=0.5)
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
        with pytest.raises(OSError, match="out of the sandbox"):
            inner.take()
    inner.close()
    for end in pipe:
        os.close(end)
