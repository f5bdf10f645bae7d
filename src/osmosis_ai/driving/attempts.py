"""One attempt from dispatch to its result.

Invariants: an attempt is recorded at most once, and its terminal callback is acknowledged only when it is
recorded. Whether an attempt was recorded or given up is decided here, in one place and without a pause in
between: a result that arrives after its attempt was given up is acknowledged and dropped, because the
attempt is made again under a fresh id.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_ai.driving.called_conversation import keep_called_conversation
from osmosis_ai.driving.classify import Verdict, classify, failed, rejected
from osmosis_ai.driving.driver import AttemptTimeouts, RolloutRunRequest
from osmosis_ai.driving.http_driver import RolloutProtocolError
from osmosis_ai.driving.overload import (
    MAX_OVERLOADS,
    OverloadedError,
    blame_machine,
    overloaded,
    suspected_since,
)
from osmosis_ai.driving.restarting_server import AttemptLostError

if TYPE_CHECKING:
    from osmosis_ai.datasets import DatasetRow
    from osmosis_ai.driving.bridge import RolloutBridge
    from osmosis_ai.driving.call_record import RolloutUsage
    from osmosis_ai.driving.callback_registry import TerminalCallbackResult
    from osmosis_ai.driving.conversation import LastCall
    from osmosis_ai.driving.machine import MachineWatch
    from osmosis_ai.driving.server_pool import ServerPool
    from osmosis_ai.rollout.types import GraderCompleteRequest

MAX_LOSSES = 3
"""How often an attempt is made again whose server, or the connection to it, went away."""

MAX_SEED = 0x7FFFFFFF
LOST = "rollout_server_died"


def call_seed(run_seed: int, source_row: int, attempt: int, call_index: int) -> int:
    """Return the seed (31 bits) of the ``call_index``-th model call of an attempt on a dataset row."""
    place = f"{run_seed}:{source_row}:{attempt}:{call_index}"
    return int.from_bytes(hashlib.sha256(place.encode()).digest()[:4], "big") & MAX_SEED


def attempt_seeds(run_seed: int, source_row: int, attempt: int) -> Callable[[int], int]:
    """Return the function from call index to seed of one attempt."""
    return lambda call_index: call_seed(run_seed, source_row, attempt, call_index)


@dataclass(slots=True, eq=False)
class Attempt:
    """One attempt to be made."""

    row: DatasetRow
    row_index: int
    run_index: int
    seed_for: Callable[[int], int]
    name: str = ""
    row_digest: str = ""
    losses: int = 0
    overloads: int = 0

    @property
    def told(self) -> dict[str, Any]:
        """What its rollout is told of its place in the run, to stand in its trajectory."""
        return {
            "row_index": self.row_index,
            "run_index": self.run_index,
            "source_row_index": self.row.source_row_index,
        }


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """What became of an attempt."""

    attempt: Attempt
    rollout_id: str
    verdict: Verdict
    usage: RolloutUsage
    duration_ms: float
    grader: GraderCompleteRequest | None = None

    @property
    def reward(self) -> float | None:
        """What the grader gave; None for an attempt that did not succeed."""
        return self.verdict.reward if self.verdict.status == "success" else None

    @property
    def gave_no_conversation(self) -> bool:
        """Whether it failed, and what was said in it is known from its model calls alone."""
        sample = self.grader.sample if self.grader is not None else None
        return self.verdict.status == "failed" and not (sample is not None and sample.messages)


class AttemptResults(ABC):
    """Where the results of attempts go."""

    @abstractmethod
    async def record(self, result: AttemptResult) -> None:
        """Keep a result; the rollout's server hears that it arrived when this returns."""

    def lost(self, attempt: Attempt, loss: AttemptLostError) -> Verdict | None:
        """Take note of a lost attempt: None makes it again, a verdict ends it."""
        if attempt.losses <= MAX_LOSSES:
            return None
        return failed(LOST, "rollout_server", loss.death.message if loss.death is not None else str(loss))

    def unrecorded(self, rollout_id: str, usage: RolloutUsage) -> None:  # noqa: B027 - who counts no spending has nothing to do
        """Take note of a rollout that left no result, and of what it used."""


@dataclass(frozen=True)
class AttemptServices:
    """What attempts run on: the model's bridge, the rollout's servers, and the watch over this machine."""

    bridge: RolloutBridge[Any]
    servers: ServerPool
    machine: MachineWatch
    timeouts: AttemptTimeouts
    artifact_root: Path | None = None


