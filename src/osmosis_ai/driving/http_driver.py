"""Driving rollouts over the callback line of the rollout protocol (HTTP).

One rollout is registered before it is posted and discarded after it ended, whatever happens in
between. A rollout is posted again only while the server says that it is full: the protocol does
not deduplicate, so a post whose fate is unknown is an error of the transport, never retried.
"""

from __future__ import annotations

import asyncio
import json
import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import orjson

from osmosis_ai.driving.driver import RolloutDriver, RolloutOutcome, RolloutRunRequest
from osmosis_ai.errors import OsmosisError
from osmosis_ai.llm.transport import open_session
from osmosis_ai.retry_after import retry_after_s
from osmosis_ai.supervision import open_server_session, server_url

if TYPE_CHECKING:
    import aiohttp

    from osmosis_ai.driving.callback_registry import CallbackStore, TerminalCallbackResult

__all__ = ["CallbackRolloutDriver", "HttpRolloutDriver", "RolloutProtocolError"]

logger = logging.getLogger(__name__)

ADMISSION_TIMEOUT_S = 60.0
CANCEL_TIMEOUT_S = 5.0
RETRY_AFTER_DEFAULT_S = 1.0
RETRY_AFTER_BOUNDS_S = (0.05, 60.0)
_JSON_HEADERS = {"Content-Type": "application/json"}


class RolloutProtocolError(OsmosisError):
    """The rollout server answered something the protocol does not know."""

    default_code = "PLATFORM_ERROR"

    def __init__(self, message: str, *, status_code: int) -> None:
        super().__init__(message, details={"status_code": status_code})
        self.status_code = status_code


class CallbackRolloutDriver(RolloutDriver):
    """Runs rollouts whose ends arrive in a :class:`CallbackStore`, whoever reports them and how."""

    def __init__(
        self,
        callback_store: CallbackStore,
        *,
        http_client: aiohttp.ClientSession | None,
        callback_timeout_s: float | None,
    ) -> None:
        self._store = callback_store
        self._session = http_client
        self._owns_session = http_client is None
        self._callback_timeout_s = callback_timeout_s

    async def run(self, request: RolloutRunRequest) -> RolloutOutcome:
        """Run one rollout to its terminal result."""
        rollout_id = request.rollout_id
        if not rollout_id:
            raise ValueError("a rollout needs an id")
        await self._store.register(rollout_id)
        try:
            await self._admit(request)
            return outcome_of(await self._await_terminal(rollout_id))
        except asyncio.CancelledError:
            await self._abandon(rollout_id)
            raise
        finally:
            self._forget(rollout_id)
            await self._store.discard(rollout_id)

    async def aclose(self) -> None:
        """Close the session, unless it was handed in."""
        if self._owns_session and self._session is not None:
            await self._session.close()
            self._session = None

    @abstractmethod
    async def _admit(self, request: RolloutRunRequest) -> None:
        """Have the rollout's server accept a rollout."""

    def _forget(self, rollout_id: str) -> None:
        """Let go of what was kept for a rollout that has ended."""

    async def _request_cancel(self, rollout_id: str) -> None:
        """Tell the server that nobody waits for a rollout any more."""

    async def _await_terminal(self, rollout_id: str) -> TerminalCallbackResult:
        try:
            return await asyncio.wait_for(self._store.wait_terminal(rollout_id), self._callback_timeout_s)
        except asyncio.TimeoutError:
            pass
        winner = await self._store.finalize_timeout(
            rollout_id, acknowledgment={"ok": True, "error_type": "callback_timeout"}
        )
        if winner.source == "timeout":
            await self._request_cancel(rollout_id)
        return winner

    async def _abandon(self, rollout_id: str) -> None:
        """Close the rollout for its callbacks and tell its server, as far as it listens."""
        winner = await self._store.acknowledge_without_commit(rollout_id, source="cancelled")
        if winner.source == "cancelled":
            await self._request_cancel(rollout_id)

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = self._open_session()
        return self._session

    def _open_session(self) -> aiohttp.ClientSession:
        return open_session(timeout_s=ADMISSION_TIMEOUT_S)


