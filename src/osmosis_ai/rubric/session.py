"""Run a judging session: hundreds of concurrent calls, each durable before it counts.

Every judge processes the records independently, so that a slow provider does not delay another. Concurrency adapts to
each provider account. Records are read when needed and not kept. If a user, a budget or a failing judge ends the
session, finished calls are kept and the rest stay pending.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from osmosis_ai.controller.dispatcher import Dispatcher, Stop
from osmosis_ai.evaluation.spec import Budget, Spending, Spent
from osmosis_ai.redaction import Redactor
from osmosis_ai.rubric.judge import Judge
from osmosis_ai.rubric.session_journal import CallRecord, CallStates, json_bytes
from osmosis_ai.rubric.session_result import JudgeUsage
from osmosis_ai.rubric.types import Judgement, ProviderRequestError, UnscoredError

if TYPE_CHECKING:
    from osmosis_ai.evaluation.journal import Journal
    from osmosis_ai.rubric.records import RecordIndex, RubricRecord
    from osmosis_ai.rubric.session_journal import SessionSpec


@dataclass(frozen=True, slots=True)
class SessionSnapshot:
    """Progress of a session."""

    completed: int
    total: int
    scored: int
    unscored: int
    failed: int
    mean: float | None
    tokens: int
    cost_usd: float | None
    in_flight: int
    rate_per_s: float | None


class SessionHooks:
    """Callbacks of a session; override the ones you need."""

    def started(self, interrupt: Callable[[], None]) -> None:
        """Receive the function that stops the session gracefully."""

    def progress(self, snapshot: SessionSnapshot) -> None:
        """Receive the progress, a few times per second."""

    def ended(self) -> None:
        """Called when all spending has stopped."""


DEFAULT_CONCURRENCY = 256
INTERRUPTED = Stop("interrupted", "interrupted")
# With a budget, this many calls measure the cost of one before the rest start.
_PROBES = 8
# A judge that has refused this many calls in a row will refuse the next: a wrong key at once, other trouble later.
_REFUSALS_FOR_GOOD = 10
_FAILURES_IN_A_ROW = 50
_PERMANENT = frozenset({"auth", "not_found"})
_LEAST_READY = 8
_PROGRESS_S = 0.2


@dataclass(slots=True)
class _Call:
    record: RubricRecord
    run: int


class JudgingSession:
    """Makes the pending calls of a session."""

    def __init__(
        self,
        spec: SessionSpec,
        index: RecordIndex,
        journal: Journal,
        *,
        budget: Budget,
        concurrency: int = DEFAULT_CONCURRENCY,
        hooks: SessionHooks,
        redactor: Redactor,
        elapsed_before_s: float = 0.0,
    ) -> None:
        self._spec = spec
        self._index = index
        self._journal = journal
        self._budget = budget
        self._concurrency = concurrency
        # While some calls are being written to disk, others must be ready to start.
        self._queue_length = concurrency + max(_LEAST_READY, concurrency // 4)
        self._hooks = hooks
        self._redact = redactor
        self._spending = Spending(budget, earlier_s=elapsed_before_s)
        self._elapsed_before_s = elapsed_before_s
        self._measured = asyncio.Event()
        self._flying = 0
        self._recordings: set[asyncio.Task[None]] = set()
        self._judges: list[Judge] = []
        self._dispatchers: list[Dispatcher[_Call]] = []
        self._failures = [0] * len(spec.judges)
        self._interrupted = False
        self._score_sum, self._score_count = 0.0, 0
        self._started: float | None = None
        self._finished: float | None = None
        self.ended = 0
        self.call_states = CallStates(len(index), len(spec.judges), spec.runs)
        self.usage = [JudgeUsage() for _ in spec.judges]
        self.stops: list[Stop] = []

    @property
    def elapsed_s(self) -> float:
        """Seconds of work, including earlier sessions."""
        return self._elapsed_before_s + self.session_s

    @property
    def session_s(self) -> float:
        """Seconds of work in this session, up to its last call."""
        if self._started is None:
            return 0.0
        return (self._finished or time.monotonic()) - self._started

    def count_call(self, call: CallRecord, offset: int) -> None:
        """Count a durable call."""
        self.call_states.settle(call, offset)
        self.usage[call.model].add(call)
        tokens = call.input_tokens + call.output_tokens
        # A call that failed before an answer cost nothing and does not affect the estimate.
        self._spending.add(
            calls=1 if tokens or call.status != "failed" else 0, tokens=tokens, cost_usd=call.cost_usd
        )
        self._measured.set()

    async def run(self) -> None:
        self._spending.start_clock()
        self._started = time.monotonic()
        self._hooks.started(self.interrupt)
        try:
            async with AsyncExitStack() as stack, self._reporting():
                self._judges = [
                    await stack.enter_async_context(Judge(model, max_in_flight=self._concurrency))
                    for model in self._spec.judges
                ]
                try:
                    await self._dispatch()
                finally:  # the last progress report includes calls that are still being written
                    await asyncio.gather(*self._recordings, return_exceptions=True)
        finally:
            self._hooks.ended()
            self._finished = time.monotonic()
        await self._journal.append_line(json_bytes({"elapsed_s": round(self.session_s, 3)}) + b"\n")

    def interrupt(self) -> None:
        """Start no further calls and cancel those in flight."""
        self._interrupted = True
        for dispatcher in self._dispatchers:
            dispatcher.halt(INTERRUPTED)

    def snapshot(self) -> SessionSnapshot:
        call_states, seconds = self.call_states, self.session_s
        return SessionSnapshot(
            completed=len(call_states) - call_states.open_count(),
            total=len(call_states),
            scored=call_states.count("scored"),
            unscored=call_states.count("unscored"),
            failed=call_states.count("failed"),
            mean=self._score_sum / self._score_count if self._score_count else None,
            tokens=self._spending.tokens,
            cost_usd=self._spending.cost_usd if self._spending.cost_known else None,
            in_flight=sum(self._in_flight().values()),
            rate_per_s=self.ended / seconds if self.ended and seconds > 0 else None,
        )

    def _in_flight(self) -> dict[str, int]:
        """Return the calls in flight by provider account, which judges may share."""
        return {judge.model.endpoint.limiter_key: judge.limiter.in_flight for judge in self._judges}

    async def _dispatch(self) -> None:
        self._dispatchers = [self._dispatcher(number, judge) for number, judge in enumerate(self._judges)]
        if self._interrupted:
            self.interrupt()
        stops = await asyncio.gather(*(dispatcher.run() for dispatcher in self._dispatchers))
        self.stops = [stop for stop in stops if stop is not None]
        broken = next((stop.error for stop in self.stops if stop.error is not None), None)
        if broken is not None:
            raise broken

    def _dispatcher(self, number: int, judge: Judge) -> Dispatcher[_Call]:
        async def attempt(call: _Call) -> bool:
            try:
                return await self._attempt(number, judge, call)
            except Exception:
                # Results can no longer be stored, so the other judges must stop spending.
                self._halt_others(number)
                raise

        return Dispatcher(
            self._calls(number),
            attempt,
            limit=max(1, min(self._queue_length, self.call_states.open_count(number))),
            gate=self._closed,
        )

    def _calls(self, number: int) -> Iterator[_Call]:
        if not self.call_states.open_count(number):
            return
        for record in self._index.records():
            for run in self.call_states.open_runs(record.index - 1, number):
                yield _Call(record, run)

    async def _attempt(self, number: int, judge: Judge, call: _Call) -> bool:
        if not await self._may_start():
            return False
        task, started_at = self._spec.task(call.record, number, call.run), _now()
        self._flying += 1
        try:
            judgement = await judge.score(task, call_index=self._spec.call_index(call.run))
            ended = self._ended(number, call, judgement, started_at)
        except ProviderRequestError as error:
            ended = self._ended(number, call, error, started_at)
            self._count_failure(number, error)
        else:
            self._failures[number] = 0
        finally:
            self._flying -= 1
        # A separate task stores paid results even if the session is being cancelled.
        recording = asyncio.create_task(self._record(ended))
        self._recordings.add(recording)
        recording.add_done_callback(self._recordings.discard)
        await asyncio.shield(recording)
        return True

    async def _record(self, ended: CallRecord) -> None:
        offset = await self._journal.append_line(ended.to_line())
        self.count_call(ended, offset)
        self.ended += 1
        if ended.score is not None:
            self._score_sum += ended.score
            self._score_count += 1

    def _ended(
        self, number: int, call: _Call, found: Judgement | ProviderRequestError, started_at: str
    ) -> CallRecord:
        scored = found if isinstance(found, Judgement) else None
        unscored = found if isinstance(found, UnscoredError) else None
        reason = None
        if isinstance(found, ProviderRequestError):
            reason = unscored.reason if unscored is not None else found.category or "provider"
        return CallRecord(
            record=call.record.index,
            model=number,
            run=call.run + 1,
            status="scored" if scored is not None else "unscored" if unscored is not None else "failed",
            score=scored.score if scored is not None else None,
            stated_score=scored.stated_score if scored is not None else None,
            explanation=self._redact.text(scored.explanation) if scored is not None else None,
            reason=reason,
            error=None if scored is not None else self._redact.text(str(found)),
            input_tokens=found.input_tokens,
            output_tokens=found.output_tokens,
            cost_usd=found.cost_usd,
            duration_s=round(found.duration_s, 4),
            retries=found.retries,
            started_at=started_at,
            completed_at=_now(),
            raw=self._kept(getattr(found, "raw", None)),
        )

    def _kept(self, raw: Any) -> Any:
        return self._redact.tree(raw) if self._spec.keep_raw and raw is not None else None

    def _count_failure(self, number: int, error: ProviderRequestError) -> None:
        """Stop a judge that keeps failing. Its remaining calls stay pending."""
        if isinstance(error, UnscoredError):
            self._failures[number] = 0
            return
        self._failures[number] += 1
        allowed = _REFUSALS_FOR_GOOD if error.category in _PERMANENT else _FAILURES_IN_A_ROW
        if self._failures[number] >= allowed:
            reason = f"{allowed} calls in a row failed, the last one: {self._redact.text(str(error))}"
            self._dispatchers[number].halt(Stop("fault", reason))

    def _halt_others(self, number: int) -> None:
        for other, dispatcher in enumerate(self._dispatchers):
            if other != number:
                dispatcher.halt(Stop("fault", "the session cannot go on"))

    def _closed(self) -> str | None:
        return self._spending.exhausted(self._spent_in_flight)

    async def _may_start(self) -> bool:
        """With a budget, wait until the first calls show the cost of one; return False if it is spent."""
        limited = self._budget.max_cost_usd is not None or self._budget.max_tokens is not None
        if limited and not self._measured.is_set() and self._flying >= _PROBES:
            await self._measured.wait()
            return self._closed() is None
        return True

    def _spent_in_flight(self) -> Spent:
        """Estimate the cost of the calls in flight from the mean of finished ones."""
        calls = sum(usage.calls for usage in self.usage)
        if not calls:
            return Spent()
        share = self._flying / calls
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


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
