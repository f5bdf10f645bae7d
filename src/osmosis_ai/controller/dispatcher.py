"""Runs attempts on the rollout's servers, a limited number at once, until all are recorded.

Concurrency is a limit, not a batch: when an attempt ends, the next one starts. One whose result has arrived and is only
being written no longer counts, so a slow disk keeps no model waiting; the number being written is limited as well.
Attempts start in the order of the stream, and lost ones run again before the rest. Dispatch ends with the stream, when
the gate closes (attempts in flight finish), or when it is halted (they are cancelled). What is left is still pending.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from osmosis_ai.controller.attempt import (
    Attempt,
    AttemptResults,
    AttemptServices,
    RunningAttempt,
    acknowledgement,
)
from osmosis_ai.controller.callbacks import (
    AttemptTimeouts,
    CallbackListener,
    CallbackRolloutDriver,
    CallbackStore,
    HttpRolloutDriver,
)
from osmosis_ai.controller.outcomes import LIMITS, LimitedBy, LimitName
from osmosis_ai.controller.remote_agents import AgentCallbacks, RemoteAgent, RemoteAgentDriver
from osmosis_ai.controller.server_process import (
    RolloutServer,
    ServerPool,
    several,
)
from osmosis_ai.errors import OsmosisError
from osmosis_ai.event_loop import LoopMonitor

if TYPE_CHECKING:
    from typing_extensions import Self

    from osmosis_ai.controller.callbacks import TerminalCallbackResult
    from osmosis_ai.controller.model_proxy import ModelProxy, RolloutUsage
    from osmosis_ai.redaction import Redactor


Item = TypeVar("Item")

DEFAULT_IN_FLIGHT = 32

OBSERVE_EVERY_S = 0.5

StopKind = Literal["interrupted", "budget", "fault"]


def choose_limit(*, max_in_flight: int | None, batch_size: int | None, capacity: int | None) -> int:
    """Return how many rollouts run at once: what the user asks for, within the server's capacity."""
    asked = max_in_flight or batch_size
    if capacity is None:
        return asked or DEFAULT_IN_FLIGHT
    return min(asked, capacity) if asked else capacity


@dataclass(frozen=True)
class Stop:
    """Why a run ended with work left."""

    kind: StopKind
    reason: str
    error: BaseException | None = None


class Dispatcher(Generic[Item]):
    """Runs ``attempt`` on every item of a stream."""

    def __init__(
        self,
        items: Iterator[Item],
        attempt: Callable[[Item], Awaitable[bool]],
        *,
        limit: int,
        gate: Callable[[], str | None] = lambda: None,
        spare: int = 0,
    ) -> None:
        self._items = items
        self._attempt = attempt
        self.limit = limit
        self._allowed = limit
        self._gate = gate
        self._spare = spare
        # Items in flight, by identity: they need not be hashable.
        self._places: dict[int, Item] = {}
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._returned: deque[Item] = deque()
        self._workers: set[asyncio.Task[None]] = set()
        self._stop: Stop | None = None

    @property
    def in_flight(self) -> int:
        """Attempts that are running, except released ones."""
        return len(self._places)

    async def run(self) -> Stop | None:
        """Run to the end; return why work is left, or None when none is."""
        count = 0 if self._stop else self.limit + self._spare
        self._workers = {asyncio.create_task(self._work()) for _ in range(count)}
        try:
            await asyncio.gather(*self._workers, return_exceptions=True)
        finally:
            for worker in self._workers:
                worker.cancel()
            await asyncio.gather(*self._workers, return_exceptions=True)
        return self._stop

    def narrow(self, allowed: int) -> None:
        """Start no attempt while ``allowed`` or more are in flight; those continue."""
        self._allowed = max(1, min(allowed, self.limit))
        self._admit()

    def release(self, item: Item) -> None:
        """Let another attempt start in place of ``item``'s, whose result has arrived; once for each."""
        if self._places.pop(id(item), None) is not None:
            self._admit()

    def halt(self, stop: Stop) -> None:
        """Start nothing more and cancel what is in flight; the first reason is kept."""
        if self._stop is None or self._stop.kind == "budget":
            self._stop = stop
        current = asyncio.current_task()
        for worker in self._workers:
            if worker is not current:
                worker.cancel()

    async def _work(self) -> None:
        while True:
            try:
                await self._room()
                item = self._next()
                if item is None:
                    return
                self._places[id(item)] = item
                try:
                    finished = await self._attempt(item)
                finally:
                    self._places.pop(id(item), None)
                if not finished:
                    self._returned.append(item)
            except Exception as error:  # not a result of the item
                self.halt(Stop("fault", str(error) or type(error).__name__, error))
                return
            finally:
                self._admit()

    async def _room(self) -> None:
        while self.in_flight >= self._allowed:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn

    def _admit(self) -> None:
        """Wake as many workers as may start; one without work wakes the next."""
        for _ in range(self._allowed - self.in_flight):
            while self._waiting and self._waiting[0].done():
                self._waiting.popleft()
            if not self._waiting:
                return
            self._waiting.popleft().set_result(None)

    def _next(self) -> Item | None:
        if self._stop is not None:
            return None
        item = self._returned.popleft() if self._returned else next(self._items, None)
        if item is None:
            return None
        closed = self._gate()
        if closed is not None:
            self._stop = Stop("budget", closed)
            return None
        return item


