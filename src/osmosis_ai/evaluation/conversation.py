"""The conversation of an attempt, read from its trajectory (ATIF).

A trajectory comes from an agent's process or from a platform. Reading it never raises: parts of another shape than
expected are left out, and ``problems`` names them.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from osmosis_ai.evaluation.lenient_json import as_number, as_objects, as_table, as_text, read_object
from osmosis_ai.llm.replies import FLAGGED_NAMES, canonical

LARGEST_CONVERSATION_BYTES = 32 << 20
"""A larger file is not read: a page of it would take seconds."""
_MOST_STEPS = 100_000

Message = dict[str, Any]
"""A message of OpenAI's chat format."""


@dataclass(frozen=True, slots=True)
class ToolExchange:
    """A call of a tool and its result; ``call_id`` is None for a result without a call."""

    name: str | None
    arguments: Any = None
    result: str | None = None
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class ConversationStep:
    """A message, with the tools that it called."""

    number: int
    role: str
    text: str
    reasoning: str = ""
    exchanges: Sequence[ToolExchange] = ()
    model: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost_usd: float | None = None
    started_at: datetime | None = None
    duration_ms: float | None = None
    finish_reason: str | None = None

    @property
    def flagged_finish(self) -> str | None:
        """``truncated``, ``filtered`` or ``refused`` if the message was; None otherwise."""
        return FLAGGED_NAMES.get(self.finish_reason or "")


@dataclass(frozen=True, slots=True)
class Conversation:
    """The content of a trajectory; ``facts`` is its ``extra.osmosis``."""

    steps: Sequence[ConversationStep] = ()
    problems: Sequence[str] = ()
    model: str | None = None
    tools: Sequence[Mapping[str, Any]] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def from_model_calls(self) -> bool:
        """Whether it comes from the model calls, because the agent reported no conversation."""
        return self.facts.get("from_model_calls") is True

    @property
    def label(self) -> str | None:
        """The expected answer."""
        label = self.facts.get("label")
        return label if isinstance(label, str) else None

    @property
    def metadata(self) -> Mapping[str, Any] | None:
        """The metadata of the row."""
        for name in ("request_metadata", "metadata"):
            if isinstance(metadata := self.facts.get(name), dict):
                return metadata
        return None


def read_conversation(content: bytes) -> Conversation:
    """Read the trajectory in ``content``; never raises."""
    if len(content) > LARGEST_CONVERSATION_BYTES:
        limit = LARGEST_CONVERSATION_BYTES >> 20
        return Conversation(problems=(f"The conversation is too large to read (limit: {limit} MB).",))
    trajectory, problems = read_object(content)
    steps = trajectory.get("steps")
    if not isinstance(steps, list):
        problems = problems or ["The file is not a trajectory (`steps` is missing)."]
        steps = []
    elif not all(isinstance(step, dict) for step in steps):
        problems.append("Some steps are not objects and are left out.")
    if len(steps) > _MOST_STEPS:
        problems.append(f"The conversation has more than {_MOST_STEPS:,} steps. The others are left out.")
        steps = steps[:_MOST_STEPS]
    agent, subagents = as_table(trajectory.get("agent")), trajectory.get("subagent_trajectories")
    if isinstance(subagents, list) and subagents:
        problems.append(f"The conversations of the agent's {len(subagents)} subagents are in the raw JSON.")
    return Conversation(
        steps=tuple(_step(number, step) for number, step in enumerate(as_objects(steps), 1)),
        problems=tuple(problems),
        model=as_text(agent.get("model_name")),
        tools=tuple(as_objects(agent.get("tool_definitions"))),
        facts=as_table(as_table(trajectory.get("extra")).get("osmosis")),
    )


def as_messages(conversation: Conversation) -> list[Message]:
    """Return the conversation as messages of OpenAI's chat format, tool calls and their results included."""
    return [message for step in conversation.steps for message in _messages(step)]


def as_conversation_row(conversation: Conversation) -> dict[str, Any] | None:
    """Return the conversation as a row for supervised fine-tuning; None without an assistant turn or without its tools."""
    messages = as_messages(conversation)
    calls_tools = any(message.get("tool_calls") for message in messages)
    if not any(message["role"] == "assistant" for message in messages) or (
        calls_tools and not conversation.tools
    ):
        return None
    return {"messages": messages, "tools": list(conversation.tools) or None}


