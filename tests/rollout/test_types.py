"""The types, contexts and helpers that rollout code imports."""

from __future__ import annotations

import asyncio
import copy
import json
import math
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from pydantic import ValidationError

from osmosis_ai.rollout import (
    AgentWorkflowConfig,
    AgentWorkflowOutput,
    BaseConfig,
    ConcurrencyConfig,
    ExecutionRequest,
    GraderCompleteRequest,
    GraderConfig,
    GraderContext,
    RolloutCompleteRequest,
    RolloutContext,
    RolloutInitRequest,
    RolloutSample,
    get_rollout_context,
    model_client,
)
from osmosis_ai.rollout.extra_fields import GraderNotes, read_grader_notes
from osmosis_ai.rollout.model_client import close_shared_connections
from osmosis_ai.rollout.server.app import grader_body
from osmosis_ai.rollout.types import ExecutionResult, RolloutStatus, coerce_output
from osmosis_ai.rollout.utils import map_initial_messages_to_content_blocks

from .world import listening

NO_IDS = ["", ".", "..", "a/b", "a\\b", "a\0b"]
MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ok"}]


class TestConfigs:
    def test_a_config_accepts_extra_fields_and_objects(self) -> None:
        class MyConfig(AgentWorkflowConfig):
            name: str = "mine"
            lock: Any = None
            guard: threading.Event = threading.Event()

        config = MyConfig(lock=object(), something="else")

        assert config.concurrency.max_concurrent is None
        assert config.model_extra == {"something": "else"}

    @pytest.mark.parametrize(
        "invalid",
        [
            BaseConfig,
            lambda: setattr(GraderConfig(name="g"), "name", 3),
            lambda: ConcurrencyConfig(max_concurrent=0),
            lambda: ConcurrencyConfig(max_concurrent=-1),
            lambda: AgentWorkflowOutput(message=MESSAGES),  # type: ignore[call-arg]
            *(lambda name=name: ExecutionRequest(id=name, prompt=[]) for name in NO_IDS),
            lambda: ExecutionRequest(id="a", prompt=[], agent_timeout_sec=math.nan),
            lambda: ExecutionRequest(id="a", prompt=[], grader_timeout_sec=math.inf),
            *(lambda reward=reward: RolloutSample(reward=reward) for reward in (math.nan, -math.inf, "much")),
        ],
    )
    def test_invalid_values_are_refused(self, invalid: Callable[[], Any]) -> None:
        with pytest.raises(ValidationError):
            invalid()


class TestRolloutSample:
    def test_archived_messages_are_copied_at_construction(self) -> None:
        sample = RolloutSample(messages=[{"role": "user", "content": [{"type": "text", "text": "hi"}]}])
        before = copy.deepcopy(sample.messages)

        sample.messages[0]["content"][0]["text"] = "changed by the grader"
        assert sample.trajectory_messages == before
        sample.messages = []
        sample.reward = 1.0
        assert sample.trajectory_messages == before

    @pytest.mark.parametrize("archived", [None, MESSAGES[:1]])
    def test_explicit_archived_messages(self, archived: Any) -> None:
        assert RolloutSample(messages=MESSAGES, trajectory_messages=archived).trajectory_messages == archived

    def test_messages_that_cannot_be_copied_are_not_archived(self, caplog: pytest.LogCaptureFixture) -> None:
        sample = RolloutSample(messages=[{"role": "user", "content": threading.Lock()}])

        assert sample.trajectory_messages is None
        assert "cannot be copied" in caplog.text

    def test_archived_messages_are_not_sent(self) -> None:
        sent = RolloutSample(messages=tuple(MESSAGES)).model_dump()  # type: ignore[arg-type]

        assert sent.pop("messages") == MESSAGES
        assert set(sent) == {"label", "reward", "remove_sample", "metrics", "extra_fields"}

    def test_json_safe_copy_of_a_clean_sample(self) -> None:
        sample = RolloutSample(metrics={"a": 1, "b": {"c": [1.5, None, "x", True]}})

        assert sample.json_safe_copy() is sample
        sample.metrics["b"][7] = 1
        assert sample.json_safe_copy().metrics["b"]["7"] == 1

    def test_json_safe_copy_of_numpy_and_other_values(self, caplog: pytest.LogCaptureFixture) -> None:
        sample = RolloutSample(extra_fields={"set": {1}})
        odd: dict[Any, Any] = {
            "score": np.float32(0.5),
            "count": np.int64(3),
            "nan": math.nan,
            "inf": np.float64(math.inf),
            7: "seven",
            np.int64(8): "eight",
            ("a", "b"): 1,
            "nested": {"keep": [1, math.nan, np.int64(2)], "object": object()},
            "pair": (1, 2),
        }
        sample.metrics.update(odd)

        safe = sample.json_safe_copy()

        assert safe.metrics == {
            "score": 0.5,
            "count": 3,
            "7": "seven",
            "8": "eight",
            "nested": {"keep": [1, 2]},
            "pair": [1, 2],
        }
        assert safe.extra_fields == {}
        assert {type(safe.metrics["score"]), type(safe.metrics["count"])} == {float, int}
        assert len(caplog.records) == 1
        assert math.isnan(sample.metrics["nan"])