class RunningAttempt:
    """One attempt under way, under an id of its own."""

    def __init__(
        self,
        attempt: Attempt,
        services: AttemptServices,
        results: AttemptResults,
        *,
        on_arrival: Callable[[], None],
        on_fault: Callable[[Exception], None],
    ) -> None:
        fresh = uuid.uuid4().hex
        self.rollout_id = f"{attempt.name}-{fresh[:12]}" if attempt.name else fresh
        self.recording: asyncio.Task[None] | None = None
        self.is_counted = False
        self._attempt = attempt
        self._services = services
        self._results = results
        self._on_arrival = on_arrival
        self._on_fault = on_fault
        self._started = time.monotonic()
        self._usage: RolloutUsage | None = None
        self._last_call: LastCall | None = None
        self._given_up = False
        self._overloaded: OverloadedError | None = None

    async def run(self) -> bool:
        """Make the attempt; return whether it was recorded, False when it has to be made again."""
        services = self._services
        services.bridge.open(self.rollout_id, seed_for=self._attempt.seed_for)
        try:
            loss = await self._drive()
            if self.recording is not None:
                await asyncio.shield(self.recording)
                services.servers.attempt_finished()
                return True
            self._given_up = True
            missing = AttemptLostError("its server reported no result", death=None)
            return await self._lose(self._overloaded or loss or missing)
        finally:
            usage = self._close_endpoint()
            if self.recording is None:
                self._given_up = True
                self._results.unrecorded(self.rollout_id, usage)

    async def commit(self, terminal: TerminalCallbackResult) -> Mapping[str, Any]:
        """Record a terminal result and return its acknowledgement."""
        if self._given_up:
            return {"ok": True}
        usage = self._close_endpoint()
        late = await self._was_late(terminal, usage)
        if late and self._attempt.overloads < MAX_OVERLOADS:
            self._overloaded, self._given_up = overloaded(usage), True
        if self._given_up:
            return {"ok": True}
        verdict = classify(terminal, usage.last_error)
        if late and usage.requests:
            verdict = blame_machine(verdict, times=self._attempt.overloads + 1)
        await self._record(verdict, terminal.grader)
        return acknowledgement(usage)

    def used_so_far(self) -> RolloutUsage:
        """Return what its model calls came to so far."""
        return self._usage or self._services.bridge.usage(self.rollout_id)

    async def _drive(self) -> AttemptLostError | None:
        """Run the rollout; return why it has no result when it has none."""
        attempt, timeouts = self._attempt, self._services.timeouts
        request = RolloutRunRequest(
            messages=attempt.row.messages,
            label=attempt.row.label,
            metadata=attempt.row.metadata,
            rollout_id=self.rollout_id,
            agent_timeout_sec=timeouts.agent_s,
            grader_timeout_sec=timeouts.grader_s,
            extra_fields=attempt.told,
        )
        try:
            await self._services.servers.run(request)
        except AttemptLostError as lost:
            return lost
        except RolloutProtocolError as error:
            if not 400 <= error.status_code < 500:
                return AttemptLostError(str(error), death=None)
            await self._record(rejected(error.status_code, str(error)), None)
        return None

    async def _was_late(self, terminal: TerminalCallbackResult, usage: RolloutUsage) -> bool:
        """Whether this machine, being late, explains the attempt's failure."""
        since = suspected_since(
            terminal,
            usage,
            started=self._started,
            ended=time.monotonic(),
            agent_timeout_s=self._services.timeouts.agent_s,
        )
        if since is None:
            return False
        services = self._services
        return await services.machine.was_late(since, services.servers.place_of(self.rollout_id))

    async def _lose(self, loss: AttemptLostError) -> bool:
        """Count a loss; return whether the attempt is over with it."""
        if isinstance(loss, OverloadedError):
            self._attempt.overloads += 1
        else:
            self._attempt.losses += 1
        verdict = self._results.lost(self._attempt, loss)
        if verdict is None:
            return False
        await self._record(verdict, None)
        return True

    async def _record(self, verdict: Verdict, grader: GraderCompleteRequest | None) -> None:
        usage = self._close_endpoint()
        duration_ms = (time.monotonic() - self._started) * 1000
        result = AttemptResult(self._attempt, self.rollout_id, verdict, usage, duration_ms, grader)
        # A task of its own: neither a cancelled attempt nor a closed connection takes it back.
        self.recording = asyncio.create_task(self._keep(result))
        self._on_arrival()
        try:
            await asyncio.shield(self.recording)
        except Exception as error:  # whatever it is, the next result would meet it too
            self._on_fault(error)
            raise

    async def _keep(self, result: AttemptResult) -> None:
        call, root = self._last_call, self._services.artifact_root
        if call is not None and root is not None and result.gave_no_conversation:
            # First: whoever hears of the failure finds what was said before it.
            await asyncio.to_thread(
                keep_called_conversation,
                root / self.rollout_id,
                call,
                row=self._attempt.row,
                told=self._attempt.told,
                report=result.usage.report,
            )
        self.is_counted = True
        await self._results.record(result)

    def _close_endpoint(self) -> RolloutUsage:
        """End the rollout's model calls and return what they came to, however often it is asked."""
        if self._usage is None:
            self._last_call = self._services.bridge.last_call(self.rollout_id)
            self._usage = self._services.bridge.close(self.rollout_id)
        return self._usage


def acknowledgement(usage: RolloutUsage) -> dict[str, Any]:
    """Return the acknowledgement of a callback, with what the server adds to the rollout's trajectory."""
    return {"ok": True} if usage.report is None else {"ok": True, "trajectory": usage.report}
