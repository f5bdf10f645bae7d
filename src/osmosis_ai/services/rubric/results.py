"""The files a judging session leaves: the result as JSON, and the report for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_ai.files import replacing
from osmosis_ai.rubric.documents import classic_record, judged_record, write_document
from osmosis_ai.rubric.scores import most_disputed
from osmosis_ai.rubric.session_result import (
    JudgedRecord,
    SessionResult,
    counts,
    usage,
)
from osmosis_ai.ui import numbers

if TYPE_CHECKING:
    from osmosis_ai.rubric.baseline import SessionComparison
    from osmosis_ai.rubric.judge_agreement import AgreementReport
    from osmosis_ai.services.rubric.inputs import PreparedRubric


def write_results(
    path: Path,
    prepared: PreparedRubric,
    result: SessionResult,
    *,
    statistics: Mapping[str, float],
    agreement: AgreementReport,
    comparison: SessionComparison | None,
    keep: int | None,
) -> list[dict[str, Any]]:
    """Write the result file and return its first ``keep`` entries, all of them when None.

    Raises:
        OsmosisError: the disk did not take it.
    """
    classic = prepared.request.classic
    compared = {"baseline_comparison": comparison.data()} if comparison is not None else {}
    tail: dict[str, Any] = {}
    if classic:
        identifier = path.stem.removeprefix("rubric_eval_result_") if not prepared.output.fixed else None
        tail = {**({"output_identifier": identifier} if identifier else {}), **compared}
    head = _head(prepared, result, statistics, agreement)
    kept: list[dict[str, Any]] = []
    entries = _kept(_entries(prepared, result), kept, keep)
    try:
        write_document(path, {**head, **({} if classic else compared)}, entries, tail)
    except OSError as error:
        raise _not_written(path, result, error) from error
    return kept


def write_report_page(
    path: Path,
    prepared: PreparedRubric,
    result: SessionResult,
    *,
    statistics: Mapping[str, float],
    agreement: AgreementReport,
    results: Path,
) -> None:
    """Write the page for people; ``results`` is the file that contains every record.

    Raises:
        OsmosisError: the disk did not take it.
    """
    from osmosis_ai.viewer.judging_sessions import session_detail, session_entry
    from osmosis_ai.viewer.one_file import MOST_RECORDS, write_judging_report

    table, text = result.table, prepared.request.report_text
    wanted = most_disputed(table, MOST_RECORDS)
    records = [
        judged_record(result, judged) | {"texts": _texts(prepared, judged)}
        for judged in result.records()
        if judged.record.index - 1 in wanted
    ]
    document = {**_head(prepared, result, statistics, agreement), "records": records}
    entry = session_entry(
        document, f"Judges on {prepared.request.data.name}: {result.spec.rubric_id}", str(results)
    )
    detail = replace(
        session_detail(entry, document, None, **_facts(result, results)), config_written=result.spec.rubric
    )
    more = table.records - len(records)
    left_out = f"; {more:,} on which scores differ least are only in {results.name}" if more else ""
    scores = [(model, table.scores[:, place, :].ravel()) for place, model in enumerate(table.models)]
    try:
        with replacing(path) as file:
            write_judging_report(file, detail, text=text, scores=scores, left_out=left_out)
    except OSError as error:
        raise _not_written(path, result, error) from error


def _texts(prepared: PreparedRubric, judged: JudgedRecord) -> dict[str, str | None]:
    record = judged.record
    return {
        "Input": record.original_input or prepared.spec.original_input,
        "Judged text": record.solution_str,
        "Reference answer": record.ground_truth or prepared.spec.ground_truth,
    }


def _inputs(result: SessionResult) -> dict[str, Any]:
    """Return what the scores depend on; no address, which may hold what is nobody's business."""
    return {key: value for key, value in result.spec.inputs(result.index).items() if key != "api_base"}