def test_output_of_a_workflow() -> None:
    assert coerce_output(None) is None
    output = AgentWorkflowOutput(messages=MESSAGES)
    assert coerce_output(MESSAGES) == output
    output.metrics["bad"] = math.nan
    with pytest.raises(ValidationError):
        coerce_output(output)
    for value in ("text", {"messages": []}, 3):
        with pytest.raises(TypeError, match=type(value).__name__):
            coerce_output(value)


class TestProtocol:
    @pytest.mark.parametrize(
        ("model", "required"),
        [
            (RolloutInitRequest, {"initial_messages", "chat_completions_url", "completion_callback_url"}),
            (RolloutCompleteRequest, {"status"}),
            (GraderCompleteRequest, {"status"}),
        ],
    )
    def test_required_fields(self, model: Any, required: set[str]) -> None:
        assert {name for name, field in model.model_fields.items() if field.is_required()} == required

    @pytest.mark.imports_much
    async def test_repr_hides_keys(self) -> None:
        keys = {"controller_api_key": "K-one", "llm_api_key": "K-two"}
        request = RolloutInitRequest(
            initial_messages=[], chat_completions_url="u", completion_callback_url="u", **keys
        )
        rollout = RolloutContext("http://model/v1", "K-three", "r1")

        assert "K-" not in repr([request, rollout, rollout.http(), rollout.http().auth, rollout.openai()])
        await close_shared_connections()

    @pytest.mark.parametrize("seconds", [0, -1.5, None])
    def test_a_timeout_may_be_expired_or_absent(self, seconds: float | None) -> None:
        assert ExecutionRequest(id="a", prompt=[], agent_timeout_sec=seconds).agent_timeout_sec == seconds


def test_nested_contexts() -> None:
    assert get_rollout_context() is None
    with RolloutContext(rollout_id="outer") as outer:
        with RolloutContext(rollout_id="inner") as inner:
            assert get_rollout_context() is inner
            with inner:
                assert get_rollout_context() is inner
            assert get_rollout_context() is inner
        assert get_rollout_context() is outer
    assert get_rollout_context() is None


def test_context_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSMOSIS_CHAT_COMPLETIONS_URL", "http://model/v1")
    monkeypatch.setenv("OSMOSIS_API_KEY", "from-env")
    monkeypatch.setenv("OSMOSIS_ROLLOUT_ID", "r-env")

    assert RolloutContext() == RolloutContext("http://model/v1", "from-env", "r-env")
    assert RolloutContext(api_key="mine", rollout_id="r1").api_key == "mine"


def test_set_reward() -> None:
    with pytest.raises(ValueError, match="no sample to reward"):
        GraderContext().set_reward(1.0)

    context = GraderContext(label="x", sample=RolloutSample())
    with pytest.raises(ValidationError, match="finite number"):
        context.set_reward(math.nan)
    with pytest.raises(ValidationError, match="valid number"):
        context.set_reward("much")  # type: ignore[arg-type]
    assert context.sample is not None and context.sample.reward is None
    context.set_reward(1)
    assert context.sample.reward == 1.0


def test_notes_and_parts_of_a_reward() -> None:
    context = GraderContext(sample=RolloutSample(extra_fields={"mine": 1}))
    assert context.sample is not None
    context.set_reward(0.5, notes="the format is right", parts={"format": True, "answer": np.float32(0)})
    assert context.sample.extra_fields["mine"] == 1
    given = read_grader_notes(context.sample.json_safe_copy().extra_fields)
    assert (given.notes, given.parts) == ("the format is right", {"format": 1.0, "answer": 0.0})
    context.set_reward(0.25, notes="n" * 3000)
    given = read_grader_notes(context.sample.extra_fields)
    assert given.notes is not None and len(given.notes) == 2000 and not given.parts
    context.set_reward(0.25)
    assert context.sample.extra_fields == {"mine": 1}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"notes": 3}, "`notes` must be text, not int"),
        ({"parts": [1]}, "`parts` must be a table"),
        ({"parts": {"a": math.nan}}, "the part `a` must be a finite number, not nan"),
        ({"parts": {"a": 10**400}}, "the part `a` must be a finite number"),
        ({"parts": {"a": "1"}}, "the part `a` must be a finite number, not '1'"),
        ({"parts": {"": 1}}, "a part's name must be text of 1 to 64 characters"),
        ({"parts": {"x" * 65: 1}}, "a part's name must be"),
        ({"parts": {str(each): 1 for each in range(33)}}, "32 numbers at most, not 33"),
    ],
)
def test_invalid_notes_do_not_change_the_reward(given: dict[str, Any], problem: str) -> None:
    context = GraderContext(sample=RolloutSample())
    with pytest.raises(ValueError, match=problem):
        context.set_reward(1.0, **given)
    assert context.sample is not None
    assert (context.sample.reward, context.sample.extra_fields) == (None, {})
    assert read_grader_notes({"grader_notes": given}) == GraderNotes()


