"""Judge sessions: run the judges and write their results."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_ai.errors import OsmosisError
from osmosis_ai.files import replacing
from osmosis_ai.rubric.documents import classic_record, judged_record, write_document
from osmosis_ai.rubric.scores import most_disputed
from osmosis_ai.rubric.session_result import (
    JudgedRecord,
    SessionResult,
    counts,
    usage,
)
from osmosis_ai.services.rubric.inputs import (
    ChosenRubric,
    PreparedRubric,
    RubricRequest,
    check_bounds,
    choose_judges,
    choose_rubric,
    plan_output,
    plan_report,
    require_apart,
    require_prices,
    require_swappable,
)
from osmosis_ai.ui import numbers

if TYPE_CHECKING:
    from osmosis_ai.controller.dispatcher import Stop
    from osmosis_ai.rubric.baseline import Baseline, SessionComparison
    from osmosis_ai.rubric.judge_agreement import AgreementReport
    from osmosis_ai.rubric.judge_model import JudgeModel
    from osmosis_ai.rubric.records import RecordIndex
    from osmosis_ai.rubric.session import JudgingSession, SessionHooks
    from osmosis_ai.rubric.session_journal import SessionSpec
    from osmosis_ai.rubric.session_result import SessionResult
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
    """Write the result file and return its first ``keep`` entries (all if None).

    Raises:
        OsmosisError: the file cannot be written.
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
    """Write the report page; ``results`` is the file that contains every record.

    Raises:
        OsmosisError: the file cannot be written.
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
    """Return what the scores depend on, without addresses, which may contain private data."""
    return {key: value for key, value in result.spec.inputs(result.index).items() if key != "api_base"}


def _facts(result: SessionResult, results: Path) -> dict[str, str]:
    """Return the facts about a session that its document lacks, with file names only, not paths."""
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
    """Format how many tokens the judges used, as far as their providers reported them."""
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


@dataclass(frozen=True)
class RubricOutcome:
    """The result of a session.

    Attributes:
        statistics: over all scores.
        agreement: the agreement metrics of the judges.
        comparison: with the baseline.
        journal_path: the journal to resume from; None if no calls are pending.
        report_path: the report, if requested.
        put_aside: the archived journal of an earlier session.
        records: the entries of the result file, up to the requested number.
    """

    prepared: PreparedRubric
    result: SessionResult
    statistics: Mapping[str, float]
    agreement: AgreementReport
    comparison: SessionComparison | None
    output_path: Path
    journal_path: Path | None
    report_path: Path | None
    put_aside: Path | None
    records: list[dict[str, Any]]


def prepare_rubric(
    request: RubricRequest,
    *,
    env: Mapping[str, str] | None = None,
    reading: Callable[[int], None] = lambda _: None,
) -> PreparedRubric:
    """Find and check everything a session needs, without calling a judge or writing results.

    Args:
        env: the environment for keys and addresses (default: that of this process).
        reading: receives the number of records read so far.

    Raises:
        OsmosisError: an input is missing or invalid; the error says which and how to fix it.
    """
    from osmosis_ai.rubric.baseline import read_baseline
    from osmosis_ai.rubric.records import RecordIndex, RecordRules, require_file
    from osmosis_ai.rubric.session_journal import RUNS_PER_SEED

    if request.number < 1:
        raise OsmosisError("--number must be at least 1.")
    if request.number > RUNS_PER_SEED:
        raise OsmosisError(f"--number must be at most {RUNS_PER_SEED}.")
    require_file(request.data, "Data path")
    chosen = choose_rubric(request.rubric, request.config, request.data, need_model=not request.models)
    bounds = check_bounds(request.score_min, request.score_max, chosen)
    judges = choose_judges(request, chosen, os.environ if env is None else env)
    require_prices(judges, request.budget)
    baseline = read_baseline(request.baseline) if request.baseline is not None else None
    rules = RecordRules(
        rubric_id=chosen.rubric_id if chosen.config is not None else None,
        tagged_only=request.classic,
        wrap_metadata=request.classic,
    )
    index = RecordIndex.scan(request.data, rules, bounds, progress=reading)
    report = plan_report(request.report, overwrite=request.overwrite_report)
    output = plan_output(request.output, chosen.rubric_id, classic=request.classic)
    require_apart(written=[output.path, report], read=[request.data, chosen.config_path, request.baseline])
    spec = _session_spec(request, chosen, judges, bounds)
    if request.swap:
        require_swappable(spec, index)
    return PreparedRubric(
        request=request,
        chosen=chosen,
        spec=spec,
        index=index,
        output=output,
        report=report,
        baseline=baseline,
        model_shown=", ".join(request.models) or str(chosen.model_info.get("model") or "<unspecified>"),
        provider_shown=", ".join(dict.fromkeys(judge.provider for judge in judges)),
        notes=tuple(_notes(chosen, index, spec, baseline)),
    )


def _session_spec(
    request: RubricRequest, chosen: ChosenRubric, judges: tuple[JudgeModel, ...], bounds: tuple[float, float]
) -> SessionSpec:
    from osmosis_ai.rubric.session_journal import SessionSpec

    config = chosen.config
    return SessionSpec(
        rubric_id=chosen.rubric_id,
        rubric=chosen.text,
        judges=judges,
        runs=request.number,
        bounds=bounds,
        system_prompts=tuple(chosen.system_prompt for _ in judges),
        original_input=(config.original_input if config else None) or chosen.model_info.get("original_input"),
        ground_truth=config.ground_truth if config else None,
        keep_raw=request.classic,
        seed=request.seed,
        swap=request.swap,
    )


async def run_rubric(
    prepared: PreparedRubric, hooks: SessionHooks, *, keep: int | None = None
) -> RubricOutcome:
    """Run a prepared session and write its results, however it ends.

    Args:
        hooks: receive progress.
        keep: how many records' entries to return (default: all).

    Raises:
        OsmosisError: another process writes the same result, there is nothing to resume, or the disk is full.
    """
    from osmosis_ai.rubric.session_journal import SessionLock, journal_of, start_journal

    inputs = prepared.spec.inputs(prepared.index)
    output = _output(prepared, inputs)
    journal, aside = journal_of(output), None
    with SessionLock(output):
        if not prepared.request.resume:
            aside = start_journal(journal, inputs)
        result, fault = await _judge(prepared, hooks, journal)
        if fault is not None:
            with suppress(
                OsmosisError
            ):  # the error that stopped the session explains more than one that follows from it
                _write(prepared, result, output, aside, keep)
            fault.hint = fault.hint or "what was scored is kept: run the same command with `--resume`"
            raise fault
        outcome = _write(prepared, result, output, aside, keep)
        if result.complete:
            journal.unlink(missing_ok=True)
        return outcome


def _output(prepared: PreparedRubric, inputs: dict[str, Any]) -> Path:
    """Return the result's path: that of the session to continue, or a new one."""
    from osmosis_ai.rubric.session_journal import find_output

    plan = prepared.output
    return find_output(plan.path, inputs, fixed=plan.fixed) if prepared.request.resume else plan.path