class LimitTally:
    """Counts what limited a session, one observation per second."""

    def __init__(self) -> None:
        self._observed: Counter[LimitName] = Counter()

    def add(self, limit: LimitName) -> None:
        """Count one observation."""
        self._observed[limit] += 1

    def limited_by(self) -> LimitedBy | None:
        """Return the shares; None before the first observation."""
        total = sum(self._observed.values())
        if not total:
            return None
        most: LimitName = max(LIMITS, key=lambda name: self._observed[name])
        shares = {name: round(self._observed[name] / total, 4) for name in LIMITS}
        return LimitedBy(most=most, **shares)


class ConcurrencyLimiter:
    """How many attempts may be in flight, between 16 and what the user asked for.

    More attempts in flight than the event loops between agents and model can serve make every one of them slower. The
    limit therefore starts at 64 and doubles while the loops have room. A loop that is saturated for as long as an
    attempt waits for its model cuts the limit by a quarter; from then on, room makes it grow slowly. A shorter time
    would not do: attempts that start together also finish together and saturate the loops for a moment.
    """

    SATURATED, ROOM = 0.9, 0.7
    START, LEAST = 64, 16
    CUT, GROWTH = 0.75, 1.05
    SHORTEST_WINDOW_S, LONGEST_WINDOW_S = 1.0, 60.0

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self.limit = min(maximum, self.START)
        self.was_cut = False
        self._first_waits_s: list[float] = []
        self._busy: deque[float] = deque(maxlen=round(self.LONGEST_WINDOW_S / OBSERVE_EVERY_S))

    def observe(self, *, busy: float, model_waits_s: Sequence[float]) -> bool:
        """Take the last :data:`OBSERVE_EVERY_S` seconds into account; return whether :attr:`limit` changed.

        Args:
            busy: the largest share of this time in which one of the loops had work.
            model_waits_s: for each attempt that finished in it, how long it waited for its model.
        """
        before = self.limit
        self._busy.append(busy)
        self._first_waits_s += model_waits_s[: self.maximum - len(self._first_waits_s)]
        if model_waits_s and self._is_saturated():
            self.limit = max(min(self.LEAST, self.maximum), math.floor(self.limit * self.CUT))
            self.was_cut = True
            self._busy.clear()
        elif busy < self.ROOM:
            growth = self.GROWTH if self.was_cut else 2
            self.limit = min(self.maximum, math.ceil(self.limit * growth))
        return self.limit != before

    def _is_saturated(self) -> bool:
        """Whether a loop was saturated for as long as the quickest attempts (2nd percentile) wait for their model."""
        quickest_s = sorted(self._first_waits_s)[len(self._first_waits_s) // 50]
        window_s = min(max(quickest_s, self.SHORTEST_WINDOW_S), self.LONGEST_WINDOW_S)
        count = math.ceil(window_s / OBSERVE_EVERY_S)
        window = list(self._busy)[-count:]
        return len(window) == count and sum(window) / count >= self.SATURATED


class UnknownAttemptError(RuntimeError):
    """A result arrived for a rollout that was not dispatched."""


class RolloutRunner:
    """Runs attempts on a rollout's servers, which it keeps running; an async context manager, created on its event loop.

    One runner serves a whole run: an evaluation gives it all its attempts at once, a training run a batch or a validation
    at a time. However :meth:`run` ends, results that have arrived are recorded before it returns.
    """

    def __init__(
        self,
        bridge: ModelProxy,
        *,
        bridge_token: str,
        server: RolloutServer | RemoteAgent,
        servers: int = 1,
        timeouts: AttemptTimeouts,
        redact: Redactor,
        note: Callable[[str], None],
        log: Callable[..., None] = lambda *_, **__: None,
        rate_limited: Callable[[], bool] = lambda: False,
        trajectory_root: Path | None = None,
    ) -> None:
        self._bridge_token, self._callback_token = bridge_token, secrets.token_urlsafe(32)
        redact.add([self._bridge_token, self._callback_token])
        self._timeouts = timeouts
        self._note, self._log = note, log
        self._registry = CallbackStore(
            on_terminal_commit=self._commit, acknowledge_completion=self._acknowledge_completion
        )
        self._agent = server if isinstance(server, RemoteAgent) else None
        self._agent_callbacks = AgentCallbacks(self._registry, bridge)
        self._callbacks = CallbackListener(
            self._registry,
            auth_token=self._callback_token,
            bridge=bridge,
            bridge_token=bridge_token,
            agents=self._agent_callbacks if self._agent is not None else None,
            address=self._agent.callback_address if self._agent is not None else None,
        )
        if isinstance(server, RolloutServer):
            server.callbacks = self._callbacks
        self._servers = ServerPool(
            [server] if isinstance(server, RemoteAgent) else several(server, servers),
            connect=self._connect,
            note=note,
            reports_load=self._agent is None,
        )
        self._monitor = LoopMonitor()
        self._rate_limited = rate_limited
        self._bridge = bridge
        self._services = AttemptServices(bridge, self._servers, timeouts, trajectory_root)
        self._running: dict[str, RunningAttempt] = {}
        self._cancelled: list[str] = []
        self._has_warned = False
        self._model_waits_s: list[float] = []
        self._stack = AsyncExitStack()
        self.dispatched = 0

    async def __aenter__(self) -> Self:
        """Listen, and start the rollout's servers."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._callbacks)
            self._log("listener", "listening for callbacks", url=self._callbacks.base_url)
            await stack.enter_async_context(self._servers)
            running = len(self._servers.up)
            healthy = "server is" if running == 1 else f"{running} servers are"
            self._log("server", f"the rollout's {healthy} healthy", capacity=self.capacity)
            self._monitor.start()
            stack.callback(self._monitor.stop)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._stack.aclose()

    @property
    def capacity(self) -> int | None:
        """How many rollouts the servers run at once; None without a limit."""
        return self._servers.capacity

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
        """Return what :meth:`run` runs: ``attempts``, at most ``limit`` of them at once."""
        # Attempts that are being written still count at the server.
        spare = limit if self.capacity is None else min(limit, max(0, self.capacity - limit))
        made = Dispatcher(
            attempts,
            lambda attempt: self._run_attempt(attempt, results, made),
            limit=limit,
            gate=gate,
            spare=spare,
        )
        return made

    async def run(self, dispatcher: Dispatcher[Attempt], *, tally: LimitTally | None = None) -> Stop | None:
        """Run the attempts; return why some are left, or None."""
        servers, limiter = self._servers, ConcurrencyLimiter(dispatcher.limit)
        servers.on_change = lambda: dispatcher.narrow(servers.share(limiter.limit))
        servers.on_change()
        adapting = asyncio.create_task(self._adapt(dispatcher, limiter, tally or LimitTally()))
        try:
            return await dispatcher.run()
        finally:
            servers.on_change = lambda: None
            adapting.cancel()
            await asyncio.gather(adapting, return_exceptions=True)
            recordings = [running.recording for running in self._running.values() if running.recording]
            await asyncio.gather(*recordings, return_exceptions=True)

    async def run_all(self, attempts: Sequence[Attempt], results: AttemptResults) -> None:
        """Run all ``attempts``, as many at once as the server takes."""
        limit = choose_limit(max_in_flight=None, batch_size=len(attempts), capacity=self.capacity)
        stop = await self.run(self.dispatcher(iter(attempts), results, limit=limit))
        if stop is not None:
            raise stop.error or OsmosisError(stop.reason)

    async def wait_until_cancelled_ended(self, stage: Callable[[str], None]) -> None:
        """Wait until the server has released the cancelled rollouts, up to a limit."""
        cancelled = self._cancelled
        # A remote agent cannot be asked.
        if not cancelled or not self._servers.up or self._agent is not None:
            return
        stage(f"waiting for {len(cancelled)} cancelled rollouts to end")
        busy = await self._servers.wait_until_ended(cancelled)
        self._log("cancel", "cancelled rollouts have ended", cancelled=len(cancelled), still_busy=len(busy))
        if busy:
            self._note(f"{len(busy)} cancelled rollouts did not end in time. Their server is stopped anyway.")

    async def _run_attempt(
        self, attempt: Attempt, results: AttemptResults, made: Dispatcher[Attempt]
    ) -> bool:
        running = RunningAttempt(
            attempt,
            self._services,
            results,
            on_arrival=lambda: made.release(attempt),
            on_fault=lambda error: made.halt(Stop("fault", str(error), error)),
        )
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
            raise UnknownAttemptError(f"no attempt {terminal.rollout_id} is running")
        return await running.commit(terminal)

    def _acknowledge_completion(self, rollout_id: str) -> Mapping[str, Any]:
        # A server that writes the conversation does so before it reports the result, with the usage of its calls.
        return acknowledgement(self._bridge.usage(rollout_id), stored=self._services.trajectory_root is None)

    def _connect(self, base_url: str) -> CallbackRolloutDriver:
        if self._agent is not None:
            return RemoteAgentDriver(
                agent=self._agent,
                callbacks=self._agent_callbacks,
                callback_store=self._registry,
                server_url=self._callbacks.base_url,
                callback_timeout_s=self._timeouts.completion_s,
            )
        return HttpRolloutDriver(
            rollout_base_url=base_url,
            callback_store=self._registry,
            completion_url_for=self._callbacks.completion_url,
            grader_url_for=self._callbacks.grader_url,
            chat_completions_url_for=self._callbacks.chat_completions_url,
            chat_api_key=self._bridge_token,
            controller_api_key=self._callback_token,
            callback_timeout_sec=self._timeouts.callback_s,
        )

    async def _adapt(
        self, dispatcher: Dispatcher[Attempt], limiter: ConcurrencyLimiter, tally: LimitTally
    ) -> None:
        """Limit what is in flight by how busy the event loops are."""
        while True:
            await asyncio.sleep(OBSERVE_EVERY_S)
            busy = max(await self._servers.busy(), self._monitor.state().busy)
            waits_s, self._model_waits_s = self._model_waits_s, []
            if limiter.observe(busy=busy, model_waits_s=waits_s):
                dispatcher.narrow(self._servers.share(limiter.limit))
                self._log("schedule", "concurrency limit", limit=limiter.limit, busy=round(busy, 2))
                if limiter.was_cut and not self._has_warned:
                    self._has_warned = True
                    self._note(
                        f"this machine is saturated: at most {limiter.limit} of {limiter.maximum} attempts "
                        "run at once until it keeps up."
                    )
            if dispatcher.in_flight:
                if busy >= limiter.SATURATED or (limiter.was_cut and limiter.limit < limiter.maximum):
                    tally.add("this_machine")
                else:
                    tally.add("rate_limit" if self._rate_limited() else "provider")
