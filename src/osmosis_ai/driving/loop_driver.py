"""Driving rollouts on an agent that is served elsewhere: init, its calls to our bridge, one completion.

An agent accepts the same rollout as often as it is asked to, and starts it once; so an admission that could not be
read is repeated, unlike that of other rollouts. It is put off while the agent is full, for as long as an attempt may
take. Nothing can be cancelled over there: an agent whose rollout was given up finds its key worthless.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from osmosis_ai.driving.agent_address import open_agent_session
from osmosis_ai.driving.driver import DEFAULT_DEADLINE_S, RolloutRunRequest
from osmosis_ai.driving.http_driver import (
    CallbackRolloutDriver,
    RolloutProtocolError,
    admission_pause_s,
    encode_request,
    refuse_admission,
    total_timeout,
)
from osmosis_ai.driving.served_agent import read_bounded
from osmosis_ai.llm.wire_json import loads

if TYPE_CHECKING:
    import aiohttp

    from osmosis_ai.driving.callback_registry import CallbackStore, TerminalCallbackResult
    from osmosis_ai.driving.loop_endpoints import LoopEndpoints
    from osmosis_ai.driving.served_agent import ServedAgent

__all__ = ["LoopRolloutDriver"]

INIT_PATH = "/v1/rollout/init"
INIT_TIMEOUT_S = 60.0
INIT_TRIES = 3
_INIT_PAUSE_S = 0.5
MAX_TURNS = 10
MAX_TOKENS_TOTAL = 8192
_ACCEPTED = (200, 201, 202)


class LoopRolloutDriver(CallbackRolloutDriver):
    """Runs rollouts on a served agent."""

    def __init__(
        self,
        *,
        agent: ServedAgent,
        endpoints: LoopEndpoints,
        callback_store: CallbackStore,
        server_url: str,
        callback_timeout_s: float,
    ) -> None:
        super().__init__(callback_store, http_client=None, callback_timeout_s=callback_timeout_s)
        self._agent = agent
        self._location = agent.location
        self._endpoints = endpoints
        self._server_url = server_url.rstrip("/")
        self._patience_s = callback_timeout_s or DEFAULT_DEADLINE_S

    async def _admit(self, request: RolloutRunRequest) -> None:
        key = self._endpoints.open(request)
        accepted = await self._accepted(encode_request(self._init_body(request, key)))
        # First known to be there, then free to call: whoever counts its rollouts must not miss one that it has.
        self._agent.admitted.add(request.rollout_id)
        tools = accepted.get("tools") if isinstance(accepted, dict) else None
        offered = tools if isinstance(tools, list) else []
        try:
            self._endpoints.offer_tools(
                request.rollout_id, [tool for tool in offered if isinstance(tool, dict)]
            )
        except RecursionError:
            said = f"the tools of {self._agent.name} are nested too deeply to be told to a model."
            raise RolloutProtocolError(said, status_code=422) from None

    async def _await_terminal(self, rollout_id: str) -> TerminalCallbackResult:
        """Wait for the rollout's end."""
        terminal = asyncio.ensure_future(super()._await_terminal(rollout_id))
        given_up = asyncio.ensure_future(self._endpoints.wait_cancelled(rollout_id))
        try:
            await asyncio.wait({terminal, given_up}, return_when=asyncio.FIRST_COMPLETED)
            if not terminal.done():
                self._agent.suspect()
                raise ConnectionError("it was told to end, and gave the rollout up")
            return terminal.result()
        finally:
            terminal.cancel()
            given_up.cancel()
            await asyncio.gather(terminal, given_up, return_exceptions=True)

    def _forget(self, rollout_id: str) -> None:
        self._agent.admitted.discard(rollout_id)
        self._endpoints.close(rollout_id)

    async def _accepted(self, body: bytes) -> Any:
        """Post an admission until it is accepted, and return the reply."""
        import aiohttp

        failures, deadline = 0, time.monotonic() + self._patience_s
        while True:
            try:
                accepted, wait_s = await self._post(body)
                if accepted is not None:
                    return accepted
            except (aiohttp.ClientError, OSError, asyncio.TimeoutError):
                self._agent.suspect()
                failures += 1
                if failures >= INIT_TRIES:
                    raise
                wait_s = _INIT_PAUSE_S * failures
            if time.monotonic() + wait_s >= deadline:
                raise asyncio.TimeoutError(f"it was full for {self._patience_s:g} s")
            await asyncio.sleep(wait_s)

    async def _post(self, body: bytes) -> tuple[Any, float]:
        """Post an admission once; return the reply that accepts it, or None and for how long it is put off, in s."""
        async with self._client().post(
            self._location.address.base_url + INIT_PATH,
            data=body,
            headers={"Content-Type": "application/json", **self._location.headers},
            allow_redirects=False,
            timeout=total_timeout(INIT_TIMEOUT_S),
        ) as reply:
            content = await _content(reply)
            if reply.status == 429:
                return None, admission_pause_s(reply.headers)
            if reply.status == 401:
                # It took the key when the run began: it was started again, with another one.
                raise ConnectionError("it refuses the key (HTTP 401)")
            if reply.status not in _ACCEPTED:
                refuse_admission(reply.status, content.decode("utf-8", "replace"), f"POST {INIT_PATH}")
            try:
                return loads(content), 0.0
            except ValueError:
                raise ConnectionError(f"its answer to `POST {INIT_PATH}` is not JSON") from None

    def _init_body(self, request: RolloutRunRequest, key: str) -> dict[str, Any]:
        known = {"ground_truth": request.label} if request.label is not None else {}
        return {
            "rollout_id": request.rollout_id,
            "server_url": self._server_url,
            "messages": list(request.messages),
            "completion_params": {},
            "max_turns": MAX_TURNS,
            "max_tokens_total": MAX_TOKENS_TOTAL,
            "metadata": {**(request.extra_fields or {}), **(request.metadata or {}), **known},
            "api_key": key,
            "idempotency_key": None,
            "tool_server_url": None,
        }

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = open_agent_session(timeout_s=INIT_TIMEOUT_S)
        return self._session


async def _content(reply: aiohttp.ClientResponse) -> bytes:
    try:
        return await read_bounded(reply)
    except ValueError as error:
        raise ConnectionError(str(error)) from None
