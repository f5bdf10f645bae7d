"""One attempt from dispatch to durable record.

Invariants: an attempt is recorded at most once, and its terminal callback is acknowledged only when
the record is durable. Whether an attempt was recorded or given up is decided here, in one place
and without a pause in between: a result that arrives after its attempt was given up is
acknowledged and dropped, because the item runs again under a fresh id.
"""

from __future__ import annotations

import asyncio
import math
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from osmosis_ai.driving.classify import Verdict, classify, rejected
from osmosis_ai.driving.http_driver import RolloutProtocolError
from osmosis_ai.driving.overload import (
    MAX_OVERLOADS,
    OverloadedError,
    blame_machine,
    overloaded,
    suspected_since,
)
from osmosis_ai.driving.restarting_server import AttemptLostError, RestartingRolloutServer
from osmosis_ai.driving.seeds import attempt_seeds
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.budget import NOTHING, Spent
from osmosis_ai.evaluation.journal import Journal
from osmosis_ai.evaluation.pending import WorkItem
from osmosis_ai.evaluation.record import TerminalRecord

if TYPE_CHECKING:
    from osmosis_ai.driving.bridge import ModelBridge, RolloutUsage
    from osmosis_ai.driving.callback_registry import TerminalCallbackResult
    from osmosis_ai.evaluation.run_state import RunState
    from osmosis_ai.evaluation.spec import EvalRunSpec

MAX_LOSSES = 3
_MAX_ERROR_CHARS = 2000
_SHOWN_ROWS = 10
_RECOUNT_S = 0.25


class LostTooOftenError(OsmosisError):
    """The same attempt was lost again and again."""

    default_code = "INTERNAL"


class UnknownAttemptError(RuntimeError):
    """A terminal arrived for a rollout that nobody dispatched."""


@dataclass(slots=True)
class _Flight:
    """An attempt under way."""

    item: WorkItem
    rollout_id: str
    started: float
    usage: RolloutUsage | None = None
    recording: asyncio.Task[Mapping[str, Any]] | None = None
    given_up: bool = False
    overloaded: OverloadedError | None = None


