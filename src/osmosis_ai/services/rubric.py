"""Judge sessions: from a file of answers and a rubric to scores, results and a report."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.hooks import RunHooks
from osmosis_ai.evaluation.spec import Budget
from osmosis_ai.files import cache_dir, expanded, replacing
from osmosis_ai.llm.prices import price_of
from osmosis_ai.rubric.config import (
    Rubric,
    candidate_configs,
    discover_config,
    find_items,
    find_rubric,
    load_rubrics,
)
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
from osmosis_ai.rubric.judge_model import JudgeModel, resolve_judge
from osmosis_ai.rubric.records import RecordIndex, RecordRules, iter_objects, iter_records, require_file
from osmosis_ai.rubric.session import (
    RUNS_PER_SEED,
    JudgingSession,
    SessionSpec,
    find_output,
    free_name,
    journal_of,
)
from osmosis_ai.rubric.types import check_bounds as check_scale
from osmosis_ai.services.report_files import ReportFile
from osmosis_ai.ui import numbers
from osmosis_ai.viewer.local.run_files import session_detail, session_entry

if TYPE_CHECKING:  # loads NumPy
    from osmosis_ai.rubric.agreement import AgreementReport

_ID_LIKE = re.compile(r"[\w.-]+")
_FILE_NAME = "rubric_eval_result.json"
_LONGEST_FOLDER = 80


class JudgeRequiredError(OsmosisError):
    """The user named no judge."""


@dataclass(frozen=True)
class RubricRequest:
    """The options of a judge session.

    Attributes:
        models: LiteLLM names; if empty, the judge of the rubric's ``model_info``.
        number: calls per record and judge.
        output: a file or directory, as typed (default: the cache directory).
        report_text: include rubric, records and explanations in the report, not only numbers.
        classic: read records and write results as `osmosis eval-rubric` does.
    """

    data: Path
    rubric: str
    config: Path | None = None
    models: tuple[str, ...] = ()
    number: int = 1
    output: str | None = None
    api_key: str | None = field(default=None, repr=False)
    api_base: str | None = None
    timeout_s: float | None = None
    score_min: float | None = None
    score_max: float | None = None
    report: Path | None = None
    report_text: bool = True
    overwrite_report: bool = False
    baseline: Path | None = None
    resume: bool = False
    seed: int = 0
    swap: bool = False
    concurrency: int | None = None
    budget: Budget | None = None
    classic: bool = False


class OutputPlan(NamedTuple):
    """The result file; ``fixed`` if the user named it, otherwise it is a new name in a directory."""

    path: Path
    fixed: bool


@dataclass(frozen=True)
class PreparedRubric:
    """A session whose inputs have been found, read and checked.

    ``model_shown`` and ``provider_shown`` are the judges as the user named them. ``notes`` are for the user, before the
    session starts.
    """

    request: RubricRequest
    spec: SessionSpec
    index: RecordIndex
    output: OutputPlan
    report: Path | None
    baseline: Baseline | None
    model_shown: str
    provider_shown: str
    notes: tuple[str, ...]


def choose_rubric(request: RubricRequest) -> Rubric:
    """Find the rubric: ``@file``, the id of one in a YAML file, or the text itself.

    A single word counts as an id if there is a YAML file that could contain it.
    """
    text, config, data = request.rubric.strip(), request.config, request.data
    if not text:
        raise OsmosisError("Rubric is empty.")
    if text.startswith("@") and not request.classic:
        path = expanded(text[1:])
        return Rubric(path.stem, _text_of_file(path), str(path))
    looks_like_id = _ID_LIKE.fullmatch(text) is not None
    is_configured = looks_like_id and any(path.is_file() for path in candidate_configs(data))
    if config is not None or request.classic or is_configured:
        path = discover_config(config, data)
        return find_rubric(path, text, need_model=not request.models, strict=not request.classic)
    note = f"'{text}' is used as the text of the rubric: no rubric_configs.yaml was found."
    digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:8]
    return Rubric(f"inline-{digest}", text, "inline", note=note if looks_like_id else None)


def choose_bounds(request: RubricRequest, rubric: Rubric) -> tuple[float, float]:
    """Return the scale: the user's, otherwise the rubric's, the judge's, or 0 to 1."""
    lowest = (request.score_min, rubric.score_min, rubric.model_info.get("score_min"), 0.0)
    highest = (request.score_max, rubric.score_max, rubric.model_info.get("score_max"), 1.0)
    return check_scale(
        next(value for value in lowest if value is not None),
        next(value for value in highest if value is not None),
    )


