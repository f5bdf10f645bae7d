"""The rollout server as a controller meets it: over HTTP, with callbacks to a real listener, from start to shutdown."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi import FastAPI

from osmosis_ai.rollout import (
    AgentWorkflowConfig,
    AgentWorkflowContext,
    AgentWorkflowOutput,
    ConcurrencyConfig,
    ExecutionBackend,
    ExecutionRequest,
    ExecutionResult,
    GraderContext,
    LocalBackend,
    RolloutSample,
    RolloutStatus,
    get_rollout_context,
)
from osmosis_ai.rollout.artifacts import PENDING_TRAJECTORY_FILE
from osmosis_ai.rollout.model_client import close_shared_connections
from osmosis_ai.rollout.server import ControllerAuth, app, callback_delivery
from osmosis_ai.rollout.server.callback_delivery import ATTEMPTS, DeliveryError, deliver

from .local_rollouts import grader, hang, returning, rewarding, workflow
from .world import OK_MESSAGES, Controller, ExactMatch, Removes, SayOk, serving, until_status

COMPLETED = {"status": "success", "err_message": None, "err_category": None}


def sample_of(messages: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    plain = {"label": "ok", "reward": None, "remove_sample": False, "metrics": {}, "extra_fields": {}}
    return {"messages": messages, **plain, **changes}


async def test_callbacks_of_a_rollout(controller: Controller) -> None:
    async with serving(LocalBackend(workflow=SayOk, grader=ExactMatch)) as client:
        reply = await client.post("/rollout", json=controller.init_body())
        await controller.wait_for("grader")

    assert (reply.status_code, reply.json()) == (202, {})
    completion, grade = controller.callbacks
    assert (completion.channel, completion.authorization) == ("completion", "Bearer K1")
    assert completion.body == {**COMPLETED, "rollout_id": "r1", "extra_fields": None}
    assert (grade.channel, grade.authorization) == ("grader", "Bearer K1")
    assert grade.body == {**COMPLETED, "rollout_id": "r1", "sample": sample_of(OK_MESSAGES, reward=1.0)}


async def boom(ctx: AgentWorkflowContext) -> Any:
    raise RuntimeError("boom")


async def reward_and_hang(ctx: GraderContext) -> None:
    ctx.set_reward(1.0)
    await hang(ctx)


def failed(category: str | None, **fields: Any) -> dict[str, Any]:
    return {"status": "failure", "err_category": category, **fields}


NO_SAMPLE, UNREWARDED = {"sample": None}, {"sample": sample_of(OK_MESSAGES)}
REMOVED = {**COMPLETED, "sample": sample_of(OK_MESSAGES, remove_sample=True)}
NOTHING_TO_GRADE = failed("validation_error", **NO_SAMPLE)
INVALID_REWARD = failed("validation_error", **UNREWARDED)
LATE_AGENT, LATE_GRADER = failed("timeout", **NO_SAMPLE), failed("timeout", **UNREWARDED)
# Case -> workflow, grader, changes of the request, completion, grade.
OUTCOMES: dict[str, tuple[Any, Any, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "run raises": (workflow(boom), ExactMatch, {}, *[failed("agent_error", err_message="boom")] * 2),
    "wrong type": (returning("ok"), ExactMatch, {}, failed("validation_error"), NOTHING_TO_GRADE),
    "no source": (returning(None), rewarding(None), {}, COMPLETED, NOTHING_TO_GRADE),
    "no messages": (returning(AgentWorkflowOutput()), rewarding(None), {}, COMPLETED, NOTHING_TO_GRADE),
    "no grader": (SayOk, None, {}, COMPLETED, failed(None, **NO_SAMPLE)),
    "no label": (SayOk, ExactMatch, {"label": None}, COMPLETED, failed(None, **NO_SAMPLE)),
    "no reward": (SayOk, rewarding(None), {}, COMPLETED, INVALID_REWARD),
    "NaN reward": (SayOk, rewarding(math.nan), {}, COMPLETED, INVALID_REWARD),
    "removed sample": (SayOk, Removes, {}, COMPLETED, REMOVED),
    "late agent": (workflow(hang), ExactMatch, {"agent_timeout_sec": 0.05}, failed("timeout"), LATE_AGENT),
    "late grader": (SayOk, grader(reward_and_hang), {"grader_timeout_sec": 0.05}, COMPLETED, LATE_GRADER),
}


@pytest.mark.parametrize("case", OUTCOMES)
async def test_callbacks_of_every_outcome(controller: Controller, case: str) -> None:
    workflow_cls, grader_cls, changes, completion, grade = OUTCOMES[case]
    async with serving(LocalBackend(workflow=workflow_cls, grader=grader_cls)) as client:
        await client.post("/rollout", json=controller.init_body(**changes))
        await controller.wait_for("grader")

    assert [callback.channel for callback in controller.callbacks] == ["completion", "grader"]
    assert completion.items() <= controller.callbacks[0].body.items()
    assert grade.items() <= controller.callbacks[1].body.items()


async def measure(ctx: GraderContext) -> None:
    assert ctx.sample is not None
    ctx.sample.metrics.update(nan=math.nan, numpy=np.float32(0.5), object=object())
    ctx.set_reward(1.0)


@pytest.mark.parametrize(
    ("content", "sent"),
    [
        (2**70, 2**70),
        ("half a \ud83d face", "half a ? face"),
        ({"unhashed"}, ["unhashed"]),
        ("plain", "plain"),
        (object(), None),
    ],
)
async def test_unserializable_messages_and_metrics_keep_the_reward(
    controller: Controller, content: Any, sent: Any
) -> None:
    run = returning([{"role": "assistant", "content": content}])
    async with serving(LocalBackend(workflow=run, grader=grader(measure))) as client:
        await client.post("/rollout", json=controller.init_body())
        body = await controller.wait_for("grader")

    messages = [{"role": "assistant", "content": sent}]
    whole, minimal = sample_of(messages, reward=1.0, metrics={"numpy": 0.5}), sample_of([], reward=1.0)
    # Without a JSON form of the messages, only the score is sent.
    assert body["sample"] == (minimal if sent is None else whole)


@pytest.mark.parametrize(
    "changes",
    [
        {"initial_messages": "hi"},
        {"rollout_id": "../up"},
        {"rollout_id": ""},
        {"llm_api_key": ""},
        {"chat_completions_url": None},
        {"agent_timeout_sec": "soon"},
        {"agent_timeout_sec": math.inf},
        {"grader_timeout_sec": math.nan},
    ],
)
async def test_invalid_requests(controller: Controller, changes: dict[str, Any]) -> None:
    body = json.dumps(controller.init_body(**changes)).replace("Infinity", "1e999")
    async with serving(LocalBackend(workflow=SayOk)) as client:
        reply = await client.post("/rollout", content=body)

    assert reply.status_code == 422
    assert reply.json()["detail"][0]["loc"] == [*changes]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
async def test_malformed_bodies(body: bytes) -> None:
    async with serving(LocalBackend(workflow=SayOk)) as client:
        assert (await client.post("/rollout", content=body)).status_code == 422


async def test_optional_fields_of_a_request(controller: Controller) -> None:
    seen: list[Any] = []

    async def look(ctx: AgentWorkflowContext) -> None:
        seen.extend([ctx.prompt, ctx.metadata])

    changes = {"rollout_id": None, "initial_messages": [], "label": None, "metadata": {"task": {"id": 7}}}
    body = controller.init_body(**changes, from_the_future=True)
    async with serving(LocalBackend(workflow=workflow(look))) as client:
        assert (await client.post("/rollout", json=body)).status_code == 202
        completion = await controller.wait_for("completion")

    assert len(completion["rollout_id"]) == 32 and int(completion["rollout_id"], 16) >= 0
    assert seen == [[], {"task": {"id": 7}}]


async def test_repeated_and_conflicting_requests(controller: Controller) -> None:
    body = controller.init_body()

    async with serving(LocalBackend(workflow=SayOk, grader=ExactMatch)) as client:
        replies = [await client.post("/rollout", json=body) for _ in range(2)]
        conflicts = [await client.post("/rollout", json=controller.init_body(label="other"))]
        await controller.wait_for("grader")
        replies.append(await client.post("/rollout", json=body))
        conflicts.append(await client.post("/rollout", json=controller.init_body(label="other")))

    assert [(reply.status_code, reply.json()) for reply in replies] == [(202, {})] * 3
    assert [reply.status_code for reply in conflicts] == [409, 409]
    assert [callback.channel for callback in controller.callbacks] == ["completion", "grader"]


async def test_a_limited_number_of_finished_ids_is_remembered(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "REMEMBERED_IDS", 2)

    class WithoutStatus(LocalBackend):
        """Knows no rollout, so the status shows whether the server still runs it."""

        def rollout_status(self, rollout_id: str) -> None:
            return None

    async with serving(WithoutStatus(workflow=SayOk, grader=ExactMatch)) as client:
        for number in range(4):
            await client.post("/rollout", json=controller.init_body(f"r{number}"))
            await until_status(client, f"r{number}", "unknown")
        statuses = [
            (await client.post("/rollout", json=controller.init_body(name, label="other"))).status_code
            for name in ("r3", "r0")
        ]
        await controller.wait_for("grader", 5)

    assert statuses == [409, 202]


async def test_a_full_backend_asks_to_retry_later(controller: Controller) -> None:
    class Full(LocalBackend):
        def has_capacity(self) -> bool:
            return False

    async with serving(Full(workflow=SayOk)) as client:
        reply = await client.post("/rollout", json=controller.init_body())

    assert (reply.status_code, reply.headers["retry-after"]) == (429, "5")


@pytest.mark.parametrize(("keys", "expected"), [({}, "K2"), ({"llm_api_key": None}, "K1")])
async def test_key_of_the_agents_model(controller: Controller, keys: dict[str, Any], expected: str) -> None:
    async def ask(ctx: AgentWorkflowContext) -> Any:
        rollout = get_rollout_context()
        assert rollout is not None
        reply = await rollout.http().post("chat/completions", json={"messages": ctx.prompt})
        return [*ctx.prompt, reply.json()["choices"][0]["message"]]

    async with serving(LocalBackend(workflow=workflow(ask), grader=ExactMatch)) as client:
        await client.post("/rollout", json=controller.init_body(**keys))
        grade = await controller.wait_for("grader")

    assert grade["sample"]["reward"] == 1.0
    assert controller.chats[0]["authorization"] == f"Bearer {expected}"


def test_controller_auth() -> None:
    assert ControllerAuth("K1").as_bearer_headers() == {"Authorization": "Bearer K1"}
    assert ControllerAuth().as_bearer_headers() is ControllerAuth("").as_bearer_headers() is None
    assert repr(ControllerAuth("K1")) == "ControllerAuth(api_key=<set>)"
    assert repr(ControllerAuth()) == repr(ControllerAuth("")) == "ControllerAuth(api_key=None)"


async def test_status_of_a_rollout(controller: Controller) -> None:
    graded = asyncio.Event()

    async def grade(ctx: GraderContext) -> None:
        await graded.wait()
        ctx.set_reward(0.25)

    async with serving(LocalBackend(workflow=SayOk, grader=grader(grade))) as client:
        unknown = (await client.get("/rollout/r1/status")).json()
        await client.post("/rollout", json=controller.init_body())
        await until_status(client, "r1", "grading")
        graded.set()
        await until_status(client, "r1", "success")
        found = (await client.get("/rollout/r1/status")).json()

    assert found == {"rollout_id": "r1", "status": "success", "reward": 0.25, "err_message": None}
    assert unknown == {"rollout_id": "r1", "status": "unknown", "reward": None, "err_message": None}


async def test_cancellation(controller: Controller) -> None:
    config = AgentWorkflowConfig(name="one", concurrency=ConcurrencyConfig(max_concurrent=1))
    names = ["a1", "a2", "b1", "c1"]
    async with serving(
        LocalBackend(workflow=workflow(hang), grader=ExactMatch, workflow_config=config)
    ) as client:

        async def cancel(**selection: Any) -> Any:
            return (await client.post("/rollout/cancel", json=selection)).json()["dispositions"]

        for name in names:
            await client.post("/rollout", json=controller.init_body(name))
        await until_status(client, "c1", "queued")
        assert await cancel(ids=["a2", "missing"]) == {"a2": "cancelled_queued", "missing": "not_found"}
        await until_status(client, "a2", "cancelled")
        assert await cancel(prefix="a") == {"a1": "cancelled_running"}
        await until_status(client, "b1", "running")
        assert await cancel(all=True) == {"b1": "cancelled_running", "c1": "cancelled_queued"}
        for name in names:
            await until_status(client, name, "cancelled")
        assert await cancel(ids=["a1"]) == {"a1": "not_found"}
        again = await client.post("/rollout", json=controller.init_body("a1"))
        health = (await client.get("/health")).json()

    assert again.status_code == 409
    assert health["concurrency"] == {"max_concurrent": 1, "queued": 0, "running": 0}
    assert controller.callbacks == []


@pytest.mark.parametrize(
    "selection",
    [
        {},
        {"all": False},
        {"ids": ["a"], "prefix": "a"},
        {"ids": ["a"], "all": True},
        {"prefix": "a", "ids": []},
    ],
)
async def test_a_cancellation_needs_exactly_one_selector(selection: dict[str, Any]) -> None:
    async with serving(LocalBackend(workflow=SayOk)) as client:
        assert (await client.post("/rollout/cancel", json=selection)).status_code == 422


async def test_health() -> None:
    async with serving(LocalBackend(workflow=SayOk)) as client:
        health = (await client.get("/health")).json()
        time.sleep(0.4)  # noqa: ASYNC251 - the lag that is reported
        loop = (await client.get("/health")).json()["event_loop"]

    assert set(health.pop("event_loop")) == set(loop) == {"lag_ms", "busy"}
    assert loop["lag_ms"] >= 250
    assert health == {"status": "ok", "concurrency": {"max_concurrent": 4, "queued": 0, "running": 0}}


async def test_a_shutdown_waits_for_rollouts_in_flight(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    started, closing = asyncio.Event(), asyncio.Event()
    drain = app._drain

    async def drain_noticed(tasks: Any) -> None:
        closing.set()
        await drain(tasks)

    monkeypatch.setattr(app, "_drain", drain_noticed)

    async def run(ctx: AgentWorkflowContext) -> Any:
        started.set()
        await closing.wait()
        order.append("workflow")
        return ctx.prompt

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[dict[str, Any]]:
        yield {"from": "caller"}
        order.append("lifespan")

    async with serving(LocalBackend(workflow=workflow(run), grader=ExactMatch), lifespan=life) as client:
        await client.post("/rollout", json=controller.init_body())
        await started.wait()

    assert order == ["workflow", "lifespan"]
    assert [callback.channel for callback in controller.callbacks] == ["completion", "grader"]


async def test_a_shutdown_cancels_hanging_rollouts(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "DRAIN_S", 0.05)

    async with serving(LocalBackend(workflow=workflow(hang), grader=ExactMatch)) as client:
        await client.post("/rollout", json=controller.init_body())

    assert controller.callbacks == []


class Scripted(ExecutionBackend):
    """A backend that a user wrote, with any behaviour."""

    def __init__(self, play: Callable[..., Any]) -> None:
        self._play = play

    async def execute(
        self, request: ExecutionRequest, on_workflow_complete: Any, on_grader_complete: Any = None
    ) -> Any:
        return await self._play(on_workflow_complete, on_grader_complete)


def ended(status: str = "success", **fields: Any) -> ExecutionResult:
    return ExecutionResult(status=RolloutStatus(status), **fields)


async def fail_at_once(complete: Any, grade: Any) -> None:
    raise RuntimeError("secret details")


async def fail_after_the_workflow(complete: Any, grade: Any) -> None:
    await complete(ended())
    raise RuntimeError("secret details")


async def report_twice(complete: Any, grade: Any) -> None:
    for status in ("success", "failure"):
        await complete(ended(status))
        await grade(ended(status))


INTERNAL_ERROR = ("failure", "Internal server error")


@pytest.mark.parametrize(
    ("play", "completion", "grade"),
    [
        (fail_at_once, INTERNAL_ERROR, INTERNAL_ERROR),
        (fail_after_the_workflow, ("success", None), INTERNAL_ERROR),
        (report_twice, ("success", None), ("success", None)),
    ],
)
async def test_one_callback_per_channel(
    controller: Controller, play: Any, completion: Any, grade: Any
) -> None:
    async with serving(Scripted(play)) as client:
        await client.post("/rollout", json=controller.init_body())
        await controller.wait_for("grader")

    assert [
        (callback.channel, callback.body["status"], callback.body["err_message"])
        for callback in controller.callbacks
    ] == [("completion", *completion), ("grader", *grade)]


async def test_archive_of_a_captured_final_result(controller: Controller, artifact_root: Path) -> None:
    class Captures(Scripted):
        capture_final_result = True  # type: ignore[assignment]

    async def play(complete: Any, grade: Any) -> Any:
        await complete(ended())
        await grade(ended("failure"))
        return ended(sample=RolloutSample(messages=OK_MESSAGES), extra_fields={"phase": "verifier"})

    async with serving(Captures(play)) as client:
        await client.post("/rollout", json=controller.init_body())
        await controller.wait_for("grader")

    assert json.loads((artifact_root / "r1" / "diagnostics.json").read_text()) == {"phase": "verifier"}
    assert (artifact_root / "r1" / "trajectory.json").exists()


async def test_a_backend_without_status(controller: Controller) -> None:
    released = asyncio.Event()

    async def play(complete: Any, grade: Any) -> None:
        await released.wait()
        await complete(ended())

    async with serving(Scripted(play)) as client:
        await client.post("/rollout", json=controller.init_body())
        running = (await client.get("/rollout/r1/status")).json()["status"]
        cancelled = (await client.post("/rollout/cancel", json={"all": True})).json()
        released.set()
        await controller.wait_for("grader")

    assert (running, cancelled) == ("running", {"dispositions": {}})


async def test_archive_contains_report_and_dropped_reward(
    controller: Controller, artifact_root: Path
) -> None:
    metrics = {"prompt_tokens": 3, "completion_token_ids": [7, 8], "logprobs": [-0.1, -0.2]}
    controller.answers["completion"] = [(200, {"trajectory": {"model_name": "from-completion"}})]
    report = {"model_name": "policy", "samples": {"r1": {"llm_call_metrics": [metrics]}}}
    controller.answers["grader"] = [(200, {"ok": True, "trajectory": report})]

    async with serving(LocalBackend(workflow=SayOk, grader=Removes)) as client:
        await client.post("/rollout", json=controller.init_body())
        body = await controller.wait_for("grader")

    archived = json.loads((artifact_root / "r1" / "trajectory.json").read_text())
    assert body["sample"]["reward"] is None
    assert archived["extra"]["osmosis"]["reward"] == 1.0
    assert archived["extra"]["osmosis"]["request_extra_fields"] == {"row_index": 0, "run_index": 0}
    assert archived["agent"]["model_name"] == "policy"
    assert archived["steps"][1]["metrics"] == metrics


@pytest.mark.parametrize(
    "changes",
    [{}, {"grader_callback_url": None}, {"grader_callback_url": ""}],
    ids=["graded", "no grader URL", "empty grader URL"],
)
async def test_the_conversation_is_archived_before_the_last_callback(
    controller: Controller, artifact_root: Path, changes: dict[str, Any]
) -> None:
    report = {"model_name": "policy", "samples": {"r1": {"llm_call_metrics": [{"prompt_tokens": 3}]}}}
    controller.answers["completion"] = [(200, {"trajectory": report})]
    home = artifact_root / "r1"
    seen: dict[str, dict[str, bytes]] = {}

    def look(channel: str) -> None:
        seen[channel] = {path.name: path.read_bytes() for path in home.glob("*traj*")}

    controller.on_callback = look
    async with serving(LocalBackend(workflow=SayOk, grader=ExactMatch)) as client:
        await client.post("/rollout", json=controller.init_body(**changes))

    final = (home / "trajectory.json").read_bytes()
    if changes:
        assert list(seen) == ["completion"]
        assert list(seen["completion"]) == [PENDING_TRAJECTORY_FILE]
    else:
        assert seen == {"completion": {}, "grader": {PENDING_TRAJECTORY_FILE: final}}
        assert json.loads(final)["steps"][1]["metrics"] == {"prompt_tokens": 3}
    assert not (home / PENDING_TRAJECTORY_FILE).exists()


class Clock:
    """A clock that moves only while a delivery sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Clock]:
    clock = Clock()
    monkeypatch.setattr(callback_delivery, "sleep", clock.sleep)
    monkeypatch.setattr(callback_delivery, "monotonic", lambda: clock.now)
    yield clock
    await close_shared_connections()


