"""Attempts at rows on the rollout servers of a run, from dispatch to their recorded results.

An attempt is recorded at most once, and its final callback is acknowledged only when the record is durable. A result
that arrives after its attempt was abandoned is acknowledged and dropped: the attempt runs again under a new id. While its
result is being stored, an attempt no longer counts as in flight, so models do not wait for a slow disk.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import secrets
import time
import uuid
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from osmosis_ai.controller.dispatcher import (
    OBSERVE_EVERY_S,
    ConcurrencyLimiter,
    Dispatcher,
    Stop,
    choose_limit,
)
from osmosis_ai.controller.outcomes import Verdict, classify, failed
from osmosis_ai.controller.record import MOST_TOKENS, Previews, TerminalRecord, previews_of, storable
from osmosis_ai.controller.server_process import AttemptLostError, RolloutServer, ServerPool, several
from osmosis_ai.errors import OsmosisError
from osmosis_ai.event_loop import LoopMonitor
from osmosis_ai.redaction import Redactor
from osmosis_ai.rollout.artifacts import PENDING_TRAJECTORY_FILE
from osmosis_ai.rollout.driver import RolloutRunRequest
from osmosis_ai.rollout.extra_fields import (
    MOST_NOTES_CHARS,
    read_grader_notes,
    read_judge_calls,
    read_outcome,
)

if TYPE_CHECKING:
    from typing_extensions import Self

    from osmosis_ai.controller.callbacks import AttemptTimeouts, CallbackRolloutDriver, TerminalCallbackResult
    from osmosis_ai.controller.model_proxy import ModelProxy, RolloutUsage
    from osmosis_ai.controller.outcomes import LimitName
    from osmosis_ai.controller.remote_agents import RemoteAgent
    from osmosis_ai.datasets import DatasetRow
    from osmosis_ai.rollout.trajectory import Trajectory
    from osmosis_ai.rollout.types import GraderCompleteRequest


logger = logging.getLogger(__name__)

_MAX_ERROR_CHARS = 2000
_MAX_REASON_CHARS = 200
_MAX_JUDGEMENTS = 4
_MAX_TABLE_BYTES = 64 << 10
_Value = TypeVar("_Value")
_TRAJECTORY, _UNFINISHED = "trajectory.json", ".trajectory.json.called"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def save_trajectory(root: Path, running: RunningAttempt) -> None:
    """Write an attempt's conversation below ``root``, unless its server writes one; errors are logged, not raised."""
    from osmosis_ai.rollout.trajectory import encode_trajectory

    home = root / running.rollout_id
    try:
        home.mkdir(exist_ok=True)
        folder = os.open(home, _FOLDER)
        try:
            written = not {_TRAJECTORY, PENDING_TRAJECTORY_FILE}.isdisjoint(os.listdir(folder))  # noqa: PTH208 - a descriptor
            trajectory = None if written else running.trajectory()
            if trajectory is not None:
                with os.fdopen(os.open(_UNFINISHED, _NEW_FILE, 0o600, dir_fd=folder), "wb") as file:
                    file.write(encode_trajectory(trajectory).encode("ascii"))
                os.rename(_UNFINISHED, _TRAJECTORY, src_dir_fd=folder, dst_dir_fd=folder)
        finally:
            os.close(folder)
    except Exception:
        # The agent can write to this directory as well.
        logger.warning("cannot save the conversation of rollout %s", running.rollout_id, exc_info=True)


MAX_LOSSES = 3
"""How often an attempt is repeated after its server or the connection to it was lost."""


def call_seed(run_seed: int, source_row: int, attempt: int, call_index: int) -> int:
    """Return the seed (31 bits) of the ``call_index``-th model call of an attempt at a dataset row."""
    position = f"{run_seed}:{source_row}:{attempt}:{call_index}"
    return int.from_bytes(hashlib.sha256(position.encode()).digest()[:4], "big") & 0x7FFFFFFF


def attempt_seeds(run_seed: int, source_row: int, attempt: int) -> Callable[[int], int]:
    """Return the function from call index to seed of one attempt."""
    return lambda call_index: call_seed(run_seed, source_row, attempt, call_index)


@dataclass(slots=True, eq=False)
class Attempt:
    """An attempt to run."""

    row: DatasetRow
    row_index: int
    run_index: int
    seed_for: Callable[[int], int]
    name: str = ""
    row_digest: str = ""
    losses: int = 0

    @property
    def position(self) -> dict[str, Any]:
        """Its position in the run, which is stored in its trajectory."""
        return {
            "row_index": self.row_index,
            "run_index": self.run_index,
            "source_row_index": self.row.source_row_index,
        }


