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

import aiohttp
import numpy as np
import pytest
from fastapi import FastAPI

from osmosis_ai.rollout import (
    AgentWorkflow,
    AgentWorkflowConfig,
    AgentWorkflowContext,
    AgentWorkflowOutput,
    ConcurrencyConfig,
    ExecutionBackend,
    ExecutionRequest,
    ExecutionResult,
    Grader,
    GraderContext,
    LocalBackend,
    RolloutSample,
    RolloutStatus,
    get_rollout_context,
)
from osmosis_ai.rollout.artifacts import PENDING_TRAJECTORY_FILE
from osmosis_ai.rollout.server import ControllerAuth, app
from osmosis_ai.rollout.server.callback_delivery import (
    ATTEMPTS,
    CallbackDelivery,
    DeliveryError,
)

from .world import OK_MESSAGES, Controller, ExactMatch, Hangs, Removes, SayOk, serving, until_status

NO_WORKFLOW_ERROR = {"err_message": None, "err_category": None}


def sample_of(messages: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    plain = {"label": "ok", "reward": None, "remove_sample": False, "metrics": {}, "extra_fields": {}}
    return {"messages": messages, **plain, **changes}


class Raises(AgentWorkflow):
    async def run(self, ctx: AgentWorkflowContext) -> Any:
        raise RuntimeError("boom")


class BreaksInConstructor(SayOk):
    def __init__(self, config: Any = None) -> None:
        raise ValueError("no model configured")


class ReturnsText(AgentWorkflow):
    async def run(self, ctx: AgentWorkflowContext) -> Any:
        return "ok"


class ReturnsNothing(AgentWorkflow):
    async def run(self, ctx: AgentWorkflowContext) -> Any:
        return None


class ReturnsNoMessages(AgentWorkflow):
    async def run(self, ctx: AgentWorkflowContext) -> Any:
        return AgentWorkflowOutput()


class Forgets(Grader):
    async def grade(self, ctx: GraderContext) -> None:
        return None


class RewardsThenHangs(Grader):
    async def grade(self, ctx: GraderContext) -> None:
        ctx.set_reward(1.0)
        await asyncio.Event().wait()


class RewardsNan(Grader):
    async def grade(self, ctx: GraderContext) -> None:
        ctx.set_reward(math.nan)


async def test_a_rollout_runs_and_reports_exactly_as_the_wire_says(controller: Controller) -> None:
    async with serving(LocalBackend(workflow=SayOk, grader=ExactMatch)) as client:
        reply = await client.post("/rollout", json=controller.init_body())
        await controller.wait_for("grader")

    assert (reply.status_code, reply.json()) == (202, {})
    assert [(callback.channel, callback.authorization) for callback in controller.callbacks] == [
        ("completion", "Bearer K1"),
        ("grader", "Bearer K1"),
    ]
    assert controller.callbacks[0].body == {
        "status": "success",
        "rollout_id": "r1",
        "extra_fields": None,
        "err_message": None,
        "err_category": None,
    }
    assert controller.callbacks[1].body == {
        "status": "success",
        "rollout_id": "r1",
        "sample": sample_of(OK_MESSAGES, reward=1.0),
        "err_message": None,
        "err_category": None,
    }


MATRIX: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    (
        "run raises",
        {"workflow": Raises, "grader": ExactMatch},
        {},
        {"status": "failure", "err_message": "boom", "err_category": "agent_error"},
        {"status": "failure", "sample": None, "err_message": "boom", "err_category": "agent_error"},
    ),
    (
        "the constructor raises",
        {"workflow": BreaksInConstructor, "grader": ExactMatch},
        {},
        {"status": "failure", "err_message": "no model configured", "err_category": "validation_error"},
        {"status": "failure", "sample": None, "err_category": "validation_error"},
    ),
    (
        "run returns the wrong type",
        {"workflow": ReturnsText, "grader": ExactMatch},
        {},
        {"status": "failure", "err_category": "validation_error"},
        {"status": "failure", "sample": None, "err_category": "validation_error"},
    ),
    (
        "run returns None and nothing is registered",
        {"workflow": ReturnsNothing, "grader": Forgets},
        {},
        {"status": "success", **NO_WORKFLOW_ERROR},
        {"status": "failure", "sample": None, "err_category": "validation_error"},
    ),
    (
        "the output has no messages",
        {"workflow": ReturnsNoMessages, "grader": Forgets},
        {},
        {"status": "success", **NO_WORKFLOW_ERROR},
        {"status": "failure", "sample": None, "err_category": "validation_error"},
    ),
    (
        "no grader is configured",
        {"workflow": SayOk},
        {},
        {"status": "success", **NO_WORKFLOW_ERROR},
        {"status": "failure", "sample": None, "err_category": None},
    ),
    (
        "the row has neither label nor metadata",
        {"workflow": SayOk, "grader": ExactMatch},
        {"label": None},
        {"status": "success", **NO_WORKFLOW_ERROR},
        {"status": "failure", "sample": None, "err_category": None},
    ),
    (
        "the grader sets no reward",
        {"workflow": SayOk, "grader": Forgets},
        {},
        {"status": "success", **NO_WORKFLOW_ERROR},
        {"status": "failure", "sample": sample_of(OK_MESSAGES), "err_category": "validation_error"},
    ),
    (
        "the grader sets NaN",
        {"workflow": SayOk, "grader": RewardsNan},
        {},
        {"status": "success", **NO_WORKFLOW_ERROR},
        {"status": "failure", "sample": sample_of(OK_MESSAGES), "err_category": "validation_error"},
    ),
    (
        "the sample is removed",
        {"workflow": SayOk, "grader": Removes},
        {},
        {"status": "success", **NO_WORKFLOW_ERROR},
        {"status": "success", "sample": sample_of(OK_MESSAGES, remove_sample=True), **NO_WORKFLOW_ERROR},
    ),
    (
        "the agent times out",
        {"workflow": Hangs, "grader": ExactMatch},
        {"agent_timeout_sec": 0.05},
        {"status": "failure", "err_category": "timeout"},
        {"status": "failure", "sample": None, "err_category": "timeout"},
    ),
    (
        "the grader times out",
        {"workflow": SayOk, "grader": RewardsThenHangs},
        {"grader_timeout_sec": 0.05},
        {"status": "success", **NO_WORKFLOW_ERROR},
        {"status": "failure", "sample": sample_of(OK_MESSAGES), "err_category": "timeout"},
    ),
]


