"""Deliver callbacks to a controller, for the servers of both kinds of agents.

Connection errors, 429 and 5xx are retried with increasing delays. Other statuses are final. The receiver must be
idempotent: if an answer exceeds the timeout, the same payload is sent again. Retries add load to a slow controller, so all
callbacks of a server share one timeout, which doubles after each timed-out call.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from osmosis_ai.retry_after import retry_after_s

if TYPE_CHECKING:
    import aiohttp

logger = logging.getLogger(__name__)

T = TypeVar("T")

ATTEMPTS = 5
"""Tries of a completion before grading starts without an acknowledgement."""

PATIENCE_S = 900.0
"""Seconds for which a rollout's outcome is offered to an unresponsive controller."""

TIMEOUT_S = 10.0
"""Timeout in seconds for connecting, and for the answer after the request has been sent. Doubles each time it is exceeded."""

LONGEST_TIMEOUT_S = 160.0
"""Maximum of that timeout in seconds."""

SENDING_S = 50.0
"""Additional seconds per try for sending a large sample over a slow connection."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 8.0
_LONGEST_RETRY_AFTER_S = 30.0
_FORGETTING = 0.98
_RETRIED = frozenset({429, 500, 502, 503, 504})


class DeliveryError(Exception):
    """A callback was not acknowledged; ``refused`` if the controller will never accept this payload."""

    def __init__(self, message: str, *, refused: bool) -> None:
        super().__init__(message)
        self.refused = refused


class RetryableError(Exception):
    """One try failed, and another may succeed."""

    def __init__(self, message: str, *, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


async def deliver_with_retries(
    send: Callable[[], Awaitable[T]],
    url: str,
    *,
    attempts: int | None = None,
    patience_s: float | None = None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> T:
    """Call ``send`` until it does not raise RetryableError, and return its result.

    Raises DeliveryError after ``attempts`` tries or ``patience_s`` seconds.
    """
    started = clock()
    pause_s = FIRST_PAUSE_S
    attempt = 0
    while True:
        attempt += 1
        try:
            return await send()
        except RetryableError as error:
            problem = error
        # Jitter keeps many rollouts from retrying at the same time.
        wait_s = max(pause_s * random.uniform(0.75, 1.25), problem.retry_after_s)
        spent = patience_s is not None and clock() - started + wait_s > patience_s
        if spent or attempt == attempts:
            raise DeliveryError(
                f"{url} did not accept the callback in {attempt} tries: {problem}", refused=False
            )
        logger.warning("callback to %s failed (%s); next try in %.1fs", url, problem, wait_s)
        await sleep(wait_s)
        pause_s = min(pause_s * 2, LONGEST_PAUSE_S)


class CallbackDelivery:
    """Posts callbacks over one session, opened on first use."""

    def __init__(
        self,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sleep = sleep
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None
        self._timeout_s = TIMEOUT_S

    async def deliver(
        self, url: str, body: bytes, headers: Mapping[str, str] | None, *, attempts: int | None = None
    ) -> bytes:
        """Post ``body`` until it is acknowledged, and return the acknowledgement.

        Raises DeliveryError if it was refused, or after ``attempts`` tries or :data:`PATIENCE_S`.
        """
        return await deliver_with_retries(
            lambda: self._post(url, body, headers),
            url,
            attempts=attempts,
            patience_s=PATIENCE_S,
            sleep=self._sleep,
            clock=self._clock,
        )

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _post(self, url: str, body: bytes, headers: Mapping[str, str] | None) -> bytes:
        import aiohttp

        if self._session is None:
            from osmosis_ai.llm.transport import open_session

            self._session = open_session(timeout_s=LONGEST_TIMEOUT_S + SENDING_S)
        timeout_s = self._timeout_s
        try:
            async with self._session.post(
                url,
                data=body,
                headers={"Content-Type": "application/json", **(headers or {})},
                timeout=aiohttp.ClientTimeout(
                    timeout_s + SENDING_S, sock_connect=timeout_s, sock_read=timeout_s
                ),
                proxy=_proxy_for(*urlsplit(url)[:2]),
                allow_redirects=False,
            ) as reply:
                answer = await reply.read()
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError) as error:
            raise DeliveryError(f"{url} is not a valid callback URL: {error!r}", refused=True) from error
        except asyncio.TimeoutError as error:
            # If several tries time out together, only the first doubles the timeout.
            self._timeout_s = min(max(self._timeout_s, timeout_s * 2), LONGEST_TIMEOUT_S)
            raise RetryableError(repr(error)) from error
        except (aiohttp.ClientError, OSError) as error:
            raise RetryableError(repr(error)) from error
        if reply.status < 300:
            # Lower the timeout gradually: a slow controller may be slow again.
            self._timeout_s = max(TIMEOUT_S, self._timeout_s * _FORGETTING)
            return answer
        problem = f"HTTP {reply.status} {answer[:300].decode(errors='replace')}"
        if reply.status not in _RETRIED:
            raise DeliveryError(f"{url} refused a callback: {problem}", refused=True)
        wait_s = min(retry_after_s(reply.headers) or 0.0, _LONGEST_RETRY_AFTER_S)
        raise RetryableError(problem, retry_after_s=wait_s)


@lru_cache(maxsize=64)
def _proxy_for(scheme: str, host: str) -> str | None:
    """Return the environment's proxy for a controller, cached."""
    from osmosis_ai.llm.transport import environment_proxy

    return environment_proxy(f"{scheme}://{host}")
