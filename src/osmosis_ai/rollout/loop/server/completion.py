"""Report a rollout's outcome until the controller accepts or refuses it, or the time is up.

Any 2xx accepts a completion. A refused completion is logged and not sent again. A delivery failure never
changes a completed rollout into a failed one.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..exceptions import (
    OsmosisRolloutError,
    OsmosisTimeoutError,
    OsmosisTransportError,
    OsmosisValidationError,
)

if TYPE_CHECKING:
    from ..agent import RolloutResult
    from ..client import OsmosisLLMClient
    from ..schemas import RolloutMetrics

logger = logging.getLogger(__name__)

COMPLETION_WINDOW_S = 600.0
"""Seconds for which an outcome is offered to a controller that does not accept it."""

SHUTDOWN_WINDOW_S = 10.0
"""Seconds for which a server that is shutting down offers an outcome to a reachable controller."""

SHUTDOWN_CONNECT_TIMEOUT_S = 1.5
"""Connect timeout in seconds during shutdown, long enough to resend one lost packet."""

LONGEST_ERROR_MESSAGE = 4000
"""Maximum number of characters of an error sent to the controller."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
_ASKED_TO_WAIT = frozenset({408, 425, 429})


@dataclass(frozen=True)
class Outcome:
    """Outcome of a rollout, as sent to the controller."""

    status: str
    final_messages: list[dict[str, Any]]
    finish_reason: str
    error_message: str | None = None
    metrics: RolloutMetrics | None = None
    reward: float | None = None

    @classmethod
    def failure(cls, message: str, metrics: RolloutMetrics | None = None) -> Outcome:
        """Return the outcome of a rollout without a result."""
        sendable = message[:LONGEST_ERROR_MESSAGE].encode("utf-8", "backslashreplace").decode()
        return cls("ERROR", [], "error", sendable, metrics)


def outcome_of(rollout_id: str, result: RolloutResult) -> Outcome:
    """Return the report of ``result``. A result that cannot be sent becomes a failure with the reason."""
    from pydantic import ValidationError

    from ..schemas import RolloutMetrics, RolloutResponse

    status = getattr(result.status, "value", result.status)
    if isinstance(result.reward, float) and not math.isfinite(result.reward):
        return Outcome.failure(f"the agent's reward is {result.reward}, which is not a finite number")
    try:
        told = RolloutResponse.model_validate(
            {
                "rollout_id": rollout_id,
                "status": status,
                "final_messages": result.final_messages,
                "finish_reason": result.finish_reason,
                "error_message": result.error_message,
                "reward": result.reward,
                # The client uses its own metrics if the agent's have another type.
                "metrics": result.metrics if isinstance(result.metrics, RolloutMetrics) else None,
            }
        )
        sent = told.model_dump(mode="json")
        json.dumps(sent, ensure_ascii=False, allow_nan=False).encode()
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        return Outcome.failure(f"the agent's result cannot be reported: {where}: {first['msg']}")
    except (ValueError, RecursionError) as error:  # not representable in JSON
        return Outcome.failure(f"the agent's result cannot be reported: {error}")
    return Outcome(
        status=status,
        final_messages=sent["final_messages"],
        finish_reason=result.finish_reason,
        error_message=result.error_message,
        metrics=told.metrics,
        reward=told.reward,
    )


async def report(
    client: OsmosisLLMClient,
    rollout_id: str,
    outcome: Outcome,
    *,
    window_s: float = COMPLETION_WINDOW_S,
    closing: bool = False,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> bool:
    """Offer ``outcome`` until the controller accepts it, and return whether it did.

    Args:
        client: Sends to the controller.
        rollout_id: For the log.
        outcome: The payload, the same in every try.
        window_s: Time limit in seconds.
        closing: The server is shutting down: stop as soon as the controller is unreachable.
        sleep: Waits between the client's rounds of tries; replaced in tests.
    """
    if closing:
        client.complete_rollout_retries = 0
        client.connect_timeout_s = SHUTDOWN_CONNECT_TIMEOUT_S
    give_up_at = time.monotonic() + window_s
    pause_s = _FIRST_PAUSE_S
    while True:
        trouble = await _offer(client, outcome, give_up_at - time.monotonic())
        if trouble is None:
            return True
        lost = not trouble.passing or (closing and trouble.unreachable)
        if lost or time.monotonic() + pause_s > give_up_at:
            what = "did not take" if trouble.passing else "refused"
            logger.error(
                "rollout %s: its outcome (%s) is lost: the controller %s it: %s",
                rollout_id,
                outcome.status,
                what,
                trouble.message,
            )
            return False
        logger.warning("rollout %s: %s; its outcome is offered again", rollout_id, trouble.message)
        await sleep(pause_s)
        pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)


@dataclass(frozen=True)
class _Trouble:
    message: str
    passing: bool
    unreachable: bool = False


async def _offer(client: OsmosisLLMClient, outcome: Outcome, timeout_s: float) -> _Trouble | None:
    """Offer an outcome once, including the client's retries, and return the error if any."""
    offered = client.complete_rollout(
        status=outcome.status,
        final_messages=outcome.final_messages,
        finish_reason=outcome.finish_reason,
        error_message=outcome.error_message,
        metrics=outcome.metrics,
        reward=outcome.reward,
    )
    try:
        await asyncio.wait_for(offered, max(timeout_s, 0.001))
    except OsmosisValidationError as error:
        return _Trouble(str(error), passing=error.status_code in _ASKED_TO_WAIT)
    except OsmosisRolloutError as error:
        unreachable = isinstance(error, OsmosisTransportError | OsmosisTimeoutError)
        return _Trouble(str(error), passing=True, unreachable=unreachable)
    except asyncio.TimeoutError:
        return _Trouble("the controller did not answer in time", passing=True)
    except Exception as error:  # retrying would fail again; the loss is logged
        return _Trouble(f"it cannot be sent: {type(error).__name__}: {error}", passing=False)
    return None