@pytest.mark.parametrize(
    ("options", "changes", "completion", "grader"),
    [pytest.param(*row, id=name) for name, *row in MATRIX],
)
async def test_every_outcome_is_reported_as_the_protocol_says(
    controller: Controller,
    options: dict[str, Any],
    changes: dict[str, Any],
    completion: dict[str, Any],
    grader: dict[str, Any],
) -> None:
    async with serving(LocalBackend(**options)) as client:
        await client.post("/rollout", json=controller.init_body(**changes))
        await controller.wait_for("grader")

    told = [callback.body for callback in controller.callbacks]
    assert [callback.channel for callback in controller.callbacks] == ["completion", "grader"]
    assert completion.items() <= told[0].items()
    assert grader.items() <= told[1].items()


class TestSamplesOnTheWire:
    async def graded_body(self, controller: Controller, workflow: Any, grader: Any) -> dict[str, Any]:
        async with serving(LocalBackend(workflow=workflow, grader=grader)) as client:
            await client.post("/rollout", json=controller.init_body())
            return await controller.wait_for("grader")

    async def test_odd_metrics_never_cost_the_reward(self, controller: Controller) -> None:
        class Measures(Grader):
            async def grade(self, ctx: GraderContext) -> None:
                assert ctx.sample is not None
                ctx.sample.metrics.update(nan=math.nan, numpy=np.float32(0.5), object=object())
                ctx.set_reward(1.0)

        body = await self.graded_body(controller, SayOk, Measures)

        assert body["sample"] == sample_of(OK_MESSAGES, reward=1.0, metrics={"numpy": 0.5})

    async def test_messages_without_a_json_form_leave_the_score(self, controller: Controller) -> None:
        class Odd(AgentWorkflow):
            async def run(self, ctx: AgentWorkflowContext) -> Any:
                return [{"role": "assistant", "content": object()}]

        class Likes(Grader):
            async def grade(self, ctx: GraderContext) -> None:
                assert ctx.sample is not None
                ctx.sample.metrics["kept"] = 1
                ctx.set_reward(1.0)

        body = await self.graded_body(controller, Odd, Likes)

        assert body["sample"] == sample_of([], reward=1.0)

    @pytest.mark.parametrize(
        ("content", "sent"),
        [(2**70, 2**70), ("half a \ud83d face", "half a ? face"), ({"unhashed"}, ["unhashed"])],
    )
    async def test_messages_a_fast_encoder_refuses_are_sent_all_the_same(
        self, controller: Controller, content: Any, sent: Any
    ) -> None:
        class Odd(AgentWorkflow):
            async def run(self, ctx: AgentWorkflowContext) -> Any:
                return [{"role": "assistant", "content": content}]

        class Likes(Grader):
            async def grade(self, ctx: GraderContext) -> None:
                ctx.set_reward(1.0)

        body = await self.graded_body(controller, Odd, Likes)

        assert body["sample"]["messages"] == [{"role": "assistant", "content": sent}]
        assert body["sample"]["reward"] == 1.0


