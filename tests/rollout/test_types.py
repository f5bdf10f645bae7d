"""The types, contexts and helpers that rollout code imports."""

from __future__ import annotations

import asyncio
import copy
import json
import math
import threading
from collections.abc import AsyncIterator
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
    LocalBackend,
    RolloutCompleteRequest,
    RolloutContext,
    RolloutInitRequest,
    RolloutSample,
    SampleSource,
    get_rollout_context,
    model_client,
)
from osmosis_ai.rollout.extra_fields import GraderNotes, read_grader_notes
from osmosis_ai.rollout.server.app import grader_body
from osmosis_ai.rollout.types import CancelRolloutsRequest, ExecutionResult, RolloutStatus
from osmosis_ai.rollout.types.output import coerce_output
from osmosis_ai.rollout.types.protocol import is_single_path_segment
from osmosis_ai.rollout.utils.imports import resolve_object
from osmosis_ai.rollout.utils.messages import map_initial_messages_to_content_blocks

from .world import listening

MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ok"}]


class TestConfigs:
    def test_a_config_takes_extra_fields_and_arbitrary_objects(self) -> None:
        class MyConfig(AgentWorkflowConfig):
            name: str = "mine"
            lock: Any = None
            guard: threading.Event = threading.Event()

        config = MyConfig(lock=object(), something="else")

        assert config.concurrency.max_concurrent is None
        assert config.model_extra == {"something": "else"}

    def test_a_config_needs_a_name(self) -> None:
        with pytest.raises(ValidationError):
            BaseConfig()  # type: ignore[call-arg]

    def test_assignments_are_validated(self) -> None:
        config = GraderConfig(name="g")

        with pytest.raises(ValidationError):
            config.name = 3  # type: ignore[assignment]

    @pytest.mark.parametrize("value", [0, -1])
    def test_concurrency_starts_at_one(self, value: int) -> None:
        with pytest.raises(ValidationError):
            ConcurrencyConfig(max_concurrent=value)


class TestRolloutSample:
    @pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf, "much", None, 1, 0.5])
    def test_a_reward_is_finite_or_absent(self, reward: Any) -> None:
        sample = RolloutSample()
        if reward in ("much", math.inf, -math.inf) or reward != reward:
            with pytest.raises(ValidationError):
                RolloutSample(reward=reward)
            with pytest.raises(ValidationError):
                sample.reward = reward
            assert sample.reward is None
        else:
            sample.reward = reward
            assert sample.reward == reward

    def test_the_archived_messages_are_a_copy_taken_at_construction(self) -> None:
        sample = RolloutSample(messages=[{"role": "user", "content": [{"type": "text", "text": "hi"}]}])

        sample.messages[0]["content"][0]["text"] = "changed by the grader"

        assert sample.trajectory_messages == [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]

    def test_archived_messages_given_explicitly_stay_as_given(self) -> None:
        assert RolloutSample(messages=MESSAGES, trajectory_messages=None).trajectory_messages is None
        assert (
            RolloutSample(messages=MESSAGES, trajectory_messages=MESSAGES[:1]).trajectory_messages
            == MESSAGES[:1]
        )

    def test_assigning_a_field_does_not_take_the_copy_again(self) -> None:
        sample = RolloutSample(messages=MESSAGES)
        sample.messages = []
        sample.reward = 1.0

        assert sample.trajectory_messages == MESSAGES

    def test_messages_that_cannot_be_copied_cost_the_archive_not_the_sample(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        sample = RolloutSample(messages=[{"role": "user", "content": threading.Lock()}])

        assert sample.trajectory_messages is None
        assert "cannot be copied" in caplog.text

    def test_any_sequence_of_mappings_serves_as_messages(self) -> None:
        assert RolloutSample(messages=tuple(MESSAGES)).messages == MESSAGES  # type: ignore[arg-type]

    def test_the_archived_messages_are_never_on_the_wire(self) -> None:
        assert set(RolloutSample(messages=MESSAGES).model_dump()) == {
            "messages",
            "label",
            "reward",
            "remove_sample",
            "metrics",
            "extra_fields",
        }

    def test_a_clean_sample_is_its_own_json_safe_copy(self) -> None:
        sample = RolloutSample(metrics={"a": 1, "b": {"c": [1.5, None, "x", True]}})

        assert sample.json_safe_copy() is sample

    def test_numpy_becomes_plain_and_what_json_cannot_hold_is_dropped_with_one_warning(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
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


class TestOutput:
    def test_none_defers_to_the_sample_source(self) -> None:
        assert coerce_output(None) is None

    def test_a_list_is_the_messages(self) -> None:
        output = coerce_output(MESSAGES)

        assert output is not None and output.messages == MESSAGES and output.metrics == {}

    def test_a_metric_set_to_nan_in_place_is_caught(self) -> None:
        output = AgentWorkflowOutput(messages=MESSAGES)
        output.metrics["bad"] = math.nan

        with pytest.raises(ValidationError):
            coerce_output(output)

    @pytest.mark.parametrize("value", ["text", {"messages": []}, 3])
    def test_anything_else_is_a_type_error_that_names_what_came(self, value: Any) -> None:
        with pytest.raises(TypeError, match=type(value).__name__):
            coerce_output(value)

    def test_unknown_fields_are_refused(self) -> None:
        with pytest.raises(ValidationError):
            AgentWorkflowOutput(message=MESSAGES)  # type: ignore[call-arg]


class TestProtocol:
    @pytest.mark.parametrize(
        ("model", "required"),
        [
            (RolloutInitRequest, {"initial_messages", "chat_completions_url", "completion_callback_url"}),
            (RolloutCompleteRequest, {"status"}),
            (GraderCompleteRequest, {"status"}),
        ],
    )
    def test_the_required_fields_are_those_of_the_wire(self, model: Any, required: set[str]) -> None:
        assert {name for name, field in model.model_fields.items() if field.is_required()} == required

    def test_keys_are_hidden_from_a_repr(self) -> None:
        request = RolloutInitRequest(
            initial_messages=[],
            chat_completions_url="u",
            completion_callback_url="u",
            controller_api_key="K-one",
            llm_api_key="K-two",
        )

        assert "K-" not in repr(request)

    @pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "a\0b"])
    def test_an_id_is_a_single_path_segment(self, name: str) -> None:
        assert not is_single_path_segment(name)
        with pytest.raises(ValidationError):
            ExecutionRequest(id=name, prompt=[])

    @pytest.mark.parametrize("seconds", [math.nan, math.inf])
    def test_a_budget_is_finite(self, seconds: float) -> None:
        with pytest.raises(ValidationError):
            ExecutionRequest(id="a", prompt=[], agent_timeout_sec=seconds)

    @pytest.mark.parametrize("seconds", [0, -1.5, None])
    def test_a_budget_may_be_expired_or_absent(self, seconds: float | None) -> None:
        assert ExecutionRequest(id="a", prompt=[], agent_timeout_sec=seconds).agent_timeout_sec == seconds

    @pytest.mark.parametrize("selector", [{}, {"ids": ["a"], "all": True}, {"prefix": "a", "ids": []}])
    def test_a_cancellation_has_exactly_one_selector(self, selector: dict[str, Any]) -> None:
        with pytest.raises(ValidationError, match="exactly one"):
            CancelRolloutsRequest(**selector)


