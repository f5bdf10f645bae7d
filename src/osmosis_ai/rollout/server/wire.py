"""Encode callback bodies. An earned reward is sent whatever else is in the sample."""

from __future__ import annotations

import json
import logging
from typing import Any

import orjson

from ..grader_notes import read_grader_notes
from ..judge_calls import read_judge_calls
from ..loop.outcome import DETAILS_KEY, read_outcome
from ..types.execution import ExecutionResult
from ..types.protocol import GraderStatus, RolloutStatus
from ..types.sample import RolloutSample

logger = logging.getLogger(__name__)


def completion_body(rollout_id: str, result: ExecutionResult) -> bytes:
    """Encode a RolloutCompleteRequest: the workflow's result without its sample."""
    payload = {
        "status": result.status,
        "rollout_id": rollout_id,
        "extra_fields": None,
        "err_message": result.err_message,
        "err_category": result.err_category,
    }
    return _encode(payload)


def grader_body(rollout_id: str, result: ExecutionResult) -> bytes:
    """Encode a GraderCompleteRequest: the sample and, if earned and allowed, its reward."""
    succeeded = result.status is RolloutStatus.SUCCESS
    payload: dict[str, Any] = {
        "status": GraderStatus.SUCCESS if succeeded else GraderStatus.FAILURE,
        "rollout_id": rollout_id,
        "sample": None,
        "err_message": result.err_message,
        "err_category": result.err_category,
    }
    sample = result.sample
    if sample is None:
        return _encode(payload)
    minimal: dict[str, Any] = {
        "messages": [],
        "label": sample.label,
        "reward": sample.reward if succeeded and not sample.remove_sample else None,
        "remove_sample": sample.remove_sample,
        "metrics": {},
        "extra_fields": {},
    }
    try:
        _require_messages(sample.messages)
        safe = sample.json_safe_copy()
        whole = {"messages": sample.messages, "metrics": safe.metrics, "extra_fields": safe.extra_fields}
        return _encode({**payload, "sample": {**minimal, **whole}}, sample)
    except Exception:
        # The messages may come from any framework, and encoding them can raise any error.
        logger.warning(
            "rollout %s: its sample has no JSON form; only its score is sent", rollout_id, exc_info=True
        )
    # This entry holds all scores of an agent loop.
    if DETAILS_KEY in sample.extra_fields:
        minimal["extra_fields"] |= read_outcome(sample.extra_fields).to_fields()
    minimal["extra_fields"] |= read_judge_calls(sample.extra_fields).to_fields()
    read_grader_notes(sample.extra_fields).write(minimal["extra_fields"])
    return _encode({**payload, "sample": minimal})


def _require_messages(messages: Any) -> None:
    """Check that the messages are a conversation; controllers would refuse anything else together with the score.

    Raises:
        TypeError: A grader replaced them with something else.
    """
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise TypeError("the messages are no longer a list of dicts")


def _encode(payload: dict[str, Any], sample: RolloutSample | None = None) -> bytes:
    """Encode with orjson if possible, or else with pydantic, which supports more types."""
    try:
        return orjson.dumps(payload)
    except TypeError:
        if sample is not None:
            messages = sample.model_dump(mode="json", include={"messages"})["messages"]
            payload = {**payload, "sample": {**payload["sample"], "messages": messages}}
        # Models produce lone surrogates, which are invalid UTF-8 and would be refused by the receiver.
        text = json.dumps(payload, ensure_ascii=False, allow_nan=False)
        return text.encode("utf-8", errors="replace")
