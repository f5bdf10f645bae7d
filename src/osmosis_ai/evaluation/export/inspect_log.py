"""inspect_ai's ``.eval`` log (version 2): a ZIP of JSON documents, one a sample, read by its viewer and its API.

https://inspect.aisi.org.uk/eval-logs.html. An attempt is an *epoch* there; its id is the row's position in the dataset.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from typing import IO, Any

import orjson

from osmosis_ai._version import __version__
from osmosis_ai.evaluation.conversation import Message, prompt_of
from osmosis_ai.evaluation.export.samples import ExportedRun, ExportedSample
from osmosis_ai.installation import DISTRIBUTION

LOG_VERSION = 2
_STOP_REASONS = {"length": "max_tokens", "content_filter": "content_filter", "refusal": "content_filter"}
_STATUSES = {"finished": "success", "running": "started", "incomplete": "cancelled"}


def write_inspect_log(run: ExportedRun, target: IO[bytes]) -> int:
    """Write the log; return how many samples it has."""
    spec = _spec(run)
    summaries = []
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        _write(archive, "_journal/start.json", {"version": LOG_VERSION, "eval": spec, "plan": _plan(run)})
        for sample in run.samples():
            document = _sample(run, sample)
            _write(archive, f"samples/{document['id']}_epoch_{document['epoch']}.json", document)
            summaries.append(_summary(document))
        _write(archive, "summaries.json", summaries)
        _write(
            archive, "header.json", _header(run, spec, scored=sum(bool(each["scores"]) for each in summaries))
        )
    return len(summaries)


def _write(archive: zipfile.ZipFile, name: str, document: Any) -> None:
    try:
        content = orjson.dumps(document, default=str)
    except TypeError:  # a path or a reply that is not valid UTF-8
        content = json.dumps(document, default=str, ensure_ascii=False).encode(errors="replace")
    archive.writestr(name, content)


def _spec(run: ExportedRun) -> dict[str, Any]:
    dataset, model = run.facts.get("dataset_name"), str(run.facts.get("model_name") or "unknown")
    rollout = str(run.facts.get("rollout_name") or run.name)
    commit = run.provenance.get("git_head")
    revision = {"type": "git", "origin": "", "commit": commit, "dirty": bool(run.provenance.get("git_dirty"))}
    return {
        "eval_id": run.run_id,
        "run_id": run.run_id,
        "created": _created(run),
        "task": rollout,
        "task_id": run.run_id,
        "task_version": 0,
        "task_display_name": run.name,
        "task_attribs": {},
        "task_args": {},
        "task_args_passed": {},
        "dataset": {"name": dataset, "samples": _rows(run), "shuffled": False},
        "model": model,
        "model_generate_config": {},
        "model_args": {},
        "config": {"epochs": _attempts(run), "log_samples": True},
        "packages": {DISTRIBUTION: str(run.provenance.get("sdk_version") or __version__)},
        "metadata": {
            "osmosis": {"inputs": run.inputs, "provenance": run.provenance, "estimates": run.estimates}
        },
        **({"revision": revision} if isinstance(commit, str) else {}),
    }


def _created(run: ExportedRun) -> str:
    return str(run.facts.get("started_at") or "1970-01-01T00:00:00+00:00")


def _rows(run: ExportedRun) -> int | None:
    total, n = run.summary.get("total_samples"), _attempts(run)
    return total // n if isinstance(total, int) else None


def _attempts(run: ExportedRun) -> int:
    n = run.inputs.get("n", run.summary.get("n_runs"))
    return n if isinstance(n, int) and n > 0 else 1


def _plan(run: ExportedRun) -> dict[str, Any]:
    step = {"solver": str(run.facts.get("rollout_name") or "rollout"), "params": {}, "params_passed": {}}
    return {"name": "plan", "steps": [step], "config": {}}


def _header(run: ExportedRun, spec: Mapping[str, Any], *, scored: int) -> dict[str, Any]:
    summary = run.summary
    ended = str(run.facts.get("completed_at") or "")
    tokens = summary.get("tokens_used")
    # A sum of zero means that no attempt reported its tokens.
    usage = {"total_tokens": tokens} if tokens else None
    counts = run.estimates.get("tokens")
    if usage and isinstance(counts, Mapping):
        prompt, completion = counts.get("prompt"), counts.get("completion")
        if isinstance(prompt, int) and isinstance(completion, int) and prompt + completion == tokens:
            usage |= {"input_tokens": prompt, "output_tokens": completion}
    results = {
        "total_samples": summary.get("total_samples") or 0,
        "completed_samples": summary.get("completed_samples") or 0,
        "scores": _scores_of_run(run, scored=scored),
    }
    return {
        "version": LOG_VERSION,
        "status": _STATUSES[run.progress],
        "eval": spec,
        "plan": _plan(run),
        "results": results,
        "stats": {
            "started_at": _created(run),
            "completed_at": ended,
            "model_usage": {spec["model"]: usage} if usage else {},
        },
    }


def _scores_of_run(run: ExportedRun, *, scored: int) -> list[dict[str, Any]]:
    """Return our estimates as inspect's metrics: value and standard error, the interval beside them."""
    wanted = {"reward": ("reward", "mean"), "passed": ("pass_rate", "accuracy")}
    scores = []
    for name, (key, metric) in wanted.items():
        estimate = run.estimates.get(key)
        if not isinstance(estimate, Mapping) or not isinstance(estimate.get("value"), (int, float)):
            continue
        metrics = {metric: {"name": metric, "value": estimate["value"], "metadata": dict(estimate)}}
        if isinstance(estimate.get("stderr"), (int, float)):
            metrics["stderr"] = {"name": "stderr", "value": estimate["stderr"]}
        scores.append(
            {"name": name, "scorer": name, "scored_samples": scored, "params": {}, "metrics": metrics}
        )
    return scores


