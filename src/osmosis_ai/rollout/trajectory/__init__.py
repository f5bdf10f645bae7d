"""Archive of a rollout: its conversation as an ATIF trajectory, combined with the controller's report.

The conversion from OpenAI chat format is lossless: data without a field in the format is kept under ``extra``. A
controller returns its report in the acknowledgement of a callback; an unreadable report is ignored with a warning.

``trajectory.json`` and ``diagnostics.json`` are written atomically, and errors never affect the rollout. The conversation is
written before the result is reported, so a crash after the acknowledgement loses nothing. It gets its final name by a
rename when the rollout is over. Files are not flushed to disk; the controller's journal makes a result durable.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from osmosis_ai._version import __version__

from ..artifacts import DIAGNOSTICS_FILE, PENDING_TRAJECTORY_FILE
from ..artifacts import artifact_root as default_artifact_root
from ..types.protocol import ExecutionResult
from ..types.sample import RolloutSample, json_safe
from .atif import (
    Agent,
    FinalMetrics,
    Metrics,
    Observation,
    ObservationResult,
    Step,
    ToolCall,
    Trajectory,
    parse_timestamp,
)

__all__ = ["TrajectoryReport", "convert_sample_to_trajectory", "report_from_response", "save_trajectory"]

logger = logging.getLogger(__name__)

# Strings have no raw newlines in JSON, and no non-ASCII characters are outside of strings.
_NON_ASCII = re.compile(r"[^\x00-\x7f]")
_NUMBER_ARRAY = re.compile(r"\[\n *-?\d[-+.eE\d,\s]*\]")

TRAJECTORY_FILE = "trajectory.json"


AGENT_NAME = "osmosis-rollout-sdk"

_SOURCES: dict[str, Literal["system", "user", "agent"]] = {
    "system": "system",
    "developer": "system",
    "assistant": "agent",
    "user": "user",
}
_TOTALS = {
    "total_prompt_tokens": "prompt_tokens",
    "total_completion_tokens": "completion_tokens",
    "total_cached_tokens": "cached_tokens",
    "total_cost_usd": "cost_usd",
}


class LlmCallMetrics(Metrics):
    """One model call, in order: usage, and the exact token ids and log-probabilities for training."""

    model_config = ConfigDict(extra="ignore")

    model_name: str | None = None


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


def report_from_response(response: Any) -> TrajectoryReport | None:
    """Parse the report in an acknowledgement: bytes, text, a mapping or an object with ``json()``.

    Returns None if it is missing or malformed.
    """
    try:
        if isinstance(response, (bytes, str)):
            content = response.encode() if isinstance(response, str) else response
            # Most acknowledgements have no report, and a search is cheaper than parsing.
            body = orjson.loads(content) if b'"trajectory"' in content else None
        else:
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
) -> Trajectory:
    """Return the trajectory of ``sample``, whose ``trajectory_messages`` become the steps.

    ``from_model_calls`` marks messages that come from the last recorded model call instead of the agent. Raises ValueError
    if there are no messages, or they cannot be converted.
    """
    steps = _steps(sample.trajectory_messages or [])
    report = report or TrajectoryReport()
    applied = next(iter(report.samples.values())) if len(report.samples) == 1 else SampleReport()
    calls = applied.llm_call_metrics
    agent_steps = [step for step in steps if step.source == "agent"]
    matched = len(calls) == len(agent_steps)
    if matched:
        for step, call in zip(agent_steps, calls, strict=True):
            _merge_call(step, call)
    counted = [step.metrics for step in agent_steps if step.metrics] if matched or not calls else calls
    osmosis = {
        "rollout_id": rollout_id,
        "from_model_calls": from_model_calls or None,
        "label": sample.label if sample.label is not None else request_label,
        "reward": sample.reward,
        "sample_metrics": json_safe(sample.metrics) or None,
        "sample_extra_fields": json_safe(sample.extra_fields) or None,
        "request_metadata": json_safe(request_metadata),
        "request_extra_fields": json_safe(request_extra_fields),
        "unmatched_llm_call_metrics": None if matched or not calls else [_plain(call) for call in calls],
        "unmatched_sample_reports": (
            {key: _plain(value) for key, value in report.samples.items()} if len(report.samples) > 1 else None
        ),
    }
    return Trajectory(
        session_id=rollout_id,
        trajectory_id=rollout_id,
        agent=Agent(name=AGENT_NAME, version=__version__, model_name=applied.model_name or report.model_name),
        steps=steps,
        final_metrics=_final_metrics(counted, applied, len(steps)),
        extra={"osmosis": {key: value for key, value in osmosis.items() if value is not None}},
    )


def _steps(messages: list[dict[str, Any]]) -> list[Step]:
    steps: list[Step] = []
    latest_agent: Step | None = None
    for message in messages:
        role = message.get("role")
        if role in ("tool", "function") and latest_agent is not None:
            _observe(latest_agent, message)
            continue
        step = _step(message, len(steps) + 1)
        steps.append(step)
        if step.source == "agent":
            latest_agent = step
    return steps


def _step(message: Mapping[str, Any], step_id: int) -> Step:
    role = message.get("role")
    source = _SOURCES.get(role) if isinstance(role, str) else None
    if source != "agent":
        orphan = role in ("tool", "function")
        step = Step(
            step_id=step_id,
            timestamp=_timestamp(message),
            source="system" if orphan else source or "user",
            # An item of another API, such as a tool call of the Responses API, has no role and is kept whole.
            message="" if orphan else _text(message.get("content", None if role else message)),
            extra=_extra(
                original_role=None if source else role,
                reasoning_content=_reasoning(message),
                tool_calls=message.get("tool_calls") or message.get("function_call"),
            ),
        )
        if orphan:
            _observe(step, message)
        return step
    tool_calls, no_place = _tool_calls(message, step_id)
    metrics = _inline_metrics(message)
    return Step(
        step_id=step_id,
        timestamp=_timestamp(message),
        source="agent",
        model_name=_model_name(message),
        message=_text(message.get("content")),
        reasoning_content=_reasoning(message),
        tool_calls=tool_calls or None,
        metrics=metrics,
        llm_call_count=None if metrics is None else 1,
        extra=_extra(tool_calls=no_place or None),
    )


def _extra(**fields: Any) -> dict[str, Any] | None:
    safe = {name: json_safe(value) for name, value in fields.items()}
    return {name: value for name, value in safe.items() if value is not None} or None


def _observe(step: Step, message: Mapping[str, Any]) -> None:
    """Add a tool's answer to the observation of a step."""
    call_id = message.get("tool_call_id")
    known = {call.tool_call_id for call in step.tool_calls or ()}
    answers = isinstance(call_id, str) and call_id in known
    result = ObservationResult(
        source_call_id=call_id if answers else None,
        content=_text(message.get("content")),
        extra=None if answers else _extra(tool_call_id=call_id, tool_name=message.get("name")),
    )
    if step.observation is None:
        step.observation = Observation(results=[result])
    else:
        step.observation.results.append(result)