class AttemptRunner:
    """Dispatches attempts and records their results.

    Args:
        bridge: serves the model to them and knows what they used.
        state: what the run's results become part of.
        on_fault: told of an error that no later record can survive (a full disk).

    Attributes:
        host: runs the rollouts; to be set before the first attempt.
        was_late: tells whether this machine was late at any time since a moment of the monotonic clock.
        dispatched: attempts started.
        cancelled: ids of the rollouts that were cancelled with the run.
    """

    def __init__(
        self,
        *,
        spec: EvalRunSpec,
        seed: int,
        bridge: ModelBridge,
        journal: Journal,
        state: RunState,
        on_fault: Callable[[Exception], None],
    ) -> None:
        self._spec = spec
        self._seed = seed
        self._bridge = bridge
        self._journal = journal
        self._state = state
        self._on_fault = on_fault
        self._flights: dict[str, _Flight] = {}
        self.host: RestartingRolloutServer | None = None
        self.was_late: Callable[[float], Awaitable[bool]] = _never
        self._counted, self._counted_at = NOTHING, -math.inf
        # (source row, run) of attempts that went down with their server, and how often. Those come first
        # again, so there are never many.
        self._deaths: Counter[tuple[int, int]] = Counter()
        self.dispatched = 0
        self.cancelled: list[str] = []

    async def attempt(self, item: WorkItem) -> bool:
        """Make one attempt; return whether it was recorded, False when it has to be made again.

        Raises:
            OsmosisError: when there is no point in going on (no server, no disk).
        """
        assert self.host is not None, "there is no host to run the attempt"
        rollout_id = uuid.uuid4().hex
        flight = _Flight(item, rollout_id, time.monotonic())
        self._flights[rollout_id] = flight
        self.dispatched += 1
        self._bridge.open(
            rollout_id, seed_for=attempt_seeds(self._seed, item.row.source_row_index, item.run_index)
        )
        try:
            loss = await self._drive(flight)
            if flight.recording is None:
                flight.given_up = True
                missing = AttemptLostError("its server reported no result", death=None)
                self._note_loss(item, flight.overloaded or loss or missing)
                return False
            await asyncio.shield(flight.recording)
            self._deaths.pop((item.row.source_row_index, item.run_index), None)
            self.host.attempt_finished()
            return True
        except asyncio.CancelledError:
            self.cancelled.append(rollout_id)
            raise
        finally:
            self._land(flight)

    async def commit(self, terminal: TerminalCallbackResult) -> Mapping[str, Any]:
        """Make a terminal result durable and return its acknowledgement (the callback store's commit hook).

        Raises:
            UnknownAttemptError: when no such attempt is under way.
            JournalWriteError: when the disk refused the record.
        """
        flight = self._flights.get(terminal.rollout_id)
        if flight is None:
            raise UnknownAttemptError(f"no attempt {terminal.rollout_id} is under way")
        if flight.given_up:
            return {"ok": True}
        usage = self._close_endpoint(flight)
        late = await self._was_late_for(flight, terminal, usage)
        if late and flight.item.overloads < MAX_OVERLOADS:
            flight.overloaded, flight.given_up = overloaded(usage), True
        if flight.given_up:
            return {"ok": True}
        expects_trajectory = terminal.grader is not None and terminal.grader.sample is not None
        verdict = classify(terminal, usage.last_error)
        if late and usage.requests:
            verdict = blame_machine(verdict, times=flight.item.overloads + 1)
        return await self._record(flight, verdict, usage, expects_trajectory=expects_trajectory)

    def acknowledge_completion(self, rollout_id: str) -> Mapping[str, Any]:
        """Return the acknowledgement of a workflow's end, with what its model calls came to.

        The server writes the conversation before it reports the result, and then knows them already.
        """
        return _acknowledgement(self._bridge.usage(rollout_id))

    def spent_in_flight(self) -> Spent:
        """Return what the attempts under way have used, at most a moment ago."""
        now = time.monotonic()
        if now - self._counted_at >= _RECOUNT_S:
            usages = [self._bridge.usage(rollout_id) for rollout_id in self._flights]
            self._counted = Spent(sum(u.total_tokens for u in usages), sum(u.cost_usd or 0.0 for u in usages))
            self._counted_at = now
        return self._counted

    async def settle(self) -> None:
        """Wait until no record is on its way to the disk."""
        recordings = [flight.recording for flight in self._flights.values() if flight.recording is not None]
        await asyncio.gather(*recordings, return_exceptions=True)

    async def _drive(self, flight: _Flight) -> AttemptLostError | None:
        """Run the rollout; return why it has no result when it has none."""
        from osmosis_ai.driving.driver import RolloutRunRequest

        assert self.host is not None
        item = flight.item
        request = RolloutRunRequest(
            messages=item.row.messages,
            label=item.row.label,
            metadata=item.row.metadata,
            rollout_id=flight.rollout_id,
            agent_timeout_sec=self._spec.agent_timeout_sec,
            grader_timeout_sec=self._spec.grader_timeout_sec,
            extra_fields={"row_index": item.row_index, "run_index": item.run_index},
        )
        try:
            await self.host.run(request)
        except AttemptLostError as lost:
            return lost
        except RolloutProtocolError as error:
            if not 400 <= error.status_code < 500:
                return AttemptLostError(str(error), death=None)
            usage = self._close_endpoint(flight)
            await self._record(
                flight, rejected(error.status_code, str(error)), usage, expects_trajectory=False
            )
        return None

    async def _was_late_for(
        self, flight: _Flight, terminal: TerminalCallbackResult, usage: RolloutUsage
    ) -> bool:
        """Whether this machine, being late, explains the attempt's failure."""
        since = suspected_since(
            terminal,
            usage,
            started=flight.started,
            ended=time.monotonic(),
            agent_timeout_s=self._spec.agent_timeout_sec,
        )
        return since is not None and await self.was_late(since)

    def _note_loss(self, item: WorkItem, loss: AttemptLostError) -> None:
        overload = isinstance(loss, OverloadedError)
        item.overloads += overload
        item.losses += not overload
        if loss.death is not None:
            self._deaths[item.row.source_row_index, item.run_index] += 1
        self._state.log.write(
            "dispatch",
            f"attempt lost: {loss}",
            level="WARNING",
            row_index=item.row_index,
            run_index=item.run_index,
            losses=item.losses + item.overloads,
        )
        if item.losses > MAX_LOSSES:
            raise self._lost_too_often(item, loss)

    def _lost_too_often(self, item: WorkItem, loss: AttemptLostError) -> LostTooOftenError:
        source_row = item.row.source_row_index
        if loss.death is None:
            return LostTooOftenError(
                f"row {source_row} (attempt {item.run_index + 1}) was lost {item.losses} times, "
                f"the last time because {loss}.",
                details={"source_row_index": source_row, "run_index": item.run_index},
                hint="what is finished is kept; the rest stays pending",
            )
        # Any of the rows that were under way each time may be the one; the others went down with it.
        often = self._deaths[source_row, item.run_index] - 1
        rows = sorted({row for (row, _), deaths in self._deaths.items() if deaths >= often})
        shown = ", ".join(map(str, rows[:_SHOWN_ROWS])) + (", …" if len(rows) > _SHOWN_ROWS else "")
        at_work = f"row {shown} was" if len(rows) == 1 else f"rows {shown} were"
        return LostTooOftenError(
            f"the rollout's server died {item.losses} times while {at_work} under way. "
            f"The last time: {loss.death.message}",
            details={"source_rows": rows, **loss.death.details},
            hint=(
                f"see what row {shown} makes the agent do" if len(rows) == 1 else "one of these rows does it"
            )
            + f": try it alone with `--rows {rows[0]}`. What is finished is kept",
        )

    async def _record(
        self, flight: _Flight, verdict: Verdict, usage: RolloutUsage, *, expects_trajectory: bool
    ) -> Mapping[str, Any]:
        # A task of its own: neither a cancelled attempt nor a closed connection takes it back.
        flight.recording = asyncio.create_task(self._write(flight, verdict, usage, expects_trajectory))
        try:
            return await asyncio.shield(flight.recording)
        except Exception as error:  # whatever it is, the next record would meet it too
            self._on_fault(error)
            raise

    async def _write(
        self, flight: _Flight, verdict: Verdict, usage: RolloutUsage, expects_trajectory: bool
    ) -> Mapping[str, Any]:
        record = self._make_record(flight, verdict, usage)
        await self._state.prepare(record)
        offset = await self._journal.append(record)
        self._state.add(record, offset, expects_trajectory=expects_trajectory)
        return _acknowledgement(usage)

    def _make_record(self, flight: _Flight, verdict: Verdict, usage: RolloutUsage) -> TerminalRecord:
        called = usage.calls > 0
        return TerminalRecord(
            row_index=flight.item.row_index,
            run_index=flight.item.run_index,
            rollout_id=flight.rollout_id,
            status=verdict.status,
            duration_ms=round((time.monotonic() - flight.started) * 1000),
            source_row_index=flight.item.row.source_row_index,
            reward=verdict.reward,
            tokens=usage.total_tokens if called else None,
            error_type=verdict.error_type,
            boundary=verdict.boundary,
            category=verdict.category,
            error=self._state.redact.text(verdict.error)[:_MAX_ERROR_CHARS] if verdict.error else None,
            model_calls=usage.calls,
            prompt_tokens=usage.prompt_tokens if called else None,
            completion_tokens=usage.completion_tokens if called else None,
            cost_usd=usage.cost_usd if called else None,
            model_latency_ms=round(sum(usage.model_latency_s) * 1000, 3) if called else None,
            lost_attempts=(flight.item.losses + flight.item.overloads) or None,
            row_digest=flight.item.row_digest,
        )

    def _close_endpoint(self, flight: _Flight) -> RolloutUsage:
        """End the rollout's model calls and return what they came to, however often it is asked."""
        if flight.usage is None:
            flight.usage = self._bridge.close(flight.rollout_id)
        return flight.usage

    def _land(self, flight: _Flight) -> None:
        """Forget an attempt that ended, one way or another; what it used is spent all the same."""
        usage = self._close_endpoint(flight)
        if flight.recording is None:
            flight.given_up = True
            self._state.spending.add(calls=usage.calls, tokens=usage.total_tokens, cost_usd=usage.cost_usd)
        if flight.recording is None or flight.recording.done():
            del self._flights[flight.rollout_id]
        else:
            flight.recording.add_done_callback(lambda _: self._flights.pop(flight.rollout_id, None))


async def _never(_since: float) -> bool:
    return False


def _acknowledgement(usage: RolloutUsage) -> dict[str, Any]:
    return {"ok": True} if usage.report is None else {"ok": True, "trajectory": usage.report}
