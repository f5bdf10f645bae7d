"""A rollout over HTTP, against a server of the test and against the SDK's own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
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
from osmosis_ai.rollout.driver import RolloutRunRequest
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


async def test_rows_that_only_python_can_encode_are_sent(
    make_world: Callable[..., Awaitable[World]],
) -> None:
    world = await make_world(succeed)
    metadata = {"huge": 2**80, "torn": "\ud800"}
    await world.driver.run(request(metadata=metadata))
    assert world.server.posts[0]["metadata"] == metadata
