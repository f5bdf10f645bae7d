"""Where a rollout's callbacks meet whoever waits for them.

Every rollout reaches exactly one terminal: its grader's result, a timeout, or a cancellation,
whichever is accepted first. The first two pass through the commit hook, and nobody hears of them
before the hook has returned: an acknowledgement means durable. A hook that raises leaves the
rollout open, so that the callback's next delivery commits again. Cancelling anyone who waits never
cancels or repeats a commit.

The store belongs to one event loop. It has no durability of its own, and its memory is bounded:
of finished rollouts it keeps what late and repeated callbacks need, for the most recent ones.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import orjson

if TYPE_CHECKING:
    from pydantic import BaseModel

    from osmosis_ai.rollout.types import GraderCompleteRequest, RolloutCompleteRequest

logger = logging.getLogger(__name__)

# A server repeats a callback for about a minute. Beyond the first bound an id is forgotten; beyond the second an
# old acknowledgement (one that carries token ids is large) shrinks to `{"ok": true}`.
REMEMBERED_ROLLOUTS = 16_384
REMEMBERED_ACKNOWLEDGMENT_BYTES = 8 * 1024 * 1024
_PLAIN = b'{"ok":true}'

TerminalSource = Literal["grader", "timeout", "cancelled"]
Acknowledgment = Mapping[str, Any]


def accepted() -> dict[str, Any]:
    """Return the plain acknowledgement of a callback."""
    return {"ok": True}


@dataclass(frozen=True)
class TerminalCallbackResult:
    """The one terminal of a rollout, and the callbacks known when it was accepted."""

    rollout_id: str
    source: TerminalSource
    completion: RolloutCompleteRequest | None = None
    grader: GraderCompleteRequest | None = None
    acknowledgment: Acknowledgment = field(default_factory=accepted)


TerminalCommit = Callable[[TerminalCallbackResult], Awaitable["Acknowledgment | None"]]


class UnknownRolloutIdError(KeyError):
    """No rollout of this id was registered, or it ended too long ago to be remembered."""


class DuplicateRegistrationError(ValueError):
    """The id is in use or was used before; every attempt needs a fresh one."""


def duplicate_callback_payload(first: BaseModel, second: BaseModel) -> bool:
    """Tell whether two callback bodies say the same."""
    return payload_digest(first) == payload_digest(second)


@dataclass(slots=True)
class _Session:
    """A registered rollout until it is discarded."""

    arrival: asyncio.Future[TerminalCallbackResult]
    completion: RolloutCompleteRequest | None = None
    attempt: TerminalCallbackResult | None = None
    commit: asyncio.Task[TerminalCallbackResult] | None = None
    result: TerminalCallbackResult | None = None
    discarded: bool = False


class CallbackStore:
    """Rendezvous of callbacks and waiters, by rollout id."""

    def __init__(
        self,
        *,
        on_terminal_commit: TerminalCommit,
        acknowledge_completion: Callable[[str], Acknowledgment] | None = None,
    ) -> None:
        self._on_terminal_commit = on_terminal_commit
        self._acknowledge_completion = acknowledge_completion
        self._sessions: dict[str, _Session] = {}
        self._finished = FinishedRollouts()

    async def register(self, rollout_id: str) -> None:
        """Expect callbacks for a rollout; call it before dispatching it."""
        if rollout_id in self._sessions or rollout_id in self._finished:
            raise DuplicateRegistrationError(f"rollout id {rollout_id!r} was registered before")
        self._sessions[rollout_id] = _Session(asyncio.get_running_loop().create_future())

    async def handle_completion(self, rollout_id: str, request: RolloutCompleteRequest) -> Acknowledgment:
        """Remember how the workflow ended; this alone never ends a rollout."""
        session = self._sessions.get(rollout_id)
        if session is None:
            finished = self._finished_rollout(rollout_id)
            _check_repeat(rollout_id, "completion", finished.completion_digest, request)
            return finished.acknowledgment()
        if session.completion is None:
            session.completion = request
        else:
            _check_repeat(rollout_id, "completion", payload_digest(session.completion), request)
        if session.result is not None:
            return session.result.acknowledgment
        return self._acknowledge_completion(rollout_id) if self._acknowledge_completion else accepted()

    async def handle_grader(self, rollout_id: str, request: GraderCompleteRequest) -> Acknowledgment:
        """Commit the grader's result, or join the commit under way, and return the acknowledgement."""
        session = self._sessions.get(rollout_id)
        if session is None:
            finished = self._finished_rollout(rollout_id)
            _check_repeat(rollout_id, "grader", finished.grader_digest, request)
            return finished.acknowledgment()
        standing = session.result or session.attempt
        if standing is not None and standing.grader is not None:
            _check_repeat(rollout_id, "grader", payload_digest(standing.grader), request)
        result = await self._reach_terminal(rollout_id, session, "grader", grader=request)
        return result.acknowledgment

    async def finalize_timeout(
        self, rollout_id: str, acknowledgment: Acknowledgment | None = None
    ) -> TerminalCallbackResult:
        """Try to end the rollout as timed out; return the terminal that won."""
        session = self._session(rollout_id)
        return await self._reach_terminal(rollout_id, session, "timeout", acknowledgment=acknowledgment)

    async def acknowledge_without_commit(
        self,
        rollout_id: str,
        source: TerminalSource = "cancelled",
        acknowledgment: Acknowledgment | None = None,
    ) -> TerminalCallbackResult:
        """End the rollout without the commit hook, unless a commit under way wins; return the winner."""
        session = self._session(rollout_id)
        while session.commit is not None:
            await asyncio.wait({session.commit})
        if session.result is not None:
            return session.result
        ended = TerminalCallbackResult(
            rollout_id,
            source,
            completion=session.completion,
            acknowledgment=dict(acknowledgment) if acknowledgment is not None else accepted(),
        )
        self._accept(session, ended)
        return ended

    async def wait_terminal(self, rollout_id: str) -> TerminalCallbackResult:
        """Wait for the rollout's terminal; a commit that fails and is tried again is waited for."""
        session = self._sessions.get(rollout_id)
        if session is None:
            finished = self._finished_rollout(rollout_id)
            return TerminalCallbackResult(
                rollout_id, finished.source, acknowledgment=finished.acknowledgment()
            )
        if session.discarded and session.commit is not None:
            return await asyncio.shield(session.commit)
        return await asyncio.shield(session.arrival)

    async def discard(self, rollout_id: str) -> None:
        """Forget a rollout's payloads; its waiter is cancelled, a commit under way is not."""
        session = self._sessions.get(rollout_id)
        if session is None:
            return
        session.discarded = True
        session.arrival.cancel()
        if session.commit is None:
            del self._sessions[rollout_id]

    def _session(self, rollout_id: str) -> _Session:
        try:
            return self._sessions[rollout_id]
        except KeyError:
            raise UnknownRolloutIdError(rollout_id) from None

    def _finished_rollout(self, rollout_id: str) -> FinishedRollout:
        finished = self._finished.get(rollout_id)
        if finished is None:
            raise UnknownRolloutIdError(rollout_id)
        return finished

    async def _reach_terminal(
        self,
        rollout_id: str,
        session: _Session,
        source: TerminalSource,
        *,
        grader: GraderCompleteRequest | None = None,
        acknowledgment: Acknowledgment | None = None,
    ) -> TerminalCallbackResult:
        """Return the accepted terminal: the one there is, the one being committed, or a new one."""
        if session.result is not None:
            return session.result
        if session.commit is None:
            session.attempt = TerminalCallbackResult(
                rollout_id,
                source,
                completion=session.completion,
                grader=grader,
                acknowledgment=dict(acknowledgment) if acknowledgment is not None else accepted(),
            )
            session.commit = asyncio.create_task(
                self._commit(session, session.attempt), name=f"commit-{rollout_id}"
            )
            session.commit.add_done_callback(_mark_exception_seen)
        return await asyncio.shield(session.commit)

    async def _commit(self, session: _Session, attempt: TerminalCallbackResult) -> TerminalCallbackResult:
        try:
            replacement = await self._on_terminal_commit(attempt)
            if replacement is not None:
                attempt = replace(attempt, acknowledgment=replacement)
            self._accept(session, attempt)
        finally:
            session.attempt = session.commit = None
            if session.discarded:
                self._sessions.pop(attempt.rollout_id, None)
        return attempt

    def _accept(self, session: _Session, result: TerminalCallbackResult) -> None:
        finished = FinishedRollout.of(
            result.acknowledgment, result.source, completion=session.completion, grader=result.grader
        )
        self._finished.add(result.rollout_id, finished)
        session.result = result
        if not session.arrival.done():
            session.arrival.set_result(result)


