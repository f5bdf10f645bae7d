"""A rollout over HTTP, against a server of the test and against the SDK's own."""

from __future__ import annotations

import asyncio
import os
import sys
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from osmosis_ai.controller.callbacks import (
    CallbackListener,
    CallbackStore,
    HttpRolloutDriver,
    RolloutProtocolError,
    TerminalCallbackResult,
    UnknownRolloutIdError,
)
from osmosis_ai.controller.server_process import RolloutServer, ServerSpec
from osmosis_ai.rollout.driver import RolloutOutcome, RolloutRunRequest
from osmosis_ai.rollout.types import RolloutStatus
from tests.controller.wire import ROLLOUT_ID, completion_body, grader_body

Script = Callable[["RolloutServerDouble", dict[str, Any]], Awaitable[None]]


@dataclass
class RolloutServerDouble:
    """Implements the server's side of the protocol with scripted replies and callbacks."""

    script: Script
    replies: list[web.Response] = field(default_factory=list)
    posts: list[dict[str, Any]] = field(default_factory=list)
    cancels: list[Any] = field(default_factory=list)
    acknowledgments: list[tuple[int, Any]] = field(default_factory=list)
    admitted: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    base_url: str = ""

    async def rollout(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.posts.append(body)
        reply = self.replies.pop(0) if self.replies else web.json_response({}, status=202)
        if reply.status == 202:
            task = asyncio.create_task(self.script(self, body))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
            self.admitted.set()
        return reply

    async def cancel(self, request: web.Request) -> web.StreamResponse:
        self.cancels.append(await request.json())
        return web.json_response({"dispositions": {}})

    async def call_back(self, url: str, key: str, body: dict[str, Any]) -> None:
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, json=body, headers={"Authorization": f"Bearer {key}"}) as reply,
        ):
            self.acknowledgments.append((reply.status, await reply.json()))


async def succeed(server: RolloutServerDouble, init: dict[str, Any]) -> None:
    key = init["controller_api_key"]
    await server.call_back(init["completion_callback_url"], key, completion_body(init["rollout_id"]))
    await server.call_back(init["grader_callback_url"], key, grader_body(init["rollout_id"]))


async def fail_in_the_workflow(server: RolloutServerDouble, init: dict[str, Any]) -> None:
    key, rollout_id = init["controller_api_key"], init["rollout_id"]
    failure = completion_body(
        rollout_id, status="failure", err_message="it broke", err_category="agent_error"
    )
    await server.call_back(init["completion_callback_url"], key, failure)
    await server.call_back(
        init["grader_callback_url"], key, grader_body(rollout_id, status="failure", sample=None)
    )


async def say_nothing(server: RolloutServerDouble, init: dict[str, Any]) -> None:
    return None


@dataclass
class World:
    server: RolloutServerDouble
    store: CallbackStore
    driver: HttpRolloutDriver
    commits: list[TerminalCallbackResult]


@pytest.fixture
async def make_world() -> AsyncIterator[Callable[..., Awaitable[World]]]:
    closing: list[Callable[[], Awaitable[Any]]] = []

    async def build(script: Script, **options: Any) -> World:
        commits: list[TerminalCallbackResult] = []

        async def commit(result: TerminalCallbackResult) -> None:
            commits.append(result)

        server = RolloutServerDouble(script)
        app = web.Application()
        app.add_routes([web.post("/rollout", server.rollout), web.post("/rollout/cancel", server.cancel)])
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        server.base_url = f"http://{host}:{port}"
        store = CallbackStore(on_terminal_commit=commit)
        listener = CallbackListener(store, auth_token="K1")
        await listener.start()
        driver = HttpRolloutDriver(
            rollout_base_url=server.base_url + "/",
            callback_store=store,
            completion_url_for=listener.completion_url,
            grader_url_for=listener.grader_url,
            chat_completions_url_for=listener.chat_completions_url,
            chat_api_key="K2",
            controller_api_key="K1",
            **options,
        )
        closing.extend([driver.aclose, runner.cleanup, listener.stop])
        return World(server, store, driver, commits)

    yield build
    for close in closing:
        await close()


def request(**changes: Any) -> RolloutRunRequest:
    fields: dict[str, Any] = {
        "messages": [{"role": "user", "content": "say ok"}],
        "label": "ok",
        "rollout_id": ROLLOUT_ID,
        "agent_timeout_sec": 60.0,
        "grader_timeout_sec": 30.0,
        "extra_fields": {"row_index": 0, "run_index": 0},
        **changes,
    }
    return RolloutRunRequest(**fields)