def _text(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list) and content:
        texts = [
            part["text"]
            for part in content
            if isinstance(part, Mapping)
            and part.get("type", "text") in ("text", "input_text", "output_text")
            and isinstance(part.get("text"), str)
        ]
        if len(texts) == len(content):
            return "\n".join(texts)
    return _json_text(content)


def _json_text(value: Any) -> str:
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return json.dumps(json_safe(value), separators=(",", ":"), default=repr)


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
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(call, Mapping) or not isinstance(function, Mapping):
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
        return {"_raw": value if isinstance(value, str) else _json_text(value)}
    return parsed if isinstance(parsed, dict) else {"_raw": value}


def _inline_metrics(message: Mapping[str, Any]) -> Metrics | None:
    usage = message.get("usage")
    if not isinstance(usage, Mapping):
        usage = _response(message).get("usage")
    if not isinstance(usage, Mapping):
        return None
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    metrics = Metrics(
        prompt_tokens=_count(usage.get("prompt_tokens"), usage.get("input_tokens")),
        completion_tokens=_count(usage.get("completion_tokens"), usage.get("output_tokens")),
        cached_tokens=_count(details.get("cached_tokens")) if isinstance(details, Mapping) else None,
    )
    return metrics if any(value is not None for _, value in metrics) else None


def _count(*candidates: Any) -> int | None:
    return next((value for value in candidates if type(value) is int), None)


