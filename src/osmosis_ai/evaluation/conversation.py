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
from typing import Any, Literal

from osmosis_ai.evaluation.lenient_json import read_object
from osmosis_ai.llm.finish_reasons import FLAGGED_NAMES, canonical

LARGEST_CONVERSATION_BYTES = 32 << 20
"""A larger file is not read: a page of it would take seconds."""
_MOST_STEPS = 100_000
_LARGEST_SEARCHED_BYTES = 2 * 1024 * 1024
"""A larger conversation is searched as raw JSON."""

Message = dict[str, Any]
"""A message of OpenAI's chat format."""


@dataclass(frozen=True, slots=True)
class ToolExchange:
    """A call of a tool and what came back."""

    name: str | None
    arguments: Any = None
    result: str | None = None
    call_id: str | None = None

    @property
    def call(self) -> str:
        """The call as text: ``multiply(a=11, b=46)``."""
        given = self.arguments
        if isinstance(given, Mapping):
            given = ", ".join(f"{name}={json_text(value)}" for name, value in given.items())
        return f"{self.name or ''}({given if isinstance(given, str) else json_text(given)})"


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

    @property
    def grading(self) -> Mapping[str, Any]:
        """The grader's ``notes`` and ``parts``, and the ``judgements`` of its judges."""
        left = _object(self.facts.get("sample_extra_fields"))
        judged = _object(left.get("judge_calls")).get("judgements")
        return {**_object(left.get("grader_notes")), "judgements": judged}

    @property
    def reward(self) -> float | None:
        """The grader's reward."""
        return _number(self.facts.get("reward"))


@dataclass(frozen=True, slots=True)
class SpokenTurn:
    """One turn, as a terminal prints it; ``label`` names the tool that answered."""

    role: str
    text: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class ConversationSpan:
    """A time span of an attempt: a model call, or the time between two (agent and tools)."""

    kind: Literal["model", "agent and tools"]
    start_ms: float
    duration_ms: float
    step: int | None = None


def read_conversation(content: bytes) -> Conversation:
    """Read the trajectory in ``content``; never raises."""
    if len(content) > LARGEST_CONVERSATION_BYTES:
        most = LARGEST_CONVERSATION_BYTES >> 20
        return Conversation(problems=(f"The conversation is too large to read (limit: {most} MB).",))
    members, problems = read_object(content)
    found = members.get("steps")
    if not isinstance(found, list):
        problems = problems or ["The file is not a trajectory: it has no `steps`."]
        found = []
    elif not all(isinstance(step, dict) for step in found):
        problems.append("Some steps are not objects: they are left out.")
    if len(found) > _MOST_STEPS:
        problems.append(f"The conversation has more than {_MOST_STEPS:,} steps: the others are left out.")
        found = found[:_MOST_STEPS]
    inner = members.get("subagent_trajectories")
    if isinstance(inner, list) and inner:
        problems.append(f"The conversations of the agent's {len(inner)} subagents are in the raw JSON.")
    agent, extra = _object(members.get("agent")), _object(members.get("extra"))
    return Conversation(
        steps=tuple(_step(number, step) for number, step in enumerate(_objects(found), 1)),
        problems=tuple(problems),
        model=_text_or_none(agent.get("model_name")),
        facts=_object(extra.get("osmosis")),
    )


def turns_of(conversation: Conversation) -> Iterator[SpokenTurn]:
    """Yield the turns, including tool calls and their results."""
    for step in conversation.steps:
        if step.reasoning:
            yield SpokenTurn(step.role, step.reasoning, "reasoning")
        calls = [exchange for exchange in step.exchanges if exchange.call_id is not None]
        said = [*([step.text] if step.text else []), *(exchange.call for exchange in calls)]
        if said:
            yield SpokenTurn(step.role, "\n".join(said), "calls a tool" if calls else "")
        for exchange in step.exchanges:
            if exchange.result is not None:
                yield SpokenTurn("tool", exchange.result, exchange.name or "")


def spans(conversation: Conversation) -> list[ConversationSpan]:
    """Return the model calls and the time between them; empty if no times were recorded."""
    timed = [(step.started_at, step.duration_ms, step.number) for step in conversation.steps]
    if not any(started_at for started_at, *_ in timed):
        unmatched = _objects(conversation.facts.get("unmatched_llm_call_metrics"))
        timed = [(*_timing(_object(call.get("extra"))), 0) for call in unmatched]
    calls = sorted((at, lasts, step) for at, lasts, step in timed if at is not None and lasts is not None)
    found: list[ConversationSpan] = []
    end = 0.0
    for started_at, duration_ms, number in calls:
        start = (started_at - calls[0][0]).total_seconds() * 1000
        if start > end:
            found.append(ConversationSpan("agent and tools", end, start - end))
        found.append(ConversationSpan("model", start, duration_ms, number or None))
        end = max(end, start + duration_ms)
    return found


def as_messages(conversation: Conversation) -> list[Message]:
    """Return the conversation as messages of OpenAI's chat format, tool calls and their results included."""
    return [message for step in conversation.steps for message in _messages(step)]


def as_dataset_row(conversation: Conversation) -> dict[str, Any]:
    """Return the attempt's prompt as a row of a dataset (``osmosis_ai.datasets.rows``)."""
    prompt = prompt_of(as_messages(conversation))
    columns = {"system": "system_prompt", "user": "user_prompt"}
    row: dict[str, Any] = {}
    for role, column in columns.items():
        texts = [str(message["content"]) for message in prompt if message["role"] == role]
        if texts:
            row[column] = "\n\n".join(texts)
    if conversation.label is not None:
        row["ground_truth"] = conversation.label
    if conversation.metadata is not None:
        row["metadata"] = conversation.metadata
    return row


