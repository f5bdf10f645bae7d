"""Runs attempts on the rollout servers, a limited number at once, until all are recorded.

Concurrency is a limit, not a batch: when an attempt ends, the next one starts. An attempt whose result is being stored
no longer counts, so models do not wait for a slow disk; the number of results being stored is limited as well. Attempts start in
order, and lost ones run again before the rest. Dispatch ends when no attempt is left, when the gate closes (attempts in
flight finish), or when it is halted (they are cancelled). Attempts without a result remain pending.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from osmosis_ai.controller.attempt import (
    Attempt,
    AttemptResults,
    AttemptServices,
    RunningAttempt,
    acknowledgement,
)
from osmosis_ai.controller.server_process import RolloutServer, ServerPool, several
from osmosis_ai.errors import OsmosisError
from osmosis_ai.event_loop import LoopMonitor

if TYPE_CHECKING:
    from typing_extensions import Self

    from osmosis_ai.controller.callbacks import AttemptTimeouts, CallbackRolloutDriver, TerminalCallbackResult
    from osmosis_ai.controller.model_proxy import ModelProxy, RolloutUsage
    from osmosis_ai.controller.outcomes import LimitName
    from osmosis_ai.controller.remote_agents import RemoteAgent
    from osmosis_ai.redaction import Redactor


Item = TypeVar("Item")

DEFAULT_IN_FLIGHT = 32
OBSERVE_EVERY_S = 0.5


def choose_limit(*, max_in_flight: int | None, batch_size: int | None, capacity: int | None) -> int:
    """Return how many rollouts run at once: the requested number, within the server's capacity."""
    limits = [limit for limit in (max_in_flight or batch_size, capacity) if limit]
    return min(limits, default=DEFAULT_IN_FLIGHT)


@dataclass(frozen=True)
class Stop:
    """Why a run ended with work left."""

    kind: Literal["interrupted", "budget", "fault"]
    reason: str
    error: BaseException | None = None


class Dispatcher(Generic[Item]):
    """Calls ``attempt`` with every item, and again if it returns False.

    Args:
        gate: checked before each start; returns why no more items may start, or None.
        spare: how many released items may still be running in addition to ``limit``.
    """

    def __init__(
        self,
        items: Iterator[Item],
        attempt: Callable[[Item], Awaitable[bool]],
        *,
        limit: int,
        gate: Callable[[], str | None] = lambda: None,
        spare: int = 0,
    ) -> None:
        self.limit = limit
        self._items = items
        self._attempt = attempt
        self._gate = gate
        self._spare = spare
        self._allowed = limit
        # Items need not be hashable.
        self._in_flight: dict[int, Item] = {}
        self._returned: deque[Item] = deque()
        self._tasks: set[asyncio.Future[bool]] = set()
        self._changed = asyncio.Event()
        self._stop: Stop | None = None

    @property
    def in_flight(self) -> int:
        """The number of running attempts, except released ones."""
        return len(self._in_flight)

    async def run(self) -> Stop | None:
        """Run all items; return why some are left, or None."""
        try:
            while True:
                self._changed.clear()
                try:
                    self._start_items()
                except Exception as error:
                    self._fail(error)
                if not self._tasks:
                    return self._stop
                await self._changed.wait()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def narrow(self, allowed: int) -> None:
        """Start no attempt while ``allowed`` or more are in flight; those continue."""
        self._allowed = max(1, min(allowed, self.limit))
        self._changed.set()

    def release(self, item: Item) -> None:
        """Let another attempt start in place of ``item``'s, whose result has arrived."""
        self._in_flight.pop(id(item), None)
        self._changed.set()

    def halt(self, stop: Stop) -> None:
        """Start nothing more and cancel all other attempts; the first reason counts."""
        if self._stop is None or self._stop.kind == "budget":
            self._stop = stop
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current:
                task.cancel()

    def _start_items(self) -> None:
        while self.in_flight < self._allowed and len(self._tasks) < self.limit + self._spare:
            item = self._next_item()
            if item is None:
                return
            self._in_flight[id(item)] = item
            task = asyncio.ensure_future(self._attempt(item))
            self._tasks.add(task)
            task.add_done_callback(partial(self._end, item))

    def _next_item(self) -> Item | None:
        if self._stop is not None:
            return None
        item = self._returned.popleft() if self._returned else next(self._items, None)
        reason = self._gate() if item is not None else None
        if reason is None:
            return item
        self._stop = Stop("budget", reason)
        return None

    def _end(self, item: Item, task: asyncio.Future[bool]) -> None:
        self._tasks.discard(task)
        self._in_flight.pop(id(item), None)
        if not task.cancelled():
            error = task.exception()
            if error is not None:
                self._fail(error)
            elif not task.result():
                self._returned.append(item)
        self._changed.set()

    def _fail(self, error: BaseException) -> None:
        self.halt(Stop("fault", str(error) or type(error).__name__, error))


