"""Rollouts of the policy: prompts times attempts through the rollout protocol, graded and recorded.

Whatever becomes of an attempt, it yields one :class:`Sample`: what failed, timed out or was removed by
its grader is a sample without a reward and with the reason. An attempt that goes down with its server
is made again, under a fresh id and with the same seeds. Samples come back in the order in which they
were asked for, so that nothing downstream depends on who finished first.
"""

from __future__ import annotations

import math
import secrets
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from osmosis_ai.driving.callback_registry import CallbackStore
from osmosis_ai.driving.callback_server import CallbackListener
from osmosis_ai.driving.classify import Verdict, classify, failed, rejected
from osmosis_ai.driving.concurrency import choose_limit
from osmosis_ai.driving.dispatcher import Dispatcher
from osmosis_ai.driving.driver import RolloutRunRequest
from osmosis_ai.driving.http_driver import HttpRolloutDriver, RolloutProtocolError
from osmosis_ai.driving.restarting_server import AttemptLostError, RestartingRolloutServer, Server
from osmosis_ai.evaluation.attempts import MAX_LOSSES
from osmosis_ai.evaluation.metrics import NO_REWARD
from osmosis_ai.evaluation.spec import CALLBACK_GRACE_S

if TYPE_CHECKING:
    from aiohttp import web
    from typing_extensions import Self

    from osmosis_ai.datasets import DatasetRow
    from osmosis_ai.driving.call_record import RolloutUsage
    from osmosis_ai.driving.callback_registry import TerminalCallbackResult
    from osmosis_ai.training.engines.recording import RecordedRollout

REMOVED = "removed"
LOST = "rollout_server_died"


class RecordingBridge(Protocol):
    """The agents' endpoint that remembers what was sampled (:class:`training.policy_bridge.PolicyBridge`)."""

    def open(self, rollout_id: str, *, seed_for: Callable[[int], int] | None = None) -> None:
        """Serve a rollout's calls from now on."""

    def close(self, rollout_id: str) -> RolloutUsage:
        """Serve no more of them."""

    def take(self, rollout_id: str) -> RecordedRollout:
        """Return what was recorded, and forget it."""

    def routes(self) -> list[web.RouteDef]:
        """Return the routes to mount."""


@dataclass(frozen=True)
class Attempt:
    """One rollout to be made.

    Attributes:
        row: what it is about.
        index: which attempt on the row this is, from 0.
        name: what its ids begin with, for those who read logs and trajectories.
        seed_for: the seed of its model call with this number.
    """

    row: DatasetRow
    index: int
    name: str
    seed_for: Callable[[int], int]


@dataclass(frozen=True)
class Sample:
    """What became of an attempt.

    Attributes:
        attempt: what was asked for.
        verdict: how it ended, in the evaluation's words.
        recorded: the sampled tokens.
        usage: what its model calls came to.
        duration_ms: from dispatch to the result.
        grader_reward: what its grader gave, whatever became of its workflow.
    """

    attempt: Attempt
    verdict: Verdict
    recorded: RecordedRollout
    usage: RolloutUsage
    duration_ms: float
    grader_reward: float | None = None

    @property
    def reward(self) -> float | None:
        """What the grader gave; None where there is nothing to learn from."""
        return self.verdict.reward if self.verdict.status == "success" else None

    @property
    def unscored_because(self) -> str | None:
        """Why there is no reward, in a machine-readable word; None where there is one."""
        if self.reward is not None:
            return None
        if self.verdict.status == "skipped":
            return REMOVED
        return self.verdict.error_type or NO_REWARD


@dataclass(eq=False)
class _Flight:
    """An attempt on its way through the dispatcher."""

    attempt: Attempt
    losses: int = 0
    started: float = 0.0
    terminal: TerminalCallbackResult | None = None
    sample: Sample | None = field(default=None, repr=False)