BUSY: list[tuple[int, dict[str, Any]]] = [(503, {"detail": "busy"})]


async def run_one(controller: Controller) -> None:
    async with serving(LocalBackend(workflow=SayOk, grader=ExactMatch)) as client:
        await client.post("/rollout", json=controller.init_body())


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
async def test_delivery_to_an_overloaded_controller_is_retried(
    controller: Controller, clock: Clock, status: int
) -> None:
    controller.answers["completion"] = [(status, {})] * 5

    assert await deliver(controller.init_body()["completion_callback_url"], b"{}", {}) == b'{"ok": true}'

    relative = [pause / wanted for pause, wanted in zip(clock.pauses, [0.5, 1, 2, 4, 8], strict=True)]
    assert all(0.75 <= each <= 1.25 for each in relative)


@pytest.mark.parametrize("status", [400, 401, 404, 409, 422, 302])
async def test_a_refused_delivery_is_not_retried(controller: Controller, clock: Clock, status: int) -> None:
    controller.answers["completion"] = [(status, {"detail": "no"})]

    with pytest.raises(DeliveryError, match=f"HTTP {status}") as caught:
        await deliver(controller.init_body()["completion_callback_url"], b"{}", {})

    assert (caught.value.refused, clock.pauses) == (True, [])


@pytest.mark.parametrize("url", ["", "no-scheme", "ftp://host/path", "http://"])
async def test_invalid_callback_urls(clock: Clock, url: str) -> None:
    with pytest.raises(DeliveryError, match="not a valid callback URL") as caught:
        await deliver(url, b"{}", {})

    assert (caught.value.refused, clock.pauses) == (True, [])