class TestAdmission:
    @pytest.mark.parametrize(
        "changes",
        [
            {"initial_messages": "hi"},
            {"rollout_id": "../up"},
            {"rollout_id": ""},
            {"llm_api_key": ""},
            {"chat_completions_url": None},
            {"agent_timeout_sec": "soon"},
        ],
    )
    async def test_a_bad_request_is_refused_with_the_field_that_is_wrong(
        self, controller: Controller, changes: dict[str, Any]
    ) -> None:
        async with serving(LocalBackend(workflow=SayOk)) as client:
            reply = await client.post("/rollout", json=controller.init_body(**changes))

        assert reply.status_code == 422
        assert reply.json()["detail"][0]["loc"][0] == next(iter(changes))

    @pytest.mark.parametrize("number", ["1e999", "NaN", "-Infinity"])
    async def test_a_timeout_that_is_not_finite_is_refused(self, controller: Controller, number: str) -> None:
        body = json.dumps(controller.init_body(agent_timeout_sec="?")).replace('"?"', number)

        async with serving(LocalBackend(workflow=SayOk)) as client:
            reply = await client.post("/rollout", content=body)

        assert reply.status_code == 422
        assert reply.json()["detail"][0]["loc"] == ["agent_timeout_sec"]

    async def test_unknown_keys_are_ignored_and_a_missing_id_is_invented(
        self, controller: Controller
    ) -> None:
        body = controller.init_body(rollout_id=None, from_the_future=True)

        async with serving(LocalBackend(workflow=SayOk)) as client:
            assert (await client.post("/rollout", json=body)).status_code == 202
            told = await controller.wait_for("completion")

        assert len(told["rollout_id"]) == 32 and int(told["rollout_id"], 16) >= 0

    async def test_the_same_request_twice_is_one_rollout(self, controller: Controller) -> None:
        body = controller.init_body()
        again = json.dumps(dict(reversed(body.items())), indent=1).encode()

        async with serving(LocalBackend(workflow=SayOk, grader=ExactMatch)) as client:
            replies = [await client.post("/rollout", json=body) for _ in range(2)]
            await controller.wait_for("grader")
            replies.append(await client.post("/rollout", content=again))

        assert [(reply.status_code, reply.json()) for reply in replies] == [(202, {})] * 3
        assert [callback.channel for callback in controller.callbacks] == ["completion", "grader"]

    async def test_the_same_id_with_another_request_is_a_conflict(self, controller: Controller) -> None:
        async with serving(LocalBackend(workflow=SayOk, grader=ExactMatch)) as client:
            await client.post("/rollout", json=controller.init_body())
            reply = await client.post("/rollout", json=controller.init_body(label="other"))
            await controller.wait_for("grader")

        assert reply.status_code == 409
        assert len(controller.callbacks) == 2

    async def test_a_full_backend_asks_to_come_back_later(self, controller: Controller) -> None:
        class Full(LocalBackend):
            def has_capacity(self) -> bool:
                return False

        async with serving(Full(workflow=SayOk)) as client:
            reply = await client.post("/rollout", json=controller.init_body())

        assert (reply.status_code, reply.headers["retry-after"]) == (429, "5")

    async def test_a_prompt_that_is_empty_and_metadata_reach_the_workflow(
        self, controller: Controller
    ) -> None:
        seen: list[Any] = []

        class Looks(AgentWorkflow):
            async def run(self, ctx: AgentWorkflowContext) -> Any:
                seen.extend([ctx.prompt, ctx.metadata])

        metadata = {"task": {"id": 7}}
        body = controller.init_body(initial_messages=[], label=None, metadata=metadata)
        async with serving(LocalBackend(workflow=Looks)) as client:
            await client.post("/rollout", json=body)
            await controller.wait_for("grader")

        assert seen == [[], metadata]


