"""Admit, run and drain the rollouts of one server.

A repeated request does not start a second rollout, since a controller may have missed the 202. Ids of finished
rollouts are remembered in bounded memory.
"""

from __future__ import annotations

import asyncio
import enum
import hashlib
import inspect
import json
import logging
import uuid
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import orjson

from ..backend.base import ExecutionBackend
from ..types.protocol import (
    CancelRolloutsRequest,
    CancelRolloutsResponse,
    RolloutInitRequest,
    RolloutStatus,
    RolloutStatusResponse,
)
from .callback_delivery import CallbackDelivery
from .execution import RolloutExecution

logger = logging.getLogger(__name__)

DRAIN_S = 10.0
"""Seconds that rollouts have to finish at shutdown."""

REMEMBERED_IDS = 65_536
"""How many ids of finished rollouts are remembered."""


class Admission(enum.Enum):
    """Result of a request for a rollout."""

    ADMITTED = "admitted"
    REPEATED = "repeated"
    CONFLICT = "conflict"
    CANCELLED = "cancelled"
    FULL = "full"
    CLOSING = "closing"


@dataclass(slots=True)
class _Known:
    digest: bytes
    cancelled: bool = False


class RolloutHost:
    """Admits, runs, reports, cancels and drains rollouts.

    Args:
        backend: Executes the rollouts.
        delivery: Sends their reports; closed by the host.
    """

    def __init__(self, backend: ExecutionBackend, delivery: CallbackDelivery) -> None:
        self._backend = backend
        self._delivery = delivery
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._closing = False

    def admit(self, init: RolloutInitRequest) -> Admission:
        """Start a rollout, unless it is known, capacity is exhausted or the server is closing."""
        digest = _digest(init) if init.rollout_id is not None else b""
        known = self._known.get(init.rollout_id) if init.rollout_id is not None else None
        if known is not None:
            if known.digest != digest:
                return Admission.CONFLICT
            return Admission.CANCELLED if known.cancelled else Admission.REPEATED
        if self._closing:
            return Admission.CLOSING
        if not self._backend.has_capacity():
            return Admission.FULL
        rollout_id = init.rollout_id or uuid.uuid4().hex
        execution = RolloutExecution(rollout_id, init, self._backend, self._delivery)
        self._known[rollout_id] = _Known(digest)
        self._tasks[rollout_id] = asyncio.ensure_future(self._run(rollout_id, execution))
        return Admission.ADMITTED

    async def status(self, rollout_id: str) -> RolloutStatusResponse:
        """Return the backend's status of a rollout, or else whether it is running here."""
        told = await _settled(self._backend.rollout_status(rollout_id))
        if told is not None:
            return RolloutStatusResponse.model_validate({**told, "rollout_id": rollout_id})
        running = rollout_id in self._tasks
        return RolloutStatusResponse(
            rollout_id=rollout_id, status=RolloutStatus.RUNNING if running else RolloutStatus.UNKNOWN
        )

    async def cancel(self, selection: CancelRolloutsRequest) -> CancelRolloutsResponse:
        """Cancel rollouts through the backend and return the outcome of each."""
        told = await _settled(self._backend.cancel_rollouts(selection.ids, selection.prefix, selection.all))
        return CancelRolloutsResponse(dispositions=told)

    async def close(self) -> None:
        """Stop admission, give rollouts :data:`DRAIN_S` seconds to finish, then cancel them."""
        self._closing = True
        tasks = list(self._tasks.values())
        if tasks:
            _, unfinished = await asyncio.wait(tasks, timeout=DRAIN_S)
            if unfinished:
                logger.warning("the shutdown cancels %d rollouts, unreported", len(unfinished))
            for task in unfinished:
                task.cancel()
            await asyncio.gather(*unfinished, return_exceptions=True)
        await self._delivery.close()

    async def _run(self, rollout_id: str, execution: RolloutExecution) -> None:
        try:
            await execution.run()
        except asyncio.CancelledError:
            # The canceller knows the outcome, so nothing is reported.
            self._known[rollout_id].cancelled = True
        except Exception:  # the edge of this task: nothing awaits it
            logger.exception("rollout %s could not be brought to its end", rollout_id)
        finally:
            del self._tasks[rollout_id]
            self._known.move_to_end(rollout_id)
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        while len(self._known) - len(self._tasks) > REMEMBERED_IDS:
            oldest = next(iter(self._known))
            if oldest in self._tasks:
                self._known.move_to_end(oldest)
                continue
            del self._known[oldest]


def _digest(init: RolloutInitRequest) -> bytes:
    """Return a digest of a request's content, independent of its formatting."""
    fields = dict(init)
    try:
        content = orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        # Integers beyond 64 bits and lone surrogates.
        content = json.dumps(fields, sort_keys=True).encode()
    return hashlib.blake2b(content, digest_size=16).digest()


async def _settled(value: Any) -> Any:
    """Return a backend's answer, awaiting it if necessary."""
    return await value if inspect.isawaitable(value) else value
