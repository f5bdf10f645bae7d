"""The rollout server from its start to its end: health, what becomes of rollouts, cancellation, shutdown."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvicorn
from fastapi import FastAPI

from osmosis_ai.rollout import (
    AgentWorkflow,
    AgentWorkflowConfig,
    AgentWorkflowContext,
    ConcurrencyConfig,
    LocalBackend,
    get_rollout_context,
    model_client,
)
from osmosis_ai.rollout.server import app, create_rollout_server, host

from .world import Controller, ExactMatch, Hangs, SayOk, client_of, serving, until_status


class TestStatusAndCancellation:
    async def test_a_rollout_can_be_looked_up(self, controller: Controller) -> None:
        async with serving(LocalBackend(workflow=SayOk, grader=ExactMatch)) as client:
            await client.post("/rollout", json=controller.init_body())
            await controller.wait_for("grader")
            await until_status(client, "r1", "success")
            told = (await client.get("/rollout/r1/status")).json()
            unknown = (await client.get("/rollout/nobody/status")).json()

        assert told == {"rollout_id": "r1", "status": "success", "reward": 1.0, "err_message": None}
        assert unknown == {"rollout_id": "nobody", "status": "unknown", "reward": None, "err_message": None}

    async def test_cancelled_rollouts_send_no_callbacks_and_cannot_be_restarted_under_their_id(
        self, controller: Controller
    ) -> None:
        config = AgentWorkflowConfig(name="one", concurrency=ConcurrencyConfig(max_concurrent=1))
        async with serving(LocalBackend(workflow=Hangs, grader=ExactMatch, workflow_config=config)) as client:
            for name in ("r1", "r2"):
                await client.post("/rollout", json=controller.init_body(name))
            await until_status(client, "r2", "queued")
            reply = await client.post("/rollout/cancel", json={"ids": ["r1", "r2", "r3"]})
            for name in ("r1", "r2"):
                await until_status(client, name, "cancelled")
            again = await client.post("/rollout", json=controller.init_body("r1"))

        assert (reply.status_code, reply.json()) == (
            200,
            {"dispositions": {"r1": "cancelled_running", "r2": "cancelled_queued", "r3": "not_found"}},
        )
        assert again.status_code == 409
        assert controller.callbacks == []

    @pytest.mark.parametrize("selection", [{}, {"all": False}, {"ids": ["a"], "prefix": "a"}])
    async def test_a_cancellation_without_exactly_one_selector_is_refused(
        self, selection: dict[str, Any]
    ) -> None:
        async with serving(LocalBackend(workflow=SayOk)) as client:
            assert (await client.post("/rollout/cancel", json=selection)).status_code == 422


class TestHealth:
    async def test_health_is_the_backends_and_how_late_the_process_is(self) -> None:
        async with serving(LocalBackend(workflow=SayOk)) as client:
            told = (await client.get("/health")).json()
            time.sleep(0.4)  # noqa: ASYNC251 - it is this that is told
            late = (await client.get("/health")).json()["event_loop"]

        assert set(told.pop("event_loop")) == set(late) == {"lag_ms", "busy", "late_ago_ms"}
        assert late["lag_ms"] >= 250
        assert late["late_ago_ms"] is not None
        assert told == {
            "status": "ok",
            "concurrency": {"max_concurrent": 4, "queued": 0, "running": 0},
        }

    async def test_the_instance_id_is_the_one_of_the_servers_construction(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("_OSMOSIS_ROLLOUT_INSTANCE_ID", "mine")
        built = create_rollout_server(backend=LocalBackend(workflow=SayOk))
        monkeypatch.setenv("_OSMOSIS_ROLLOUT_INSTANCE_ID", "another")

        async with client_of(built) as client:
            assert (await client.get("/health")).json()["instance_id"] == "mine"


class TestShutdown:
    async def test_the_connections_of_the_rollouts_clients_are_closed_at_shutdown(
        self, controller: Controller
    ) -> None:
        opened: list[Any] = []

        class Calls(AgentWorkflow):
            async def run(self, ctx: AgentWorkflowContext) -> list[dict[str, Any]]:
                context = get_rollout_context()
                assert context is not None
                reply = await context.http().post("/chat/completions", json={"messages": ctx.prompt})
                (transport,) = model_client._shared[asyncio.get_running_loop()].values()
                opened.append(transport.client)
                return [*ctx.prompt, reply.json()["choices"][0]["message"]]

        async with serving(LocalBackend(workflow=Calls, grader=ExactMatch)) as client:
            await client.post("/rollout", json=controller.init_body())
            await controller.wait_for("grader")
            assert not opened[0].closed
        assert opened[0].closed

    async def test_rollouts_in_flight_finish_before_the_callers_lifespan_ends(
        self, controller: Controller, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        order: list[str] = []
        started, closing = asyncio.Event(), asyncio.Event()
        close = host.RolloutHost.close

        async def close_noticed(this: host.RolloutHost) -> None:
            closing.set()
            await close(this)

        monkeypatch.setattr(host.RolloutHost, "close", close_noticed)

        class Slow(AgentWorkflow):
            async def run(self, ctx: AgentWorkflowContext) -> Any:
                started.set()
                await closing.wait()
                order.append("workflow")
                return ctx.prompt

        @asynccontextmanager
        async def life(app: FastAPI) -> AsyncIterator[dict[str, Any]]:
            yield {"from": "caller"}
            order.append("lifespan")

        async with serving(LocalBackend(workflow=Slow, grader=ExactMatch), lifespan=life) as client:
            await client.post("/rollout", json=controller.init_body())
            await started.wait()

        assert order == ["workflow", "lifespan"]
        assert [callback.channel for callback in controller.callbacks] == ["completion", "grader"]

    async def test_rollouts_that_do_not_finish_are_cancelled_without_callbacks(
        self, controller: Controller, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(host, "DRAIN_S", 0.05)

        async with serving(LocalBackend(workflow=Hangs, grader=ExactMatch)) as client:
            await client.post("/rollout", json=controller.init_body())

        assert controller.callbacks == []


async def test_a_real_server_serves_a_rollout_end_to_end(controller: Controller, artifact_root: Path) -> None:
    built = create_rollout_server(backend=LocalBackend(workflow=SayOk, grader=ExactMatch))
    server = uvicorn.Server(uvicorn.Config(built, host="127.0.0.1", port=0, log_config=None))
    running = asyncio.create_task(server.serve())
    while not server.started:
        assert not running.done()
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        async with session.post("/rollout", json=controller.init_body()) as reply:
            assert (reply.status, await reply.json()) == (202, {})
        told = await controller.wait_for("grader")
    server.should_exit = True
    await running

    assert told["sample"]["reward"] == 1.0
    assert (artifact_root / "r1" / "trajectory.json").exists()
    assert logging.getLogger("uvicorn.access").level == logging.WARNING


def test_logging_is_left_alone_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    configured: list[Any] = []
    monkeypatch.setattr(app.logging, "basicConfig", lambda **options: configured.append(options))
    monkeypatch.setattr(logging.getLogger(), "handlers", [])

    create_rollout_server(backend=LocalBackend(workflow=SayOk), configure_logging=False)
    assert configured == []
    create_rollout_server(backend=LocalBackend(workflow=SayOk))
    assert len(configured) == 1
