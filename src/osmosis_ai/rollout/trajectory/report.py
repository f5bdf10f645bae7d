"""The controller's data about a rollout's model calls, returned in the acknowledgement of a callback.

An unreadable report is ignored with a warning and never fails a rollout.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

logger = logging.getLogger(__name__)


class LlmCallMetrics(BaseModel):
    """One model call, in order: usage, and the exact token ids and log-probabilities for training."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    model_name: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    cost_usd: float | None = None
    prompt_token_ids: list[int] | None = None
    completion_token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    extra: dict[str, Any] | None = None


class SampleReport(BaseModel):
    """The calls of one sample."""

    model_config = ConfigDict(extra="ignore")

    model_name: str | None = None
    llm_call_metrics: list[LlmCallMetrics] = Field(default_factory=list)
    final_metrics: dict[str, Any] = Field(default_factory=dict)


class TrajectoryReport(BaseModel):
    """Value of ``trajectory`` in an acknowledgement."""

    model_config = ConfigDict(extra="ignore")

    model_name: str | None = None
    samples: dict[str, SampleReport] = Field(default_factory=dict)


def controller_stores_conversation(answer: bytes) -> bool:
    """Return whether an acknowledgement says that the controller stores the messages it receives."""
    try:
        # A search is cheaper than parsing.
        body = orjson.loads(answer) if b'"conversation"' in answer else None
    except ValueError:
        return False
    return isinstance(body, dict) and body.get("conversation") == "stored"


def report_from_response(response: Any) -> TrajectoryReport | None:
    """Parse the report in an acknowledgement.

    Args:
        response: The body as bytes, text or a mapping, or a response object with ``json()``.

    Returns:
        The report, or None if it is missing or malformed.
    """
    try:
        if isinstance(response, (bytes, str)):
            # Most acknowledgements have no report, and a search is cheaper than parsing.
            present = (
                b'"trajectory"' in response if isinstance(response, bytes) else '"trajectory"' in response
            )
            body = orjson.loads(response) if present else None
        else:
            body = response if isinstance(response, Mapping) or response is None else response.json()
        carried = body.get("trajectory") if isinstance(body, Mapping) else None
        return None if carried is None else TrajectoryReport.model_validate(carried)
    except (ValidationError, ValueError, AttributeError) as error:
        logger.warning("ignored a malformed trajectory report: %s", str(error)[:500])
        return None
