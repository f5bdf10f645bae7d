"""A rollout over HTTP, against a server of the test and against the SDK's own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from osmosis_ai.controller.callbacks import (
    CallbackListener,
    CallbackStore,
    HttpRolloutDriver,
    RolloutProtocolError,
    TerminalCallbackResult,
    UnknownRolloutIdError,
)
from osmosis_ai.rollout import RolloutStatus
from osmosis_ai.rollout.driver import RolloutRunRequest
from tests.controller.wire import ROLLOUT_ID, completion_body, grader_body


@dataclass
class World:
    """A rollout server whose replies and callbacks are scripted, and the driver that uses it."""

    replies: list[web.Response] = field(default_factory=list)
    callbacks: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    posts: list[dict[str, Any]] = field(default_factory=list)
    cancels: list[Any] = field(default_factory=list)
    commits: list[TerminalCallbackResult] = field(default_factory=list)
    admitted: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    store: CallbackStore = field(init=False)
    driver: HttpRolloutDriver = field(init=False)

    async def admit(self, request: web.Request) -> web.StreamResponse:
        self.posts.append(await request.json())
        reply = self.replies.pop(0) if self.replies else web.json_response({}, status=202)
        if reply.status == 202:
            self.tasks.add(asyncio.create_task(self.call_back(*self.callbacks)))
            self.admitted.set()
        return reply

    async def cancel(self, request: web.Request) -> web.StreamResponse:
        self.cancels.append(await request.json())
        return web.json_response({"dispositions": {}})

    async def call_back(self, *callbacks: tuple[str, dict[str, Any]]) -> list[tuple[int, Any]]:
        """Post callbacks of the last rollout; return the replies."""
        init, replies = self.posts[-1], []
        headers = {"Authorization": f"Bearer {init['controller_api_key']}"}
        async with aiohttp.ClientSession(headers=headers) as session:
            for kind, body in callbacks:
                async with session.post(init[f"{kind}_callback_url"], json=body) as reply:
                    replies.append((reply.status, await reply.json()))
        return replies

    async def commit(self, result: TerminalCallbackResult) -> None:
        self.commits.append(result)


SUCCESS = [("completion", completion_body()), ("grader", grader_body())]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World(callbacks=SUCCESS)
    app = web.Application()
    app.add_routes([web.post("/rollout", made.admit), web.post("/rollout/cancel", made.cancel)])
    made.store = CallbackStore(on_terminal_commit=made.commit)
    async with TestServer(app) as server, CallbackListener(made.store, auth_token="K1") as listener:
        made.driver = HttpRolloutDriver(
            rollout_base_url=str(server.make_url("/")),
            callback_store=made.store,
            completion_url_for=listener.completion_url,
            grader_url_for=listener.grader_url,
            chat_completions_url_for=listener.chat_completions_url,
            chat_api_key="K2",
            controller_api_key="K1",
        )
        yield made
        await made.driver.aclose()


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


async def test_a_rollout(world: World) -> None:
    outcome = await world.driver.run(request())
    assert (outcome.status, outcome.error, outcome.rollout_id) == (RolloutStatus.SUCCESS, None, ROLLOUT_ID)
    assert outcome.sample is not None and outcome.sample.reward == 1.0
    assert outcome.sample.messages == grader_body()["sample"]["messages"]
    assert outcome.sample.trajectory_messages is None
    assert [await task for task in world.tasks] == [[(200, {"ok": True})] * 2]
    (init,) = world.posts
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
    (commit,) = world.commits
    assert commit.source == "grader"
    assert commit.completion is not None and commit.completion.status.value == "success"
    assert not world.cancels


async def test_a_failure_has_the_message_of_the_workflow(world: World) -> None:
    failure = completion_body(status="failure", err_message="it broke", err_category="agent_error")
    world.callbacks = [("completion", failure), ("grader", grader_body(status="failure", sample=None))]
    outcome = await world.driver.run(request())
    assert (outcome.status, outcome.error, outcome.sample) == (RolloutStatus.FAILURE, "it broke", None)


async def test_a_full_server_is_retried(world: World) -> None:
    world.replies = [web.Response(status=429, headers={"Retry-After": "0.01"}) for _ in range(3)]
    outcome = await world.driver.run(request())
    assert outcome.status == RolloutStatus.SUCCESS
    assert len(world.posts) == 4


@pytest.mark.parametrize("status", [200, 307, 404, 422, 500])
async def test_unexpected_statuses(world: World, status: int) -> None:
    world.replies = [web.Response(status=status, text="what is this")]
    with pytest.raises(RolloutProtocolError, match="what is this") as caught:
        await world.driver.run(request())
    assert caught.value.status_code == status
    with pytest.raises(UnknownRolloutIdError):
        await world.store.wait_terminal(ROLLOUT_ID)


async def test_an_unreachable_server(world: World, unused_tcp_port: int) -> None:
    world.driver._base_url = f"http://127.0.0.1:{unused_tcp_port}"
    with pytest.raises(aiohttp.ClientConnectionError):
        await world.driver.run(request())


async def test_a_callback_timeout(world: World) -> None:
    world.callbacks, world.driver._callback_timeout_s = [], 0.05
    outcome = await world.driver.run(request())
    assert (outcome.status, outcome.error) == (RolloutStatus.FAILURE, "callback_timeout")
    assert [result.source for result in world.commits] == ["timeout"]
    assert world.cancels == [{"ids": [ROLLOUT_ID]}]
    late = await world.call_back(*SUCCESS)
    assert late == [(200, {"ok": True, "error_type": "callback_timeout"})] * 2
    assert len(world.commits) == 1


async def test_cancellation(world: World) -> None:
    world.callbacks = []
    running = asyncio.create_task(world.driver.run(request()))
    await world.admitted.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert world.commits == []
    assert world.cancels == [{"ids": [ROLLOUT_ID]}]
    assert await world.call_back(("grader", grader_body())) == [(200, {"ok": True})]


async def test_rows_that_only_python_can_encode(world: World) -> None:
    metadata = {"huge": 2**80, "torn": "\ud800"}
    await world.driver.run(request(metadata=metadata))
    assert world.posts[0]["metadata"] == metadata
