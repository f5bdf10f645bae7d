"""`osmosis eval rubric` and `osmosis eval-rubric`: from a file of records to a file of scores.

Everything that can be wrong with the data, the rubric, the judges, their keys, the baseline or the places
to write to is found before the first call, in the order in which a user would check.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_ai.errors import OsmosisError
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

if TYPE_CHECKING:
    from osmosis_ai.driving.dispatcher import Stop
    from osmosis_ai.rubric.baseline import Baseline, SessionComparison
    from osmosis_ai.rubric.judge_agreement import AgreementReport
    from osmosis_ai.rubric.judge_model import JudgeModel
    from osmosis_ai.rubric.records import RecordIndex
    from osmosis_ai.rubric.session import JudgingSession, SessionHooks
    from osmosis_ai.rubric.session_journal import SessionSpec
    from osmosis_ai.rubric.session_result import SessionResult


@dataclass(frozen=True)
class RubricOutcome:
    """What came of a session.

    Attributes:
        result: its calls.
        statistics: over all scores.
        agreement: the figures of the judges.
        comparison: with the baseline.
        output_path: the result file.
        journal_path: where the session can be resumed from; None when nothing is left.
        report_path: the report, if one was asked for.
        put_aside: where the journal of an earlier session was moved.
        records: the entries of the result file, as many as were asked for.
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
    """Find and check everything a session needs; nothing is asked of a judge, and no result is written.

    Args:
        request: what the user asked for.
        env: where keys and addresses are looked up; this process's environment when None.
        reading: told how many records were read.

    Raises:
        OsmosisError: naming what is wrong and how to mend it.
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
    """Run a prepared session and write what came of it, whatever ended it.

    Args:
        prepared: the session.
        hooks: told how it goes.
        keep: how many records' entries to hand back; all when None.

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
            with suppress(OsmosisError):  # what stopped the session says more than what follows from it
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
    """Make the calls; also return what kept the session from going on, if something did."""
    from osmosis_ai.evaluation.budget import Budget
    from osmosis_ai.evaluation.journal import Journal
    from osmosis_ai.redaction import Redactor
    from osmosis_ai.rubric.session import DEFAULT_CONCURRENCY, JudgingSession
    from osmosis_ai.rubric.session_journal import FULL_HINT, replay, worked_s
    from osmosis_ai.rubric.session_result import SessionResult

    resume = prepared.request.resume
    journal = Journal.open(journal_path, full_hint=FULL_HINT)
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
            raise  # nothing was asked: what is on the disk stays as it is
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
    """Return the reason that says most: what the user did, then what was spent, then what failed."""
    order = {"interrupted": 0, "budget": 1, "fault": 2}
    return min(stops, key=lambda stop: order[stop.kind], default=None)


def _write(
    prepared: PreparedRubric, result: SessionResult, output: Path, aside: Path | None, keep: int | None
) -> RubricOutcome:
    from osmosis_ai.rubric.baseline import compare_sessions
    from osmosis_ai.rubric.judge_agreement import measure_agreement
    from osmosis_ai.rubric.session_result import statistics
    from osmosis_ai.services.rubric.results import write_report_page, write_results

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