class AttemptResults(ABC):
    """Stores the results of attempts."""

    redact = Redactor()
    """Removes secrets from records."""
    previews = False
    """Whether records contain the beginnings of input and output."""

    @abstractmethod
    async def record(self, record: TerminalRecord, running: RunningAttempt) -> None:
        """Store the record of an attempt; the rollout server gets its acknowledgement when this returns."""

    def lost(self, attempt: Attempt, loss: AttemptLostError) -> Verdict | None:
        """Handle a lost attempt; None repeats it, a verdict ends it."""
        if attempt.losses <= MAX_LOSSES:
            return None
        reason = loss.death.message if loss.death is not None else str(loss)
        return failed("rollout_server_died", "rollout_server", reason)

    def unrecorded(self, rollout_id: str, usage: RolloutUsage) -> None:  # noqa: B027 - optional
        """Handle the usage of a rollout without a result."""


class RunningAttempt:
    """A running attempt with its own rollout id."""

    def __init__(
        self,
        attempt: Attempt,
        runner: RolloutRunner,
        results: AttemptResults,
        dispatcher: Dispatcher[Attempt],
    ) -> None:
        unique = uuid.uuid4().hex
        self.rollout_id = f"{attempt.name}-{unique[:12]}" if attempt.name else unique
        self.recording: asyncio.Task[None] | None = None
        self.is_counted = False
        self.attempt = attempt
        self.grader: GraderCompleteRequest | None = None
        self._runner = runner
        self._results = results
        self._dispatcher = dispatcher
        self._started = time.monotonic()
        self._usage: RolloutUsage | None = None
        self._is_abandoned = False

    async def run(self) -> bool:
        """Run the attempt; return whether it was recorded, False if it has to run again."""
        self._runner.model_proxy.open(self.rollout_id, seed_for=self.attempt.seed_for)
        try:
            lost = await self._run_rollout()
            if self.recording is not None:
                await asyncio.shield(self.recording)
                self._runner.servers.attempt_finished()
                return True
            self._is_abandoned = True
            self.attempt.losses += 1
            lost = lost or AttemptLostError("its server reported no result", death=None)
            verdict = self._results.lost(self.attempt, lost)
            if verdict is not None:
                await self._record(verdict, None)
            return verdict is not None
        finally:
            usage = self._close_endpoint()
            if self.recording is None:
                self._is_abandoned = True
                self._results.unrecorded(self.rollout_id, usage)

    async def commit(self, terminal: TerminalCallbackResult) -> Mapping[str, Any]:
        """Record a terminal result and return its acknowledgement."""
        if self._is_abandoned:
            return {"ok": True}
        usage = self._close_endpoint()
        await self._record(classify(terminal, usage.last_error), terminal.grader)
        return acknowledgement(usage, stored=self._runner.trajectory_root is None)

    def used_so_far(self) -> RolloutUsage:
        """Return the usage of its model calls so far."""
        return self._usage or self._runner.model_proxy.usage(self.rollout_id)

    async def _run_rollout(self) -> AttemptLostError | None:
        """Run the rollout; return the error if its server was lost."""
        from osmosis_ai.controller.callbacks import RolloutProtocolError

        attempt, timeouts = self.attempt, self._runner.timeouts
        request = RolloutRunRequest(
            messages=attempt.row.messages,
            label=attempt.row.label,
            metadata=attempt.row.metadata,
            rollout_id=self.rollout_id,
            agent_timeout_sec=timeouts.agent_s,
            grader_timeout_sec=timeouts.grader_s,
            extra_fields=attempt.position,
        )
        try:
            await self._runner.servers.run(request)
        except AttemptLostError as lost:
            return lost
        except RolloutProtocolError as error:
            if not 400 <= error.status_code < 500:
                return AttemptLostError(str(error), death=None)
            reason = f"HTTP {error.status_code}: {error}"
            await self._record(failed("rollout_protocol_error", "rollout_server", reason), None)
        return None

    def trajectory(self) -> Trajectory | None:
        """Return the conversation: the grader's sample, otherwise the last model call, otherwise the prompt.

        Messages and reports are the agent's: errors are logged, not raised.
        """
        from osmosis_ai.rollout.trajectory import convert_sample_to_trajectory, report_from_response
        from osmosis_ai.rollout.types import RolloutSample

        sample = self.grader.sample if self.grader is not None else None
        row, usage = self.attempt.row, self.used_so_far()
        try:
            if from_calls := sample is None or not sample.messages:
                sample = RolloutSample(
                    messages=usage.last_call.messages() if usage.last_call else row.messages
                )
            if not sample.messages:
                return None
            sample.trajectory_messages = sample.messages
            return convert_sample_to_trajectory(
                sample,
                rollout_id=self.rollout_id,
                request_label=row.label,
                request_metadata=dict(row.metadata) if row.metadata is not None else None,
                request_extra_fields=self.attempt.position,
                # A provider may report malformed token counts.
                report=report_from_response({"trajectory": usage.report}),
                from_model_calls=from_calls and usage.last_call is not None,
                tools=usage.last_call.tools() if usage.last_call else None,
            )
        except Exception:
            logger.warning("cannot read the conversation of rollout %s", self.rollout_id, exc_info=True)
            return None

    async def _record(self, verdict: Verdict, grader: GraderCompleteRequest | None) -> None:
        self._close_endpoint()
        self.grader = grader
        # A separate task: neither a cancelled attempt nor a closed connection stops it.
        self.recording = asyncio.create_task(self._store(self.record(verdict)))
        self._dispatcher.release(self.attempt)
        try:
            await asyncio.shield(self.recording)
        except Exception as error:  # the next result would fail as well
            self._dispatcher.fail(error)
            raise

    async def _store(self, record: TerminalRecord) -> None:
        if (root := self._runner.trajectory_root) is not None:
            # First, so that a reader of the result finds its conversation.
            await asyncio.to_thread(save_trajectory, root, self)
        self.is_counted = True
        await self._results.record(record, self)

    def _close_endpoint(self) -> RolloutUsage:
        """End the rollout's model calls and return their usage; repeated calls return the same."""
        if self._usage is None:
            self._usage = self._runner.model_proxy.close(self.rollout_id)
        return self._usage

    def record(self, verdict: Verdict) -> TerminalRecord:
        """Return the attempt's record, without secrets."""
        redact = self._results.redact

        def clean(text: str, limit: int = _MAX_ERROR_CHARS) -> str:
            return storable(redact.text(text))[:limit]

        attempt, usage = self.attempt, self.used_so_far()
        sample = self.grader.sample if self.grader is not None else None
        extra_fields, messages = (sample.extra_fields, sample.messages) if sample is not None else ({}, [])
        loop, judges = read_outcome(extra_fields), read_judge_calls(extra_fields)
        graded = read_grader_notes(extra_fields)
        all_scores = loop.scores if verdict.status == "success" else {}
        scores = _first_entries({clean(name): score for name, score in all_scores.items()})
        unscored = _first_entries({clean(name): clean(reason) for name, reason in loop.unscored.items()})
        notes = clean(graded.notes or "", MOST_NOTES_CHARS)
        left_out = len(all_scores) - len(scores) + len(loop.unscored) - len(unscored)
        if left_out:
            limit = f"{_MAX_TABLE_BYTES >> 10} KiB per attempt"
            added = f"{left_out:,} scores or reasons are left out (limit: {limit})."
            notes = f"{notes[: MOST_NOTES_CHARS - len(added) - 1]}\n{added}" if notes else added
        judgements = [
            {name: clean(value) if isinstance(value, str) else value for name, value in judgement.items()}
            for judgement in judges.judgements[:_MAX_JUDGEMENTS]
        ]
        shown = Previews()
        if self._results.previews:
            shown = previews_of(messages, redact, prompt=attempt.row.messages)
        called = usage.calls > 0
        # A provider may report any number.
        counted = called and not usage.uncounted and usage.total_tokens <= MOST_TOKENS
        return TerminalRecord(
            row_index=attempt.row_index,
            run_index=attempt.run_index,
            rollout_id=self.rollout_id,
            status=verdict.status,
            duration_ms=round((time.monotonic() - self._started) * 1000),
            source_row_index=attempt.row.source_row_index,
            reward=verdict.reward,
            tokens=usage.total_tokens if counted else None,
            error_type=verdict.error_type,
            boundary=verdict.boundary,
            category=verdict.category,
            error=clean(verdict.error) if verdict.error else None,
            model_calls=usage.calls,
            prompt_tokens=usage.prompt_tokens if counted else None,
            completion_tokens=usage.completion_tokens if counted else None,
            cost_usd=usage.cost_usd if called else None,
            model_latency_ms=round(sum(usage.model_latency_s) * 1000, 3) if called else None,
            lost_attempts=attempt.losses or None,
            row_digest=attempt.row_digest or None,
            scores=scores or None,
            unscored=unscored or None,
            finish_reason=clean(loop.finish_reason, _MAX_REASON_CHARS) if loop.finish_reason else None,
            judge_calls=judges.calls or None,
            judge_tokens=judges.tokens if judges.calls else None,
            judge_cost_usd=judges.cost_usd,
            judge_outside_scale=judges.outside_scale or None,
            judgements=judgements or None,
            input=shown.input,
            output=shown.output,
            notes=notes or None,
            finish_reasons=usage.finish_reasons or None,
            parts={clean(name): value for name, value in graded.parts.items()} or None,
        )


