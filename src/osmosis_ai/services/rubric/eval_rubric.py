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
from osmosis_ai.rubric.documents import (
    Baseline,
    JudgedRecord,
    SessionComparison,
    classic_record,
    compare_sessions,
    describe_change,
    judged_record,
    read_baseline,
    write_document,
)
from osmosis_ai.services.rubric.inputs import (
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
    from osmosis_ai.evaluation.hooks import RunHooks
    from osmosis_ai.rubric.agreement import AgreementReport
    from osmosis_ai.rubric.records import RecordIndex
    from osmosis_ai.rubric.session import JudgingSession, SessionSpec


@dataclass
class RubricOutcome:
    """A session that ended, and what it wrote.

    Attributes:
        agreement: the agreement of the judges.
        comparison: with the baseline.
        journal_path: the journal to resume from; None if no calls are pending.
        records: the entries of the result file, up to the requested number.
        archived: the earlier result, which an incomplete one did not replace.
    """

    prepared: PreparedRubric
    session: JudgingSession
    agreement: AgreementReport
    comparison: SessionComparison | None
    records: list[dict[str, Any]]
    archived: Path | None = None

    @property
    def journal_path(self) -> Path | None:
        return None if self.session.complete else self.session.journal_path

    def numbers(self) -> dict[str, Any]:
        """Return what every document of the session contains."""
        import msgspec

        session = self.session
        return {
            "complete": session.complete,
            "stopped": self.stopped,
            "score_min": session.spec.bounds[0],
            "score_max": session.spec.bounds[1],
            "seed": session.spec.seed,
            # Addresses may contain private data.
            "inputs": {
                key: value for key, value in session.spec.inputs(session.index).items() if key != "api_base"
            },
            "counts": session.counts(),
            "usage": session.usage_document(),
            "trust": msgspec.to_builtins(self.agreement),
        }

    @property
    def stopped(self) -> dict[str, str] | None:
        """Why calls are pending."""
        stop = self.session.stop
        return {"kind": stop.kind, "reason": stop.reason} if stop is not None else None

    @property
    def totals(self) -> dict[str, Any]:
        """Return the statistics with the counts of the 0.2 SDK."""
        scored, total = self.session.count("scored"), len(self.session.calls)
        counts = {"total_runs": total, "success_count": scored, "failure_count": total - scored}
        return {**self.session.statistics, **counts}


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
    from osmosis_ai.rubric.records import RecordIndex, RecordRules, require_file
    from osmosis_ai.rubric.session import RUNS_PER_SEED, SessionSpec

    if request.number < 1:
        raise OsmosisError("--number must be at least 1.")
    if request.number > RUNS_PER_SEED:
        raise OsmosisError(f"--number must be at most {RUNS_PER_SEED}.")
    require_file(request.data, "Data path")
    rubric = choose_rubric(request)
    bounds = check_bounds(request.score_min, request.score_max, rubric)
    judges = choose_judges(request, rubric, os.environ if env is None else env)
    require_prices(judges, request.budget)
    baseline = read_baseline(request.baseline) if request.baseline is not None else None
    rules = RecordRules(
        rubric_id=rubric.rubric_id if rubric.path is not None else None, classic=request.classic
    )
    index = RecordIndex(request.data, rules, bounds, progress=reading)
    report = plan_report(request.report, overwrite=request.overwrite_report)
    output = plan_output(request.output, rubric.rubric_id, classic=request.classic)
    require_apart(written=[output.path, report], read=[request.data, rubric.path, request.baseline])
    spec = SessionSpec(
        rubric, judges, request.number, bounds, keep_raw=request.classic, seed=request.seed, swap=request.swap
    )
    if request.swap:
        require_swappable(spec, index)
    return PreparedRubric(
        request=request,
        spec=spec,
        index=index,
        output=output,
        report=report,
        baseline=baseline,
        model_shown=", ".join(request.models) or str(rubric.model_info.get("model") or "<unspecified>"),
        provider_shown=", ".join(dict.fromkeys(judge.provider for judge in judges)),
        notes=tuple(_notes(index, spec, baseline)),
    )


async def run_rubric(prepared: PreparedRubric, hooks: RunHooks, *, keep: int | None = None) -> RubricOutcome:
    """Run a prepared session and write its results, however it ends.

    Args:
        hooks: receive progress.
        keep: how many records' entries to return (default: all).

    Raises:
        OsmosisError: another process writes the same result, there is nothing to resume, or the disk is full.
    """
    from osmosis_ai.rubric.session import JudgingSession, find_output

    request, plan, output = prepared.request, prepared.output, prepared.output.path
    if request.resume:
        output = find_output(output, prepared.spec.inputs(prepared.index), fixed=plan.fixed)
    session = JudgingSession(
        prepared.spec,
        prepared.index,
        output,
        budget=request.budget,
        concurrency=request.concurrency,
        hooks=hooks,
    )
    async with session.opened(resume=request.resume):
        try:
            await session.run()
        except OsmosisError as fault:
            # The error that stopped the session explains more than one that follows from it.
            with suppress(OsmosisError):
                _write(prepared, session, keep)
            fault.hint = fault.hint or "what was scored is kept: run the same command with `--resume`"
            raise
        outcome = _write(prepared, session, keep)
        if session.complete:
            session.journal_path.unlink(missing_ok=True)
        return outcome


def _write(prepared: PreparedRubric, session: JudgingSession, keep: int | None) -> RubricOutcome:
    """Write the result file and the report; keep the first entries of the file (all if ``keep`` is None)."""
    from osmosis_ai.rubric.agreement import measure_agreement
    from osmosis_ai.rubric.session import free_name

    pending = session.count("pending")
    agreement = measure_agreement(session.table, seed=prepared.spec.seed, pending_calls=pending)
    outcome = RubricOutcome(prepared, session, agreement, None, [])
    if prepared.baseline is not None:
        outcome.comparison = compare_sessions(
            prepared.baseline,
            session.scored_records(),
            session.spec.inputs(session.index),
            outcome.totals,
            bounds=session.spec.bounds,
            seed=session.spec.seed,
        )
    classic, path = prepared.request.classic, session.output
    compared = {} if outcome.comparison is None else {"baseline_comparison": outcome.comparison.data()}
    identified = classic and not prepared.output.fixed
    tail = {"output_identifier": path.stem.removeprefix("rubric_eval_result_")} if identified else {}
    head = {**_head(outcome), **({} if classic else compared)}

    def entries() -> Iterator[dict[str, Any]]:
        stop = session.stop.reason if session.stop is not None else None
        for judged in session.records():
            entry = (
                classic_record(judged, pending=stop)
                if classic
                else judged_record(judged, session.spec.model_names)
            )
            if keep is None or len(outcome.records) < keep:
                outcome.records.append(entry)
            yield entry

    try:
        if not (session.complete or prepared.request.resume) and path.exists():
            # An incomplete result does not replace another one.
            outcome.archived = free_name(path, path.suffix)
            path.replace(outcome.archived)
        write_document(path, head, entries(), {**tail, **compared} if classic else None)
        if prepared.report is not None:
            path = prepared.report
            _write_report(path, outcome)
    except OSError as error:
        raise OsmosisError(
            f"'{path}' could not be written: {error.strerror or error}. "
            f"What was scored is safe in '{session.journal_path}'.",
            code="INTERNAL",
            hint="free some space, or name another place, and run the same command with `--resume`",
        ) from error
    return outcome


def _head(outcome: RubricOutcome) -> dict[str, Any]:
    """Return the document without its records; its first keys are those of the public SDKs."""
    prepared, spec = outcome.prepared, outcome.session.spec
    request, rubric = prepared.request, spec.rubric
    config_path = str(rubric.path) if rubric.path else None
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    if request.classic:
        head = {
            "generated_at": now,
            "rubric_id": rubric.rubric_id,
            "rubric_source": rubric.source,
            "provider": prepared.provider_shown,
            "model": prepared.model_shown,
            "number": spec.runs,
            "config_path": config_path,
            "data_path": str(request.data),
            "overall_statistics": outcome.totals,
        }
    else:
        head = {
            "generated_at": now,
            "model": prepared.model_shown,
            "rubric": rubric.text,
            "data_path": str(request.data),
            "number": spec.runs,
            "overall_statistics": outcome.session.statistics,
            "rubric_id": rubric.rubric_id,
            "rubric_source": rubric.source,
            "config_path": config_path,
            "models": spec.model_names,
        }
    return head | outcome.numbers()


def _write_report(path: Path, outcome: RubricOutcome) -> None:
    from osmosis_ai.viewer.judging_sessions import session_detail, session_entry
    from osmosis_ai.viewer.one_file import MOST_RECORDS, write_judging_report

    session, request = outcome.session, outcome.prepared.request
    table, results = session.table, session.output
    wanted = table.most_disputed(MOST_RECORDS)
    records = [
        judged_record(judged, session.spec.model_names) | {"texts": _texts(session.spec, judged)}
        for judged in session.records()
        if judged.record.index - 1 in wanted
    ]
    document = {**_head(outcome), "records": records}
    entry = session_entry(
        document, f"Judges on {request.data.name}: {session.spec.rubric.rubric_id}", str(results)
    )
    detail = replace(
        session_detail(entry, document, None, **_facts(session)), config_written=session.spec.rubric.text
    )
    more = len(session.index) - len(records)
    left_out = f"; {more:,} on which scores differ least are only in {results.name}" if more else ""
    scores = [(model, table.scores[:, place, :].ravel()) for place, model in enumerate(table.models)]
    with replacing(path) as file:
        write_judging_report(file, detail, text=request.report_text, scores=scores, left_out=left_out)


def _texts(spec: SessionSpec, judged: JudgedRecord) -> dict[str, str | None]:
    record = judged.record
    return {
        "Input": record.original_input or spec.rubric.original_input,
        "Judged text": record.solution_str,
        "Reference answer": record.ground_truth or spec.rubric.ground_truth,
    }


def _facts(session: JudgingSession) -> dict[str, str]:
    """Return the facts about a session that its document lacks, with file names only, not paths."""
    counted = session.counts()
    low, high = session.spec.bounds
    facts = {
        "Records": f"{len(session.index):,}",
        "Scale": f"{low:g} to {high:g}",
        "Without a score": f"{counted['unscored']:,} unscored, {counted['failed']:,} failed, "
        f"{counted['pending']:,} pending",
        "Tokens": token_count(session),
        "Cost": numbers.money(session.cost_usd) if session.cost_usd is not None else "unknown",
        "Results": session.output.name,
    }
    if session.stop is not None:
        facts["Stopped"] = session.stop.reason
    return facts


def token_count(session: JudgingSession) -> str:
    """Format how many tokens the judges used, as far as their providers reported them."""
    total = sum(judge.input_tokens + judge.output_tokens for judge in session.usage)
    uncounted = sum(judge.uncounted for judge in session.usage)
    return numbers.partial_count(total, uncounted, sum(judge.calls for judge in session.usage), "calls")


def _notes(index: RecordIndex, spec: SessionSpec, baseline: Baseline | None) -> Iterator[str]:
    if spec.rubric.note:
        yield spec.rubric.note
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
