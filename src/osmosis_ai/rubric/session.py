"""A judging session: every record is judged by every judge, some times, and each call is an attempt of the engine.

A call is a row (the record) and an attempt on it (judge and run). Every judge processes the records independently, so
that a slow provider does not delay another. If a user, a budget or a failing judge ends the session, finished calls are
kept and the rest stay pending.

The journal lies next to the results until every call has a score. Its first line stores the inputs, and only a session
with equal inputs continues it. A call without a score is *unscored* if the judge's answer had no readable score, and
*failed* if the judge could not be asked.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import orjson

from osmosis_ai.controller.dispatcher import Dispatcher, Stop
from osmosis_ai.controller.outcomes import ERROR_SOURCES
from osmosis_ai.controller.record import TerminalRecord, storable
from osmosis_ai.errors import ConflictError, NotFoundError, OsmosisError, ResumeRefusedError, reason_of
from osmosis_ai.evaluation.hooks import ProgressSnapshot, RunHooks
from osmosis_ai.evaluation.journal import (
    Journal,
    JournalCorruptionError,
    JournalReader,
    committed_lines,
    load_results,
)
from osmosis_ai.evaluation.manifest import file_lock
from osmosis_ai.evaluation.results import FAILED, PENDING, SUCCESS, AttemptTable
from osmosis_ai.evaluation.spec import Budget, Spending, Spent
from osmosis_ai.files import write_atomic
from osmosis_ai.redaction import Redactor
from osmosis_ai.rubric.config import Rubric
from osmosis_ai.rubric.documents import (
    CallStatus,
    JudgedRecord,
    ScoredRecord,
    facts_of,
    input_differences,
    json_bytes,
    statistics,
    text_digest,
)
from osmosis_ai.rubric.judge import Judge
from osmosis_ai.rubric.judge_model import JudgeModel
from osmosis_ai.rubric.records import RecordIndex, RubricRecord
from osmosis_ai.rubric.types import JudgeResult, JudgeTask, ProviderRequestError, UnscoredError
from osmosis_ai.statistics.estimates import load_distributions

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from osmosis_ai.rubric.agreement import ScoreTable

RUNS_PER_SEED = 10_000
DEFAULT_CONCURRENCY = 256
SUFFIX = ".partial.jsonl"
# With a budget, this many calls measure the cost of one before the rest start.
_PROBES = 8
# A judge that has refused this many calls in a row will refuse the next: a wrong key at once, other trouble later.
_REFUSALS_FOR_GOOD = 10
_FAILURES_IN_A_ROW = 50
_PERMANENT = frozenset({"auth", "not_found"})
_LEAST_READY = 8
_PREVIOUS = re.compile(rf"\.previous(-\d+)?{re.escape(SUFFIX)}$")
_PROGRESS_S = 0.2
_FIRST_CALLS_S = 0.1
_DAMAGED_HINT = "leave out '--resume' to start over; the damaged journal is kept"
_FULL_HINT = "free some space and run the same command with '--resume'"


@dataclass(frozen=True)
class SessionSpec:
    """What is judged, by whom and how: everything that determines the scores."""

    rubric: Rubric
    judges: tuple[JudgeModel, ...]
    runs: int
    bounds: tuple[float, float] = (0.0, 1.0)
    keep_raw: bool = False
    seed: int = 0
    swap: bool = False

    @property
    def calls_per_record(self) -> int:
        return len(self.judges) * self.runs

    @property
    def model_names(self) -> list[str]:
        return [judge.model_path for judge in self.judges]

    def task(self, record: RubricRecord, run: int) -> JudgeTask:
        """Return the question about a record for a run, counted from 0."""
        low, high = self.bounds
        return JudgeTask(
            rubric=self.rubric.text,
            solution_str=record.solution_str,
            ground_truth=record.ground_truth or self.rubric.ground_truth,
            original_input=record.original_input or self.rubric.original_input,
            metadata=record.metadata,
            score_min=low if record.score_min is None else record.score_min,
            score_max=high if record.score_max is None else record.score_max,
            system_prompt=self.rubric.system_prompt,
            reverse_blocks=self.swap and run % 2 == 1,
        )

    def inputs(self, index: RecordIndex) -> dict[str, Any]:
        """Return the inputs that determine the scores, without texts and keys."""
        return {
            "data": index.digest,
            "rubric": text_digest(self.rubric.text),
            "rubric_id": self.rubric.rubric_id,
            "models": self.model_names,
            # Without query strings, which may hold keys.
            "api_base": _unless_none((judge.base_url or "").partition("?")[0] for judge in self.judges),
            "reasoning_effort": _unless_none(judge.reasoning_effort for judge in self.judges),
            "runs": self.runs,
            "seed": self.seed,
            "swap": self.swap,
            "bounds": list(self.bounds),
            "system_prompt": text_digest(self.rubric.system_prompt),
            "original_input": text_digest(self.rubric.original_input),
            "ground_truth": text_digest(self.rubric.ground_truth),
            "reading": list(index.rules),
        }


def _unless_none(values: Iterable[str | None]) -> list[str | None] | None:
    found = [value or None for value in values]
    return found if any(found) else None


def journal_of(output: Path) -> Path:
    """Return the journal's path for a result."""
    return output.with_name(output.name + SUFFIX)