def prompt_of(messages: Sequence[Message]) -> list[Message]:
    """Return the messages before the agent's first."""
    first = next((i for i, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
    return list(messages[:first])


def answer_of(messages: Sequence[Message]) -> str | None:
    """Return the text of the agent's last message."""
    spoken = [message for message in messages if message["role"] == "assistant"]
    return str(spoken[-1]["content"]) if spoken else None


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Return ``value`` as JSON."""
    try:
        return json.dumps(value, ensure_ascii=False, indent=indent)
    except (RecursionError, ValueError, TypeError):
        return "… (nested too deeply to be shown)"


def _step(number: int, step: Mapping[str, Any]) -> ConversationStep:
    metrics, extra = _object(step.get("metrics")), _object(step.get("extra"))
    call = _object(metrics.get("extra"))
    started_at, duration_ms = _timing(call)
    return ConversationStep(
        number=number,
        role=_role(step, extra),
        text=_text(step.get("message")),
        reasoning=_text(step.get("reasoning_content")) or _text(extra.get("reasoning_content")),
        exchanges=tuple(_exchanges(step)),
        model=_text_or_none(step.get("model_name")),
        prompt_tokens=_count(metrics.get("prompt_tokens")),
        completion_tokens=_count(metrics.get("completion_tokens")),
        cost_usd=_number(metrics.get("cost_usd")),
        started_at=_moment(step.get("timestamp")) or started_at,
        duration_ms=duration_ms if (stated := _duration(extra.get("duration_ms"))) is None else stated,
        finish_reason=canonical(call.get("finish_reason")),
    )


def _timing(call: Mapping[str, Any]) -> tuple[datetime | None, float | None]:
    """Return the start and duration of a model call, as reported by the controller."""
    return _moment(call.get("started_at")), _duration(call.get("latency_ms"))


def _role(step: Mapping[str, Any], extra: Mapping[str, Any]) -> str:
    """Return the role; ATIF stores a role that it does not know as ``original_role``."""
    original = extra.get("original_role")
    source = original if isinstance(original, str) and original else step.get("source")
    if source == "agent":
        return "assistant"
    return source if isinstance(source, str) and source else "unknown"


def _exchanges(step: Mapping[str, Any]) -> Iterator[ToolExchange]:
    """Yield the calls with their results, then the results that answer none of them."""
    results = _objects(_object(step.get("observation")).get("results"))
    waiting: defaultdict[str, deque[int]] = defaultdict(deque)
    for place, result in enumerate(results):
        waiting[_text(result.get("source_call_id"))].append(place)
    names: dict[str, str] = {}
    answered: set[int] = set()
    for number, call in enumerate(_objects(step.get("tool_calls"))):
        call_id = _text(call.get("tool_call_id"))
        name = names[call_id] = _text(call.get("function_name"))
        place = waiting[call_id].popleft() if waiting[call_id] else -1
        answered.add(place)
        content = _text(results[place].get("content")) if place >= 0 else None
        yield ToolExchange(name, call.get("arguments"), content, call_id or f"call_{number}")
    for place, result in enumerate(results):
        if place not in answered:
            named = names.get(_text(result.get("source_call_id")))
            told = _text_or_none(_object(result.get("extra")).get("tool_name"))
            yield ToolExchange(named or told, result=_text(result.get("content")))


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
    given = exchange.arguments
    text = given if isinstance(given, str) else json_text(given)
    function = {"name": exchange.name or "", "arguments": text}
    return {"id": exchange.call_id, "type": "function", "function": function}


def _text(content: Any) -> str:
    """Return a message's content as text; an image becomes its path."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(map(_part, content))
    return "" if content is None else json_text(content)


def _part(part: Any) -> str:
    if not isinstance(part, dict):
        return part if isinstance(part, str) else json_text(part)
    if part.get("type") == "image":
        return f"[image {_text(_object(part.get('source')).get('path'))}]"
    text = part.get("text")
    return text if isinstance(text, str) else json_text(part)


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _objects(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _duration(value: Any) -> float | None:
    found = _number(value)
    return found if found is not None and found >= 0 else None


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _moment(value: Any) -> datetime | None:
    if not isinstance(value, str):
        return None
    try:
        # Python 3.10 does not read `Z`.
        moment = datetime.fromisoformat(f"{value[:-1]}+00:00" if value[-1:] in ("Z", "z") else value)
        return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).astimezone(timezone.utc)
    except (ValueError, OverflowError):
        return None


def holds(content: bytes, wanted: str) -> bool:
    """Whether ``wanted`` (case-folded) is in the messages, or in the notes of the grader and judges."""
    raw = content.decode("utf-8", "replace").casefold()
    # Without escapes, a text that is not in the raw content is in no message.
    if wanted not in raw and "\\" not in raw:
        return False
    conversation = read_conversation(content) if len(content) <= _LARGEST_SEARCHED_BYTES else Conversation()
    if not conversation.steps:
        return wanted in raw
    return any(wanted in text.casefold() for text in _said(conversation))


def _said(conversation: Conversation) -> Iterator[str]:
    for step in conversation.steps:
        yield from (step.text, step.reasoning)
        for exchange in step.exchanges:
            yield from (exchange.name or "", exchange.result or "")
            yield from _values(exchange.arguments)
    yield from _values([conversation.grading.get(name) for name in ("notes", "judgements")])


def _values(value: Any) -> Iterator[str]:
    """Yield every text and number of a JSON value, without recursion because nesting may be deep."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            waiting.extend(each.values())
        elif isinstance(each, list):
            waiting.extend(each)
        elif each is not None and not isinstance(each, bool):
            yield str(each)
