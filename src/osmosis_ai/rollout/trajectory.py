"""Archive of a rollout: its conversation as a trajectory, combined with the controller's report.

The models are those of the Agent Trajectory Interchange Format, version 1.7. Every instance is valid: ids run from 1,
only agent steps carry agent output, and observations refer to tool calls of the same step.

The conversion from OpenAI chat format is lossless: data without a field in the format is kept under ``extra``. The
conversation is written before the result is reported, so a crash after the acknowledgement loses nothing, and gets its
final name when the rollout is over. Files are not flushed to disk; the controller's journal makes a result durable.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import orjson
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from osmosis_ai._version import __version__
from osmosis_ai.files import write_atomic

from .artifacts import DIAGNOSTICS_FILE, PENDING_TRAJECTORY_FILE
from .artifacts import artifact_root as default_artifact_root
from .types import ExecutionResult, RolloutSample, json_safe

__all__ = ["TrajectoryReport", "convert_sample_to_trajectory", "report_from_response", "save_trajectory"]

logger = logging.getLogger(__name__)

# Strings have no raw newlines in JSON, and no non-ASCII characters are outside of strings.
_NON_ASCII = re.compile(r"[^\x00-\x7f]")
_NUMBER_ARRAY = re.compile(r"\[\n *-?\d[-+.eE\d,\s]*\]")

_SOURCES: dict[Any, Literal["system", "user", "agent"]] = {
    "system": "system",
    "developer": "system",
    "assistant": "agent",
    "user": "user",
}


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


class LlmCallMetrics(Metrics):
    """One model call, in order: usage, and the exact token ids and log-probabilities for training."""

    model_config = ConfigDict(extra="ignore")

    model_name: str | None = None


class SampleReport(BaseModel):
    """The calls of one sample."""

    model_name: str | None = None
    llm_call_metrics: list[LlmCallMetrics] = Field(default_factory=list)
    final_metrics: dict[str, Any] = Field(default_factory=dict)


class TrajectoryReport(BaseModel):
    """Value of ``trajectory`` in an acknowledgement."""

    model_name: str | None = None
    samples: dict[str, SampleReport] = Field(default_factory=dict)


def report_from_response(response: Any) -> TrajectoryReport | None:
    """Parse the report in an acknowledgement: a mapping, or an object with ``json()``.

    Returns None if it is missing or malformed.
    """
    try:
        body = response if isinstance(response, Mapping) or response is None else response.json()
        carried = body.get("trajectory") if isinstance(body, Mapping) else None
        return None if carried is None else TrajectoryReport.model_validate(carried)
    except (ValidationError, ValueError, AttributeError) as error:
        logger.warning("ignored a malformed trajectory report: %s", str(error)[:500])
        return None


def convert_sample_to_trajectory(
    sample: RolloutSample,
    *,
    rollout_id: str,
    request_label: str | None = None,
    request_metadata: dict[str, Any] | None = None,
    request_extra_fields: dict[str, Any] | None = None,
    report: TrajectoryReport | None = None,
    from_model_calls: bool = False,
    tools: list[dict[str, Any]] | None = None,
) -> Trajectory:
    """Return the trajectory of ``sample``, whose ``trajectory_messages`` become the steps.

    ``from_model_calls`` marks messages that come from the last recorded model call instead of the agent. Raises ValueError
    if there are no messages, or they cannot be converted.
    """
    steps = _steps(sample.trajectory_messages or [])
    report = report or TrajectoryReport()
    several = report.samples if len(report.samples) > 1 else {}
    applied = SampleReport() if several else next(iter(report.samples.values()), SampleReport())
    model_name, calls = applied.model_name or report.model_name, applied.llm_call_metrics
    agent_steps = [step for step in steps if step.source == "agent"]
    unmatched = calls if len(calls) != len(agent_steps) else []
    for step, call in zip(agent_steps, [] if unmatched else calls, strict=False):  # may have no calls at all
        _merge_call(step, call)
    facts = _extra(
        rollout_id=rollout_id,
        from_model_calls=from_model_calls or None,
        label=sample.label if sample.label is not None else request_label,
        reward=sample.reward,
        sample_metrics=json_safe(sample.metrics) or None,
        sample_extra_fields=json_safe(sample.extra_fields) or None,
        request_metadata=request_metadata,
        request_extra_fields=request_extra_fields,
        unmatched_llm_call_metrics=[call.model_dump(exclude_none=True) for call in unmatched] or None,
        unmatched_sample_reports={key: _plain(each) for key, each in several.items()} or None,
    )
    return Trajectory(
        session_id=rollout_id,
        trajectory_id=rollout_id,
        agent=Agent(
            name="osmosis-rollout-sdk",
            version=__version__,
            model_name=model_name,
            tool_definitions=tools or None,
        ),
        steps=steps,
        final_metrics=_final_metrics(
            unmatched or [step.metrics for step in agent_steps if step.metrics],
            applied.final_metrics,
            len(steps),
        ),
        extra={"osmosis": facts},
    )


def _plain(report: SampleReport) -> dict[str, Any]:
    return report.model_dump(exclude_none=True, exclude=None if report.final_metrics else {"final_metrics"})


def _steps(messages: list[dict[str, Any]]) -> list[Step]:
    steps: list[Step] = []
    latest_agent: Step | None = None
    for message in messages:
        is_result = message.get("role") in ("tool", "function")
        if not is_result or latest_agent is None:
            steps.append(_step(message, len(steps) + 1, is_result=is_result))
        if is_result:
            _observe(latest_agent or steps[-1], message)
        elif steps[-1].source == "agent":
            latest_agent = steps[-1]
    return steps


def _step(message: Mapping[str, Any], step_id: int, *, is_result: bool) -> Step:
    role = message.get("role")
    source = _SOURCES.get(role) if isinstance(role, str) else None
    if source == "agent":
        response = _table(_table(message.get("extra")).get("response"))
        metrics = _usage_metrics(_table(message.get("usage")) or _table(response.get("usage")))
        tool_calls, others = _tool_calls(message, step_id)
        return Step(
            step_id=step_id,
            timestamp=_timestamp(message),
            source="agent",
            model_name=_first(str, message.get("model"), message.get("model_name"), response.get("model")),
            message=_text(message.get("content")),
            reasoning_content=_reasoning(message),
            tool_calls=tool_calls or None,
            metrics=metrics,
            llm_call_count=None if metrics is None else 1,
            extra=_extra(tool_calls=others or None),
        )
    return Step(
        step_id=step_id,
        timestamp=_timestamp(message),
        source="system" if is_result else source or "user",
        # An item of another API, such as a tool call of the Responses API, has no role and is kept whole.
        message="" if is_result else _text(message.get("content", None if role else message)),
        extra=_extra(
            original_role=None if source else role,
            reasoning_content=_reasoning(message),
            tool_calls=message.get("tool_calls") or message.get("function_call"),
        ),
    )


def _extra(**fields: Any) -> dict[str, Any] | None:
    safe = {name: json_safe(value) for name, value in fields.items()}
    return {name: value for name, value in safe.items() if value is not None} or None


def _observe(step: Step, message: Mapping[str, Any]) -> None:
    """Add a tool's answer to the observation of a step."""
    call_id = message.get("tool_call_id")
    answers = isinstance(call_id, str) and call_id in {call.tool_call_id for call in step.tool_calls or ()}
    result = ObservationResult(
        source_call_id=call_id if answers else None,
        content=_text(message.get("content")),
        extra=None if answers else _extra(tool_call_id=call_id, tool_name=message.get("name")),
    )
    if step.observation is None:
        step.observation = Observation(results=[])
    step.observation.results.append(result)


