"""The rollout server as a controller meets it: over HTTP, with callbacks to a real listener."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import aiohttp
import numpy as np
import pytest

from osmosis_ai.rollout import (
    AgentWorkflow,
    AgentWorkflowContext,
    AgentWorkflowOutput,
    Grader,
    GraderContext,
    LocalBackend,
    get_rollout_context,
)
from osmosis_ai.rollout.server import ControllerAuth, host

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

    async def test_a_grader_that_spoils_the_conversation_leaves_the_score(
        self, controller: Controller
    ) -> None:
        class Spoils(Grader):
            async def grade(self, ctx: GraderContext) -> None:
                assert ctx.sample is not None
                ctx.sample.messages.append("junk")  # type: ignore[arg-type]
                ctx.set_reward(1.0)

        body = await self.graded_body(controller, SayOk, Spoils)

        assert body["sample"] == sample_of([], reward=1.0)


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

    @pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
    async def test_a_body_that_is_no_object_is_refused(self, body: bytes) -> None:
        async with serving(LocalBackend(workflow=SayOk)) as client:
            assert (await client.post("/rollout", content=body)).status_code == 422

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

    async def test_ended_ids_are_remembered_in_bounded_memory(
        self, controller: Controller, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(host, "REMEMBERED_IDS", 2)

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

    async def test_without_a_controller_key_callbacks_carry_no_authorization(
        self, controller: Controller
    ) -> None:
        async with serving(LocalBackend(workflow=SayOk)) as client:
            await client.post("/rollout", json=controller.init_body(controller_api_key=None))
            await controller.wait_for("grader")

        assert {callback.authorization for callback in controller.callbacks} == {None}

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