def _sample(run: ExportedRun, sample: ExportedSample) -> dict[str, Any]:
    messages = [_message(message) for message in sample.messages]
    prompt = prompt_of(sample.messages)
    model = str(run.facts.get("model_name") or "unknown")
    usage = _usage(sample)
    document = {
        "id": sample.source_row_index,
        "epoch": sample.attempt,
        "input": [_message(message) for message in prompt] or f"row {sample.source_row_index}",
        "target": sample.label or "",
        "messages": messages,
        "output": _output(model, sample, usage),
        "scores": _scores(run, sample),
        "metadata": {
            **(sample.metadata or {}),
            "osmosis": {
                **sample.result,
                "rollout_id": sample.rollout_id,
                **({"from_model_calls": True} if sample.from_model_calls else {}),
            },
        },
        "store": {},
        "events": [],
        "model_usage": {model: usage} if usage else {},
        "total_time": _seconds(sample.result.get("duration_ms")),
        "working_time": _seconds(sample.result.get("model_latency_ms")),
        "uuid": sample.rollout_id,
        "attachments": {},
    }
    if sample.status != "success":
        text = str(sample.result.get("error") or sample.result.get("error_type") or sample.status)
        document["error"] = {"message": text, "traceback": text, "traceback_ansi": text}
    return document


def _summary(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return what inspect's list of samples shows of one."""
    prompt = document["input"]
    shown = prompt if isinstance(prompt, str) else str(prompt[-1]["content"])
    same = ("id", "epoch", "target", "scores", "model_usage", "total_time", "working_time", "uuid")
    error = document.get("error")
    return {
        **{name: document[name] for name in same},
        "input": shown[:1000],
        "metadata": {},
        "completed": True,
        "message_count": len(document["messages"]),
        **({"error": error["message"]} if error else {}),
    }


def _scores(run: ExportedRun, sample: ExportedSample) -> dict[str, Any]:
    """Return the reward, whether it passes, and what each eval function gave, with the grader's notes; nothing for what has no score."""
    if sample.reward is None:
        return {}
    threshold = run.summary.get("pass_threshold")
    passes = sample.reward >= (threshold if isinstance(threshold, (int, float)) else 1.0)
    scores = sample.result.get("scores")
    values = {"reward": sample.reward, "passed": passes, **(scores if isinstance(scores, Mapping) else {})}
    written = {name: {"value": value, "answer": sample.answer} for name, value in values.items()}
    if notes := sample.result.get("notes"):
        written["reward"]["explanation"] = notes
    if parts := sample.result.get("parts"):
        written["reward"]["metadata"] = {"parts": parts}
    return written


def _output(model: str, sample: ExportedSample, usage: Mapping[str, Any] | None) -> dict[str, Any]:
    said = () if sample.from_model_calls else sample.messages
    spoken = [message for message in said if message["role"] == "assistant"]
    choices = [{"message": _message(spoken[-1]), "stop_reason": _stop_reason(sample)}] if spoken else []
    return {
        "model": model,
        "choices": choices,
        "completion": sample.answer or "",
        "usage": usage,
    }


def _stop_reason(sample: ExportedSample) -> str:
    reasons = sample.result.get("finish_reasons") or {}
    found = (word for reason, word in _STOP_REASONS.items() if reason in reasons)
    return next(found, "stop")


def _usage(sample: ExportedSample) -> dict[str, Any] | None:
    prompt, completion = sample.result.get("prompt_tokens"), sample.result.get("completion_tokens")
    if not isinstance(prompt, int) or not isinstance(completion, int):
        return None
    usage: dict[str, Any] = {
        "input_tokens": prompt,
        "output_tokens": completion,
        "total_tokens": prompt + completion,
    }
    cost = sample.result.get("cost_usd")
    return {**usage, "total_cost": cost} if isinstance(cost, (int, float)) else usage


def _message(message: Message) -> dict[str, Any]:
    content = message["content"]
    reasoning = message.get("reasoning_content")
    if reasoning:
        content = [{"type": "reasoning", "reasoning": reasoning}, {"type": "text", "text": content}]
    converted: dict[str, Any] = {"role": message["role"], "content": content}
    if message.get("tool_calls"):
        converted["tool_calls"] = [_tool_call(call) for call in message["tool_calls"]]
    if "tool_call_id" in message:
        converted["tool_call_id"] = message["tool_call_id"]
    return converted


def _tool_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    converted = {"id": call["id"], "function": function["name"], "type": "function"}
    try:
        arguments = json.loads(function["arguments"])
    except ValueError as error:
        return {**converted, "arguments": {}, "parse_error": f"{error}: {function['arguments']}"}
    return {**converted, "arguments": arguments if isinstance(arguments, dict) else {"arguments": arguments}}


def _seconds(milliseconds: object) -> float | None:
    return milliseconds / 1000 if isinstance(milliseconds, (int, float)) else None
