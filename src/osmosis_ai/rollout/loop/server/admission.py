"""Read requests for rollouts within limits and admit each one once.

No await separates the lookup of a key from the registration of its rollout, so concurrent requests with the same key
start one rollout and get the same answer. A failed request leaves no state and may be sent again.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import unicodedata
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx

from .execution import OpenClient, ServedRollout

if TYPE_CHECKING:
    from pathlib import Path

    from ..agent import RolloutAgentLoop
    from ..schemas import RolloutRequest
    from .state import AppState

logger = logging.getLogger(__name__)

MOST_BODY_BYTES = 16 * 1024 * 1024
"""Maximum request size in bytes, not counting metadata, which have their own limit."""

RETRY_AFTER_S = 5
"""Retry-After in seconds for callers refused for lack of capacity."""

_LONGEST_KEY = 256


class RefusedRequest(Exception):
    """A request that starts nothing.

    Attributes:
        status: The HTTP status.
        detail: The error text of the answer.
    """

    def __init__(self, status: int, detail: Any) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail

    @property
    def headers(self) -> dict[str, str]:
        """Additional headers of the answer."""
        return {"Retry-After": str(RETRY_AFTER_S)} if self.status in (429, 503) else {}


class RolloutAdmission:
    """Reads and admits the requests of one served agent.

    Args:
        agent: Runs the rollouts.
        state: The server's rollouts.
        open_client: Creates a rollout's client.
        debug_dir: Directory for the agent's events, if any.
    """

    def __init__(
        self,
        agent: RolloutAgentLoop,
        state: AppState,
        *,
        open_client: OpenClient,
        debug_dir: str | Path | None = None,
    ) -> None:
        self._agent = agent
        self._state = state
        self._open_client = open_client
        self._debug_dir = debug_dir

    async def init(self, headers: Mapping[str, str], body: AsyncIterator[bytes]) -> bytes:
        """Start the requested rollout unless it is known, and return the answer.

        Raises:
            RefusedRequest: 413, 422, 429, 500 or 503. Nothing was started or remembered.
        """
        held = _HeldBytes(self._state)
        try:
            request = _parsed(await _read(headers, body, held, self._state.request_timeout))
            return self._admit(request, held)
        finally:
            held.release()

    def _admit(self, request: RolloutRequest, held: _HeldBytes) -> bytes:
        state = self._state
        key = _key_of(request)
        known = state.reply_to(key)
        if known is not None:
            return known
        if state.closing:
            raise RefusedRequest(503, "the server is shutting down")
        if not state.has_room():
            raise RefusedRequest(429, "as many rollouts wait as this server takes; come again later")
        tools, reply = _read_tools(self._agent, request)
        rollout = ServedRollout(
            self._agent, request, tools, open_client=self._open_client, debug_dir=self._debug_dir
        )
        task = asyncio.ensure_future(self._run(key, rollout, held.kept()))
        state.mark_started(key, task, reply)
        return reply

    async def _run(self, key: str, rollout: ServedRollout, held: _HeldBytes) -> None:
        try:
            await rollout.run(self._state)
        except Exception:  # the edge of this task: nothing awaits it
            logger.exception("rollout %s could not be brought to its end", key)
        finally:
            held.release()
            self._state.mark_completed(key)


class _HeldBytes:
    """Counts the bytes of one request while they are in memory."""

    def __init__(self, state: AppState, size_bytes: int = 0) -> None:
        self._state = state
        self._size_bytes = size_bytes

    def add(self, size_bytes: int) -> None:
        if not self._state.hold(size_bytes):
            raise RefusedRequest(429, "the requests that wait here fill this server; come again later")
        self._size_bytes += size_bytes

    def kept(self) -> _HeldBytes:
        """Transfer the counted bytes to a new owner."""
        size_bytes, self._size_bytes = self._size_bytes, 0
        return _HeldBytes(self._state, size_bytes)

    def release(self) -> None:
        self._state.release(self._size_bytes)
        self._size_bytes = 0


async def _read(
    headers: Mapping[str, str], body: AsyncIterator[bytes], held: _HeldBytes, timeout_s: float
) -> bytes:
    from ..schemas import get_max_metadata_size_bytes

    most = MOST_BODY_BYTES + get_max_metadata_size_bytes()
    too_large = RefusedRequest(413, f"the request has more than {most} bytes")
    declared = headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > most:
        raise too_large
    parts: list[bytes] = []

    async def collect() -> None:
        size = 0
        async for part in body:
            size += len(part)
            if size > most:
                raise too_large
            held.add(len(part))
            parts.append(part)

    try:
        await asyncio.wait_for(collect(), timeout_s)
    except asyncio.TimeoutError:
        raise RefusedRequest(408, f"the request did not arrive within {timeout_s:g} seconds") from None
    return b"".join(parts)


def _parsed(body: bytes) -> RolloutRequest:
    from pydantic import ValidationError

    from ..schemas import RolloutRequest

    try:
        request = RolloutRequest.model_validate_json(body)
    except ValidationError as error:
        problems: list[Any] = [*error.errors(include_url=False, include_context=False, include_input=False)]
        for problem in problems:
            problem["loc"] = ("body", *problem["loc"])
        raise RefusedRequest(422, problems) from error
    for field, problem in _unusable(request):
        raise RefusedRequest(422, [{"type": "value_error", "loc": ("body", field), "msg": problem}])
    return request


def _unusable(request: RolloutRequest) -> Iterator[tuple[str, str]]:
    """Yield the fields that make a request unusable, with the reason: such a rollout could never be reported."""
    if not _is_plain_id(request.rollout_id):
        yield (
            "rollout_id",
            "an id has no slashes, no backslashes and no control characters, and is neither '.' nor '..'",
        )
    if not _is_plain_address(request.server_url):
        yield (
            "server_url",
            "the controller's address is http(s)://HOST[:PORT][/PATH], without a user name, query or fragment",
        )
    key = request.api_key
    if key is not None and not (key.isascii() and key.isprintable()):
        yield "api_key", "a key is made of printable ASCII characters"


def _is_plain_id(rollout_id: str) -> bool:
    if rollout_id in (".", "..") or "/" in rollout_id or "\\" in rollout_id:
        return False
    return not any(unicodedata.category(character) in ("Cc", "Cs") for character in rollout_id)


def _is_plain_address(url: str) -> bool:
    """Return whether a path can be appended to an address and a key sent to it."""
    parts = urlsplit(url)
    try:
        has_port = parts.port != 0
        httpx.URL(url)
    except (ValueError, httpx.InvalidURL):
        return False
    plain = url.isprintable() and not any(c.isspace() for c in url)
    return has_port and plain and "@" not in parts.netloc and not parts.query and not parts.fragment


def _key_of(request: RolloutRequest) -> str:
    """Return the deduplication key of a request. Long keys are hashed, because many are kept."""
    key = request.idempotency_key or request.rollout_id
    if len(key) <= _LONGEST_KEY:
        return key
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def _read_tools(agent: RolloutAgentLoop, request: RolloutRequest) -> tuple[list[Any], bytes]:
    """Return the agent's tools for a request, and the encoded answer.

    Raises:
        RefusedRequest: 500 if the agent's tools are invalid.
    """
    from ..schemas import InitResponse
    from ..tool_schemas import check_tools, normalize_tools

    try:
        tools = normalize_tools(check_tools(agent.get_tools(request), agent.name))
        reply = InitResponse(rollout_id=request.rollout_id, tools=tools).model_dump_json()
    except (Exception, SystemExit) as error:  # the user's code
        logger.exception("the agent's tools for rollout %s cannot be had", request.rollout_id)
        raise RefusedRequest(
            500, f"the agent's tools cannot be had: {type(error).__name__}: {error}"
        ) from error
    return tools, reply.encode()