class TestModelAccess:
    @pytest.mark.parametrize(("keys", "expected"), [({}, "K2"), ({"llm_api_key": None}, "K1")])
    async def test_the_agent_reaches_the_model_at_its_own_address_with_its_own_key(
        self, controller: Controller, keys: dict[str, Any], expected: str
    ) -> None:
        class Asks(AgentWorkflow):
            async def run(self, ctx: AgentWorkflowContext) -> Any:
                rollout = get_rollout_context()
                assert rollout is not None
                async with (
                    aiohttp.ClientSession(headers={"Authorization": f"Bearer {rollout.api_key}"}) as session,
                    session.post(
                        f"{rollout.chat_completions_url}/chat/completions", json={"messages": ctx.prompt}
                    ) as reply,
                ):
                    return [*ctx.prompt, (await reply.json())["choices"][0]["message"]]

        async with serving(LocalBackend(workflow=Asks, grader=ExactMatch)) as client:
            await client.post("/rollout", json=controller.init_body(**keys))
            told = await controller.wait_for("grader")

        assert told["sample"]["reward"] == 1.0
        assert controller.chats[0]["authorization"] == f"Bearer {expected}"

    def test_the_controllers_key_makes_a_bearer_header_and_stays_out_of_a_repr(self) -> None:
        assert ControllerAuth("K1").as_bearer_headers() == {"Authorization": "Bearer K1"}
        assert ControllerAuth().as_bearer_headers() is None
        assert ControllerAuth("").as_bearer_headers() is None
        assert repr(ControllerAuth("K1")) == "ControllerAuth(api_key=<set>)"
        assert repr(ControllerAuth()) == repr(ControllerAuth("")) == "ControllerAuth(api_key=None)"


class TestUngraded:
    @pytest.mark.parametrize("url", [None, ""])
    async def test_without_a_grader_url_the_completion_is_all(
        self, controller: Controller, url: str | None
    ) -> None:
        async with serving(LocalBackend(workflow=SayOk, grader=ExactMatch)) as client:
            await client.post("/rollout", json=controller.init_body(grader_callback_url=url))

        assert [callback.channel for callback in controller.callbacks] == ["completion"]


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
    async def test_health_is_the_backends_and_how_busy_the_process_is(self) -> None:
        async with serving(LocalBackend(workflow=SayOk)) as client:
            told = (await client.get("/health")).json()
            time.sleep(0.4)  # noqa: ASYNC251 - the lag that is reported
            loop = (await client.get("/health")).json()["event_loop"]

        assert set(told.pop("event_loop")) == set(loop) == {"lag_ms", "busy"}
        assert loop["lag_ms"] >= 250
        assert told == {
            "status": "ok",
            "concurrency": {"max_concurrent": 4, "queued": 0, "running": 0},
        }