async def _judge(
    prepared: PreparedRubric, hooks: SessionHooks, journal_path: Path
) -> tuple[SessionResult, OsmosisError | None]:
    """Make the calls; also return the error that stopped the session, if any."""
    from osmosis_ai.evaluation.journal import Journal
    from osmosis_ai.evaluation.spec import Budget
    from osmosis_ai.redaction import Redactor
    from osmosis_ai.rubric.session import DEFAULT_CONCURRENCY, JudgingSession
    from osmosis_ai.rubric.session_journal import FULL_HINT, replay, worked_s
    from osmosis_ai.rubric.session_result import SessionResult

    resume = prepared.request.resume
    journal = Journal(journal_path, full_hint=FULL_HINT)
    session = JudgingSession(
        prepared.spec,
        prepared.index,
        journal,
        budget=prepared.request.budget or Budget(),
        concurrency=prepared.request.concurrency or DEFAULT_CONCURRENCY,
        hooks=hooks,
        redactor=Redactor(judge.api_key for judge in prepared.spec.judges if judge.api_key),
        elapsed_before_s=worked_s(journal_path) if resume else 0.0,
    )
    fault: OsmosisError | None = None
    try:
        if resume:
            _replay_calls(session, journal_path, replay(journal_path))
        resumed = session.call_states.count("scored")
        await session.run()
    except OsmosisError as error:
        if not session.session_s:
            raise  # no call was made, so the files on disk stay unchanged
        fault = error
    finally:
        await journal.close()
    result = SessionResult(
        spec=prepared.spec,
        index=prepared.index,
        call_states=session.call_states,
        usage=session.usage,
        journal=journal_path,
        stop=_main_stop(session.stops),
        resumed=resumed,
        elapsed_s=session.elapsed_s,
        session_calls=session.ended,
        session_s=session.session_s,
    )
    return result, fault