class HttpRolloutDriver(CallbackRolloutDriver):
    """Runs rollouts on one rollout server whose callbacks arrive in a :class:`CallbackStore`."""

    def __init__(
        self,
        *,
        rollout_base_url: str,
        callback_store: CallbackStore,
        completion_url_for: Callable[[str], str],
        grader_url_for: Callable[[str], str],
        chat_completions_url_for: Callable[[str], str],
        chat_api_key: str | None,
        controller_api_key: str,
        http_client: aiohttp.ClientSession | None = None,
        callback_timeout_sec: float | None = None,
    ) -> None:
        if not controller_api_key.strip():
            raise ValueError("controller_api_key must not be blank")
        super().__init__(callback_store, http_client=http_client, callback_timeout_s=callback_timeout_sec)
        self._base_url = rollout_base_url
        self._completion_url_for = completion_url_for
        self._grader_url_for = grader_url_for
        self._chat_completions_url_for = chat_completions_url_for
        self._chat_api_key = chat_api_key or None
        self._controller_api_key = controller_api_key

    def _open_session(self) -> aiohttp.ClientSession:
        return open_server_session(self._base_url, timeout_s=ADMISSION_TIMEOUT_S)

    async def _admit(self, request: RolloutRunRequest) -> None:
        body = encode_request(self._init_body(request))
        url = server_url(self._base_url, "/rollout")
        while True:
            async with self._client().post(
                url, data=body, headers=_JSON_HEADERS, timeout=total_timeout(ADMISSION_TIMEOUT_S)
            ) as reply:
                if reply.status == 202:
                    await reply.read()
                    return
                if reply.status != 429:
                    refuse_admission(reply.status, await reply.text(errors="replace"))
                wait_s = admission_pause_s(reply.headers)
            await asyncio.sleep(wait_s)

    def _init_body(self, request: RolloutRunRequest) -> dict[str, Any]:
        rollout_id = request.rollout_id
        return {
            "initial_messages": list(request.messages),
            "label": request.label,
            "metadata": request.metadata,
            "rollout_id": rollout_id,
            "chat_completions_url": self._chat_completions_url_for(rollout_id),
            "controller_api_key": self._controller_api_key,
            "llm_api_key": self._chat_api_key,
            "completion_callback_url": self._completion_url_for(rollout_id),
            "grader_callback_url": self._grader_url_for(rollout_id),
            "agent_timeout_sec": request.agent_timeout_sec,
            "grader_timeout_sec": request.grader_timeout_sec,
            "extra_fields": request.extra_fields,
        }

    async def _request_cancel(self, rollout_id: str) -> None:
        import aiohttp

        try:
            async with self._client().post(
                server_url(self._base_url, "/rollout/cancel"),
                data=orjson.dumps({"ids": [rollout_id]}),
                headers=_JSON_HEADERS,
                timeout=total_timeout(CANCEL_TIMEOUT_S),
            ) as reply:
                await reply.read()
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            logger.debug("could not cancel rollout %s on its server: %s", rollout_id, error)


def outcome_of(result: TerminalCallbackResult) -> RolloutOutcome:
    """Read a terminal as an outcome; the workflow's own message speaks where the grader has none."""
    from osmosis_ai.rollout.types import GraderStatus, RolloutStatus

    rollout_id = result.rollout_id
    if result.source == "timeout":
        return RolloutOutcome(RolloutStatus.FAILURE, error="callback_timeout", rollout_id=rollout_id)
    if result.source == "cancelled":
        return RolloutOutcome(RolloutStatus.CANCELLED, error="cancelled", rollout_id=rollout_id)
    grader = result.grader
    if grader is None:
        error = "missing terminal grader callback"
        return RolloutOutcome(RolloutStatus.FAILURE, error=error, rollout_id=rollout_id)
    succeeded = grader.status == GraderStatus.SUCCESS
    message = grader.err_message
    if message is None and not succeeded and result.completion is not None:
        message = result.completion.err_message
    status = RolloutStatus.SUCCESS if succeeded else RolloutStatus.FAILURE
    return RolloutOutcome(status, sample=grader.sample, error=message, rollout_id=rollout_id)


def admission_pause_s(headers: Mapping[str, str]) -> float:
    """Return how long a full server wants to be left alone, in seconds, within sane bounds."""
    shortest, longest = RETRY_AFTER_BOUNDS_S
    wait_s = retry_after_s(headers)
    return RETRY_AFTER_DEFAULT_S if wait_s is None else min(max(wait_s, shortest), longest)


def encode_request(body: dict[str, Any]) -> bytes:
    """Write the body of an admission."""
    try:
        return orjson.dumps(body)
    except TypeError:
        # Integers beyond 64 bits and lone surrogates, which datasets do contain.
        return json.dumps(body).encode()


def refuse_admission(status: int, body: str, route: str = "POST /rollout") -> NoReturn:
    """Raise what a reply to an admission means that neither accepts it nor puts it off."""
    reason = " ".join(body.split())[:500]
    raise RolloutProtocolError(
        f"the rollout server answered {status} to `{route}`, where 202 or 429 is expected"
        + (f": {reason}" if reason else "."),
        status_code=status,
    )


def total_timeout(seconds: float) -> aiohttp.ClientTimeout:
    """Return a limit on a request's whole time."""
    import aiohttp

    return aiohttp.ClientTimeout(total=seconds)
