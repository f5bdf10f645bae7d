"""Exports of a run for other tools: inspect_ai logs, JSON Lines and Parquet. One sample is in memory at a time.

A local run is read from its journal. A downloaded run is read from ``metrics.json``, ``summary.jsonl``, its downloaded
conversations, and its journal if that was downloaded too.

inspect_ai's ``.eval`` log (version 2) is a ZIP of JSON documents, one for each sample
(https://inspect.aisi.org.uk/eval-logs.html). An attempt is an *epoch* there, and a sample's id is its dataset row.
"""

from __future__ import annotations

import itertools
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

import msgspec
import orjson

from osmosis_ai.controller.record import FIELD_TYPES
from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.evaluation.attempt_files import item_name, read_regular_file
from osmosis_ai.evaluation.conversation import (
    Conversation,
    Message,
    as_messages,
    prompt_of,
    read_conversation,
)
from osmosis_ai.evaluation.journal import JournalCorruptionError, JournalReader, replay
from osmosis_ai.evaluation.lenient_json import as_number, as_table
from osmosis_ai.evaluation.local_results import LocalResults, read_local_results
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.files import open_regular
from osmosis_ai.rollout.extra_fields import read_grader_notes

INSPECT_LOG_VERSION = 2
_STOP_REASONS = {"length": "max_tokens", "content_filter": "content_filter", "refusal": "content_filter"}
_INSPECT_STATUSES = {"finished": "success", "running": "started", "incomplete": "cancelled"}
_PARQUET_ROW_GROUP = 1000
# Columns and their types. `json` is text in Parquet: the shape may differ from sample to sample.
_COLUMNS = {
    **dict.fromkeys(("run", "model", "dataset"), "string"),
    **dict.fromkeys(("row_index", "source_row_index", "attempt"), "int64"),
    **dict.fromkeys(("rollout_id", "status"), "string"),
    "reward": "float64",
    "passed": "bool",
    **dict.fromkeys(("tokens", "prompt_tokens", "completion_tokens", "model_calls"), "int64"),
    "cost_usd": "float64",
    "duration_ms": "int64",
    "model_latency_ms": "float64",
    **dict.fromkeys(("error_type", "category", "boundary", "error", "finish_reason"), "string"),
    **dict.fromkeys(("row_digest", "notes"), "string"),
    **dict.fromkeys(("lost_attempts", "judge_calls", "judge_tokens"), "int64"),
    "judge_cost_usd": "float64",
    "judge_outside_scale": "int64",
    **dict.fromkeys(("label", "answer"), "string"),
    "from_model_calls": "bool",
    **dict.fromkeys(("scores", "unscored", "parts", "judgements", "finish_reasons"), "json"),
    **dict.fromkeys(("metadata", "messages"), "json"),
}


@dataclass(frozen=True)
class ExportedSample:
    """An attempt: its result with the names of ``TerminalRecord``, and its conversation."""

    result: Mapping[str, Any]
    conversation: Conversation
    messages: list[Message]

    @property
    def source_row_index(self) -> int:
        """The row's position in the dataset, or among the selected rows if that is unknown."""
        known = self.result.get("source_row_index")
        return known if isinstance(known, int) else int(self.result["row_index"])

    @property
    def answer(self) -> str | None:
        """The text of the agent's last message; None if only its model calls are known."""
        answers = [message for message in self.messages if message["role"] == "assistant"]
        return str(answers[-1]["content"]) if answers and not self.conversation.from_model_calls else None


@dataclass(frozen=True)
class ExportedRun:
    """A run as its directory describes it; ``facts`` is ``eval_run`` in ``metrics.json``."""

    directory: Path
    name: str
    run_id: str
    progress: Literal["running", "incomplete", "finished"]
    facts: Mapping[str, Any]
    summary: Mapping[str, Any]
    estimates: Mapping[str, Any]
    inputs: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    local: LocalResults | None = None

    def passes(self, result: Mapping[str, Any]) -> bool | None:
        """Return whether an attempt passes; None without a reward."""
        reward, threshold = result.get("reward"), self.summary.get("pass_threshold")
        if reward is None:
            return None
        return bool(reward >= (threshold if isinstance(threshold, (int, float)) else 1.0))

    def samples(self) -> Iterator[ExportedSample]:
        """Yield the samples by row and attempt."""
        results = self.listed() if self.local is None else self._recorded(self.local)
        return (_sample(self.directory, result) for result in results)

    def listed(self, *, skipped: Callable[[], None] | None = None) -> Iterator[dict[str, Any]]:
        """Yield the results in a downloaded run's list of samples, by the names of ``TerminalRecord``.

        Invalid lines and values are an OsmosisError. With ``skipped``, which is called for each such line, they are
        left out.
        """
        files = RunDirectory(self.directory)
        offsets = _newest_offsets(files.events)
        seen: set[tuple[int, int]] = set()
        reader = JournalReader(files.events) if offsets else nullcontext()
        with open_regular(files.summary) as lines, reader as journal:
            for number, line in enumerate(lines, 1):
                try:
                    result = _listed_result(line, lenient=skipped is not None)
                except (ValueError, KeyError, AttributeError):
                    if skipped is None:
                        raise OsmosisError(
                            f"'{files.summary}' has an invalid line: {number}. Download the run again."
                        ) from None
                    skipped()
                    continue
                attempt = (result["row_index"], result["run_index"])
                if attempt in seen:
                    continue
                seen.add(attempt)
                record = journal.record(offsets[attempt]) if journal and attempt in offsets else None
                recorded = msgspec.structs.asdict(record) if record is not None else {}
                yield result | {name: value for name, value in recorded.items() if value is not None}

    def _recorded(self, local: LocalResults) -> Iterator[dict[str, Any]]:
        if not local.directory.events.exists():
            return
        with JournalReader(local.directory.events) as journal:
            for _, _, offset in local.table.recorded():
                record = journal.record(offset)
                if record is not None:
                    yield msgspec.structs.asdict(record)