class Session(SampleSource):
    async def get_sample(self) -> RolloutSample:
        return RolloutSample(messages=[{"role": "user", "content": "hi"}])


def test_there_is_no_context_outside_of_a_rollout() -> None:
    assert get_rollout_context() is None


def test_leaving_a_context_brings_the_outer_one_back() -> None:
    with RolloutContext(rollout_id="outer") as outer:
        with RolloutContext(rollout_id="inner") as inner:
            assert get_rollout_context() is inner
            with inner:
                assert get_rollout_context() is inner
            assert get_rollout_context() is inner
        assert get_rollout_context() is outer
    assert get_rollout_context() is None


def test_what_is_left_empty_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSMOSIS_CHAT_COMPLETIONS_URL", "http://model/v1")
    monkeypatch.setenv("OSMOSIS_API_KEY", "from-env")
    monkeypatch.setenv("OSMOSIS_ROLLOUT_ID", "r-env")

    assert RolloutContext() == RolloutContext("http://model/v1", "from-env", "r-env")
    assert RolloutContext(api_key="mine", rollout_id="r1").api_key == "mine"


def test_the_key_is_hidden_from_a_repr() -> None:
    assert "secret" not in repr(RolloutContext(api_key="secret"))


async def test_concurrent_rollouts_do_not_see_each_other() -> None:
    async def run(name: str) -> str:
        with RolloutContext(rollout_id=name):
            await asyncio.sleep(0)
            context = get_rollout_context()
            assert context is not None
            return context.rollout_id

    assert await asyncio.gather(*(run(str(number)) for number in range(5))) == ["0", "1", "2", "3", "4"]


async def test_a_context_takes_one_sample_source_and_returns_its_sample() -> None:
    context = RolloutContext()
    assert await context.get_sample() is None

    context.set_sample_source(Session())

    sample = await context.get_sample()
    assert sample is not None and sample.messages == [{"role": "user", "content": "hi"}]
    with pytest.raises(ValueError, match="already has a sample source"):
        context.set_sample_source(Session())


def test_a_reward_needs_a_sample_and_a_finite_number() -> None:
    with pytest.raises(ValueError, match="no sample to reward"):
        GraderContext().set_reward(1.0)

    context = GraderContext(label="x", sample=RolloutSample())
    with pytest.raises(ValidationError, match="finite number"):
        context.set_reward(math.nan)
    with pytest.raises(ValidationError, match="valid number"):
        context.set_reward("much")  # type: ignore[arg-type]
    context.set_reward(1)
    assert context.sample is not None and context.sample.reward == 1.0