async def test_a_rollout_is_posted_by_the_protocol_and_returns_its_sample(
    make_world: Callable[..., Awaitable[World]],
) -> None:
    world = await make_world(succeed)
    outcome = await world.driver.run(request())
    assert (outcome.status, outcome.error, outcome.rollout_id) == (RolloutStatus.SUCCESS, None, ROLLOUT_ID)
    assert outcome.sample is not None and outcome.sample.reward == 1.0
    (init,) = world.server.posts
    base = init["chat_completions_url"]
    assert base.startswith("http://127.0.0.1:") and base.endswith(f"/v1/rollouts/{ROLLOUT_ID}")
    assert init == {
        "initial_messages": [{"role": "user", "content": "say ok"}],
        "label": "ok",
        "metadata": None,
        "rollout_id": ROLLOUT_ID,
        "chat_completions_url": base,
        "controller_api_key": "K1",
        "llm_api_key": "K2",
        "completion_callback_url": f"{base}/completion",
        "grader_callback_url": f"{base}/grader",
        "agent_timeout_sec": 60.0,
        "grader_timeout_sec": 30.0,
        "extra_fields": {"row_index": 0, "run_index": 0},
    }
    assert world.commits[0].source == "grader"
    assert not world.server.cancels


async def test_the_workflows_own_message_explains_a_failure(
    make_world: Callable[..., Awaitable[World]],
) -> None:
    world = await make_world(fail_in_the_workflow)
    outcome = await world.driver.run(request())
    assert (outcome.status, outcome.error, outcome.sample) == (RolloutStatus.FAILURE, "it broke", None)


async def test_a_full_server_gets_the_rollout_again_without_a_second_registration(
    make_world: Callable[..., Awaitable[World]],
) -> None:
    world = await make_world(succeed)
    world.server.replies = [web.Response(status=429, headers={"Retry-After": "0.01"}) for _ in range(3)]
    outcome = await world.driver.run(request())
    assert outcome.status == RolloutStatus.SUCCESS
    assert len(world.server.posts) == 4


@pytest.mark.parametrize("status", [200, 307, 404, 422, 500])
async def test_any_other_status_is_a_protocol_error(
    make_world: Callable[..., Awaitable[World]], status: int
) -> None:
    world = await make_world(succeed)
    world.server.replies = [web.Response(status=status, text="what is this")]
    with pytest.raises(RolloutProtocolError, match="what is this") as caught:
        await world.driver.run(request())
    assert caught.value.status_code == status
    with pytest.raises(UnknownRolloutIdError):
        await world.store.wait_terminal(ROLLOUT_ID)


async def test_an_unreachable_server_is_an_error_of_the_transport(
    make_world: Callable[..., Awaitable[World]], unused_tcp_port: int
) -> None:
    world = await make_world(succeed)
    world.driver._base_url = f"http://127.0.0.1:{unused_tcp_port}"
    with pytest.raises(aiohttp.ClientConnectionError):
        await world.driver.run(request())


async def test_a_rollout_that_never_ends_times_out_and_is_cancelled(
    make_world: Callable[..., Awaitable[World]],
) -> None:
    world = await make_world(say_nothing, callback_timeout_sec=0.05)
    outcome = await world.driver.run(request())
    assert (outcome.status, outcome.error) == (RolloutStatus.FAILURE, "callback_timeout")
    assert [result.source for result in world.commits] == ["timeout"]
    assert world.server.cancels == [{"ids": [ROLLOUT_ID]}]
    init = world.server.posts[0]
    await world.server.call_back(init["grader_callback_url"], "K1", grader_body())
    assert world.server.acknowledgments == [(200, {"ok": True, "error_type": "callback_timeout"})]


async def test_cancelling_the_call_cancels_the_rollout_and_commits_nothing(
    make_world: Callable[..., Awaitable[World]],
) -> None:
    world = await make_world(say_nothing)
    running = asyncio.create_task(world.driver.run(request()))
    await world.server.admitted.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert world.commits == []
    assert world.server.cancels == [{"ids": [ROLLOUT_ID]}]
    init = world.server.posts[0]
    await world.server.call_back(init["grader_callback_url"], "K1", grader_body())
    assert world.server.acknowledgments == [(200, {"ok": True})]