def read_run(directory: Path, *, without_metrics: bool = False) -> ExportedRun:
    """Read what a directory contains of its run; ``without_metrics`` accepts a download without ``metrics.json``."""
    files = RunDirectory(directory)
    if files.manifest.is_file():
        return _read_local_run(directory)
    metrics = {} if without_metrics and not files.metrics.exists() else files.read_metrics()
    if metrics is None or not files.summary.is_file():
        raise NotFoundError(
            f"'{directory}' has no run.",
            hint="`osmosis eval download RUN` downloads metrics and trajectories of a platform run",
        )
    facts = as_table(metrics.get("eval_run"))
    return ExportedRun(
        directory=directory,
        name=str(facts.get("name") or directory.name),
        run_id=str(facts.get("id") or directory.name),
        progress="finished" if facts.get("status") == "finished" else "incomplete",
        facts=facts,
        summary=as_table(metrics.get("summary")),
        estimates=as_table(metrics.get("estimates")),
    )


def _read_local_run(directory: Path) -> ExportedRun:
    local = read_local_results(directory)
    manifest = local.manifest
    known = {
        "model_name": manifest.inputs.get("model_path"),
        "rollout_name": as_table(manifest.inputs.get("rollout")).get("name"),
        "started_at": manifest.created_at,
    }
    return ExportedRun(
        directory=directory,
        name=directory.name,
        run_id=manifest.local_run_id,
        progress=local.status,
        facts={**known, **as_table((local.directory.read_metrics() or {}).get("eval_run"))},
        summary=local.metrics.summary,
        estimates=local.metrics.estimates.model_dump(mode="json"),
        inputs=manifest.inputs,
        provenance=manifest.provenance,
        local=local,
    )


def _listed_result(line: bytes, *, lenient: bool) -> dict[str, Any]:
    """Return the result in a line of ``summary.jsonl``; ``lenient`` drops invalid values."""
    result: dict[str, Any] = {}
    for name, value in orjson.loads(line).items():
        if name in FIELD_TYPES and value is not None:
            try:
                result[name] = msgspec.convert(value, FIELD_TYPES[name])
            except msgspec.ValidationError:
                if not lenient:
                    raise
    if lenient:
        result.setdefault("rollout_id", item_name(result["row_index"], result["run_index"]))
    if not {"row_index", "run_index", "rollout_id", "status"} <= result.keys():
        raise ValueError("a required field is missing")
    return result


def _newest_offsets(events: Path) -> dict[tuple[int, int], int]:
    """Return the offset of each attempt's newest record in a downloaded journal; empty without one."""
    if not events.is_file():
        return {}
    try:
        return {(record.row_index, record.run_index): offset for offset, _, record in replay(events)}
    except JournalCorruptionError as error:
        raise OsmosisError(
            f"The journal '{events}' is damaged at line {error.details['line']}.",
            hint="`osmosis eval download RUN --type journal` downloads it again",
        ) from None


def _sample(directory: Path, result: dict[str, Any]) -> ExportedSample:
    """Return a result with its conversation, which also provides missing fields."""
    name = f"{item_name(result['row_index'], result['run_index'])}.json"
    try:
        content = read_regular_file(RunDirectory(directory).trajectories / name)
    except (OSError, ValueError):
        content = None
    conversation = read_conversation(content or b"")
    request = as_table(conversation.facts.get("request_extra_fields"))
    if result.get("source_row_index") is None and isinstance(request.get("source_row_index"), int):
        result["source_row_index"] = request["source_row_index"]
    if result.get("notes") is None and result.get("parts") is None:  # a platform lists neither
        graded = read_grader_notes(as_table(conversation.facts.get("sample_extra_fields")))
        result |= {"notes": graded.notes, "parts": dict(graded.parts) or None}
    return ExportedSample(result, conversation, as_messages(conversation))