class RolloutSampler:
    """Makes rollouts on a server that it keeps running; an async context manager.

    Args:
        bridge: answers the agents from the policy.
        bridge_token: the key that agents must show to it.
        make_server: a new rollout server, not yet started.
        agent_timeout_s, grader_timeout_s: for one attempt.
        note: told, in a sentence, when the server died.
    """

    def __init__(
        self,
        bridge: RecordingBridge,
        *,
        bridge_token: str,
        make_server: Callable[[], Server],
        agent_timeout_s: float,
        grader_timeout_s: float,
        note: Callable[[str], None],
    ) -> None:
        self._bridge = bridge
        self._bridge_token = bridge_token
        self._agent_timeout_s = agent_timeout_s
        self._grader_timeout_s = grader_timeout_s
        self._callback_token = secrets.token_urlsafe(32)
        self._store = CallbackStore(on_terminal_commit=self._commit)
        self._listener = CallbackListener(
            self._store, auth_token=self._callback_token, bridge=bridge, bridge_token=bridge_token
        )
        self._host = RestartingRolloutServer(make_server=make_server, connect=self._connect, note=note)
        self._flights: dict[str, _Flight] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Listen, and start the rollout's server.

        Raises:
            OsmosisError: when the server does not become healthy, with the end of its log.
        """
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._listener)
            await stack.enter_async_context(self._host)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._stack.aclose()

    async def sample(
        self, attempts: Sequence[Attempt], *, finished: Callable[[Sample], None] = lambda _: None
    ) -> list[Sample]:
        """Make all ``attempts``, as many at once as the server takes; return their samples in order.

        Args:
            finished: told of each sample as it comes.

        Raises:
            OsmosisError: when there is no rollout server any more.
        """
        flights = [_Flight(attempt) for attempt in attempts]

        async def fly(flight: _Flight) -> bool:
            flight.sample = await self._make(flight)
            if flight.sample is None:
                return False
            finished(flight.sample)
            return True

        limit = choose_limit(max_in_flight=None, batch_size=len(attempts), capacity=self._host.capacity)
        stop = await Dispatcher(iter(flights), fly, limit=limit).run()
        if stop is not None:
            assert stop.error is not None, "nothing but a fault stops it"
            raise stop.error
        return [flight.sample for flight in flights if flight.sample is not None]

    async def _make(self, flight: _Flight) -> Sample | None:
        """Make one attempt; None when it was lost and is to be made again."""
        attempt = flight.attempt
        rollout_id = f"{attempt.name}-{uuid.uuid4().hex[:12]}"
        flight.started, flight.terminal = time.monotonic(), None
        self._flights[rollout_id] = flight
        self._bridge.open(rollout_id, seed_for=attempt.seed_for)
        refused: RolloutProtocolError | None = None
        lost: AttemptLostError | None = None
        try:
            await self._host.run(self._request(attempt, rollout_id))
        except AttemptLostError as error:
            lost = error
        except RolloutProtocolError as error:
            refused = error
        finally:
            del self._flights[rollout_id]
            usage = self._bridge.close(rollout_id)
            recorded = self._bridge.take(rollout_id)
        grader_reward: float | None = None
        if flight.terminal is not None:
            grader_reward = _grader_reward(flight.terminal)
            self._host.attempt_finished()
            verdict = classify(flight.terminal, usage.last_error)
        elif refused is not None:
            verdict = rejected(refused.status_code, str(refused))
        else:
            flight.losses += 1
            if flight.losses <= MAX_LOSSES:
                return None
            verdict = failed(LOST, "rollout_server", _last_words(lost))
        duration_ms = (time.monotonic() - flight.started) * 1000
        return Sample(attempt, verdict, recorded, usage, duration_ms, grader_reward)

    async def _commit(self, terminal: TerminalCallbackResult) -> Mapping[str, object]:
        """Take a terminal result. Nothing is durable here: a batch counts when its step does."""
        flight = self._flights.get(terminal.rollout_id)
        if flight is not None:
            flight.terminal = terminal
        return {"ok": True}

    def _request(self, attempt: Attempt, rollout_id: str) -> RolloutRunRequest:
        return RolloutRunRequest(
            messages=attempt.row.messages,
            label=attempt.row.label,
            metadata=attempt.row.metadata,
            rollout_id=rollout_id,
            agent_timeout_sec=self._agent_timeout_s,
            grader_timeout_sec=self._grader_timeout_s,
            extra_fields={"row_index": attempt.row.source_row_index, "run_index": attempt.index},
        )

    def _connect(self, base_url: str) -> HttpRolloutDriver:
        return HttpRolloutDriver(
            rollout_base_url=base_url,
            callback_store=self._store,
            completion_url_for=self._listener.completion_url,
            grader_url_for=self._listener.grader_url,
            chat_completions_url_for=self._listener.chat_completions_url,
            chat_api_key=self._bridge_token,
            controller_api_key=self._callback_token,
            callback_timeout_sec=self._agent_timeout_s + self._grader_timeout_s + CALLBACK_GRACE_S,
        )


def _grader_reward(terminal: TerminalCallbackResult) -> float | None:
    grader = terminal.grader
    if grader is None or grader.status.value != "success" or grader.sample is None:
        return None
    reward = grader.sample.reward
    return reward if reward is not None and math.isfinite(reward) else None


def _last_words(lost: AttemptLostError | None) -> str:
    if lost is None:
        return "the rollout's server reported no result"
    return lost.death.message if lost.death is not None else str(lost)
