"""Every rollout that is accepted has one outcome, whatever becomes of its report, its controller or its server."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from aiohttp import web

from osmosis_ai.rollout.loop.server import completion
from osmosis_ai.rollout.loop.server.state import AppState
from osmosis_ai.rollout.loop.settings import RolloutClientSettings, RolloutServerSettings, RolloutSettings

from .agents import Calculator, Held
from .trainer import Trainer, served


def hurried(*, timeout_s: int = 60) -> RolloutSettings:
    """Return settings of a server that tries once what may be tried again."""
    return RolloutSettings(
        client=RolloutClientSettings(
            timeout_seconds=timeout_s,
            max_retries=0,
            complete_rollout_retries=0,
            retry_base_delay=0.1,
            retry_max_delay=1,
        )
    )


def room_for(waiting: int) -> RolloutSettings:
    return RolloutSettings(server=RolloutServerSettings(max_queued_rollouts=waiting))


async def start(server: Any, trainer: Trainer, rollout_id: str = "R1", **changes: Any) -> None:
    reply = await server.post("/v1/rollout/init", json=trainer.init(rollout_id, **changes))
    assert reply.status_code == 202, reply.text


async def init(app: Any, trainer: Trainer, rollout_id: str) -> int:
    """Request a rollout as cheaply as one can, and return the status."""
    body = json.dumps(trainer.init(rollout_id)).encode()
    statuses: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        statuses.extend([message["status"]] if "status" in message else [])

    path = "/v1/rollout/init"
    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "headers": []}
    await app({**scope, "query_string": b"", "root_path": "", "http_version": "1.1"}, receive, send)
    return statuses[0]


@pytest.mark.parametrize("status", [201, 202, 204])
async def test_weakness_4_any_2xx_takes_a_completion(trainer: Trainer, status: int) -> None:
    trainer.refusals = [status]
    async with served(Calculator()) as server:
        await start(server, trainer)
        await trainer.completed()
    assert len(trainer.offers) == 1


async def test_weakness_3_a_refused_completion_is_logged_and_no_error_follows_it(
    trainer: Trainer, caplog: pytest.LogCaptureFixture
) -> None:
    trainer.refusals = [400]
    async with served(Calculator()) as server:
        await start(server, trainer)
        await trainer.offered()
    assert [offer["status"] for offer in trainer.offers] == ["COMPLETED"]
    assert "rollout R1: its outcome (COMPLETED) is lost: the controller refused it" in caplog.text


async def test_a_controller_that_is_away_for_a_while_is_offered_the_same_completion_again(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion, "_FIRST_PAUSE_S", 0.0)
    trainer.refusals = [503, 429, 500]
    async with served(Calculator(), settings=hurried()) as server:
        await start(server, trainer)
        await trainer.completed()
    first, *others = trainer.offers
    assert (first["status"], len(others)) == ("COMPLETED", 3)
    assert all(offer == first for offer in others)


async def test_a_controller_that_never_takes_it_is_given_up(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("osmosis_ai.rollout.loop.server.execution.COMPLETION_WINDOW_S", 0.0)
    trainer.refusals = [503] * 9
    async with served(Calculator(), settings=hurried()) as server:
        await start(server, trainer)
        await trainer.offered()
    assert "is lost: the controller did not take it" in caplog.text


async def test_a_shutdown_reports_what_it_cuts_off_and_what_still_waits(trainer: Trainer) -> None:
    agent = Held()
    async with served(agent, max_concurrent=1) as server:
        await start(server, trainer, "R1")
        await start(server, trainer, "R2")
        await agent.started.wait()
    told = {offer["rollout_id"]: offer for offer in trainer.completions}
    assert sorted(told) == ["R1", "R2"]
    assert len(trainer.offers) == 2
    for offer in told.values():
        # The word by which a controller knows that the rollout is to be made again, and not to be counted.
        assert (offer["status"], offer["finish_reason"]) == ("ERROR", "cancelled")
        assert "shut down" in offer["error_message"]


async def test_a_shutdown_ends_a_report_whose_controller_cannot_be_reached(
    trainer: Trainer, caplog: pytest.LogCaptureFixture, unused_tcp_port: int
) -> None:
    async with served(Calculator(), settings=hurried()) as server:
        await start(server, trainer, server_url=f"http://127.0.0.1:{unused_tcp_port}")
        for _ in range(6000):
            if "its outcome is offered again" in caplog.text:
                break
            await asyncio.sleep(0.01)
        asked_to_end = time.monotonic()
    assert time.monotonic() - asked_to_end < 8  # It used to be offered for another 10 s.
    assert "rollout R1: its outcome (ERROR) is lost" in caplog.text


async def test_a_full_server_says_when_to_come_again_and_keeps_what_it_took(
    trainer: Trainer,
) -> None:
    agent = Held()
    async with served(agent, max_concurrent=1, settings=room_for(1)) as server:
        await start(server, trainer, "R1")
        await start(server, trainer, "R2")
        refused = await server.post("/v1/rollout/init", json=trainer.init("R3"))
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "5")
        again = await server.post("/v1/rollout/init", json=trainer.init("R1"))
        assert again.status_code == 202
        agent.let_go.set()
        await trainer.completed(2)
        await start(server, trainer, "R3")
        await trainer.completed(3)
    assert sorted(offer["rollout_id"] for offer in trainer.offers) == ["R1", "R2", "R3"]


async def test_requests_that_wait_take_so_many_bytes_and_no_more_however_few_they_are(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("osmosis_ai.rollout.loop.server.state.HELD_BYTES", 25_000)
    agent = Held()
    large = {"metadata": {"much": "m" * 20_000}}
    async with served(agent) as server:
        await start(server, trainer, "R1", **large)
        refused = await server.post("/v1/rollout/init", json=trainer.init("R2", **large))
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "5")
        await start(server, trainer, "R3")
        agent.let_go.set()
        await trainer.completed(2)
        await asyncio.gather(*server_state(server).rollout_tasks.values())
        await start(server, trainer, "R2", **large)
        await trainer.completed(3)


@pytest.mark.integration
async def test_of_5000_requests_at_once_each_is_taken_or_sent_away_and_what_is_taken_is_reported_once(
    trainer: Trainer,
) -> None:
    agent = Calculator()
    async with served(agent, max_concurrent=64, settings=room_for(300)) as server:
        app = server._transport.app
        statuses = await asyncio.gather(*(init(app, trainer, f"R{number}") for number in range(5000)))
        taken = {f"R{number}" for number, status in enumerate(statuses) if status == 202}
        assert set(statuses) == {202, 429}
        await trainer.completed(len(taken))
    assert sorted(offer["rollout_id"] for offer in trainer.offers) == sorted(taken)
    assert agent.runs == len(taken) >= 364


@pytest.mark.parametrize(
    "answer",
    [
        lambda _: web.Response(text="<html>sign in</html>", content_type="text/html"),
        lambda _: web.json_response({"usage": None}),
        lambda _: web.Response(status=404, text="<html>"),
    ],
)
async def test_a_controller_that_answers_something_else_fails_the_rollout_in_one_line(
    trainer: Trainer, answer: Any
) -> None:
    trainer.on_chat = answer
    async with served(Calculator(), settings=hurried()) as server:
        await start(server, trainer)
        (told,) = await trainer.completed()
    assert told["status"] == "ERROR"
    assert "\n" not in told["error_message"]


async def test_a_controller_that_redirects_does_not_lead_the_key_to_another_host(trainer: Trainer) -> None:
    async with Trainer().serving() as other:
        trainer.on_chat = lambda _: web.Response(
            status=307, headers={"Location": f"{other.url}/v1/chat/completions"}
        )
        trainer.refusals, trainer.elsewhere = [307], other.url
        async with served(Calculator(), settings=hurried()) as server:
            await start(server, trainer)
            (told,) = await trainer.offered()
    assert told["status"] == "ERROR"
    assert (other.chats, other.offers) == ([], [])


async def test_a_controller_that_never_answers_is_not_waited_for_without_end(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    monkeypatch.setattr("osmosis_ai.rollout.loop.server.execution.COMPLETION_WINDOW_S", 0.1)
    silence = await asyncio.start_server(silent, "127.0.0.1", 0)
    host, port = silence.sockets[0].getsockname()
    async with silence, served(Calculator(), settings=hurried(timeout_s=1)) as server:
        await start(server, trainer, server_url=f"http://{host}:{port}")
        (rollout,) = server_state(server).rollout_tasks.values()
        await rollout
    assert "rollout R1: its outcome (ERROR) is lost: the controller did not take it" in caplog.text
    assert f"http://{host}:{port}/v1/chat/completions did not answer within 1 s" in caplog.text


def server_state(server: Any) -> Any:
    return server._transport.app.state.rollouts


async def test_answers_to_rollouts_that_have_ended_take_so_many_bytes_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("osmosis_ai.rollout.loop.server.state.REMEMBERED_BYTES", 2500)
    state, task = AppState(), asyncio.ensure_future(asyncio.sleep(0))
    for key in ("a", "b", "c", "d"):
        state.mark_started(key, task, b"x" * 1000)
        state.mark_completed(key)
    assert [key for key in "abcd" if state.reply_to(key) is not None] == ["c", "d"]
    await task