def test_notes_and_parts_of_the_last_reward_are_kept_with_the_sample() -> None:
    context = GraderContext(sample=RolloutSample(extra_fields={"mine": 1}))
    assert context.sample is not None
    context.set_reward(0.5, notes="the format is right", parts={"format": True, "answer": np.float32(0)})
    assert context.sample.extra_fields["mine"] == 1
    said = read_grader_notes(context.sample.json_safe_copy().extra_fields)
    assert (said.notes, said.parts) == ("the format is right", {"format": 1.0, "answer": 0.0})
    context.set_reward(0.25, notes="n" * 3000)
    said = read_grader_notes(context.sample.extra_fields)
    assert said.notes is not None and len(said.notes) == 2000 and not said.parts
    context.set_reward(0.25)
    assert context.sample.extra_fields == {"mine": 1}


@pytest.mark.parametrize(
    ("said", "problem"),
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
def test_notes_that_are_none_are_refused_and_leave_the_reward_as_it_was(
    said: dict[str, Any], problem: str
) -> None:
    context = GraderContext(sample=RolloutSample())
    with pytest.raises(ValueError, match=problem):
        context.set_reward(1.0, **said)
    assert context.sample is not None
    assert (context.sample.reward, context.sample.extra_fields) == (None, {})
    assert read_grader_notes({"grader_notes": said}) == GraderNotes()


def test_notes_reach_the_controller_also_of_a_sample_whose_messages_have_no_json_form() -> None:
    context = GraderContext(sample=RolloutSample(messages=[], trajectory_messages=None))
    assert context.sample is not None
    context.set_reward(1.0, notes="well done", parts={"all": 1})
    context.sample.__dict__["messages"] = "no list"  # as a grader may leave it
    body = grader_body("r1", ExecutionResult(status=RolloutStatus.SUCCESS, sample=context.sample))
    assert json.loads(body)["sample"]["extra_fields"] == {
        "grader_notes": {"notes": "well done", "parts": {"all": 1.0}}
    }


def test_plain_contents_become_blocks_and_the_rest_stays() -> None:
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


def test_a_name_is_resolved_and_a_bad_one_is_quoted() -> None:
    assert resolve_object("osmosis_ai.rollout:LocalBackend") is LocalBackend
    assert resolve_object(LocalBackend) is LocalBackend
    with pytest.raises(ValueError, match="`module:attribute`, not 'LocalBackend'"):
        resolve_object("LocalBackend")
    with pytest.raises(ValueError, match="no `Nothing`"):
        resolve_object("osmosis_ai.rollout:Nothing")


REPLY = {
    "id": "c",
    "object": "chat.completion",
    "created": 0,
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
}
BODY = {"model": "m", "messages": []}


class Endpoint:
    """A model for any number of rollouts; it remembers who asked, with which key, over which connection."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str | None]] = []
        self.retries: list[str | None] = []
        self.base_url = ""
        self.breaks = 0

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append((request.path, request.headers.get("Authorization")))
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
async def test_each_rollout_calls_its_own_address_with_its_own_key_over_shared_connections(
    endpoint: Endpoint,
) -> None:
    for name in ("a", "b"):
        reply = await endpoint.rollout(name).http().post("/chat/completions", json=BODY)
        assert reply.json() == REPLY
        completion = await endpoint.rollout(name).openai().chat.completions.create(model="m", messages=[])
        assert completion.choices[0].message.content == "hi"

    assert endpoint.asked == [
        (f"/v1/rollouts/{name}/chat/completions", f"Bearer key-{name}") for name in ("a", "a", "b", "b")
    ]
    # Not the sockets: on a busy machine one may have been idle for too long in between.
    assert len(model_client._shared[asyncio.get_running_loop()]) == 1


@pytest.mark.imports_much
async def test_the_key_and_the_cookies_of_a_rollout_go_nowhere_else(endpoint: Endpoint) -> None:
    client = endpoint.rollout("a").http()
    await client.post("/chat/completions", json=BODY)
    await client.get(f"{endpoint.base_url}/v1/rollouts/b/chat/completions")
    await client.get(f"{endpoint.base_url}/v1/rollouts/ab")
    await client.get(endpoint.base_url.replace("127.0.0.1", "localhost") + "/v1/rollouts/a/x")

    assert [key for _, key in endpoint.asked] == ["Bearer key-a", None, None, None]
    assert not endpoint.rollout("b").http().cookies


@pytest.mark.imports_much
async def test_a_call_whose_connection_broke_is_sent_again_and_says_so(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.0)
    endpoint.breaks = 1
    completion = await endpoint.rollout("a").openai().chat.completions.create(model="m", messages=[])

    assert completion.choices[0].message.content == "hi"
    assert endpoint.retries == ["0", "1"], "the bridge answers what says that it is a retry from its record"


@pytest.mark.imports_much
async def test_a_rollout_without_a_model_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OSMOSIS_CHAT_COMPLETIONS_URL", raising=False)
    for opened in (RolloutContext().http, RolloutContext().openai):
        with pytest.raises(RuntimeError, match=r"this rollout has no model.*OSMOSIS_CHAT_COMPLETIONS_URL"):
            opened()


@pytest.mark.imports_much
async def test_no_key_is_shown(endpoint: Endpoint) -> None:
    rollout = endpoint.rollout("a")
    shown: list[Any] = [rollout, rollout.http(), rollout.openai(), rollout.http().auth]
    assert "key-a" not in "".join(map(repr, shown))