ENTRYPOINT = """
import asyncio
import os

import uvicorn
from osmosis_ai.rollout.agent_workflow import AgentWorkflow
from osmosis_ai.rollout.backend.local import LocalBackend
from osmosis_ai.rollout.grader import Grader
from osmosis_ai.rollout.server import create_rollout_server


class Echo(AgentWorkflow):
    async def run(self, ctx):
        said = ctx.prompt[0]["content"]
        if said == "raise":
            raise RuntimeError("the agent broke")
        if said == "hang":
            await asyncio.Event().wait()
        return [*ctx.prompt, {"role": "assistant", "content": said}]


class Exact(Grader):
    async def grade(self, ctx):
        ctx.set_reward(float(ctx.sample.messages[-1]["content"] == ctx.label))


def main():
    app = create_rollout_server(backend=LocalBackend(workflow=Echo, grader=Exact))
    uvicorn.run(app, host="0.0.0.0", port=int(os.environ["_OSMOSIS_ROLLOUT_PORT"]), log_level="warning")


if __name__ == "__main__":
    main()
"""


@dataclass
class ServerWorld:
    server: RolloutServer
    driver: HttpRolloutDriver
    commits: list[TerminalCallbackResult] = field(default_factory=list)

    async def run(
        self, said: str, *, rollout_id: str = "", agent_timeout_sec: float = 600.0
    ) -> RolloutOutcome:
        return await self.driver.run(
            RolloutRunRequest(
                messages=[{"role": "user", "content": said}],
                label="ok",
                rollout_id=rollout_id or f"rollout-{said}",
                agent_timeout_sec=agent_timeout_sec,
                grader_timeout_sec=600.0,
            )
        )


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[ServerWorld]:
    (tmp_path / "main.py").write_text(textwrap.dedent(ENTRYPOINT))
    spec = ServerSpec(
        rollout_dir=tmp_path,
        entrypoint="main.py",
        python=Path(sys.executable),
        env=dict(os.environ),
        artifact_root=tmp_path / "trials",
        port=None,
        log_path=tmp_path / "server.log",
    )
    commits: list[TerminalCallbackResult] = []

    async def commit(result: TerminalCallbackResult) -> None:
        commits.append(result)

    store = CallbackStore(on_terminal_commit=commit)
    async with CallbackListener(store, auth_token="K1") as listener, RolloutServer(spec) as server:
        driver = HttpRolloutDriver(
            rollout_base_url=server.base_url,
            callback_store=store,
            completion_url_for=listener.completion_url,
            grader_url_for=listener.grader_url,
            chat_completions_url_for=listener.chat_completions_url,
            chat_api_key="K2",
            controller_api_key="K1",
            callback_timeout_sec=600.0,
        )
        yield ServerWorld(server, driver, commits)
        await driver.aclose()


@pytest.mark.e2e
async def test_rollouts_run_and_are_graded(world: ServerWorld, tmp_path: Path) -> None:
    assert world.server.capacity == 4
    right, wrong = await asyncio.gather(world.run("ok"), world.run("no"))
    assert right.status.value == wrong.status.value == "success"
    assert right.sample is not None and right.sample.reward == 1.0
    assert wrong.sample is not None and wrong.sample.reward == 0.0
    assert {commit.rollout_id for commit in world.commits} == {"rollout-ok", "rollout-no"}
    assert all(commit.completion is not None for commit in world.commits)


@pytest.mark.e2e
async def test_a_workflow_that_hangs_is_ended_by_its_deadline(world: ServerWorld) -> None:
    outcome = await world.run("hang", agent_timeout_sec=0.2)
    assert outcome.status.value == "failure"
    assert "deadline" in (outcome.error or "")


async def test_a_server_that_refuses_to_cancel_does_not_hide_the_cancellation(
    make_world: Callable[..., Awaitable[World]],
) -> None:
    world = await make_world(say_nothing)
    running = asyncio.create_task(world.driver.run(request()))
    await world.server.admitted.wait()
    world.driver._base_url = "http://127.0.0.1:9"
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_rows_that_only_python_can_encode_are_sent(
    make_world: Callable[..., Awaitable[World]],
) -> None:
    world = await make_world(succeed)
    metadata = {"huge": 2**80, "torn": "\ud800"}
    await world.driver.run(request(metadata=metadata))
    assert world.server.posts[0]["metadata"] == metadata


async def test_a_blank_controller_key_is_refused(make_world: Callable[..., Awaitable[World]]) -> None:
    with pytest.raises(ValueError, match="controller_api_key"):
        HttpRolloutDriver(
            rollout_base_url="http://127.0.0.1:1",
            callback_store=(await make_world(succeed)).store,
            completion_url_for=str,
            grader_url_for=str,
            chat_completions_url_for=str,
            chat_api_key=None,
            controller_api_key=" ",
        )