def _response(message: Mapping[str, Any]) -> Mapping[str, Any]:
    extra = message.get("extra")
    response = extra.get("response") if isinstance(extra, Mapping) else None
    return response if isinstance(response, Mapping) else {}


def _model_name(message: Mapping[str, Any]) -> str | None:
    candidates = (message.get("model"), message.get("model_name"), _response(message).get("model"))
    return next((value for value in candidates if isinstance(value, str)), None)


def _timestamp(message: Mapping[str, Any]) -> str | None:
    extra = message.get("extra")
    late = extra.get("timestamp") if isinstance(extra, Mapping) else None
    for value in (message.get("created_at"), message.get("timestamp"), message.get("completed_at"), late):
        try:
            if isinstance(value, str) and value:
                value = parse_timestamp(value)
            elif isinstance(value, (int, float)) and not isinstance(value, bool):
                value = datetime.fromtimestamp(value, tz=timezone.utc)
            if isinstance(value, datetime):
                zoned = value if value.tzinfo else value.replace(tzinfo=timezone.utc)
                return zoned.astimezone(timezone.utc).isoformat()
        except (ValueError, OverflowError, OSError):
            continue
    return None


def _merge_call(step: Step, call: LlmCallMetrics) -> None:
    """Merge the controller's metrics into a step; they take precedence over the message's."""
    reported = call.model_dump(exclude_none=True)
    model_name = reported.pop("model_name", None)
    if model_name is not None:
        step.model_name = model_name
    extra = call.extra or {}
    step.timestamp = _timestamp({"timestamp": extra.get("started_at")}) or step.timestamp
    if type(latency_ms := extra.get("latency_ms")) in (int, float):
        step.extra = {**(step.extra or {}), "duration_ms": latency_ms}
    if reported:
        inline = step.metrics.model_dump(exclude_none=True) if step.metrics is not None else {}
        step.metrics = Metrics(**{**inline, **reported})


def _final_metrics(
    calls: list[Metrics] | list[LlmCallMetrics], applied: SampleReport, step_count: int
) -> FinalMetrics:
    totals: dict[str, Any] = {}
    for total, part in _TOTALS.items():
        values = [value for call in calls if (value := getattr(call, part)) is not None]
        if values:
            totals[total] = sum(values)
    stated = {name: value for name, value in applied.final_metrics.items() if value is not None}
    known = {name: stated[name] for name in FinalMetrics.model_fields if name in stated}
    return FinalMetrics.model_validate({**totals, **known, "total_steps": step_count})


def _plain(model: LlmCallMetrics | SampleReport) -> dict[str, Any]:
    plain = dict(json_safe(model.model_dump(exclude_none=True)))
    if not plain.get("final_metrics", True):
        del plain["final_metrics"]
    return plain


class RolloutArchive:
    """Files of one rollout in ``<artifact root>/<rollout_id>/``. Errors are logged, never raised."""

    def __init__(self, rollout_id: str, root: Path | None = None, **request: Any) -> None:
        self._rollout_id = rollout_id
        self._root = root
        self._request = request  # arguments of `convert_sample_to_trajectory`
        self._kept: tuple[ExecutionResult, TrajectoryReport | None] | None = None

    def keep(self, result: ExecutionResult | None, report: TrajectoryReport | None) -> None:
        """Write the best result so far under a temporary name."""
        if result is None or (self._kept and self._kept[0] is result and self._kept[1] == report):
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
                # Nothing acknowledged depends on the first version yet, so a torn file does no harm.
                write = _write if self._kept is None else _write_whole
                write(pending, encode_trajectory(trajectory).encode("ascii"))
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
                _write_whole(self._home / DIAGNOSTICS_FILE, text.encode(errors="replace"))
        if self._kept is None:
            return
        with self._logged(), contextlib.suppress(FileNotFoundError):
            (self._home / PENDING_TRAJECTORY_FILE).replace(self._home / TRAJECTORY_FILE)

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


def _write_whole(target: Path, data: bytes) -> None:
    temporary = target.with_name(f".{target.name}.tmp")
    _write(temporary, data)
    temporary.replace(target)


def _write(target: Path, data: bytes) -> None:
    try:
        target.write_bytes(data)
    except FileNotFoundError:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    except OSError:
        target.unlink(missing_ok=True)
        raise