def prompt_of(messages: Sequence[Message]) -> list[Message]:
    """Return the messages before the agent's first."""
    first = next((i for i, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
    return list(messages[:first])


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Return ``value`` as JSON."""
    try:
        return json.dumps(value, ensure_ascii=False, indent=indent)
    except (RecursionError, ValueError, TypeError):
        return "… (nested too deeply to be shown)"


def call_timing(call: Mapping[str, Any]) -> tuple[datetime | None, float | None]:
    """Return the start of a model call and its duration in ms, as the controller reported them."""
    return _time(call.get("started_at")), _duration(call.get("latency_ms"))


def _step(number: int, step: Mapping[str, Any]) -> ConversationStep:
    metrics, extra = as_table(step.get("metrics")), as_table(step.get("extra"))
    call = as_table(metrics.get("extra"))
    started_at, latency_ms = call_timing(call)
    duration_ms = _duration(extra.get("duration_ms"))
    # ATIF stores an unknown role as `original_role`.
    role = as_text(extra.get("original_role")) or as_text(step.get("source")) or "unknown"
    return ConversationStep(
        number=number,
        role="assistant" if role == "agent" else role,
        text=_text(step.get("message")),
        reasoning=_text(step.get("reasoning_content")) or _text(extra.get("reasoning_content")),
        exchanges=tuple(_exchanges(step)),
        model=as_text(step.get("model_name")),
        prompt_tokens=_count(metrics.get("prompt_tokens")),
        completion_tokens=_count(metrics.get("completion_tokens")),
        cost_usd=as_number(metrics.get("cost_usd")),
        started_at=_time(step.get("timestamp")) or started_at,
        duration_ms=latency_ms if duration_ms is None else duration_ms,
        finish_reason=canonical(call.get("finish_reason")),
    )


def _exchanges(step: Mapping[str, Any]) -> Iterator[ToolExchange]:
    """Yield the calls with their results, then the results that answer none of them."""
    results = as_objects(as_table(step.get("observation")).get("results"))
    unanswered: defaultdict[str, deque[int]] = defaultdict(deque)
    for position, result in enumerate(results):
        unanswered[_text(result.get("source_call_id"))].append(position)
    names: dict[str, str] = {}
    used: set[int] = set()
    for number, call in enumerate(as_objects(step.get("tool_calls"))):
        call_id, name = _text(call.get("tool_call_id")), _text(call.get("function_name"))
        names[call_id], content = name, None
        if unanswered[call_id]:
            position = unanswered[call_id].popleft()
            used.add(position)
            content = _text(results[position].get("content"))
        yield ToolExchange(name, call.get("arguments"), content, call_id or f"call_{number}")
    for position, result in enumerate(results):
        if position not in used:
            known = names.get(_text(result.get("source_call_id")))
            name_or_none = known or as_text(as_table(result.get("extra")).get("tool_name"))
            yield ToolExchange(name_or_none, result=_text(result.get("content")))


def _messages(step: ConversationStep) -> Iterator[Message]:
    if step.role == "assistant":
        message: Message = {"role": "assistant", "content": step.text}
        if step.reasoning:
            message["reasoning_content"] = step.reasoning
        calls = [_tool_call(exchange) for exchange in step.exchanges if exchange.call_id is not None]
        yield {**message, "tool_calls": calls} if calls else message
    elif step.text or not step.exchanges:
        yield {"role": step.role if step.role in ("system", "user") else "user", "content": step.text}
    for exchange in step.exchanges:
        if exchange.result is not None:
            answer: Message = {"role": "tool", "content": exchange.result}
            yield answer if exchange.call_id is None else {**answer, "tool_call_id": exchange.call_id}


def _tool_call(exchange: ToolExchange) -> Message:
    arguments = exchange.arguments if isinstance(exchange.arguments, str) else json_text(exchange.arguments)
    function = {"name": exchange.name or "", "arguments": arguments}
    return {"id": exchange.call_id, "type": "function", "function": function}


def _text(content: Any) -> str:
    """Return a message's content as text; an image becomes its path."""
    if isinstance(content, list):
        return "\n".join(map(_part, content))
    if isinstance(content, str):
        return content
    return "" if content is None else json_text(content)


def _part(part: Any) -> str:
    if isinstance(part, dict):
        if part.get("type") == "image":
            return f"[image {_text(as_table(part.get('source')).get('path'))}]"
        if isinstance(text := part.get("text"), str):
            return text
    return part if isinstance(part, str) else json_text(part)


def _duration(value: Any) -> float | None:
    number = as_number(value)
    return number if number is not None and number >= 0 else None


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _time(value: Any) -> datetime | None:
    if not isinstance(value, str):
        return None
    try:
        # Python 3.10 does not read `Z`.
        moment = datetime.fromisoformat(f"{value[:-1]}+00:00" if value[-1:] in ("Z", "z") else value)
        return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).astimezone(timezone.utc)
    except (ValueError, OverflowError):
        return None