class TestShutdown:
    async def test_rollouts_in_flight_finish_before_the_callers_lifespan_ends(
        self, controller: Controller, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        order: list[str] = []
        started, closing = asyncio.Event(), asyncio.Event()
        drain = app._drain

        async def drain_noticed(tasks: Any) -> None:
            closing.set()
            await drain(tasks)

        monkeypatch.setattr(app, "_drain", drain_noticed)

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
        monkeypatch.setattr(app, "DRAIN_S", 0.05)

        async with serving(LocalBackend(workflow=Hangs, grader=ExactMatch)) as client:
            await client.post("/rollout", json=controller.init_body())

        assert controller.callbacks == []


class Scripted(ExecutionBackend):
    """A backend of somebody else, with any behaviour."""

    def __init__(self, play: Callable[..., Any]) -> None:
        self._play = play

    async def execute(
        self, request: ExecutionRequest, on_workflow_complete: Any, on_grader_complete: Any = None
    ) -> Any:
        return await self._play(on_workflow_complete, on_grader_complete)


def ended(status: str = "success", **fields: Any) -> ExecutionResult:
    return ExecutionResult(status=RolloutStatus(status), **fields)


class TestOtherBackends:
    async def outcome(self, controller: Controller, play: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
        async with serving(Scripted(play)) as client:
            await client.post("/rollout", json=controller.init_body())
            await controller.wait_for("grader")
        return [
            (told.channel, told.body["status"], told.body["err_message"]) for told in controller.callbacks
        ]

    async def test_one_that_raises_before_reporting_is_an_internal_error_on_both_channels(
        self, controller: Controller
    ) -> None:
        async def play(complete: Any, grade: Any) -> None:
            raise RuntimeError("secret details")

        assert await self.outcome(controller, play) == [
            ("completion", "failure", "Internal server error"),
            ("grader", "failure", "Internal server error"),
        ]

    async def test_one_that_raises_after_a_completion_is_a_grader_failure_alone(
        self, controller: Controller
    ) -> None:
        async def play(complete: Any, grade: Any) -> None:
            await complete(ended())
            raise RuntimeError

        told = await self.outcome(controller, play)

        assert [(channel, status) for channel, status, _ in told] == [
            ("completion", "success"),
            ("grader", "failure"),
        ]

    async def test_one_that_reports_twice_is_heard_once(self, controller: Controller) -> None:
        async def play(complete: Any, grade: Any) -> None:
            for status in ("success", "failure"):
                await complete(ended(status))
                await grade(ended(status))

        assert [status for _, status, _ in await self.outcome(controller, play)] == ["success", "success"]

    async def test_its_final_result_is_archived_when_it_says_so(
        self, controller: Controller, artifact_root: Path
    ) -> None:
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

    async def test_one_without_a_status_is_running_while_the_server_runs_it(
        self, controller: Controller
    ) -> None:
        let_go = asyncio.Event()

        async def play(complete: Any, grade: Any) -> None:
            await let_go.wait()
            await complete(ended())

        async with serving(Scripted(play)) as client:
            await client.post("/rollout", json=controller.init_body())
            running = (await client.get("/rollout/r1/status")).json()["status"]
            cancelled = (await client.post("/rollout/cancel", json={"all": True})).json()
            let_go.set()
            await controller.wait_for("grader")

        assert (running, cancelled) == ("running", {"dispositions": {}})


class TestArchive:
    async def test_the_controllers_report_and_the_dropped_reward_are_archived(
        self, controller: Controller, artifact_root: Path
    ) -> None:
        metrics = {"prompt_tokens": 3, "completion_token_ids": [7, 8], "logprobs": [-0.1, -0.2]}
        controller.answers["completion"] = [(200, {"trajectory": {"model_name": "from-completion"}})]
        told = {"model_name": "policy", "samples": {"r1": {"llm_call_metrics": [metrics]}}}
        controller.answers["grader"] = [(200, {"ok": True, "trajectory": told})]

        async with serving(LocalBackend(workflow=SayOk, grader=Removes)) as client:
            await client.post("/rollout", json=controller.init_body())
            body = await controller.wait_for("grader")

        archived = json.loads((artifact_root / "r1" / "trajectory.json").read_text())
        assert body["sample"]["reward"] is None
        assert archived["extra"]["osmosis"]["reward"] == 1.0
        assert archived["extra"]["osmosis"]["request_extra_fields"] == {"row_index": 0, "run_index": 0}
        assert archived["agent"]["model_name"] == "policy"
        assert archived["steps"][1]["metrics"] == metrics

    @pytest.mark.parametrize("ends_with", ["grader", "completion"])
    async def test_the_conversation_lies_there_before_the_report_that_ends_the_rollout(
        self, controller: Controller, artifact_root: Path, ends_with: str
    ) -> None:
        told = {"model_name": "policy", "samples": {"r1": {"llm_call_metrics": [{"prompt_tokens": 3}]}}}
        controller.answers["completion"] = [(200, {"trajectory": told})]
        home = artifact_root / "r1"
        seen: dict[str, dict[str, bytes]] = {}

        def look(channel: str) -> None:
            seen[channel] = {path.name: path.read_bytes() for path in home.glob("*traj*")}

        controller.on_callback = look
        grader = ExactMatch if ends_with == "grader" else None
        changes = {} if ends_with == "grader" else {"grader_callback_url": None}
        async with serving(LocalBackend(workflow=SayOk, grader=grader)) as client:
            await client.post("/rollout", json=controller.init_body(**changes))
            await controller.wait_for(ends_with)

        assert list(seen[ends_with]) == [PENDING_TRAJECTORY_FILE]
        final = (home / "trajectory.json").read_bytes()
        if ends_with == "grader":
            assert seen["completion"] == {}
            assert seen["grader"] == {PENDING_TRAJECTORY_FILE: final}
            assert json.loads(final)["steps"][1]["metrics"] == {"prompt_tokens": 3}
        assert not (home / PENDING_TRAJECTORY_FILE).exists()


class Time:
    """A clock that only moves when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)

    def clock(self) -> float:
        return self.now


@pytest.fixture
def held_time() -> Time:
    return Time()


@pytest.fixture
async def delivery(held_time: Time) -> AsyncIterator[CallbackDelivery]:
    made = CallbackDelivery(sleep=held_time.sleep, clock=held_time.clock)
    yield made
    await made.close()


@pytest.fixture
def patient(held_time: Time, monkeypatch: pytest.MonkeyPatch) -> Time:
    """Servers built in this test wait in the test's own time."""
    monkeypatch.setattr(
        app,
        "CallbackDelivery",
        lambda: CallbackDelivery(sleep=held_time.sleep, clock=held_time.clock),
    )
    return held_time


BUSY: list[tuple[int, dict[str, Any]]] = [(503, {"detail": "busy"})]


async def run_one(controller: Controller) -> None:
    async with serving(LocalBackend(workflow=SayOk, grader=ExactMatch)) as client:
        await client.post("/rollout", json=controller.init_body())


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
async def test_a_controller_in_trouble_is_asked_again_with_growing_pauses(
    controller: Controller, delivery: CallbackDelivery, held_time: Time, status: int
) -> None:
    controller.answers["completion"] = [(status, {})] * 5
    url = controller.init_body()["completion_callback_url"]

    answer = await delivery.deliver(url, b"{}", None)

    assert answer == b'{"ok": true}'
    assert [
        round(pause / wanted) for pause, wanted in zip(held_time.pauses, [0.5, 1, 2, 4, 8], strict=True)
    ] == [1] * 5
    assert all(
        0.75 <= pause / wanted <= 1.25
        for pause, wanted in zip(held_time.pauses, [0.5, 1, 2, 4, 8], strict=True)
    )


@pytest.mark.parametrize("status", [400, 401, 404, 409, 422, 302])
async def test_a_refusal_is_final(
    controller: Controller, delivery: CallbackDelivery, held_time: Time, status: int
) -> None:
    controller.answers["completion"] = [(status, {"detail": "no"})]
    url = controller.init_body()["completion_callback_url"]

    with pytest.raises(DeliveryError, match=f"HTTP {status}") as caught:
        await delivery.deliver(url, b"{}", None)

    assert caught.value.refused
    assert held_time.pauses == []


async def test_a_controller_that_is_down_is_waited_for(delivery: CallbackDelivery, held_time: Time) -> None:
    async with Controller().serving() as gone:
        url = gone.init_body()["completion_callback_url"]

    with pytest.raises(DeliveryError, match="in 3 tries"):
        await delivery.deliver(url, b"{}", None, attempts=3)


async def test_an_outage_longer_than_the_first_tries_costs_no_reward(
    controller: Controller, patient: Time
) -> None:
    controller.answers["grader"] = BUSY * 20

    await run_one(controller)

    assert patient.now > 60
    bodies = controller.bodies("grader")
    assert len(bodies) == 21
    assert all(body == bodies[0] for body in bodies)
    assert (bodies[0]["status"], bodies[0]["sample"]["reward"]) == ("success", 1.0)


async def test_a_completion_nobody_took_is_graded_anyway_and_delivered_before_the_grade(
    controller: Controller, patient: Time
) -> None:
    controller.answers["completion"] = BUSY * (ATTEMPTS + 2)

    await run_one(controller)

    channels = [callback.channel for callback in controller.callbacks]
    assert channels == ["completion"] * (ATTEMPTS + 3) + ["grader"]
    assert {body["status"] for body in controller.bodies("completion")} == {"success"}
    assert controller.bodies("grader")[0]["sample"]["reward"] == 1.0


async def test_an_outcome_refused_for_good_is_logged_and_nothing_is_invented(
    controller: Controller, patient: Time, caplog: pytest.LogCaptureFixture
) -> None:
    controller.answers["grader"] = [(404, {"detail": "unknown rollout"})]

    await run_one(controller)

    assert [body["status"] for body in controller.bodies("grader")] == ["success"]
    assert "its outcome is lost" in caplog.text
    assert "unknown rollout" in caplog.text


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
async def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    async with serving(LocalBackend(workflow=SayOk)) as client:
        assert (await client.post("/rollout", content=body)).status_code == 422


async def test_ended_ids_are_remembered_in_bounded_memory(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "REMEMBERED_IDS", 2)

    class WithoutStatus(LocalBackend):
        """Knows no rollout, so that a status tells whether the server still runs it."""

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


@pytest.mark.parametrize("url", ["", "no-scheme", "ftp://host/path", "http://"])
async def test_a_url_that_is_none_is_refused_at_once(
    delivery: CallbackDelivery, held_time: Time, url: str
) -> None:
    with pytest.raises(DeliveryError) as caught:
        await delivery.deliver(url, b"{}", None)

    assert caught.value.refused
    assert held_time.pauses == []