def _replay_calls(session: JudgingSession, path: Path, calls: Iterator[tuple[int, Any]]) -> None:
    from osmosis_ai.errors import ConflictError

    for offset, call in calls:
        if not session.call_states.holds(call):
            raise ConflictError(
                f"the journal '{path}' is damaged: it has a call of record {call.record}, which is not part of "
                "the session.",
                hint="leave out `--resume` to start over; the damaged journal is kept",
            )
        session.count_call(call, offset)
    session.call_states.reopen_scoreless()


def _main_stop(stops: list[Stop]) -> Stop | None:
    """Return the most informative reason: the user's action, then a spent budget, then a failure."""
    order = {"interrupted": 0, "budget": 1, "fault": 2}
    return min(stops, key=lambda stop: order[stop.kind], default=None)


def _write(
    prepared: PreparedRubric, result: SessionResult, output: Path, aside: Path | None, keep: int | None
) -> RubricOutcome:
    from osmosis_ai.rubric.baseline import compare_sessions
    from osmosis_ai.rubric.judge_agreement import measure_agreement
    from osmosis_ai.rubric.session_result import statistics

    overall = statistics(result.call_states.scores)
    agreement = measure_agreement(
        result.table, seed=prepared.spec.seed, pending_calls=result.call_states.pending
    )
    compared = (
        compare_sessions(prepared.baseline, result, _comparable(overall, result))
        if prepared.baseline
        else None
    )
    records = write_results(
        output, prepared, result, statistics=overall, agreement=agreement, comparison=compared, keep=keep
    )
    if prepared.report is not None:
        write_report_page(
            prepared.report, prepared, result, statistics=overall, agreement=agreement, results=output
        )
    return RubricOutcome(
        prepared=prepared,
        result=result,
        statistics=overall,
        agreement=agreement,
        comparison=compared,
        output_path=output,
        journal_path=None if result.complete else result.journal,
        report_path=prepared.report,
        put_aside=aside,
        records=records,
    )


def _comparable(overall: Mapping[str, float], result: SessionResult) -> dict[str, float]:
    scored = result.call_states.count("scored")
    total = len(result.call_states)
    return {**overall, "total_runs": total, "success_count": scored, "failure_count": total - scored}


def _notes(
    chosen: ChosenRubric, index: RecordIndex, spec: SessionSpec, baseline: Baseline | None
) -> Iterator[str]:
    from osmosis_ai.rubric.baseline import describe_change

    if chosen.note:
        yield chosen.note
    changed = baseline.changed_inputs(spec.inputs(index)) if baseline is not None else ()
    if "bounds" in changed:
        yield "the baseline's scores are on another scale: they will not be compared."
    elif label := describe_change(changed):
        yield f"this session uses {label} than the baseline."
    if index.ignored_labels:
        low, high = index.bounds
        yield (
            f"{index.ignored_labels} records have a number as `label` that is outside the scale of {low:g} to "
            f"{high:g}; it is not taken for a person's score."
        )