def _first_entries(table: Mapping[str, _Value]) -> dict[str, _Value]:
    """Return the first 64 KiB of entries: a record is read and sent in one piece."""
    first: dict[str, _Value] = {}
    room = _MAX_TABLE_BYTES
    for name, value in table.items():
        room -= len(f'"{name}":"{value}",'.encode())
        if room < 0:
            break
        first[name] = value
    return first


def acknowledgement(usage: RolloutUsage, *, stored: bool) -> dict[str, Any]:
    """Return the acknowledgement of a callback.

    It has the report that the server adds to the trajectory, and whether the controller stores the conversation, in
    which case the server need not.
    """
    answer: dict[str, Any] = {"ok": True}
    if usage.report is not None:
        answer["trajectory"] = usage.report
    if stored:
        answer["conversation"] = "stored"
    return answer


@dataclass(eq=False)
class _Call:
    """A call of :meth:`RolloutRunner.run_all`: its results and its remaining attempts."""

    results: AttemptResults
    left: set[Attempt]
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    done: asyncio.Event = field(default_factory=asyncio.Event)


class _Queue(OrderedDict[Attempt, None]):
    """Waiting attempts, first in, first out. The iterator continues when more are added."""

    def __next__(self) -> Attempt:
        if not self:
            raise StopIteration
        return self.popitem(last=False)[0]


