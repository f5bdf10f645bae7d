"""Runs rollouts: the callback server, the rollout's servers and the watch over this machine, around a dispatcher.

One runner serves a whole run: an evaluation hands it all its attempts at once, a training run a batch or a
validation at a time. Whatever ends :meth:`RolloutRunner.run`, results on their way are recorded before it returns.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_ai.driving.attempts import (
    Attempt,
    AttemptResults,
    AttemptServices,
    RunningAttempt,
    acknowledgement,
)
from osmosis_ai.driving.callback_registry import CallbackStore
from osmosis_ai.driving.callback_server import CallbackListener
from osmosis_ai.driving.dispatcher import Dispatcher, Stop, choose_limit
from osmosis_ai.driving.driver import AttemptTimeouts
from osmosis_ai.driving.environment import RolloutEnvironment, prepare_environment, running_environment
from osmosis_ai.driving.http_driver import CallbackRolloutDriver, HttpRolloutDriver
from osmosis_ai.driving.loop_driver import LoopRolloutDriver
from osmosis_ai.driving.loop_endpoints import LoopEndpoints
from osmosis_ai.driving.machine import LimitTally, MachineWatch
from osmosis_ai.driving.served_agent import ServedAgent
from osmosis_ai.driving.server_pool import ServerPool, several
from osmosis_ai.driving.server_process import RolloutServer, ServerSpec, health_timeout
from osmosis_ai.errors import OsmosisError
from osmosis_ai.event_loop import LoopLag
from osmosis_ai.rollout.loop.entrypoints import names_an_attribute

if TYPE_CHECKING:
    from typing_extensions import Self

    from osmosis_ai.driving.bridge import RolloutBridge
    from osmosis_ai.driving.call_record import RolloutUsage
    from osmosis_ai.driving.callback_registry import TerminalCallbackResult
    from osmosis_ai.redaction import Redactor
    from osmosis_ai.sandbox import Sandbox


async def prepare_server(
    rollout_dir: Path,
    entrypoint: str,
    *,
    environ: Mapping[str, str],
    variables: Mapping[str, str],
    secret_values: Mapping[str, str],
    artifact_root: Path,
    log_path: Path,
    cache_dir: Path,
    note: Callable[[str], None],
    port: int | None = None,
    sandbox: Sandbox | None = None,
) -> tuple[RolloutEnvironment, RolloutServer]:
    """Build a rollout's environment; return it and the rollout's server in it, not yet started."""
    if names_an_attribute(entrypoint):
        environment = running_environment("which is the agent's too")
    else:
        environment = await asyncio.to_thread(
            prepare_environment, rollout_dir, cache_dir=cache_dir, note=note, sandbox=sandbox
        )
        note(f"environment: {environment.note}")
    spec = ServerSpec(
        rollout_dir=rollout_dir,
        entrypoint=entrypoint,
        python=environment.python,
        env={**environ, **variables, **secret_values},
        artifact_root=artifact_root,
        port=port,
        log_path=log_path,
        secret_values=frozenset(secret_values.values()),
        sandbox=sandbox and replace(sandbox, readable=(*sandbox.readable, *environment.places)),
    )
    return environment, RolloutServer(spec, health_timeout_s=health_timeout(environ), note=note)


class UnknownAttemptError(RuntimeError):
    """A terminal arrived for a rollout that nobody dispatched."""


class RolloutRunner:
    """Makes attempts on a rollout's servers, which it keeps running; an async context manager, made on its
    event loop."""

    def __init__(
        self,
        bridge: RolloutBridge[Any],
        *,
        bridge_token: str,
        server: RolloutServer | ServedAgent,
        servers: int = 1,
        timeouts: AttemptTimeouts,
        redact: Redactor,
        note: Callable[[str], None],
        log: Callable[..., None] = lambda *_, **__: None,
        rate_limited: Callable[[], bool] = lambda: False,
    ) -> None:
        self._bridge_token, self._callback_token = bridge_token, secrets.token_urlsafe(32)
        redact.add([self._bridge_token, self._callback_token])
        self._timeouts = timeouts
        self._note, self._log = note, log
        self._registry = CallbackStore(
            on_terminal_commit=self._commit, acknowledge_completion=self._acknowledge_completion
        )
        self._agent = server if isinstance(server, ServedAgent) else None
        self._endpoints = LoopEndpoints(
            self._registry, bridge, artifact_root=self._agent.artifact_root if self._agent else None
        )
        self._callbacks = CallbackListener(
            self._registry,
            auth_token=self._callback_token,
            bridge=bridge,
            bridge_token=bridge_token,
            agents=self._endpoints if self._agent is not None else None,
            address=self._agent.callback_address if self._agent is not None else None,
        )
        if isinstance(server, RolloutServer):
            server.let_in(self._callbacks)
        self._servers = ServerPool(
            [server] if isinstance(server, ServedAgent) else several(server, servers),
            connect=self._connect,
            note=note,
            is_asked=self._agent is None,
        )
        self._lag = LoopLag()
        self._machine = MachineWatch(
            engine=self._lag.state,
            servers=self._servers.servers,
            rate_limited=rate_limited,
        )
        self._bridge = bridge
        root = server.artifact_root if isinstance(server, ServedAgent) else server.rollout.artifact_root
        self._services = AttemptServices(bridge, self._servers, self._machine, timeouts, root)
        self._running: dict[str, RunningAttempt] = {}
        self._cancelled: list[str] = []
        self._told_late = False
        self._stack = AsyncExitStack()
        self.dispatched = 0

    async def __aenter__(self) -> Self:
        """Listen, and start the rollout's servers."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._callbacks)
            self._log("listener", "listening for callbacks", url=self._callbacks.base_url)
            await stack.enter_async_context(self._servers)
            running = sum(server.is_up for server in self._servers.servers)
            healthy = "server is" if running == 1 else f"{running} servers are"
            self._log("server", f"the rollout's {healthy} healthy", capacity=self.capacity)
            self._lag.start()
            stack.callback(self._lag.stop)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._stack.aclose()

    @property
    def capacity(self) -> int | None:
        """How many rollouts the servers run at once, as far as they say."""
        return self._servers.capacity

    def used_in_flight(self) -> Iterator[RolloutUsage]:
        """Yield what each attempt under way has used; one whose result is being recorded is none."""
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
        # Those that are being written still count at the server, which must not have more than it takes.
        spare = limit if self.capacity is None else min(limit, max(0, self.capacity - limit))
        made = Dispatcher(
            attempts,
            lambda attempt: self._make(attempt, results, made),
            limit=limit,
            gate=gate,
            spare=spare,
        )
        return made

    async def run(self, dispatcher: Dispatcher[Attempt], *, tally: LimitTally | None = None) -> Stop | None:
        """Make the attempts, as many at once as the machine keeps up with; return why some are left, or None."""
        servers = self._servers
        servers.share_out(dispatcher.limit)
        servers.on_change = lambda: dispatcher.narrow(servers.allowed)
        following = asyncio.create_task(
            self._machine.watch(
                tally or LimitTally(),
                in_flight=lambda: dispatcher.in_flight,
                changed=lambda: self._follow(dispatcher),
            )
        )
        try:
            return await dispatcher.run()
        finally:
            servers.on_change = lambda: None
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            recordings = [running.recording for running in self._running.values() if running.recording]
            await asyncio.gather(*recordings, return_exceptions=True)

    async def run_all(self, attempts: Sequence[Attempt], results: AttemptResults) -> None:
        """Make all ``attempts``, as many at once as the server takes."""
        limit = choose_limit(max_in_flight=None, batch_size=len(attempts), capacity=self.capacity)
        stop = await self.run(self.dispatcher(iter(attempts), results, limit=limit))
        if stop is not None:
            raise stop.error or OsmosisError(stop.reason)

    async def wait_until_cancelled_ended(self, stage: Callable[[str], None]) -> None:
        """Wait until the server has let go of the rollouts that were cancelled, as far as it does."""
        cancelled = self._cancelled
        # Nobody can tell an agent that is served elsewhere, and what it holds is its own.
        if not cancelled or not self._servers.is_up or self._agent is not None:
            return
        stage(f"waiting for {len(cancelled)} cancelled rollouts to end")
        busy = await self._servers.wait_until_ended(cancelled)
        self._log("cancel", "cancelled rollouts have ended", cancelled=len(cancelled), still_busy=len(busy))
        if busy:
            self._note(f"{len(busy)} cancelled rollouts did not end in time; their server is stopped anyway.")

    async def _make(self, attempt: Attempt, results: AttemptResults, made: Dispatcher[Attempt]) -> bool:
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
            return await running.run()
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
            raise UnknownAttemptError(f"no attempt {terminal.rollout_id} is under way")
        return await running.commit(terminal)

    def _acknowledge_completion(self, rollout_id: str) -> Mapping[str, Any]:
        # The server writes the conversation before it reports the result, and needs to know what its calls came to.
        return acknowledgement(self._bridge.usage(rollout_id))

    def _connect(self, base_url: str) -> CallbackRolloutDriver:
        if self._agent is not None:
            return LoopRolloutDriver(
                agent=self._agent,
                endpoints=self._endpoints,
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

    def _follow(self, dispatcher: Dispatcher[Attempt]) -> None:
        """Let as many rollouts be in flight as the machine keeps up with."""
        allowed = self._servers.allowed
        dispatcher.narrow(allowed)
        self._log("schedule", "this machine sets the pace", in_flight=allowed, of=dispatcher.limit)
        if not self._told_late:
            self._told_late = True
            self._note(
                "this machine is late: fewer rollouts run at once until it keeps up "
                f"({allowed} of {dispatcher.limit} now)."
            )
