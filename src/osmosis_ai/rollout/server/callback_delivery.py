"""Deliver callbacks to a controller, for the servers of both kinds of agents.

Connection errors, timeouts, 429 and 5xx are retried with increasing delays; other statuses are final.
"""

from __future__ import annotations

import logging
import random
from asyncio import sleep
from collections.abc import Awaitable, Callable, Mapping
from time import monotonic
from typing import TypeVar

import httpx

logger = logging.getLogger(__name__)

T = TypeVar("T")

ATTEMPTS = 5  # of a completion, before grading starts without an acknowledgement
PATIENCE_S = 900.0  # for which an outcome is offered to an unresponsive controller
CONNECT_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 120.0  # long enough for a busy controller, to which a copy would only add load
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 8.0
_RETRIED = frozenset({429, 500, 502, 503, 504})


class DeliveryError(Exception):
    """A callback was not acknowledged; ``refused`` if the controller will never accept this payload."""

    def __init__(self, message: str, *, refused: bool) -> None:
        super().__init__(message)
        self.refused = refused


class RetryableError(Exception):
    """One try failed, and another may succeed."""


async def deliver_with_retries(
    send: Callable[[], Awaitable[T]], url: str, *, attempts: int | None = None, patience_s: float = PATIENCE_S
) -> T:
    """Call ``send`` until it does not raise RetryableError, and return its result.

    Raises DeliveryError after ``attempts`` tries or ``patience_s`` seconds.
    """
    started = monotonic()
    pause_s = FIRST_PAUSE_S
    attempt = 0
    while True:
        attempt += 1
        try:
            return await send()
        except RetryableError as error:
            problem = error
        # Jitter keeps many rollouts from retrying at the same time.
        wait_s = pause_s * random.uniform(0.75, 1.25)
        if monotonic() - started + wait_s > patience_s or attempt == attempts:
            raise DeliveryError(
                f"{url} did not accept the callback in {attempt} tries: {problem}", refused=False
            )
        logger.warning("callback to %s failed (%s); next try in %.1fs", url, problem, wait_s)
        await sleep(wait_s)
        pause_s = min(pause_s * 2, LONGEST_PAUSE_S)


async def deliver(url: str, body: bytes, headers: Mapping[str, str], *, attempts: int | None = None) -> bytes:
    """Post ``body`` until it is acknowledged, and return the acknowledgement.

    Raises DeliveryError if it was refused, or after ``attempts`` tries or PATIENCE_S seconds.
    """
    from ..model_client import post_shared

    async def post() -> bytes:
        try:
            status, answer = await post_shared(
                url,
                body,
                headers,
                connect_timeout_s=CONNECT_TIMEOUT_S,
                read_timeout_s=READ_TIMEOUT_S,
                total_timeout_s=2 * READ_TIMEOUT_S,
            )
        except httpx.UnsupportedProtocol as error:
            raise DeliveryError(f"{url} is not a valid callback URL: {error}", refused=True) from error
        except httpx.RequestError as error:
            raise RetryableError(repr(error)) from error
        if status < 300:
            return answer
        problem = f"HTTP {status} {answer[:300].decode(errors='replace')}"
        if status in _RETRIED:
            raise RetryableError(problem)
        raise DeliveryError(f"{url} refused a callback: {problem}", refused=True)

    return await deliver_with_retries(post, url, attempts=attempts)