def free_name(output: Path, suffix: str) -> Path:
    """Return an unused name for what a new session replaces: ``<output>.previous<suffix>``, ``.previous-2`` and so on."""
    path, number = output.with_name(f"{output.name}.previous{suffix}"), 2
    while path.exists():
        path, number = output.with_name(f"{output.name}.previous-{number}{suffix}"), number + 1
    return path


def find_output(output: Path, inputs: dict[str, Any], *, fixed: bool) -> Path:
    """Return the result path of the unfinished session with these ``inputs``: ``output``, or any in its directory."""
    paths = [journal_of(output)] if fixed else output.parent.glob(f"*{SUFFIX}")
    journals = [path for path in paths if path.is_file() and path.stat().st_size]
    journals = [path for path in journals if not _PREVIOUS.search(path.name)]
    journals.sort(key=lambda path: path.stat().st_mtime_ns, reverse=True)
    if not journals:
        raise NotFoundError(
            f"No unfinished session was found for '{output if fixed else output.parent}'.",
            hint="leave out '--resume' to start a session",
        )
    for path in journals:
        if _read_inputs(path)[0] == inputs:
            return path.with_name(path.name.removesuffix(SUFFIX))
    before = _read_inputs(journals[0])[0]
    changed = [key for key in sorted({*before, *inputs}) if before.get(key) != inputs.get(key)]
    raise ResumeRefusedError(
        f"Inputs of the session in '{journals[0]}' have changed:"
        + "".join(f"\n  - {line}" for line in input_differences(changed, before, inputs)),
        details={"changed": changed},
        hint="undo the change, or leave out '--resume' to start over",
    )


def _read_inputs(path: Path) -> tuple[dict[str, Any], int]:
    """Return the inputs stored in a journal, and where its calls start."""
    try:
        line = next(line for _, line in committed_lines(path))
        return dict(orjson.loads(line)["inputs"]), len(line)
    except (StopIteration, ValueError, KeyError, TypeError):
        raise OsmosisError(
            f"'{path}' is not the journal of a judging session.", hint="remove the file to start over"
        ) from None