def _facts(result: SessionResult, results: Path) -> dict[str, str]:
    """Return what a page shows of a session that its document does not name; of files their names alone."""
    counted = counts(result)
    low, high = result.spec.bounds
    facts = {
        "Records": f"{len(result.index):,}",
        "Scale": f"{low:g} to {high:g}",
        "Without a score": f"{counted['unscored']:,} unscored, {counted['failed']:,} failed, "
        f"{counted['pending']:,} pending",
        "Tokens": token_count(result),
        "Cost": numbers.money(result.cost_usd) if result.cost_usd is not None else "unknown",
        "Results": results.name,
    }
    if result.stop is not None:
        facts["Stopped"] = result.stop.reason
    return facts


def token_count(result: SessionResult) -> str:
    """Return how many tokens the judges used, as far as their providers reported them."""
    used = result.usage
    total = sum(judge.input_tokens + judge.output_tokens for judge in used)
    uncounted = sum(judge.uncounted for judge in used)
    return numbers.partial_count(total, uncounted, sum(judge.calls for judge in used), "calls")


def stopped(result: SessionResult) -> dict[str, str] | None:
    """Return why calls are pending, for a document."""
    return {"kind": result.stop.kind, "reason": result.stop.reason} if result.stop is not None else None


def _head(
    prepared: PreparedRubric,
    result: SessionResult,
    statistics: Mapping[str, float],
    agreement: AgreementReport,
) -> dict[str, Any]:
    """Return the document without its records."""
    make = _classic_head if prepared.request.classic else _plain_head
    return {
        **make(prepared, result, statistics),
        "complete": result.complete,
        "stopped": stopped(result),
        "score_min": result.spec.bounds[0],
        "score_max": result.spec.bounds[1],
        "seed": result.spec.seed,
        "inputs": _inputs(result),
        "counts": counts(result),
        "usage": usage(result),
        "trust": agreement.to_json(),
    }


def _plain_head(
    prepared: PreparedRubric, result: SessionResult, statistics: Mapping[str, float]
) -> dict[str, Any]:
    return {
        "generated_at": _now(),
        "model": prepared.model_shown,
        "rubric": result.spec.rubric,
        "data_path": str(prepared.request.data),
        "number": result.spec.runs,
        "overall_statistics": dict(statistics),
        "rubric_id": result.spec.rubric_id,
        "rubric_source": prepared.chosen.source,
        "config_path": str(prepared.chosen.config_path) if prepared.chosen.config_path else None,
        "models": result.spec.model_names,
    }


def _classic_head(
    prepared: PreparedRubric, result: SessionResult, statistics: Mapping[str, float]
) -> dict[str, Any]:
    scored, total = result.call_states.count("scored"), len(result.call_states)
    return {
        "generated_at": _now(),
        "rubric_id": result.spec.rubric_id,
        "rubric_source": prepared.chosen.source,
        "provider": prepared.provider_shown,
        "model": prepared.model_shown,
        "number": result.spec.runs,
        "config_path": str(prepared.chosen.config_path),
        "data_path": str(prepared.request.data),
        "overall_statistics": {
            **statistics,
            "total_runs": total,
            "success_count": scored,
            "failure_count": total - scored,
        },
    }


def _entries(prepared: PreparedRubric, result: SessionResult) -> Iterator[dict[str, Any]]:
    pending = result.stop.reason if result.stop is not None else None
    for judged in result.records():
        yield (
            classic_record(judged, pending=pending)
            if prepared.request.classic
            else judged_record(result, judged)
        )


def _kept(
    entries: Iterator[dict[str, Any]], kept: list[dict[str, Any]], most: int | None
) -> Iterator[dict[str, Any]]:
    for entry in entries:
        if most is None or len(kept) < most:
            kept.append(entry)
        yield entry


def _not_written(path: Path, result: SessionResult, error: OSError) -> Exception:
    from osmosis_ai.errors import OsmosisError

    return OsmosisError(
        f"'{path}' could not be written: {error.strerror or error}. "
        f"What was scored is safe in '{result.journal}'.",
        code="INTERNAL",
        hint="free some space, or name another place, and run the same command with `--resume`",
    )


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