def choose_judges(request: RubricRequest, rubric: Rubric, env: Mapping[str, str]) -> tuple[JudgeModel, ...]:
    """Choose the judges and their keys."""
    if not request.models and not rubric.model_info:
        raise JudgeRequiredError("No judge is named.", hint="add '--model provider/model'")
    timeout_s = request.timeout_s if request.timeout_s is not None else rubric.model_info.get("timeout")
    judges = tuple(
        resolve_judge(judge, env=env, api_base=request.api_base, api_key=request.api_key, timeout_s=timeout_s)
        for judge in request.models or (rubric.model_info,)
    )
    names = [judge.model_path for judge in judges]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise OsmosisError(f"Judge is named twice: {twice}.", hint="use '-n' to call one judge several times")
    return judges


def require_prices(judges: Sequence[JudgeModel], budget: Budget | None) -> None:
    """Reject a cost limit if a judge has no known price."""
    if budget is None or budget.max_cost_usd is None:
        return
    for judge in judges:
        if price_of(judge) is None:
            raise OsmosisError(
                f"'--max-cost' requires a price, and the price of '{judge.model_path}' is unknown.",
                hint="use '--max-tokens' or '--max-time' instead",
            )


def plan_output(output: str | None, rubric_id: str, *, classic: bool) -> OutputPlan:
    """Return where results are written."""
    if output is None:
        kept = "".join(each if each.isalnum() or each in "-_" else "_" for each in rubric_id)
        folder = kept.strip("_").lower()[:_LONGEST_FOLDER] or "rubric"
        return _fresh(cache_dir() / "eval_result" / folder)
    path = Path(os.path.realpath(expanded(output)))
    names_directory = output.endswith(("/", os.sep))
    if classic:
        if path.suffix and path.is_dir():
            raise OsmosisError(f"Output path '{output}' is a directory.")
        if names_directory or not path.suffix:
            return _fresh(path)
    elif names_directory or path.is_dir():
        path = path / _FILE_NAME
    _require_writable(path.parent)
    if os.path.lexists(path) and not path.is_file():
        raise OsmosisError(f"Output path '{output}' is not a regular file.")
    return OutputPlan(path, fixed=True)


def require_swappable(spec: SessionSpec, index: RecordIndex) -> None:
    """Check that every record quotes at least two texts, whose order can be reversed."""
    if spec.runs < 2:
        raise OsmosisError("--swap requires at least two calls per record.", hint="add '--number 2'")
    if index.bare_line is not None and not (spec.rubric.original_input or spec.rubric.ground_truth):
        raise OsmosisError(
            f"--swap requires two quoted texts, and line {index.bare_line} of '{index.path}' has one.",
            hint="add a 'ground_truth', 'original_input' or 'metadata' to the records",
        )


def require_apart(*, written: Sequence[Path | None], read: Sequence[Path | None]) -> None:
    """Check that no output file is also an input, and that no two outputs are the same file."""
    taken = {path.resolve() for path in read if path is not None}
    for path in (path.resolve() for path in written if path is not None):
        if path in taken:
            raise OsmosisError(
                f"'{path}' is named twice and would be overwritten.",
                hint="choose another path with '--output' or '--report'",
            )
        taken.add(path)


def _text_of_file(path: Path) -> str:
    if path.is_dir():
        raise OsmosisError(f"Rubric file '{path}' is a directory.")
    if not path.exists():
        raise OsmosisError(f"Rubric file '{path}' does not exist.")
    try:
        text = path.read_text(encoding="utf-8-sig").strip()
    except UnicodeDecodeError:
        raise OsmosisError(f"Rubric file '{path}' is not UTF-8 text.") from None
    if not text:
        raise OsmosisError(f"Rubric file '{path}' is empty.")
    return text


def _fresh(directory: Path) -> OutputPlan:
    _require_writable(directory)
    identifier = int(time.time())
    while (path := directory / f"rubric_eval_result_{identifier}.json").exists() or journal_of(path).exists():
        identifier += 1
    return OutputPlan(path, fixed=False)