@dataclass(slots=True)
class JudgeUsage:
    """Usage of one judge, including earlier sessions."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = None
    retries: int = 0
    uncounted: int = 0

    def add(self, call: TerminalRecord) -> None:
        self.calls += 1
        self.uncounted += not call.prompt_tokens
        self.input_tokens += call.prompt_tokens or 0
        self.output_tokens += call.completion_tokens or 0
        self.retries += facts_of(call).get("retries", 0)
        if call.cost_usd is not None:
            self.cost_usd = (self.cost_usd or 0.0) + call.cost_usd


class JudgingSession:
    """One session, or the continuation of an earlier one, and its results.

    Attributes:
        calls: the status of every call.
        stop: why calls are pending, if the session was stopped.
        archived: the journal of an earlier session that this one replaced.
        resumed: scores of earlier sessions.
        ended: calls that ended in this session.
    """

    def __init__(
        self,
        spec: SessionSpec,
        index: RecordIndex,
        output: Path,
        *,
        budget: Budget | None = None,
        concurrency: int | None = None,
        hooks: RunHooks | None = None,
    ) -> None:
        self.spec, self.index, self.output = spec, index, output
        self.journal_path = journal_of(output)
        self.calls = AttemptTable(len(index), spec.calls_per_record)
        self._id = hashlib.sha256(json_bytes(spec.inputs(index))).hexdigest()[:12]
        self.usage = [JudgeUsage() for _ in spec.judges]
        self.stop: Stop | None = None
        self.archived: Path | None = None
        self.resumed = self.ended = 0
        self._budget = budget or Budget()
        self._concurrency = concurrency or DEFAULT_CONCURRENCY
        self._hooks = hooks or RunHooks()
        self._redact = Redactor(secret for judge in spec.judges for secret in judge.secrets)
        self._spending = Spending(self._budget)
        self._measured = asyncio.Event()
        self._in_flight = 0
        self._recordings: set[asyncio.Task[None]] = set()
        self._judges: list[Judge] = []
        self._dispatchers: list[Dispatcher[tuple[RubricRecord, int]]] = []
        self._failures = [0] * len(spec.judges)
        self._elapsed_s: float | None = None

    @asynccontextmanager
    async def opened(self, *, resume: bool) -> AsyncIterator[None]:
        """Lock the journal, and load the calls of the session to resume, or start a new one."""
        path = self.journal_path
        refusal = ConflictError(
            f"Another process is writing '{self.output}'.", hint="choose another path with '--output'"
        )
        try:
            with ExitStack() as locks:
                locks.enter_context(file_lock(path, refusal))
                if resume:
                    self._load(path)
                else:
                    if path.stat().st_size:
                        self.archived = free_name(self.output, SUFFIX)
                        path.replace(self.archived)
                    write_atomic(path, json_bytes({"inputs": self.spec.inputs(self.index)}) + b"\n")
                    locks.enter_context(file_lock(path, refusal))  # that is another file now
                self._journal = Journal(path, full_hint=_FULL_HINT)
                try:
                    yield
                finally:
                    await self._journal.close()
        except OSError as error:
            raise OsmosisError(
                f"'{path}' cannot be opened: {reason_of(error)}.", hint="choose another path with '--output'"
            ) from error

    def _load(self, path: Path) -> None:
        def add(call: TerminalRecord) -> None:
            if not call.rollout_id.startswith(f"{self._id}-"):
                raise JournalCorruptionError(
                    f"The journal '{path}' is damaged: a call of record {call.row_index + 1} is not of this session."
                )
            self._count(call)
            self._spending.earlier_s = max(self._spending.earlier_s, facts_of(call).get("elapsed_s", 0.0))

        try:
            load_results(path, self.calls, start=_read_inputs(path)[1], each=add)
        except JournalCorruptionError as error:
            error.hint = _DAMAGED_HINT
            raise
        self.resumed = self.count("scored")
        self.calls.reopen_failed()

    @property
    def elapsed_s(self) -> float:
        """Seconds of work up to the last call, including earlier sessions."""
        return self._spending.elapsed_s if self._elapsed_s is None else self._elapsed_s

    async def run(self) -> None:
        """Make the pending calls."""
        self._judges = [
            Judge(model, max_in_flight=self._concurrency, keep_raw=self.spec.keep_raw)
            for model in self.spec.judges
        ]
        self._dispatchers = [self._dispatcher(number, judge) for number, judge in enumerate(self._judges)]
        self._spending.start_clock()
        self._hooks.started(self.interrupt)
        loading = asyncio.create_task(_load_statistics())
        try:
            async with AsyncExitStack() as stack, self._reporting():
                for judge in self._judges:
                    stack.push_async_callback(judge.aclose)
                try:
                    stops = await asyncio.gather(*(dispatcher.run() for dispatcher in self._dispatchers))
                finally:  # the last progress report includes calls that are still being written
                    await asyncio.gather(*self._recordings, return_exceptions=True)
        finally:
            self._hooks.ended()
            self._elapsed_s = self._spending.elapsed_s
            loading.cancel()
        # The most informative reason: the user's action, then a spent budget, then a failure.
        order = ("interrupted", "budget", "fault")
        self.stop = min(filter(None, stops), key=lambda stop: order.index(stop.kind), default=None)
        broken = next((stop.error for stop in stops if stop is not None and stop.error is not None), None)
        if broken is not None:
            raise broken

    def interrupt(self) -> None:
        """Start no further calls and cancel those in flight."""
        for dispatcher in self._dispatchers:
            dispatcher.halt(Stop("interrupted", "interrupted"))

    def _dispatcher(self, number: int, judge: Judge) -> Dispatcher[tuple[RubricRecord, int]]:
        async def attempt(call: tuple[RubricRecord, int]) -> bool:
            try:
                return await self._attempt(number, judge, *call)
            except Exception:
                # Results can no longer be stored, so the other judges must stop spending.
                for other in self._dispatchers[:number] + self._dispatchers[number + 1 :]:
                    other.halt(Stop("fault", "the results can no longer be stored"))
                raise

        # While some calls are being written to disk, others must be ready to start.
        ready = self._concurrency + max(_LEAST_READY, self._concurrency // 4)
        return Dispatcher(self._pending(number), attempt, limit=ready, gate=self._closed)

    def _pending(self, number: int) -> Iterator[tuple[RubricRecord, int]]:
        """Yield the pending calls of a judge: a record and a run, counted from 0."""
        runs = range(number * self.spec.runs, (number + 1) * self.spec.runs)
        for record in self.index.records() if self.calls.open_count else ():
            for place, run_index in enumerate(runs):
                if self.calls.is_open(record.index - 1, run_index):
                    yield record, place

    async def _attempt(self, number: int, judge: Judge, record: RubricRecord, run: int) -> bool:
        if not await self._may_start():
            return False
        started_at = _now()
        # Counts until it is recorded, so that a budget includes calls that are being written.
        self._in_flight += 1
        found: JudgeResult | ProviderRequestError
        try:
            found = await judge.score(
                self.spec.task(record, run), call_index=self.spec.seed * RUNS_PER_SEED + run
            )
            self._failures[number] = 0
        except ProviderRequestError as error:
            found = error
            self._count_failure(number, error)
        except BaseException:
            self._in_flight -= 1
            raise
        call = self._call(record, number * self.spec.runs + run, found, started_at)
        # A separate task stores paid results even if the session is being cancelled.
        recording = asyncio.create_task(self._record(call))
        self._recordings.add(recording)
        recording.add_done_callback(self._recordings.discard)
        await asyncio.shield(recording)
        return True

    def _call(
        self, record: RubricRecord, run_index: int, found: JudgeResult | ProviderRequestError, started_at: str
    ) -> TerminalRecord:
        raw, tokens = getattr(found, "raw", None), found.input_tokens + found.output_tokens
        facts: dict[str, Any] = {
            "retries": found.retries or None,
            "started_at": started_at,
            "completed_at": _now(),
            "elapsed_s": round(self.elapsed_s, 3),
            "raw": orjson.loads(json_bytes(self._redact.tree(raw))) if raw else None,
        }
        outcome: dict[str, Any]
        if isinstance(found, JudgeResult):
            facts["explanation"] = self._text(found.explanation)
            facts["stated_score"] = found.stated_score if found.is_clamped else None
            outcome = {"reward": found.score, "judge_outside_scale": 1 if found.is_clamped else None}
        elif isinstance(found, UnscoredError):
            outcome = {"error_type": found.reason, "boundary": "grader", "error": self._text(str(found))}
        else:
            reason = found.category or "provider"
            outcome = {"error_type": reason, "boundary": "provider", "error": self._text(str(found))}
        return TerminalRecord(
            row_index=record.index - 1,
            run_index=run_index,
            rollout_id=f"{self._id}-{record.index}-{run_index + 1}",
            status="success" if isinstance(found, JudgeResult) else "failed",
            duration_ms=round(found.duration_s * 1000),
            tokens=tokens or None,
            # A call that failed before an answer cost nothing and does not affect the estimate.
            model_calls=1 if tokens or outcome.get("boundary") != "provider" else 0,
            prompt_tokens=found.input_tokens,
            completion_tokens=found.output_tokens,
            cost_usd=found.cost_usd,
            judgements=[{key: value for key, value in facts.items() if value is not None}],
            **outcome,
        )

    def _text(self, text: str) -> str:
        return storable(self._redact.text(text))

    async def _record(self, call: TerminalRecord) -> None:
        try:
            offset = await self._journal.append(call)
            self.calls.set_result(call, offset)
            self._count(call)
            self.ended += 1
        finally:
            self._in_flight -= 1

    def _count(self, call: TerminalRecord) -> None:
        self.usage[call.run_index // self.spec.runs].add(call)
        self._spending.add_record(call)
        self._measured.set()

    def _count_failure(self, number: int, error: ProviderRequestError) -> None:
        """Stop a judge that keeps failing. Its remaining calls stay pending."""
        if isinstance(error, UnscoredError):
            self._failures[number] = 0
            return
        self._failures[number] += 1
        allowed = _REFUSALS_FOR_GOOD if error.category in _PERMANENT else _FAILURES_IN_A_ROW
        if self._failures[number] >= allowed:
            reason = f"{allowed} calls in a row failed: {self._redact.text(str(error))}"
            self._dispatchers[number].halt(Stop("fault", reason))

    def _closed(self) -> str | None:
        return self._spending.exhausted(self._spent_in_flight)

    async def _may_start(self) -> bool:
        """With a budget, wait until the first calls show the cost of one; return False if it is spent."""
        limited = self._budget.max_cost_usd is not None or self._budget.max_tokens is not None
        if limited and not self._measured.is_set() and self._in_flight >= _PROBES:
            await self._measured.wait()
            return self._closed() is None
        return True

    def _spent_in_flight(self) -> Spent:
        """Estimate the cost of the calls in flight from the mean of finished ones."""
        share = self._in_flight / max(1, sum(usage.calls for usage in self.usage))
        return Spent(round(self._spending.tokens * share), self._spending.cost_usd * share)

    @asynccontextmanager
    async def _reporting(self) -> AsyncIterator[None]:
        async def report() -> None:
            while True:
                self._hooks.progress(self.snapshot())
                await asyncio.sleep(_PROGRESS_S)

        reporter = asyncio.create_task(report())
        try:
            yield
        finally:
            reporter.cancel()
            await asyncio.gather(reporter, return_exceptions=True)
            self._hooks.progress(self.snapshot())

    def snapshot(self) -> ProgressSnapshot:
        """Return the progress; provider accounts, which judges may share, count once."""
        in_flight = {judge.model.limiter_key: judge.limiter.in_flight for judge in self._judges}
        return ProgressSnapshot.of(
            self.calls,
            math.inf,
            tokens=self._spending.tokens,
            cost_usd=self.cost_usd,
            in_flight=sum(in_flight.values()),
            elapsed_s=self.elapsed_s - self._spending.earlier_s,
            finished=self.ended,
        )

    @property
    def cost_usd(self) -> float | None:
        """Total cost of all judges; None if no price is known."""
        return self._spending.cost_usd if self._spending.cost_known else None

    @property
    def complete(self) -> bool:
        """Whether every call has a score."""
        return self.count("scored") == len(self.calls)

    def has(self, status: CallStatus | Literal["pending"]) -> NDArray[np.bool_]:
        """Return (records, judges x runs): whether each call has this status."""
        columns = self.calls.columns
        found: NDArray[np.bool_]
        if status in ("scored", "pending"):
            found = columns["status"] == (SUCCESS if status == "scored" else PENDING)
        else:
            by_judge = columns["boundary"] == ERROR_SOURCES.index("grader") + 1
            found = (columns["status"] == FAILED) & (by_judge == (status == "unscored"))
        found.shape = (len(self.index), self.calls.n)
        return found

    def count(self, status: CallStatus | Literal["pending"]) -> int:
        """Count the calls with this status."""
        return int(self.has(status).sum())

    def reasons(self, status: CallStatus) -> dict[str, int]:
        """Count the calls with this status by reason, most frequent first."""
        codes = self.calls.columns["reason"][self.has(status).ravel()].tolist()
        return {self.calls.reasons[code]: count for code, count in Counter(codes).most_common()}

    @property
    def outside_scale(self) -> int:
        """Number of scores that were clamped to the scale."""
        return int((self.calls.columns["judge_outside_scale"] == 1).sum())

    @cached_property
    def table(self) -> ScoreTable:
        """The scores on the session's scale; read it when the session is over."""
        import numpy as np

        from osmosis_ai.rubric.agreement import ScoreTable, rescaled

        low, high = self.spec.bounds
        lows, highs, human = (
            np.frombuffer(values) for values in (self.index.lows, self.index.highs, self.index.human)
        )
        shape = (len(self.index), len(self.spec.judges), self.spec.runs)
        scores = np.where(self.calls.is_scored, self.calls.columns["reward"], np.nan).reshape(shape)
        if (lows != low).any() or (highs != high).any():
            scores = rescaled(scores, lows[:, None, None], highs[:, None, None], to_low=low, to_high=high)
            human = rescaled(human, lows, highs, to_low=low, to_high=high)
        return ScoreTable(
            models=self.spec.model_names,
            labels=self.index.labels,
            scores=scores,
            score_min=low,
            score_max=high,
            human=human,
            lengths=np.asarray(self.index.lengths, dtype=np.float64),
            swapped=self.spec.swap,
            copy_of=self.index.copy_of if self.index.has_copies else None,
        )

    def records(self) -> Iterator[JudgedRecord]:
        """Yield every record with its calls, in file order."""
        with JournalReader(self.journal_path) as journal:
            for record in self.index.records():
                offsets = (self.calls.offset(record.index - 1, each) for each in range(self.calls.n))
                yield JudgedRecord(
                    record, [journal.record(offset) if offset >= 0 else None for offset in offsets]
                )

    def scored_records(self) -> list[ScoredRecord]:
        """Return the records with a score, and the consensus of their judges."""
        return [
            ScoredRecord(float(score), record.digest, record.question_digest)
            for record, score in zip(self.index.records(), self.table.consensus(), strict=True)
            if not math.isnan(score)
        ]

    @property
    def statistics(self) -> dict[str, float]:
        """Statistics of all scores, on the session's scale."""
        scores = self.table.scores.ravel()
        return statistics(scores[scores == scores].tolist())

    def counts(self) -> dict[str, Any]:
        """Return the counts of records and calls by outcome."""
        return {
            "records": len(self.index),
            "calls": len(self.calls),
            **{status: self.count(status) for status in ("scored", "unscored", "failed", "pending")},
            **{
                f"records_{status}": int(self.has(status).any(axis=1).sum())
                for status in ("unscored", "failed", "pending")
            },
            "unscored_by_reason": self.reasons("unscored"),
            "failed_by_reason": self.reasons("failed"),
            "outside_scale": self.outside_scale,
        }

    def usage_document(self) -> dict[str, Any]:
        """Return the session's usage, in total and by judge."""
        judges: list[dict[str, Any]] = []
        for name, used in zip(self.spec.model_names, self.usage, strict=True):
            judges.append({"model": name, **asdict(used)})
            uncounted = judges[-1].pop("uncounted")
            if uncounted:
                judges[-1]["calls_without_tokens"] = uncounted
        return {
            "input_tokens": sum(used.input_tokens for used in self.usage),
            "output_tokens": sum(used.output_tokens for used in self.usage),
            "cost_usd": self.cost_usd,
            "elapsed_s": round(self.elapsed_s, 3),
            "judges": judges,
        }


async def _load_statistics() -> None:
    """Import what the results need while the first judges are waited for; later, it would delay the results."""
    await asyncio.sleep(_FIRST_CALLS_S)
    await asyncio.to_thread(load_distributions)


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