async def test_delivery_to_an_unreachable_or_silent_controller_is_retried(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    monkeypatch.setattr(callback_delivery, "READ_TIMEOUT_S", 0.05)
    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        with pytest.raises(DeliveryError, match="in 2 tries: ReadTimeout"):
            await deliver(url, b"{}", {}, attempts=2)
    with pytest.raises(DeliveryError, match="in 3 tries: ConnectError"):
        await deliver(url, b"{}", {}, attempts=3)


async def test_a_reward_survives_a_long_outage(controller: Controller, clock: Clock) -> None:
    controller.answers["grader"] = BUSY * 20

    await run_one(controller)

    assert clock.now > 60
    first, *others = controller.bodies("grader")
    assert others == [first] * 20
    assert (first["status"], first["sample"]["reward"]) == ("success", 1.0)


async def test_an_undelivered_completion_is_delivered_before_the_grade(
    controller: Controller, clock: Clock
) -> None:
    controller.answers["completion"] = BUSY * (ATTEMPTS + 2)

    await run_one(controller)

    channels = [callback.channel for callback in controller.callbacks]
    assert channels == ["completion"] * (ATTEMPTS + 3) + ["grader"]
    assert {body["status"] for body in controller.bodies("completion")} == {"success"}
    assert controller.bodies("grader")[0]["sample"]["reward"] == 1.0


async def test_a_refused_outcome_is_logged(
    controller: Controller, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    controller.answers["grader"] = [(404, {"detail": "unknown rollout"})]

    await run_one(controller)

    assert [body["status"] for body in controller.bodies("grader")] == ["success"]
    assert "its outcome is lost" in caplog.text
    assert "unknown rollout" in caplog.text