def test_notes_of_a_sample_without_json_form() -> None:
    context = GraderContext(sample=RolloutSample(messages=[], trajectory_messages=None))
    assert context.sample is not None
    context.set_reward(1.0, notes="well done", parts={"all": 1})
    context.sample.__dict__["messages"] = "no list"  # as a grader may leave it
    body = grader_body("r1", ExecutionResult(status=RolloutStatus.SUCCESS, sample=context.sample))
    assert json.loads(body)["sample"]["extra_fields"] == {
        "grader_notes": {"notes": "well done", "parts": {"all": 1.0}}
    }


def test_messages_as_content_blocks() -> None:
    given = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": [{"text": "6 * 7?"}, {"image": {"format": "png"}}], "name": "x"},
        {"role": "user", "content": [{"type": "text", "text": "8 * 9?"}]},
        {"role": "assistant", "content": None},
        {"role": "assistant"},
    ]
    before = copy.deepcopy(given)

    assert map_initial_messages_to_content_blocks(given) == [
        {"role": "system", "content": [{"text": "Be short."}]},
        {"role": "user", "content": [{"text": "6 * 7?"}, {"image": {"format": "png"}}], "name": "x"},
        {"role": "user", "content": [{"text": "8 * 9?"}]},
        {"role": "assistant", "content": []},
        {"role": "assistant", "content": []},
    ]
    assert given == before
    assert map_initial_messages_to_content_blocks([]) == []


REPLY = {
    "id": "c",
    "object": "chat.completion",
    "created": 0,
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
}
BODY = {"model": "m", "messages": []}


class Endpoint:
    """A model for any number of rollouts; it remembers who requests, with which key, over which connection."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str | None]] = []
        self.retries: list[str | None] = []
        self.base_url = ""
        self.breaks = 0

    async def answer(self, request: web.Request) -> web.Response:
        self.requests.append((request.path, request.headers.get("Authorization")))
        self.retries.append(request.headers.get("x-stainless-retry-count"))
        assert request.transport is not None
        if self.breaks:
            self.breaks -= 1
            request.transport.abort()
        return web.json_response(REPLY, headers={"Set-Cookie": "whose=mine"})

    def rollout(self, name: str) -> RolloutContext:
        return RolloutContext(f"{self.base_url}/v1/rollouts/{name}", f"key-{name}", name)


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    endpoint = Endpoint()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", endpoint.answer)
    async with listening(app) as endpoint.base_url:
        yield endpoint


@pytest.mark.imports_much
async def test_model_clients_share_connections(endpoint: Endpoint) -> None:
    for name in ("a", "b"):
        reply = await endpoint.rollout(name).http().post("/chat/completions", json=BODY)
        assert reply.json() == REPLY
        completion = await endpoint.rollout(name).openai().chat.completions.create(model="m", messages=[])
        assert completion.choices[0].message.content == "hi"

    assert endpoint.requests == [
        (f"/v1/rollouts/{name}/chat/completions", f"Bearer key-{name}") for name in ("a", "a", "b", "b")
    ]
    # Not the sockets: on a busy machine one may have been idle for too long in between.
    assert len(model_client._shared[asyncio.get_running_loop()]) == 1


@pytest.mark.imports_much
async def test_key_and_cookies_stay_with_the_rollout(endpoint: Endpoint) -> None:
    client = endpoint.rollout("a").http()
    await client.post("/chat/completions", json=BODY)
    await client.get(f"{endpoint.base_url}/v1/rollouts/b/chat/completions")
    await client.get(f"{endpoint.base_url}/v1/rollouts/ab")
    await client.get(endpoint.base_url.replace("127.0.0.1", "localhost") + "/v1/rollouts/a/x")

    assert [key for _, key in endpoint.requests] == ["Bearer key-a", None, None, None]
    assert not endpoint.rollout("b").http().cookies


@pytest.mark.imports_much
async def test_a_broken_connection_is_retried_with_a_retry_header(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.0)
    endpoint.breaks = 1
    completion = await endpoint.rollout("a").openai().chat.completions.create(model="m", messages=[])

    assert completion.choices[0].message.content == "hi"
    assert endpoint.retries == ["0", "1"], "the bridge answers what says that it is a retry from its record"


@pytest.mark.imports_much
async def test_a_rollout_without_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OSMOSIS_CHAT_COMPLETIONS_URL", raising=False)
    for opened in (RolloutContext().http, RolloutContext().openai):
        with pytest.raises(RuntimeError, match=r"this rollout has no model.*OSMOSIS_CHAT_COMPLETIONS_URL"):
            opened()