def _text(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list) and content:
        kinds = ("text", "input_text", "output_text")
        parts = map(_table, content)
        texts: list[Any] = [part.get("text") if part.get("type", "text") in kinds else None for part in parts]
        if all(isinstance(text, str) for text in texts):
            return "\n".join(texts)
    return _json_text(content)


def _json_text(value: Any) -> str:
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return json.dumps(json_safe(value), separators=(",", ":"))


def _reasoning(message: Mapping[str, Any]) -> str | None:
    value = message.get("reasoning_content")
    if value is None:
        value = message.get("reasoning")
    return value if value is None or isinstance(value, str) else _json_text(value)


def _tool_calls(message: Mapping[str, Any], step_id: int) -> tuple[list[ToolCall], list[Any]]:
    """Return a message's function calls, and its other calls unchanged."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        legacy = message.get("function_call")
        calls = [{"function": legacy}] if isinstance(legacy, Mapping) else []
    converted, others = [], []
    for index, call in enumerate(calls):
        function = _table(_table(call).get("function"))
        if not function:
            others.append(call)
            continue
        converted.append(
            ToolCall(
                tool_call_id=str(call.get("id") or f"call_{step_id}_{index}"),
                function_name=str(function.get("name") or ""),
                arguments=_arguments(function.get("arguments")),
            )
        )
    return converted, others


def _arguments(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(json_safe(dict(value)) or {})
    if value is None or value == "":
        return {}
    try:
        parsed = orjson.loads(value)
    except (TypeError, ValueError):
        parsed = None
    if isinstance(parsed, dict):
        return parsed
    return {"_raw": value if isinstance(value, str) else _json_text(value)}


def _usage_metrics(usage: Mapping[str, Any]) -> Metrics | None:
    details = _table(usage.get("prompt_tokens_details")) or _table(usage.get("input_tokens_details"))
    counts = {
        "prompt_tokens": _first(int, usage.get("prompt_tokens"), usage.get("input_tokens")),
        "completion_tokens": _first(int, usage.get("completion_tokens"), usage.get("output_tokens")),
        "cached_tokens": _first(int, details.get("cached_tokens")),
    }
    return None if set(counts.values()) == {None} else Metrics(**counts)


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _first(kind: type, *candidates: Any) -> Any:
    return next((value for value in candidates if type(value) is kind), None)


def _timestamp(message: Mapping[str, Any]) -> str | None:
    late = _table(message.get("extra")).get("timestamp")
    for value in (message.get("created_at"), message.get("timestamp"), message.get("completed_at"), late):
        try:
            if isinstance(value, str):
                value = parse_timestamp(value)
            elif isinstance(value, (int, float)) and not isinstance(value, bool):
                value = datetime.fromtimestamp(value, tz=timezone.utc)
            if isinstance(value, datetime):
                return value.replace(tzinfo=value.tzinfo or timezone.utc).astimezone(timezone.utc).isoformat()
        except (ValueError, OverflowError, OSError):
            continue
    return None


def _merge_call(step: Step, call: LlmCallMetrics) -> None:
    """Merge the controller's metrics into a step; they take precedence over the message's."""
    reported = call.model_dump(exclude_none=True)
    step.model_name = reported.pop("model_name", step.model_name)
    extra = call.extra or {}
    step.timestamp = _timestamp({"timestamp": extra.get("started_at")}) or step.timestamp
    if type(latency_ms := extra.get("latency_ms")) in (int, float):
        step.extra = {**(step.extra or {}), "duration_ms": latency_ms}
    if reported:
        inline = step.metrics.model_dump(exclude_none=True) if step.metrics is not None else {}
        step.metrics = Metrics(**{**inline, **reported})


def _final_metrics(calls: Sequence[Metrics], stated: Mapping[str, Any], step_count: int) -> FinalMetrics:
    totals: dict[str, Any] = {}
    for part in ("prompt_tokens", "completion_tokens", "cached_tokens", "cost_usd"):
        if values := [value for call in calls if (value := getattr(call, part)) is not None]:
            totals[f"total_{part}"] = sum(values)
    known = {name: stated[name] for name in FinalMetrics.model_fields if stated.get(name) is not None}
    return FinalMetrics.model_validate({**totals, **known, "total_steps": step_count})


class RolloutArchive:
    """Files of one rollout in ``<artifact root>/<rollout_id>/``. Errors are logged, never raised."""

    def __init__(self, rollout_id: str, root: Path | None = None, **request: Any) -> None:
        self._rollout_id = rollout_id
        self._root = root
        self._request = request  # arguments of `convert_sample_to_trajectory`
        self._kept: tuple[ExecutionResult, TrajectoryReport | None] | None = None

    def keep(self, result: ExecutionResult | None, report: TrajectoryReport | None) -> None:
        """Write the best result so far under a temporary name."""
        if result is None or self._kept == (result, report):
            return
        with self._logged():
            pending = self._home / PENDING_TRAJECTORY_FILE
            if result.sample is None or not result.sample.trajectory_messages:
                logger.info("rollout %s has no messages to archive", self._rollout_id)
                pending.unlink(missing_ok=True)
            else:
                trajectory = convert_sample_to_trajectory(
                    result.sample, rollout_id=self._rollout_id, report=report, **self._request
                )
                write_atomic(pending, encode_trajectory(trajectory), mode=0o644, durable=False)
            self._kept = result, report

    def publish(
        self,
        result: ExecutionResult | None,
        report: TrajectoryReport | None,
        diagnostics: dict[str, Any] | None,
    ) -> None:
        """Give the files of a finished rollout their final names."""
        self.keep(result, report)
        with self._logged():
            if diagnostics:
                text = json.dumps(diagnostics, indent=2, sort_keys=True, ensure_ascii=False, default=repr)
                content = text.encode(errors="replace")
                write_atomic(self._home / DIAGNOSTICS_FILE, content, mode=0o644, durable=False)
        if self._kept is not None:
            with self._logged(), contextlib.suppress(FileNotFoundError):
                (self._home / PENDING_TRAJECTORY_FILE).replace(self._home / "trajectory.json")

    @cached_property
    def _home(self) -> Path:
        return (self._root or default_artifact_root()) / self._rollout_id

    @contextlib.contextmanager
    def _logged(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            # A full disk or an odd message must not invalidate the rollout.
            logger.exception("cannot archive rollout %s", self._rollout_id)


async def save_trajectory(
    *,
    rollout_id: str,
    result: ExecutionResult | None,
    request_label: str | None = None,
    request_metadata: dict[str, Any] | None = None,
    request_extra_fields: dict[str, Any] | None = None,
    report: TrajectoryReport | None = None,
    artifact_root: Path | None = None,
    diagnostics: dict[str, Any] | None = None,
) -> None:
    """Archive a rollout in ``<artifact root>/<rollout_id>/``. Errors are logged, never raised.

    The sample of ``result`` becomes ``trajectory.json``; the backend's ``diagnostics`` (default: the result's extra fields)
    become ``diagnostics.json``.
    """
    archive = RolloutArchive(
        rollout_id,
        artifact_root,
        request_label=request_label,
        request_metadata=request_metadata,
        request_extra_fields=request_extra_fields,
    )
    archive.publish(result, report, diagnostics or (result.extra_fields if result is not None else None))


def encode_trajectory(trajectory: Trajectory | Mapping[str, Any]) -> str:
    """Encode a trajectory as ASCII JSON: two-space indent, number arrays on one line, no nulls, no NaN."""
    content = trajectory.model_dump(exclude_none=True) if isinstance(trajectory, Trajectory) else trajectory
    try:
        text = orjson.dumps(content, default=repr, option=orjson.OPT_INDENT_2).decode()
    except TypeError:  # integers beyond 64 bits, lone surrogates, keys that are not text
        text = json.dumps(json_safe(content), indent=2)
    if not text.isascii():
        text = _NON_ASCII.sub(lambda match: json.dumps(match[0])[1:-1], text)
    return _NUMBER_ARRAY.sub(lambda match: f"[{' '.join(match[0][1:-1].split())}]", text)


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
