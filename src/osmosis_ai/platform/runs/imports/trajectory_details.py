"""Columns of a sample that an uploaded run states in its trajectories alone: tokens, cost, previews, notes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from osmosis_ai.controller.record import previews_of
from osmosis_ai.evaluation.conversation import Conversation, as_messages, read_conversation
from osmosis_ai.llm.replies import canonical
from osmosis_ai.platform.log_lines import storable
from osmosis_ai.redaction import Redactor
from osmosis_ai.rollout.extra_fields import read_grader_notes

MEASURED = (
    "prompt_tokens",
    "completion_tokens",
    "cost_usd",
    "model_calls",
    "model_latency_ms",
    "finish_reasons",
)
TEXTS = ("input", "output", "notes", "parts")

_MOST_TOKENS = 2**31 - 1
_LARGEST = 1e12
"""Dollars or milliseconds of one call."""
_NO_SECRETS = Redactor()


@dataclass(frozen=True, slots=True)
class _ModelCall:
    prompt_tokens: int | None
    completion_tokens: int | None
    cost_usd: float | None
    duration_ms: float | None
    finish_reason: str | None


def trajectory_details(content: bytes) -> dict[str, Any]:
    """Return the values of :data:`MEASURED` and :data:`TEXTS` that a trajectory states; it raises nothing."""
    conversation = read_conversation(content)
    return _measured(list(_model_calls(conversation))) | _texts(conversation)


def _measured(calls: Sequence[_ModelCall]) -> dict[str, Any]:
    if not calls:
        return {}
    found: dict[str, Any] = {"model_calls": len(calls)}
    prompt = sum(call.prompt_tokens or 0 for call in calls)
    completion = sum(call.completion_tokens or 0 for call in calls)
    if prompt + completion <= _MOST_TOKENS:
        found |= {"prompt_tokens": prompt, "completion_tokens": completion}
    if finishes := Counter(call.finish_reason for call in calls if call.finish_reason is not None):
        found["finish_reasons"] = dict(finishes)
    found |= _total("cost_usd", [call.cost_usd for call in calls])
    return found | _total("model_latency_ms", [call.duration_ms for call in calls])


def _texts(conversation: Conversation) -> dict[str, Any]:
    extra = conversation.facts.get("sample_extra_fields")
    noted = read_grader_notes(extra if isinstance(extra, Mapping) else {})
    texts = {"notes": noted.notes}
    # The last message that reached a failed agent is not its output.
    if not conversation.from_model_calls:
        shown = previews_of(as_messages(conversation), _NO_SECRETS)
        texts |= {"input": shown.input, "output": shown.output}
    found: dict[str, Any] = {name: storable(text) for name, text in texts.items() if text}
    return found | ({"parts": dict(noted.parts)} if noted.parts else {})


def _total(name: str, values: Sequence[float | None]) -> dict[str, float]:
    """Return the sum under ``name``; nothing if one of the values is unknown or absurd."""
    known = [value for value in values if value is not None and 0 <= value <= _LARGEST]
    return {name: math.fsum(known)} if len(known) == len(values) else {}


def _model_calls(conversation: Conversation) -> Iterator[_ModelCall]:
    """Yield the model calls of the steps, or those the controller reported if they match no steps."""
    unmatched = conversation.facts.get("unmatched_llm_call_metrics")
    if isinstance(unmatched, list) and unmatched:
        for call in unmatched:
            if isinstance(call, Mapping):
                extra = call.get("extra")
                known = extra if isinstance(extra, Mapping) else {}
                yield _ModelCall(
                    _count(call.get("prompt_tokens")),
                    _count(call.get("completion_tokens")),
                    _number(call.get("cost_usd")),
                    _number(known.get("latency_ms")),
                    canonical(known.get("finish_reason")),
                )
        return
    for step in conversation.steps:
        if step.prompt_tokens is not None or step.completion_tokens is not None:
            yield _ModelCall(
                step.prompt_tokens,
                step.completion_tokens,
                step.cost_usd,
                step.duration_ms,
                step.finish_reason,
            )


def _count(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