class ConcurrencyLimiter:
    """How many attempts may be in flight, between 16 and the requested number.

    More attempts in flight than the event loops between agents and model can serve make every one of them slower. The
    limit therefore starts at 64 and doubles while the loops have room. A loop that is saturated for as long as an
    attempt waits for its model cuts the limit by a quarter; from then on, room makes it grow slowly. A shorter time
    is not enough, because attempts that start together also finish together and saturate the loops for a moment.
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
            busy: the largest share of this time in which one of the loops was busy.
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


class RolloutRunner:
    """Runs attempts on rollout servers or a remote agent; an async context manager, created on its event loop.

    One runner serves a whole run: an evaluation gives it all its attempts at once, a training run a batch or a validation
    at a time. However :meth:`run` ends, results that have arrived are recorded before it returns.
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
    ) -> None:
        # Only here: with aiohttp, they take longer to import than the rest of an evaluation.
        from osmosis_ai.controller.callbacks import CallbackListener, CallbackStore
        from osmosis_ai.controller.remote_agents import RemoteAgent, RemoteAgentDriver

        self._model_proxy, self._model_key = model_proxy, model_key
        self._callback_key = secrets.token_urlsafe(32)
        redact.add([self._model_key, self._callback_key])
        self._timeouts = timeouts
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
            self._servers = ServerPool([server], connect=self._connect, note=note, reports_load=False)
        else:
            self._callbacks = CallbackListener(
                self._store, auth_token=self._callback_key, bridge=model_proxy, bridge_token=model_key
            )
            server.callbacks = self._callbacks
            self._servers = ServerPool(several(server, servers), connect=self._connect, note=note)
        self._services = AttemptServices(model_proxy, self._servers, timeouts, trajectory_root)
        self._monitor = LoopMonitor()
        self._running: dict[str, RunningAttempt] = {}
        self._cancelled: list[str] = []
        self._has_warned = False
        self._model_waits_s: list[float] = []
        self._stack = AsyncExitStack()
        self.dispatched = 0

    async def __aenter__(self) -> Self:
        """Start the callback listener and the rollout servers."""
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
        """Return the dispatcher to :meth:`run`, for ``attempts``, at most ``limit`` of them at once."""
        # An attempt that is being recorded still occupies the server.
        spare = limit if self.capacity is None else min(limit, max(0, self.capacity - limit))

        async def run(attempt: Attempt) -> bool:
            return await self._run_attempt(attempt, results, dispatcher)

        dispatcher = Dispatcher(attempts, run, limit=limit, gate=gate, spare=spare)
        return dispatcher

    async def run(
        self, dispatcher: Dispatcher[Attempt], *, limits: Counter[LimitName] | None = None
    ) -> Stop | None:
        """Run the attempts; return why some are left, or None. Count in ``limits`` what limited each second."""
        servers, limiter = self._servers, ConcurrencyLimiter(dispatcher.limit)
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
        """Run all ``attempts``, as many at once as the server allows."""
        limit = choose_limit(max_in_flight=None, batch_size=len(attempts), capacity=self.capacity)
        stop = await self.run(self.dispatcher(iter(attempts), results, limit=limit))
        if stop is not None:
            raise stop.error or OsmosisError(stop.reason)

    async def wait_until_cancelled_ended(self, stage: Callable[[str], None]) -> None:
        """Wait until the server has released the cancelled rollouts, up to a limit."""
        cancelled = self._cancelled
        # Remote agents do not report the status of a rollout.
        if not cancelled or not self._servers.up or self._agent_driver is not None:
            return
        stage(f"waiting for the end of cancelled rollouts: {len(cancelled)}")
        busy = await self._servers.wait_until_ended(cancelled)
        self._log("cancel", "cancelled rollouts have ended", cancelled=len(cancelled), still_busy=len(busy))
        if busy:
            self._note(f"{len(busy)} cancelled rollouts did not end in time. Their server is stopped anyway.")

    async def _run_attempt(
        self, attempt: Attempt, results: AttemptResults, dispatcher: Dispatcher[Attempt]
    ) -> bool:
        running = RunningAttempt(
            attempt,
            self._services,
            results,
            on_arrival=lambda: dispatcher.release(attempt),
            on_fault=lambda error: dispatcher.halt(Stop("fault", str(error), error)),
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
            callback_timeout_sec=self._timeouts.callback_s,
        )

    async def _adapt(
        self, dispatcher: Dispatcher[Attempt], limiter: ConcurrencyLimiter, limits: Counter[LimitName]
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
                        f"This machine is saturated: at most {limiter.limit} of {limiter.maximum} attempts "
                        "run at once until it recovers."
                    )
            if dispatcher.in_flight:
                if busy >= limiter.SATURATED or (limiter.was_cut and limiter.limit < limiter.maximum):
                    limits["this_machine"] += 1
                else:
                    limits["rate_limit" if self._rate_limited() else "provider"] += 1
