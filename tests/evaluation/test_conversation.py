"""Reading of complete, damaged and hostile trajectories."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from osmosis_ai.cli.output.conversations import turns_of
from osmosis_ai.cli.output.results import ConversationTurn
from osmosis_ai.evaluation import conversation as reader
from osmosis_ai.evaluation.conversation import (
    ConversationStep,
    as_messages,
    read_conversation,
)
from osmosis_ai.rollout.trajectory import Step
from osmosis_ai.viewer.conversations import as_dataset_row, contains_text
from osmosis_ai.viewer.pages.conversation import time_spans

CALL = {"tool_call_id": "call-77", "function_name": "multiply", "arguments": {"a": 2, "b": 3}}
TRAJECTORY: dict[str, Any] = {
    "schema_version": "ATIF-v1.7",
    "agent": {"name": "osmosis-rollout-sdk", "version": "1", "model_name": "openai/gpt-5-mini"},
    "steps": [
        {"step_id": 1, "source": "system", "message": "Use the tool."},
        {"step_id": 2, "source": "user", "message": [{"type": "text", "text": "2 * 3?"}]},
        {
            "step_id": 3,
            "source": "agent",
            "message": "",
            "reasoning_content": "I multiply.",
            "timestamp": "2026-01-01T00:00:00Z",
            "extra": {"duration_ms": 200},
            "tool_calls": [CALL],
            "observation": {"results": [{"source_call_id": "call-77", "content": "6"}]},
            "metrics": {"prompt_tokens": 10, "completion_tokens": 5, "cost_usd": 0.25},
        },
        {
            "step_id": 4,
            "source": "agent",
            "message": "#### 6",
            "timestamp": "2026-01-01T00:00:00.500+00:00",
            "metrics": {"extra": {"latency_ms": 100}},
        },
    ],
    "session_id": "5eed",
    "extra": {
        "osmosis": {
            "label": "six",
            "reward": 1.0,
            "request_metadata": {"level": "easy"},
            "sample_extra_fields": {
                "grader_notes": {"notes": "No unit."},
                "judge_calls": {"judgements": [{"model": "m", "score": 0.5, "explanation": "Half of it."}]},
            },
        }
    },
}
WHOLE = json.dumps(TRAJECTORY).encode()


def written(*steps: Any, **others: Any) -> bytes:
    return json.dumps({"steps": steps, **others}).encode()


def test_tool_result_without_call() -> None:
    result = {"content": "found", "extra": {"tool_name": "search"}}
    step = {"source": "system", "message": "", "observation": {"results": [result]}}
    conversation = read_conversation(written(step))
    assert list(turns_of(conversation)) == [ConversationTurn("tool", "found", "search")]
    assert as_messages(conversation) == [{"role": "tool", "content": "found"}]


def test_messages_and_dataset_row() -> None:
    from osmosis_ai.datasets.rows import normalise

    conversation = read_conversation(WHOLE)
    messages = as_messages(conversation)
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert messages[2]["tool_calls"][0]["function"] == {"name": "multiply", "arguments": '{"a": 2, "b": 3}'}
    assert (messages[3]["tool_call_id"], messages[3]["content"]) == ("call-77", "6")
    row = normalise(0, as_dataset_row(conversation))
    assert row.messages == [{key: each[key] for key in ("role", "content")} for each in messages[:2]]
    assert (row.label, row.metadata) == ("six", {"level": "easy"})


def test_tool_results_match_calls_with_equal_ids() -> None:
    results = [
        {"source_call_id": name, "content": f"{name}{n}"} for n, name in enumerate(["a", "a", "gone", "b"])
    ]
    calls = [{"tool_call_id": name, "function_name": f"f{name}", "arguments": "x"} for name in "abac"]
    step = {"source": "agent", "message": "", "tool_calls": calls, "observation": {"results": results}}
    found = read_conversation(written(step)).steps[0].exchanges
    assert [(each.name, each.result) for each in found] == [
        ("fa", "a0"),
        ("fb", "b3"),
        ("fa", "a1"),
        ("fc", None),
        (None, "gone2"),
    ]
    turns = list(turns_of(read_conversation(written(step))))
    assert turns[0] == ConversationTurn("assistant", "fa(x)\nfb(x)\nfa(x)\nfc(x)", "calls a tool")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"not JSON", "not valid JSON"),
        (b"[1, 2]", "but no object"),
        (b'{"steps": {}}', "`steps` is missing"),
        (b"{}", "`steps` is missing"),
        (b"\xff\xfe{", "not valid UTF-8"),
        (b"{" * 100_000, "not valid JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"steps":[' + b'"\\"' * 100_000, "not valid JSON"),
    ],
)
def test_unreadable_file(content: bytes, sentence: str) -> None:
    conversation = read_conversation(content)
    assert not conversation.steps
    assert any(sentence in problem for problem in conversation.problems)


def test_nan_and_lone_surrogates() -> None:
    content = (
        '{"steps":[{"source":"agent","message":"a\\ud800b\\ud83d\\ude00\\\\ud800\\u0000","metrics":{"cost_usd":NaN,'
        '"prompt_tokens":-1},"extra":{"duration_ms":1e999},"tool_calls":[{"function_name":"f","tool_call_id":"c",'
        f'"arguments":{{"x":Infinity,"n":{"9" * 5000},"id":12345678901234567890123}}}}]}}]}}'
    )
    conversation = read_conversation(content.encode())
    step = conversation.steps[0]
    assert step.text == "a\ufffdb\U0001f600\\ud800\0"
    assert (step.cost_usd, step.prompt_tokens, step.duration_ms) == (None, None, None)
    assert step.exchanges[0].arguments == {"x": "Infinity", "n": "9" * 5000, "id": 12345678901234567890123}
    assert "lone surrogates" in conversation.problems[0]
    orjson.dumps(as_messages(conversation))


def test_size_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "LARGEST_CONVERSATION_BYTES", 1 << 20)
    assert "1 MB" in read_conversation(b"x" * (1 << 20) + b"x").problems[0]

    monkeypatch.setattr(reader, "_MOST_STEPS", 50)
    conversation = read_conversation(written(*({"source": "user", "message": str(n)} for n in range(200))))
    assert [step.text for step in conversation.steps] == [str(n) for n in range(50)]
    assert any("more than 50 steps" in problem for problem in conversation.problems)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(
    st.lists(json_values | st.fixed_dictionaries({"source": st.sampled_from(["agent", "user"])}), max_size=4),
    st.integers(0, 400),
)
def test_reading_never_raises(steps: list[Any], cut: int) -> None:
    content = written(*steps)
    for given_content in (content, content[:cut], content[::-1]):
        conversation = read_conversation(given_content)
        orjson.dumps(as_messages(conversation))
        assert all(isinstance(step, ConversationStep) for step in conversation.steps)


@pytest.mark.parametrize(
    "not_said", ["six", "5eed", "call-77", "easy", "gpt-5", "osmosis", "explanation", "grader_notes"]
)
def test_search_ignores_answers_ids_and_keys(not_said: str) -> None:
    assert not contains_text(WHOLE, not_said)


def test_malformed_steps_are_kept() -> None:
    shapes: list[Any] = [None, 3, "text", [], {}, [None], [3], {"a": 1}, True]
    steps = [
        {"source": "user", "message": "hello", name: shape} for name in Step.model_fields for shape in shapes
    ]
    conversation = read_conversation(written(*steps, *shapes, agent=shapes, extra=shapes))
    assert len(conversation.steps) == len(steps) + 2
    assert any("not objects" in problem for problem in conversation.problems)
    (
        as_messages(conversation),
        as_dataset_row(conversation),
        list(turns_of(conversation)),
        time_spans(conversation),
    )