def write_jsonl(run: ExportedRun, target: IO[bytes]) -> int:
    """Write one JSON object per line; return the number of lines."""
    count = 0
    for sample in run.samples():
        target.write(orjson.dumps(_flat(run, sample), option=orjson.OPT_APPEND_NEWLINE))
        count += 1
    return count


def write_parquet(run: ExportedRun, target: IO[bytes]) -> int:
    """Write a Parquet file with the columns of JSON Lines; return the number of samples."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {"int64": pa.int64(), "float64": pa.float64(), "bool": pa.bool_()}
    schema = pa.schema([(name, types.get(kind, pa.string())) for name, kind in _COLUMNS.items()])
    nested = [name for name, kind in _COLUMNS.items() if kind == "json"]
    count = 0
    rows = (_flat(run, sample) for sample in run.samples())
    with pq.ParquetWriter(target, schema, compression="zstd") as writer:
        while group := list(itertools.islice(rows, _PARQUET_ROW_GROUP)):
            for row in group:
                row |= {name: orjson.dumps(row[name]).decode() for name in nested if row[name] is not None}
            writer.write_table(pa.Table.from_pylist(group, schema=schema))
            count += len(group)
    return count


def _flat(run: ExportedRun, sample: ExportedSample) -> dict[str, Any]:
    conversation = sample.conversation
    values = {
        **sample.result,
        "run": run.name,
        "model": run.facts.get("model_name"),
        "dataset": run.facts.get("dataset_name"),
        "source_row_index": sample.source_row_index,
        "attempt": sample.result["run_index"],
        "passed": run.passes(sample.result),
        "label": conversation.label,
        "answer": sample.answer,
        "from_model_calls": conversation.from_model_calls or None,
        "metadata": conversation.metadata,
        "messages": sample.messages,
    }
    return {name: values.get(name) for name in _COLUMNS}


def write_inspect_log(run: ExportedRun, target: IO[bytes]) -> int:
    """Write a log of inspect_ai; return the number of samples."""
    spec = _inspect_spec(run)
    steps = [{"solver": str(run.facts.get("rollout_name") or "rollout")}]
    start = {"version": INSPECT_LOG_VERSION, "eval": spec, "plan": {"steps": steps}}
    summaries = []
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        _write_json(archive, "_journal/start.json", start)
        for sample in run.samples():
            document = _inspect_sample(run, sample, spec["model"])
            _write_json(archive, f"samples/{document['id']}_epoch_{document['epoch']}.json", document)
            summaries.append(_inspect_summary(document))
        _write_json(archive, "summaries.json", summaries)
        scored = sum(bool(summary["scores"]) for summary in summaries)
        _write_json(archive, "header.json", {**start, **_inspect_outcome(run, spec, scored=scored)})
    return len(summaries)


def _write_json(archive: zipfile.ZipFile, name: str, document: Any) -> None:
    # Paths and replies may have surrogates, which UTF-8 cannot encode.
    content = json.dumps(document, default=str, ensure_ascii=False)
    archive.writestr(name, content.encode(errors="replace"))


def _inspect_spec(run: ExportedRun) -> dict[str, Any]:
    n, total = run.inputs.get("n", run.summary.get("n_runs")), run.summary.get("total_samples")
    epochs = n if isinstance(n, int) and n > 0 else 1
    rows = total // epochs if isinstance(total, int) else None
    return {
        **dict.fromkeys(("eval_id", "run_id", "task_id"), run.run_id),
        "created": str(run.facts.get("started_at") or "1970-01-01T00:00:00+00:00"),
        "task": str(run.facts.get("rollout_name") or run.name),
        "task_display_name": run.name,
        "dataset": {"name": run.facts.get("dataset_name"), "samples": rows, "shuffled": False},
        "model": str(run.facts.get("model_name") or "unknown"),
        "config": {"epochs": epochs, "log_samples": True},
        "metadata": {
            "osmosis": {"inputs": run.inputs, "provenance": run.provenance, "estimates": run.estimates}
        },
    }


def _inspect_outcome(run: ExportedRun, spec: Mapping[str, Any], *, scored: int) -> dict[str, Any]:
    tokens, totals = run.summary.get("tokens_used"), as_table(run.estimates.get("tokens"))
    # A sum of zero means that no attempt reported its tokens.
    usage = {"total_tokens": tokens} if tokens else None
    prompt, completion = totals.get("prompt"), totals.get("completion")
    if usage and isinstance(prompt, int) and isinstance(completion, int) and prompt + completion == tokens:
        usage |= {"input_tokens": prompt, "output_tokens": completion}
    scores = []
    for name, key, metric in (("reward", "reward", "mean"), ("passed", "pass_rate", "accuracy")):
        estimate = as_table(run.estimates.get(key))
        if as_number(estimate.get("value")) is None:
            continue
        # inspect_ai has no intervals, so the metadata has ours.
        value = {"name": metric, "value": estimate["value"], "metadata": estimate}
        scores.append({"name": name, "scorer": name, "scored_samples": scored, "metrics": {metric: value}})
    counts = {name: run.summary.get(name) or 0 for name in ("total_samples", "completed_samples")}
    return {
        "status": _INSPECT_STATUSES[run.progress],
        "results": {**counts, "scores": scores},
        "stats": {
            "started_at": spec["created"],
            "completed_at": str(run.facts.get("completed_at") or ""),
            "model_usage": {spec["model"]: usage} if usage else {},
        },
    }


def _inspect_sample(run: ExportedRun, sample: ExportedSample, model: str) -> dict[str, Any]:
    result, conversation = sample.result, sample.conversation
    messages = [_inspect_message(message) for message in sample.messages]
    prompt = messages[: len(prompt_of(sample.messages))]
    answers = [message for message in messages if message["role"] == "assistant"]
    choices = [] if conversation.from_model_calls else answers[-1:]
    finish_reasons = result.get("finish_reasons") or {}
    reason = next((reason for name, reason in _STOP_REASONS.items() if name in finish_reasons), "stop")
    prompt_tokens, completion_tokens = result.get("prompt_tokens"), result.get("completion_tokens")
    duration_ms, usage = result.get("duration_ms"), None
    if prompt_tokens is not None and completion_tokens is not None:
        total = prompt_tokens + completion_tokens
        usage = {"input_tokens": prompt_tokens, "output_tokens": completion_tokens, "total_tokens": total}
    document = {
        "id": sample.source_row_index,
        "epoch": result["run_index"] + 1,
        "input": prompt or f"row {sample.source_row_index}",
        "target": conversation.label or "",
        "messages": messages,
        "output": {
            "model": model,
            "choices": [{"message": message, "stop_reason": reason} for message in choices],
            "completion": sample.answer or "",
            "usage": usage,
        },
        "scores": _inspect_scores(run, sample),
        "metadata": {
            **(conversation.metadata or {}),
            "osmosis": {**result, **({"from_model_calls": True} if conversation.from_model_calls else {})},
        },
        "model_usage": {model: usage} if usage else {},
        "total_time": None if duration_ms is None else duration_ms / 1000,
        "uuid": result["rollout_id"],
    }
    if result["status"] != "success":
        text = str(result.get("error") or result.get("error_type") or result["status"])
        document["error"] = {"message": text, "traceback": text, "traceback_ansi": text}
    return document


def _inspect_summary(document: Mapping[str, Any]) -> dict[str, Any]:
    prompt, error = document["input"], document.get("error")
    return {
        **{name: document[name] for name in ("id", "epoch", "target", "scores", "total_time", "uuid")},
        "input": (prompt if isinstance(prompt, str) else str(prompt[-1]["content"]))[:1000],
        "completed": True,
        "message_count": len(document["messages"]),
        **({"error": error["message"]} if error else {}),
    }


def _inspect_scores(run: ExportedRun, sample: ExportedSample) -> dict[str, Any]:
    """Return the reward, whether it passes, and the eval functions' scores; empty without a reward."""
    result, reward = sample.result, sample.result.get("reward")
    if reward is None:
        return {}
    values = {"reward": reward, "passed": run.passes(result), **(result.get("scores") or {})}
    scores = {name: {"value": value, "answer": sample.answer} for name, value in values.items()}
    if notes := result.get("notes"):
        scores["reward"]["explanation"] = notes
    if parts := result.get("parts"):
        scores["reward"]["metadata"] = {"parts": parts}
    return scores


def _inspect_message(message: Message) -> dict[str, Any]:
    content, reasoning = message["content"], message.get("reasoning_content")
    if reasoning:
        content = [{"type": "reasoning", "reasoning": reasoning}, {"type": "text", "text": content}]
    converted: dict[str, Any] = {"role": message["role"], "content": content}
    if calls := message.get("tool_calls"):
        converted["tool_calls"] = [_inspect_tool_call(call) for call in calls]
    if "tool_call_id" in message:
        converted["tool_call_id"] = message["tool_call_id"]
    return converted


def _inspect_tool_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        arguments = function["arguments"]
    if not isinstance(arguments, dict):
        arguments = {"arguments": arguments}
    return {"id": call["id"], "function": function["name"], "type": "function", "arguments": arguments}