class RolloutRunner:
    """Runs attempts on rollout servers or a remote agent; an async context manager, created on its event loop.

    One runner serves a whole run: an evaluation gives it all its attempts at once with :meth:`run`, a training run a group
    or a validation at a time with :meth:`run_all`. However they end, results that have arrived are recorded before.
    """

    def __init__(
        self,
        model_proxy: ModelProxy,
        *,
        model_key: str,
        server: RolloutServer | RemoteAgent,
        servers: int = 1,
        timeouts: AttemptTimeouts,
        redact: Redactor,
        note: Callable[[str], None],
        log: Callable[..., None] = lambda *_, **__: None,
        rate_limited: Callable[[], bool] = lambda: False,
        trajectory_root: Path | None = None,
        max_in_flight: int | None = None,
    ) -> None:
        # Only here: with aiohttp, they take longer to import than the rest of an evaluation.
        from osmosis_ai.controller.callbacks import CallbackListener, CallbackStore
        from osmosis_ai.controller.remote_agents import RemoteAgent, RemoteAgentDriver

        self.model_proxy, self.timeouts = model_proxy, timeouts
        self.trajectory_root = trajectory_root
        """The directory of conversations; None if :class:`AttemptResults` stores them."""
        self._model_key = model_key
        self._callback_key = secrets.token_urlsafe(32)
        redact.add([self._model_key, self._callback_key])
        self._note, self._log = note, log
        self._rate_limited = rate_limited
        self._store = CallbackStore(
            on_terminal_commit=self._commit,
            # A server that writes the conversation does so before it reports the result, with the usage of its calls.
            acknowledge_completion=lambda rollout_id: acknowledgement(
                model_proxy.usage(rollout_id), stored=trajectory_root is None
            ),
        )
        self._agent_driver: RemoteAgentDriver | None = None
        if isinstance(server, RemoteAgent):
            self._agent_driver = RemoteAgentDriver(
                server,
                self._store,
                model_proxy,
                server_url=lambda: self._callbacks.base_url,
                callback_timeout_s=timeouts.completion_s,
            )
            self._callbacks = CallbackListener(
                self._store,
                auth_token=self._callback_key,
                agents=self._agent_driver,
                address=server.callback_address,
            )
            self.servers = ServerPool([server], connect=self._connect, note=note, reports_load=False)
        else:
            self._callbacks = CallbackListener(
                self._store, auth_token=self._callback_key, bridge=model_proxy, bridge_token=model_key
            )
            server.callbacks = self._callbacks
            self.servers = ServerPool(several(server, servers), connect=self._connect, note=note)
        self._monitor = LoopMonitor()
        self._running: dict[str, RunningAttempt] = {}
        self._cancelled: list[str] = []
        self._has_warned = False
        self._model_waits_s: list[float] = []
        self._stack = AsyncExitStack()
        self.dispatched = 0
        # What the calls of `run_all` share.
        self._max_in_flight = max_in_flight
        self._queue = _Queue()
        self._calls: dict[Attempt, _Call] = {}
        self._dispatcher: Dispatcher[Attempt] | None = None
        self._dispatching: asyncio.Task[Stop | None] | None = None

    async def __aenter__(self) -> Self:
        """Start the callback listener and the rollout servers."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._callbacks)
            self._log("listener", "listening for callbacks", url=self._callbacks.base_url)
            await stack.enter_async_context(self.servers)
            running = len(self.servers.up)
            healthy = "server is" if running == 1 else f"{running} servers are"
            self._log("server", f"the rollout's {healthy} healthy", capacity=self.capacity)
            self._monitor.start()
            stack.callback(self._monitor.stop)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        if self._dispatching is not None:
            self._dispatching.cancel()
            await asyncio.gather(self._dispatching, return_exceptions=True)
        await self._stack.aclose()

    @property
    def capacity(self) -> int | None:
        """How many rollouts the servers run at once; None without a limit."""
        return self.servers.capacity

    def used_in_flight(self) -> Iterator[RolloutUsage]:
        """Yield the usage of each running attempt whose result is not being recorded."""
        return (running.used_so_far() for running in self._running.values() if not running.is_counted)

    def dispatcher(
        self,
        attempts: Iterator[Attempt],
        results: AttemptResults,
        *,
        limit: int,
        gate: Callable[[], str | None] = lambda: None,
    ) -> Dispatcher[Attempt]:
        """Return the dispatcher to :meth:`run`, for ``attempts``, at most ``limit`` of them at once."""

        async def run(attempt: Attempt) -> bool:
            return await self._run_attempt(attempt, results, dispatcher)

        dispatcher = self._dispatch(attempts, run, limit, gate)
        return dispatcher

    def _dispatch(
        self,
        attempts: Iterator[Attempt],
        run: Callable[[Attempt], Awaitable[bool]],
        limit: int,
        gate: Callable[[], str | None] = lambda: None,
    ) -> Dispatcher[Attempt]:
        # An attempt that is being recorded still occupies the server.
        spare = limit if self.capacity is None else min(limit, max(0, self.capacity - limit))
        return Dispatcher(attempts, run, limit=limit, gate=gate, spare=spare)

    async def run(
        self, dispatcher: Dispatcher[Attempt], *, limits: Counter[LimitName] | None = None
    ) -> Stop | None:
        """Run the attempts; return why some are left, or None. Count in ``limits`` what limited each second."""
        servers, limiter = self.servers, ConcurrencyLimiter(dispatcher.limit)
        servers.on_change = lambda: dispatcher.narrow(servers.share(limiter.limit))
        servers.on_change()
        adapting = asyncio.create_task(
            self._adapt(dispatcher, limiter, Counter() if limits is None else limits)
        )
        try:
            return await dispatcher.run()
        finally:
            servers.on_change = lambda: None
            adapting.cancel()
            await asyncio.gather(adapting, return_exceptions=True)
            recordings = [running.recording for running in self._running.values() if running.recording]
            await asyncio.gather(*recordings, return_exceptions=True)

    async def run_all(self, attempts: Sequence[Attempt], results: AttemptResults) -> None:
        """Run all ``attempts``; concurrent calls share the server's capacity, and earlier ones start first."""
        call = _Call(results, set(attempts))
        self._calls.update(dict.fromkeys(attempts, call))
        self._queue.update(dict.fromkeys(attempts))
        done = asyncio.create_task(call.done.wait())
        try:
            while call.left:
                if self._dispatcher is None or self._dispatching is None or self._dispatching.done():
                    self._dispatcher = self._dispatch_queue()
                    self._dispatching = asyncio.create_task(self.run(self._dispatcher))
                self._dispatcher.wake()
                dispatching = self._dispatching
                await asyncio.wait({dispatching, done}, return_when=asyncio.FIRST_COMPLETED)
                if call.left and (stop := dispatching.result()) is not None:
                    raise stop.error or OsmosisError(stop.reason)
        finally:
            for attempt in attempts:
                del self._calls[attempt]
                self._queue.pop(attempt, None)
            for task in (done, *call.tasks):
                task.cancel()
            await asyncio.gather(done, *call.tasks, return_exceptions=True)
            running = [each for each in self._running.values() if each.attempt in call.left]
            recordings = [each.recording for each in running if each.recording is not None]
            await asyncio.gather(*recordings, return_exceptions=True)

    def _dispatch_queue(self) -> Dispatcher[Attempt]:
        async def run(attempt: Attempt) -> bool:
            if (call := self._calls.get(attempt)) is None:
                return True  # the call was cancelled
            task = asyncio.current_task()
            assert task is not None
            call.tasks.add(task)
            task.add_done_callback(call.tasks.discard)
            finished = await self._run_attempt(attempt, call.results, dispatcher)
            if finished:
                call.left.discard(attempt)
                if not call.left:
                    call.done.set()
            return finished

        limit = choose_limit(max_in_flight=self._max_in_flight, batch_size=None, capacity=self.capacity)
        dispatcher = self._dispatch(self._queue, run, limit)
        return dispatcher

    async def wait_until_cancelled_ended(self, stage: Callable[[str], None]) -> None:
        """Wait until the server has released the cancelled rollouts, up to a limit."""
        cancelled = self._cancelled
        # Remote agents do not report the status of a rollout.
        if not cancelled or not self.servers.up or self._agent_driver is not None:
            return
        stage(f"waiting for the end of cancelled rollouts: {len(cancelled)}")
        busy = await self.servers.wait_until_ended(cancelled)
        self._log("cancel", "cancelled rollouts have ended", cancelled=len(cancelled), still_busy=len(busy))
        if busy:
            self._note(f"{len(busy)} cancelled rollouts did not end in time. Their server is stopped anyway.")

    async def _run_attempt(
        self, attempt: Attempt, results: AttemptResults, dispatcher: Dispatcher[Attempt]
    ) -> bool:
        running = RunningAttempt(attempt, self, results, dispatcher)
        self._running[running.rollout_id] = running
        self.dispatched += 1
        try:
            finished = await running.run()
            if finished:
                self._model_waits_s.append(sum(running.used_so_far().model_latency_s))
            return finished
        except asyncio.CancelledError:
            self._cancelled.append(running.rollout_id)
            raise
        finally:
            if running.recording is None or running.recording.done():
                del self._running[running.rollout_id]
            else:
                running.recording.add_done_callback(lambda _: self._running.pop(running.rollout_id, None))

    async def _commit(self, terminal: TerminalCallbackResult) -> Mapping[str, Any]:
        running = self._running.get(terminal.rollout_id)
        if running is None:
            raise RuntimeError(f"no attempt {terminal.rollout_id} is running")
        return await running.commit(terminal)

    def _connect(self, base_url: str) -> CallbackRolloutDriver:
        if self._agent_driver is not None:
            return self._agent_driver
        from osmosis_ai.controller.callbacks import HttpRolloutDriver

        return HttpRolloutDriver(
            rollout_base_url=base_url,
            callback_store=self._store,
            completion_url_for=self._callbacks.completion_url,
            grader_url_for=self._callbacks.grader_url,
            chat_completions_url_for=self._callbacks.chat_completions_url,
            chat_api_key=self._model_key,
            controller_api_key=self._callback_key,
            callback_timeout_sec=self.timeouts.callback_s,
        )

    async def _adapt(
        self, dispatcher: Dispatcher[Attempt], limiter: ConcurrencyLimiter, limits: Counter[LimitName]
    ) -> None:
        """Limit what is in flight by how busy the event loops are."""
        while True:
            await asyncio.sleep(OBSERVE_EVERY_S)
            busy = max(await self.servers.busy(), self._monitor.state().busy)
            waits_s, self._model_waits_s = self._model_waits_s, []
            if limiter.observe(busy=busy, model_waits_s=waits_s):
                dispatcher.narrow(self.servers.share(limiter.limit))
                self._log("schedule", "concurrency limit", limit=limiter.limit, busy=round(busy, 2))
                if limiter.was_cut and not self._has_warned:
                    self._has_warned = True
                    self._note(
                        f"This machine is saturated: at most {limiter.limit} of {limiter.maximum} attempts "
                        "run at once until it recovers."
                    )
            if dispatcher.in_flight:
                if busy >= limiter.SATURATED or (limiter.was_cut and limiter.limit < limiter.maximum):
                    limits["this_machine"] += 1
                else:
                    limits["rate_limit" if self._rate_limited() else "provider"] += 1