def _check_repeat(rollout_id: str, channel: str, first: bytes | None, request: BaseModel) -> None:
    """Say so when a repeated callback contradicts the first; late first callbacks are normal."""
    if first is not None and first != payload_digest(request):
        logger.error(
            "conflicting duplicate %s callback for rollout %s; the first stands", channel, rollout_id
        )


def _mark_exception_seen(task: asyncio.Task[TerminalCallbackResult]) -> None:
    # Every observer may have been cancelled; asyncio would then report an exception nobody retrieved.
    if not task.cancelled():
        task.exception()


def payload_digest(payload: BaseModel) -> bytes:
    """Return a short fingerprint of a callback's body."""
    try:
        text = payload.model_dump_json()
    except ValueError:
        # Lone surrogates in a model's text have no UTF-8 form.
        text = json.dumps(payload.model_dump(mode="python"), default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


@dataclass(slots=True)
class FinishedRollout:
    """The source and encoded acknowledgement of a finished rollout, and digests of its callbacks."""

    encoded_acknowledgment: bytes
    source: TerminalSource
    completion_digest: bytes | None
    grader_digest: bytes | None

    @classmethod
    def of(
        cls,
        acknowledgment: Mapping[str, Any],
        source: TerminalSource,
        *,
        completion: BaseModel | None,
        grader: BaseModel | None,
    ) -> FinishedRollout:
        """Condense a terminal."""
        # A copy of the exact size: orjson's own result keeps the kilobytes of its write buffer.
        encoded = bytes(memoryview(orjson.dumps(acknowledgment, option=orjson.OPT_SERIALIZE_NUMPY)))
        return cls(
            _PLAIN if encoded == _PLAIN else encoded,
            source,
            payload_digest(completion) if completion is not None else None,
            payload_digest(grader) if grader is not None else None,
        )

    def acknowledgment(self) -> dict[str, Any]:
        """Return the acknowledgement as it was given."""
        decoded: dict[str, Any] = orjson.loads(self.encoded_acknowledgment)
        return decoded


class FinishedRollouts:
    """The most recently finished rollouts by id."""

    def __init__(
        self,
        *,
        max_rollouts: int = REMEMBERED_ROLLOUTS,
        max_bytes: int = REMEMBERED_ACKNOWLEDGMENT_BYTES,
    ) -> None:
        self._max_rollouts = max_rollouts
        self._max_bytes = max_bytes
        self._rollouts: OrderedDict[str, FinishedRollout] = OrderedDict()
        # The ids whose acknowledgement is more than the plain one, oldest first.
        self._large: OrderedDict[str, int] = OrderedDict()
        self._large_bytes = 0

    def __contains__(self, rollout_id: str) -> bool:
        return rollout_id in self._rollouts

    def __len__(self) -> int:
        return len(self._rollouts)

    @property
    def acknowledgment_bytes(self) -> int:
        """Bytes held for acknowledgements other than the plain one."""
        return self._large_bytes

    def get(self, rollout_id: str) -> FinishedRollout | None:
        """Return what is remembered of a rollout, or None."""
        return self._rollouts.get(rollout_id)

    def add(self, rollout_id: str, rollout: FinishedRollout) -> None:
        """Remember a finished rollout and forget the oldest beyond the bounds."""
        self._rollouts[rollout_id] = rollout
        if rollout.encoded_acknowledgment is not _PLAIN:
            size = len(rollout.encoded_acknowledgment)
            self._large[rollout_id] = size
            self._large_bytes += size
        while self._large_bytes > self._max_bytes:
            oldest, size = self._large.popitem(last=False)
            self._large_bytes -= size
            self._rollouts[oldest].encoded_acknowledgment = _PLAIN
        while len(self._rollouts) > self._max_rollouts:
            oldest, _ = self._rollouts.popitem(last=False)
            self._large_bytes -= self._large.pop(oldest, 0)