def _require_writable(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OsmosisError(f"cannot create the directory '{directory}': {error.strerror}.") from None
    if not os.access(directory, os.W_OK):
        raise OsmosisError(f"cannot write to the directory '{directory}': permission denied.")


@dataclass
class RubricOutcome:
    """A session that ended, and what it wrote.

    Attributes:
        comparison: with the baseline.
        records: the entries of the result file, up to the requested number.
        archived: the earlier result, which an incomplete one did not replace.
    """

    prepared: PreparedRubric
    session: JudgingSession
    agreement: AgreementReport
    comparison: SessionComparison | None
    records: list[dict[str, Any]]
    archived: Path | None = None

    def resource(self) -> dict[str, Any]:
        """Return the session as the JSON output shows it; the records only if no result file was named."""
        prepared, session, same = self.prepared, self.session, self.numbers()
        with_records = prepared.request.output is None and not prepared.request.classic
        optional = {
            "report_path": str(prepared.report) if prepared.report else None,
            "journal_path": None if session.complete else str(session.journal_path),
            "baseline_comparison": self.comparison.data() if self.comparison is not None else None,
            "stopped": same["stopped"],
            "records": self.records if with_records else None,
        }
        return {
            "model": prepared.model_shown,
            "data_path": str(prepared.request.data),
            "number": session.spec.runs,
            "statistics": session.statistics,
            "record_count": len(session.index),
            "error_count": session.count("failed"),
            "unscored_count": session.count("unscored"),
            "output_path": str(session.output),
            "rubric_id": session.spec.rubric.rubric_id,
            "rubric_source": session.spec.rubric.source,
            "models": session.spec.model_names,
            **{key: same[key] for key in ("complete", "counts", "usage", "trust")},
            **{key: value for key, value in optional.items() if value is not None},
        }

    def numbers(self) -> dict[str, Any]:
        """Return what every document of the session contains."""
        session, stop = self.session, self.session.stop
        return {
            "complete": session.complete,
            "stopped": {"kind": stop.kind, "reason": stop.reason} if stop is not None else None,
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
    def totals(self) -> dict[str, Any]:
        """Return the statistics with the counts of the 0.2 SDK."""
        scored, total = self.session.count("scored"), len(self.session.calls)
        counts = {"total_runs": total, "success_count": scored, "failure_count": total - scored}
        return {**self.session.statistics, **counts}


def prepare_rubric(
    request: RubricRequest, *, env: Mapping[str, str], reading: Callable[[int], None]
) -> PreparedRubric:
    """Find and check everything a session needs, without calling a judge or writing results.

    ``env`` has the keys and addresses. ``reading`` receives the number of records read so far.
    """
    if request.number < 1:
        raise OsmosisError("--number must be at least 1.")
    if request.number > RUNS_PER_SEED:
        raise OsmosisError(f"--number must be at most {RUNS_PER_SEED}.")
    require_file(request.data, "Data path")
    rubric = choose_rubric(request)
    bounds = choose_bounds(request, rubric)
    judges = choose_judges(request, rubric, env)
    require_prices(judges, request.budget)
    baseline = read_baseline(request.baseline) if request.baseline is not None else None
    rules = RecordRules(
        rubric_id=rubric.rubric_id if rubric.path is not None else None, classic=request.classic
    )
    index = RecordIndex(request.data, rules, bounds, progress=reading)
    report = expanded(request.report).absolute() if request.report is not None else None
    if report is not None:
        ReportFile(report, overwrite=request.overwrite_report).check()
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


async def run_rubric(prepared: PreparedRubric, hooks: RunHooks, *, keep: int | None) -> RubricOutcome:
    """Run a prepared session and write its results, however it ends.

    ``keep`` is how many records' entries to return (None: all).
    """
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
            fault.hint = fault.hint or "the scores are kept; run the same command with '--resume'"
            raise
        outcome = _write(prepared, session, keep)
        if session.complete:
            session.journal_path.unlink(missing_ok=True)
        return outcome


def _write(prepared: PreparedRubric, session: JudgingSession, keep: int | None) -> RubricOutcome:
    """Write the result file and the report; keep the first entries of the file (all if ``keep`` is None)."""
    from osmosis_ai.rubric.agreement import measure_agreement

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
            f"'{path}' cannot be written: {error.strerror or error}. "
            f"The scores are kept in '{session.journal_path}'.",
            code="INTERNAL",
            hint="free some space and run the same command with '--resume'",
        ) from error
    return outcome


def _head(outcome: RubricOutcome) -> dict[str, Any]:
    """Return the document without its records; its first keys are those of the public SDKs."""
    prepared, spec = outcome.prepared, outcome.session.spec
    request, rubric = prepared.request, spec.rubric
    head: dict[str, Any] = {
        "generated_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "model": prepared.model_shown,
    }
    if request.classic:
        head["provider"] = prepared.provider_shown
    else:
        head["rubric"] = rubric.text
    head |= {
        "data_path": str(request.data),
        "number": spec.runs,
        "overall_statistics": outcome.totals if request.classic else outcome.session.statistics,
        "rubric_id": rubric.rubric_id,
        "rubric_source": rubric.source,
        "config_path": str(rubric.path) if rubric.path else None,
    }
    if not request.classic:
        head["models"] = spec.model_names
    return head | outcome.numbers()


def _write_report(path: Path, outcome: RubricOutcome) -> None:
    from osmosis_ai.viewer.reports import MOST_RECORDS, write_judging_report

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
    left_out = f"; {more:,} with the smallest differences are only in {results.name}" if more else ""
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
        yield "The baseline's scores are on another scale and are not compared."
    elif label := describe_change(changed):
        yield f"This session uses {label} than the baseline."
    if index.ignored_labels:
        low, high = index.bounds
        many = numbers.amount(index.ignored_labels, "record")
        yield f"'label' is ignored in {many}: it is outside the scale of {low:g} to {high:g}."


class PreviewedEntry(NamedTuple):
    """An entry of a file: kind and position, content as YAML or JSON, and the content for the JSON output."""

    title: str
    text: str
    value: Any


class FilePreview(NamedTuple):
    """The entries of a file, ``rubrics`` or ``records``, their number as a sentence, and why no judge would take it."""

    path: Path
    kind: str
    summary: str
    entries: list[PreviewedEntry]
    problem: str | None = None


def preview_file(path: Path) -> FilePreview:
    """Read a ``.yaml``, ``.yml`` or ``.jsonl`` file."""
    path = expanded(path)
    if not path.exists():
        raise OsmosisError(f"Path '{path}' does not exist.")
    if path.is_dir():
        raise OsmosisError(f"Expected a file path but got directory '{path}'.")
    suffix = path.suffix.lower()
    read = {".yaml": _preview_rubrics, ".yml": _preview_rubrics, ".jsonl": _preview_records}.get(suffix)
    if read is not None:
        return read(path)._replace(problem=_judging_problem(path))
    raise OsmosisError(
        f"Unsupported file extension '{suffix}'.",
        hint="rubrics are in .yaml or .yml files, records in .jsonl files",
    )


def _preview_rubrics(path: Path) -> FilePreview:
    entries = [
        PreviewedEntry(f"Rubric config #{number} ({item.label})", _as_yaml(payload), _plain(payload))
        for number, item in enumerate(find_items(path), start=1)
        if (payload := _without_keys(item.payload))
    ]
    return FilePreview(path, "rubrics", f"Loaded {len(entries)} rubric config(s) from {path}", entries)


def _preview_records(path: Path) -> FilePreview:
    entries = [
        PreviewedEntry(f"JSONL record #{number}", json.dumps(value, indent=2, ensure_ascii=False), value)
        for number, value in enumerate(iter_objects(path), start=1)
    ]
    return FilePreview(path, "records", f"Loaded {len(entries)} JSONL record(s) from {path}", entries)


def _judging_problem(path: Path) -> str | None:
    """Return why `osmosis eval rubric` rejects a file, if it does."""
    try:
        if path.suffix.lower() == ".jsonl":
            deque(iter_records(path), maxlen=0)
        else:
            load_rubrics(path, need_model=False, strict=True)
    except OsmosisError as error:
        return error.with_hint
    return None


def _without_keys(payload: dict[str, Any]) -> dict[str, Any]:
    """Hide the key of a judge's configuration."""
    info = payload.get("model_info")
    if not isinstance(info, dict) or not info.get("api_key"):
        return payload
    return {**payload, "model_info": {**info, "api_key": "<hidden>"}}


def _as_yaml(payload: dict[str, Any]) -> str:
    """Format an entry as YAML: keys in their order, long texts as blocks."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return False

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        style = "|" if "\n" in value else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    return yaml.dump(payload, Dumper=Dumper, sort_keys=False, allow_unicode=True).rstrip()


def _plain(value: Any) -> Any:
    """Convert a YAML value to JSON types: dates become text, and values without a JSON form become YAML text."""
    try:
        return json.loads(json.dumps(value, default=str, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        return _as_yaml(value)
