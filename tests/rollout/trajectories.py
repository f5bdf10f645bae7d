"""A conversation, and what a controller reports of its model calls."""

from __future__ import annotations

from typing import Any

from osmosis_ai.rollout.trajectory import TrajectoryReport

CALL = {"id": "c1", "type": "function", "function": {"name": "multiply", "arguments": '{"a": 6, "b": 7}'}}
CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": "You multiply."},
    {"role": "user", "content": "6 times 7?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "42"},
    {"role": "assistant", "content": "42"},
]


def report(*calls: dict[str, Any], **fields: Any) -> TrajectoryReport:
    return TrajectoryReport.model_validate({"samples": {"any": {"llm_call_metrics": list(calls), **fields}}})
