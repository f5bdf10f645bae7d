"""Carrying callbacks to the controller: every payload is the true one, sent until it is answered.

A callback that the controller does not take (connection errors, 429, 5xx) is tried again with
growing pauses; one that it refuses (any other status) is not. The receiver must be idempotent: an
answer slower than the timeout is lost, and the same payload is sent again.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import aiohttp

logger = logging.getLogger(__name__)

ATTEMPTS = 5
"""How often a completion is tried before grading goes ahead without its acknowledgement."""

PATIENCE_S = 900.0
"""How long the outcome of a rollout is offered to a controller that does not answer, in seconds."""

TIMEOUT_S = 10.0
"""How long connecting may take, and then the answer once all is sent, in seconds."""

TOTAL_TIMEOUT_S = 60.0
"""How long one try may take in all, a large sample over a slow line included, in seconds."""

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 8.0
_LONGEST_RETRY_AFTER_S = 30.0
_RETRIED = frozenset({429, 500, 502, 503, 504})


class DeliveryError(Exception):
    """A callback was not acknowledged.

    Attributes:
        refused: the controller answered that it will never take this payload.
    """

    def __init__(self, message: str, *, refused: bool) -> None:
        super().__init__(message)
        self.refused = refused


class Courier:
    """Posts callbacks over one session, opened at the first of them.

    Args:
        sleep: waits between tries; tests give their own.
        clock: seconds from any start, never going back.
    """

    def __init__(
        self,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sleep = sleep
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None

    async def deliver(
        self,
        url: str,
        body: bytes,
        headers: Mapping[str, str] | None,
        *,
        attempts: int | None = None,
        patience_s: float | None = None,
    ) -> bytes:
        """Post ``body`` until it is acknowledged and return the acknowledgement.

        Args:
            url: where to.
            body: JSON.
            headers: the authorization.
            attempts: give up after this many tries; None for no limit.
            patience_s: give up when this many seconds have passed; None for no limit.

        Raises:
            DeliveryError: when it was refused, or a limit was reached.
        """
        started = self._clock()
        pause_s = _FIRST_PAUSE_S
        attempt = 0
        while True:
            attempt += 1
            status, answer, trouble, retry_after_s = await self._post(url, body, headers)
            if status is not None and 200 <= status < 300:
                return answer
            if status is not None and status not in _RETRIED:
                raise DeliveryError(f"{url} refused a callback: {trouble}", refused=True)
            # Jitter: many rollouts wait for the same controller, and should not come back as one.
            wait_s = max(pause_s * random.uniform(0.75, 1.25), retry_after_s)
            spent = patience_s is not None and self._clock() - started + wait_s > patience_s
            if spent or attempt == attempts:
                raise DeliveryError(f"{url} took no callback in {attempt} tries: {trouble}", refused=False)
            logger.warning("callback to %s failed (%s); next try in %.1fs", url, trouble, wait_s)
            await self._sleep(wait_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    async def close(self) -> None:
        """Close the session."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _post(
        self, url: str, body: bytes, headers: Mapping[str, str] | None
    ) -> tuple[int | None, bytes, str, float]:
        """Try once: the status (None when there was no answer), the answer, what was wrong, Retry-After."""
        import aiohttp

        all_headers = {"Content-Type": "application/json", **(headers or {})}
        timeout = aiohttp.ClientTimeout(TOTAL_TIMEOUT_S, sock_connect=TIMEOUT_S, sock_read=TIMEOUT_S)
        try:
            async with self._open().post(
                url,
                data=body,
                headers=all_headers,
                timeout=timeout,
                proxy=_proxy_for(*urlsplit(url)[:2]),
                allow_redirects=False,
            ) as reply:
                answer = await reply.read()
                if reply.status < 300:
                    return reply.status, answer, "", 0.0
                trouble = f"HTTP {reply.status} {answer[:300].decode(errors='replace')}"
                return reply.status, answer, trouble, _retry_after_s(reply.headers.get("Retry-After"))
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError) as error:
            raise DeliveryError(f"{url} is no URL to call back: {error!r}", refused=True) from error
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            return None, b"", repr(error), 0.0

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            from osmosis_ai.llm.transport import open_session

            self._session = open_session(timeout_s=TOTAL_TIMEOUT_S)
        return self._session


@lru_cache(maxsize=64)
def _proxy_for(scheme: str, host: str) -> str | None:
    """Return the environment's proxy for a controller, looked up once."""
    from osmosis_ai.llm.transport import environment_proxy

    return environment_proxy(f"{scheme}://{host}")


def _retry_after_s(value: str | None) -> float:
    """Read a numeric ``Retry-After``; a date is not worth the trouble here."""
    if value is None or not value.strip().isdigit():
        return 0.0
    return min(float(value), _LONGEST_RETRY_AFTER_S)
