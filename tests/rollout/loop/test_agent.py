"""An agent loop, its context and its result."""

from __future__ import annotations

import json
import time
import typing
from abc import ABC
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.rollout.context import RolloutContext
from osmosis_ai.rollout.loop.agent import (
    CompletionsResult,
    LLMClientProtocol,
    RolloutAgentLoop,
    RolloutResult,
)
from osmosis_ai.rollout.loop.context import AgentLoopContext

from .agents import CannedModel, Echo, context, request


def test_a_class_that_can_be_used_needs_a_name() -> None:
    with pytest.raises(TypeError, match="must define a 'name' class attribute"):
        type("Nameless", (Echo,), {"name": ""})


def test_an_abstract_class_in_between_may_lack_a_name_and_passes_on_the_duty() -> None:
    class WithoutTools(RolloutAgentLoop):
        def get_tools(self, request: Any) -> list[Any]:
            return []

    class Marked(RolloutAgentLoop, ABC):
        def get_tools(self, request: Any) -> list[Any]:
            return []

        async def run(self, ctx: Any) -> RolloutResult:
            raise NotImplementedError

    with pytest.raises(TypeError, match="abstract"):
        WithoutTools()  # type: ignore[abstract]
    with pytest.raises(TypeError, match="must define a 'name'"):
        type("Last", (WithoutTools,), {"run": Echo.run})
    assert type("Named", (Marked,), {"name": "n"})().name == "n"


async def test_a_loop_asks_its_model_and_completes() -> None:
    given = context(_start_time=time.monotonic() - 1)
    given.record_tool_call(20.0)
    given.record_tool_call()

    result = await Echo().run(given)

    assert (result.status, result.finish_reason, result.reward) == ("COMPLETED", "stop", None)
    assert [message["content"] for message in result.final_messages] == ["hi", "hello"]
    metrics = result.metrics
    assert metrics is not None and metrics.total_latency_ms >= 1000
    assert (metrics.num_llm_calls, metrics.num_tool_calls, metrics.tool_latency_ms) == (1, 2, 20.0)
    assert context().complete([], reward=0.5).reward == 0.5
    assert isinstance(given.llm, LLMClientProtocol)


async def test_every_argument_of_chat_reaches_the_model() -> None:
    model = CannedModel()

    await context(llm=model).chat([], seed=3, tools=[{"type": "function"}], temperature=0)

    assert model.calls == [([], {"seed": 3, "tools": [{"type": "function"}], "temperature": 0})]


def test_weakness_7_an_error_keeps_its_message_and_what_it_cost() -> None:
    result = context().error("the tool is gone", [{"role": "user", "content": "hi"}])

    assert (result.status, result.finish_reason, result.error_message) == (
        "ERROR",
        "error",
        "the tool is gone",
    )
    assert result.final_messages == [{"role": "user", "content": "hi"}]
    assert result.metrics is not None and result.metrics.prompt_tokens == 7
    assert context().error("no messages").final_messages == []


def test_events_are_written_as_json_lines_while_debugging(tmp_path: Path) -> None:
    off = context()
    off.log_event("turn")
    on = context(_debug_dir=tmp_path / "made")
    on.log_event("turn", number=1, where=Path("x"))
    on.log_event("end", keys={(1, 2): "no JSON"})
    on.log_event("end", text="grüß")

    assert (off.debug_enabled, on.debug_enabled) == (False, True)
    (file,) = (tmp_path / "made").iterdir()
    assert file.name == "r1.jsonl"
    assert [json.loads(line) for line in file.read_text("utf-8").splitlines()] == [
        {"event": "turn", "rollout_id": "r1", "number": 1, "where": "x"},
        {"event": "end", "rollout_id": "r1", "text": "grüß"},
    ]


def test_weakness_1_no_id_leads_out_of_the_debug_directory(tmp_path: Path) -> None:
    ids = [
        "../x",
        "..",
        "/etc/passwd",
        "a/b",
        "a_b",
        "a\\b",
        ".hidden",
        "é" * 256,
        "a\0b",
        "x" * 256,
        "x" * 255,
    ]

    for rollout_id in ids:
        context(request=request(rollout_id=rollout_id), _debug_dir=tmp_path / "logs").log_event("e")

    assert [entry.name for entry in tmp_path.iterdir()] == ["logs"]
    assert len(list((tmp_path / "logs").iterdir())) == len(ids), "each has a file of its own"


def test_a_disk_that_refuses_events_does_not_stop_the_rollout(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    context(_debug_dir=tmp_path / "file").log_event("turn")


def test_one_name_makes_the_context_of_either_line() -> None:
    of_a_loop = RolloutContext(request=request(), tools=[], llm=CannedModel())
    by_position = RolloutContext(request(), [], CannedModel())
    of_a_workflow = RolloutContext(chat_completions_url="http://model/v1")

    assert isinstance(of_a_loop, AgentLoopContext) and isinstance(by_position, AgentLoopContext)
    assert isinstance(of_a_loop, RolloutContext) and issubclass(AgentLoopContext, RolloutContext)
    assert isinstance(of_a_workflow, RolloutContext) and not isinstance(of_a_workflow, AgentLoopContext)
    assert not isinstance(object(), RolloutContext)
    assert RolloutContext("http://model/v1") == of_a_workflow

    def run(ctx: RolloutContext) -> None: ...

    assert typing.get_type_hints(run)["ctx"] is RolloutContext


def test_a_reply_tells_what_is_in_it() -> None:
    calls = [{"id": "1", "function": {"name": "add", "arguments": "{}"}}]
    with_calls = CompletionsResult({"role": "assistant", "content": None, "tool_calls": calls})

    assert (with_calls.has_tool_calls, with_calls.tool_calls, with_calls.content) == (True, calls, None)
    plain = CompletionsResult({"role": "assistant", "content": "hi", "tool_calls": None})
    assert (plain.has_tool_calls, plain.tool_calls, plain.content) == (False, [], "hi")
    with pytest.raises(AttributeError):
        plain.message = {}  # type: ignore[misc]
