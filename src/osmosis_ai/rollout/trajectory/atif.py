"""Agent Trajectory Interchange Format, version 1.7.

Every Trajectory instance is valid: ids run from 1, only agent steps carry agent output, and
observations refer to tool calls of the same step. Fields are written in declaration order.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import orjson
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator


def parse_timestamp(text: str) -> datetime:
    """Parse an ISO 8601 timestamp; accepts ``Z`` on every Python version."""
    return datetime.fromisoformat(f"{text[:-1]}+00:00" if text[-1:] in ("Z", "z") else text)


def _check_timestamp(text: str) -> str:
    parse_timestamp(text)
    return text


class AtifModel(BaseModel):
    """Base class: unknown keys and non-finite numbers are refused."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Agent(AtifModel):
    name: str
    version: str
    model_name: str | None = None
    tool_definitions: list[dict[str, Any]] | None = None
    extra: dict[str, Any] | None = None


class ImageSource(AtifModel):
    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
    path: str


class ContentPart(AtifModel):
    type: Literal["text", "image"]
    text: str | None = None
    source: ImageSource | None = None

    @model_validator(mode="after")
    def _matches_type(self) -> ContentPart:
        if self.type == "text" and (self.text is None or self.source is not None):
            raise ValueError("a text part has `text` and no `source`")
        if self.type == "image" and (self.source is None or self.text is not None):
            raise ValueError("an image part has `source` and no `text`")
        return self


Content = str | list[ContentPart]


class Metrics(AtifModel):
    """Cost of one model call and, for training, its exact tokens."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    cost_usd: float | None = None
    prompt_token_ids: list[int] | None = None
    completion_token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    extra: dict[str, Any] | None = None


class FinalMetrics(AtifModel):
    total_prompt_tokens: int | None = None
    total_completion_tokens: int | None = None
    total_cached_tokens: int | None = None
    total_cost_usd: float | None = None
    total_steps: int | None = Field(default=None, ge=0)
    extra: dict[str, Any] | None = None


class ToolCall(AtifModel):
    tool_call_id: str
    function_name: str
    arguments: dict[str, Any]
    extra: dict[str, Any] | None = None


class SubagentTrajectoryRef(AtifModel):
    trajectory_id: str | None = None
    session_id: str | None = None
    trajectory_path: str | None = None
    extra: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _points_somewhere(self) -> SubagentTrajectoryRef:
        if self.trajectory_id is None and self.trajectory_path is None:
            raise ValueError("a subagent reference needs `trajectory_id` or `trajectory_path`")
        return self


class ObservationResult(AtifModel):
    """Result of one tool call or of the environment."""

    source_call_id: str | None = None
    content: Content | None = None
    subagent_trajectory_ref: list[SubagentTrajectoryRef] | None = None
    extra: dict[str, Any] | None = None


class Observation(AtifModel):
    """The environment's response to one step."""

    results: list[ObservationResult]


class Step(AtifModel):
    step_id: int = Field(ge=1)
    timestamp: Annotated[str, AfterValidator(_check_timestamp)] | None = None
    source: Literal["system", "user", "agent"]
    model_name: str | None = None
    reasoning_effort: str | float | None = None
    message: Content
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    observation: Observation | None = None
    metrics: Metrics | None = None
    is_copied_context: bool | None = None
    llm_call_count: int | None = Field(default=None, ge=0)
    extra: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _is_consistent(self) -> Step:
        if self.source != "agent":
            agent_only = ("model_name", "reasoning_effort", "reasoning_content", "tool_calls", "metrics")
            if present := [name for name in agent_only if getattr(self, name) is not None]:
                raise ValueError(f"only agent steps may have {', '.join(present)}")
        if self.llm_call_count == 0 and (self.metrics is not None or self.reasoning_content is not None):
            raise ValueError("a step without model calls has neither metrics nor reasoning")
        if self.observation is not None:
            known = {call.tool_call_id for call in self.tool_calls or ()}
            for result in self.observation.results:
                if result.source_call_id is not None and result.source_call_id not in known:
                    raise ValueError(f"observation of unknown tool call {result.source_call_id!r}")
        return self


class Trajectory(AtifModel):
    schema_version: str = Field(default="ATIF-v1.7", pattern=r"^ATIF-v1\.[0-7]$")
    session_id: str | None = None
    trajectory_id: str | None = None
    agent: Agent
    steps: list[Step] = Field(min_length=1)
    notes: str | None = None
    final_metrics: FinalMetrics | None = None
    continued_trajectory_ref: str | None = None
    extra: dict[str, Any] | None = None
    subagent_trajectories: list[Trajectory] | None = None

    @model_validator(mode="after")
    def _is_consistent(self) -> Trajectory:
        for position, step in enumerate(self.steps, start=1):
            if step.step_id != position:
                raise ValueError(f"step ids must run from 1: found {step.step_id} at position {position}")
        ids = [child.trajectory_id for child in self.subagent_trajectories or ()]
        if None in ids or len(set(ids)) != len(ids):
            raise ValueError("embedded subagent trajectories need unique ids")
        return self


def trajectory_identity(document: Any) -> str | None:
    """Return the rollout id in an ATIF trajectory; None without one."""
    if not isinstance(document, dict):
        return None
    for stated in (_osmosis_facts(document).get("rollout_id"), document.get("session_id")):
        if isinstance(stated, str):
            return stated
    combined = document.get("trajectory_id")
    return combined.partition("/")[0] if isinstance(combined, str) and "/" in combined else None


def trajectory_problem(content: bytes, rollout_id: str, row_index: int, run_index: int) -> str | None:
    """Return why ``content`` is not the trajectory of this rollout, attempt ``run_index`` on row ``row_index``."""
    try:
        document = orjson.loads(content)
        Trajectory.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        return f"no valid trajectory: {'.'.join(map(str, first['loc']))}: {first['msg'].lower()}"
    except (ValueError, RecursionError):
        return "no valid JSON"
    if trajectory_identity(document) != rollout_id:
        return "the trajectory of another rollout"
    stated = _osmosis_facts(document).get("request_extra_fields")
    expected = {"row_index": row_index, "run_index": run_index}
    if isinstance(stated, dict) and any(stated.get(name, value) != value for name, value in expected.items()):
        return "the trajectory of another row or attempt"
    return None


def _osmosis_facts(document: dict[str, Any]) -> dict[str, Any]:
    extra = document.get("extra")
    facts = extra.get("osmosis") if isinstance(extra, dict) else None
    return facts if isinstance(facts, dict) else {}
