"""Callback bodies as a rollout server sends them, written by hand from the protocol."""

from __future__ import annotations

from typing import Any

from osmosis_ai.rollout.types import GraderCompleteRequest, RolloutCompleteRequest

ROLLOUT_ID = "0123456789abcdef0123456789abcdef"


def completion_body(rollout_id: str = ROLLOUT_ID, **changes: Any) -> dict[str, Any]:
    return {
        "status": "success",
        "rollout_id": rollout_id,
        "extra_fields": None,
        "err_message": None,
        "err_category": None,
        **changes,
    }


def grader_body(
    rollout_id: str = ROLLOUT_ID, *, reward: float | None = 1.0, **changes: Any
) -> dict[str, Any]:
    return {
        "status": "success",
        "rollout_id": rollout_id,
        "sample": {
            "messages": [{"role": "user", "content": "say ok"}, {"role": "assistant", "content": "ok"}],
            "label": "ok",
            "reward": reward,
            "remove_sample": False,
            "metrics": {},
            "extra_fields": {},
        },
        "err_message": None,
        "err_category": None,
        **changes,
    }


def completion(rollout_id: str = ROLLOUT_ID, **changes: Any) -> RolloutCompleteRequest:
    return RolloutCompleteRequest.model_validate(completion_body(rollout_id, **changes))


def grader(rollout_id: str = ROLLOUT_ID, **changes: Any) -> GraderCompleteRequest:
    return GraderCompleteRequest.model_validate(grader_body(rollout_id, **changes))
