"""Admit, run, report and drain the rollouts of one server.

A repeated request does not start a second rollout, since a controller may have missed the 202. Each rollout sends exactly
one terminal report per channel, the workflow's first. An unreachable controller delays reports but never turns a reward
into a failure. Unless the controller stores the conversation, it is on disk before the final report is sent.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import logging
import uuid
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import orjson

from ..backend import ExecutionBackend
from ..context import RolloutContext
from ..extra_fields import LOOP_KEY, read_grader_notes, read_judge_calls, read_outcome
from ..trajectory.archive import RolloutArchive
from ..trajectory.conversion import (
    TrajectoryReport,
    controller_stores_conversation,
    report_from_response,
)
from ..types.protocol import (
    CancelRolloutsRequest,
    CancelRolloutsResponse,
    ExecutionRequest,
    ExecutionResult,
    GraderStatus,
    RolloutInitRequest,
    RolloutStatus,
    RolloutStatusResponse,
)
from ..types.sample import RolloutSample
from .callback_delivery import ATTEMPTS, PATIENCE_S, CallbackDelivery, DeliveryError

logger = logging.getLogger(__name__)

DRAIN_S = 10.0
"""Seconds that rollouts have to finish at shutdown."""

REMEMBERED_IDS = 65_536
"""How many ids of finished rollouts are remembered."""

_CANCELLED = b"cancelled"
_BACKEND_FAILED = ExecutionResult(status=RolloutStatus.FAILURE, err_message="Internal server error")


@dataclass(frozen=True)
class ControllerAuth:
    """The controller's key for callbacks."""

    api_key: str | None = None

    def __repr__(self) -> str:
        return f"ControllerAuth(api_key={'<set>' if self.api_key else None})"

    def as_bearer_headers(self) -> dict[str, str] | None:
        """Return the ``Authorization`` header, or None without a key."""
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else None


class RolloutHost:
    """Admits, runs, reports, cancels and drains rollouts of a backend."""

    def __init__(self, backend: ExecutionBackend, delivery: CallbackDelivery) -> None:
        self._backend = backend
        self._delivery = delivery
        self._tasks: dict[str, asyncio.Task[None]] = {}
        # Digest of each request, by rollout id; _CANCELLED after a cancellation.
        self._known: OrderedDict[str, bytes] = OrderedDict()
        self._closing = False

    def admit(self, init: RolloutInitRequest) -> tuple[int, str] | None:
        """Start a rollout unless it is known. Return status and reason of a refusal, or None."""
        rollout_id = init.rollout_id or uuid.uuid4().hex
        digest = _digest(init) if init.rollout_id is not None else b""
        known = self._known.get(rollout_id)
        if known == _CANCELLED:
            return 409, "the rollout with this id was cancelled; start it again under a new id"
        if known is not None:
            if known == digest:
                return None
            return 409, "a rollout with this id was started by another request; give each its own id"
        if self._closing:
            return 503, "the server is shutting down"
        if not self._backend.has_capacity():
            return 429, "the server has as many rollouts as it can hold; ask again later"
        execution = RolloutExecution(rollout_id, init, self._backend, self._delivery)
        self._known[rollout_id] = digest
        self._tasks[rollout_id] = asyncio.ensure_future(self._run(rollout_id, execution))
        return None

    async def status(self, rollout_id: str) -> RolloutStatusResponse:
        """Return the backend's status of a rollout, or else whether it is running here."""
        status = await _settled(self._backend.rollout_status(rollout_id))
        if status is not None:
            return RolloutStatusResponse.model_validate({**status, "rollout_id": rollout_id})
        running = rollout_id in self._tasks
        return RolloutStatusResponse(
            rollout_id=rollout_id, status=RolloutStatus.RUNNING if running else RolloutStatus.UNKNOWN
        )

    async def cancel(self, selection: CancelRolloutsRequest) -> CancelRolloutsResponse:
        """Cancel rollouts through the backend and return the outcome of each."""
        return CancelRolloutsResponse(
            dispositions=await _settled(
                self._backend.cancel_rollouts(selection.ids, selection.prefix, selection.all)
            )
        )

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
            self._known[rollout_id] = _CANCELLED
        except Exception:  # the edge of this task: nothing awaits it
            logger.exception("rollout %s ended with an internal error", rollout_id)
        finally:
            del self._tasks[rollout_id]
            self._known.move_to_end(rollout_id)
            while len(self._known) - len(self._tasks) > REMEMBERED_IDS:
                oldest = next(iter(self._known))
                if oldest in self._tasks:
                    self._known.move_to_end(oldest)
                else:
                    del self._known[oldest]


class RolloutExecution:
    """Runs one rollout on a backend, reports it and archives it."""

    def __init__(
        self, rollout_id: str, init: RolloutInitRequest, backend: ExecutionBackend, delivery: CallbackDelivery
    ) -> None:
        self.rollout_id = rollout_id
        self._init = init
        self._backend = backend
        self._delivery = delivery
        self._headers = ControllerAuth(init.controller_api_key).as_bearer_headers()
        self._grader_url = init.grader_callback_url or None
        self._completed = False
        self._graded = False
        self._owed_completion: bytes | None = None
        self._best: ExecutionResult | None = None
        self._diagnostics: dict[str, object] | None = None
        self._report: TrajectoryReport | None = None
        self._controller_stores = False
        self._archive = RolloutArchive(
            rollout_id, label=init.label, metadata=init.metadata, extra_fields=init.extra_fields
        )

    async def run(self) -> None:
        """Run to completion. Raises only when cancelled, and then sends no further reports."""
        init = self._init
        request = ExecutionRequest(
            id=self.rollout_id,
            prompt=init.initial_messages,
            label=init.label,
            metadata=init.metadata,
            agent_timeout_sec=init.agent_timeout_sec,
            grader_timeout_sec=init.grader_timeout_sec,
            extra_fields=init.extra_fields,
        )
        api_key = init.llm_api_key or init.controller_api_key
        on_graded = self._on_graded if self._grader_url is not None else None
        try:
            with RolloutContext(init.chat_completions_url, api_key, self.rollout_id):
                final = await self._backend.execute(request, self._on_completed, on_graded)
            if self._backend.capture_final_result and final is not None:
                self._remember(final)
        except Exception:
            # The controller must be informed even if a backend fails unexpectedly.
            logger.exception("the backend failed on rollout %s", self.rollout_id)
        # Send the reports that the backend left out or that are still pending.
        if not self._completed:
            await self._on_completed(_BACKEND_FAILED)
        if not self._graded and self._grader_url is not None:
            await self._on_graded(_BACKEND_FAILED)
        await self._deliver_owed_completion()
        self._archive.publish(
            self._unstored(),
            self._report,
            self._diagnostics or (self._best.extra_fields if self._best else None),
        )

    async def _on_completed(self, result: ExecutionResult) -> None:
        if self._completed:
            logger.error("the backend completed rollout %s twice; the first report stands", self.rollout_id)
            return
        self._completed = True
        self._remember(result)
        body = completion_body(self.rollout_id, result)
        if self._grader_url is None:
            self._archive.keep(self._unstored(), self._report)
        try:
            answer = await self._delivery.deliver(
                self._init.completion_callback_url, body, self._headers, attempts=ATTEMPTS
            )
        except DeliveryError as error:
            logger.error("rollout %s: %s", self.rollout_id, error)
            # Continue with grading: the attempt deserves its reward, and the completion can still be sent first.
            self._owed_completion = None if error.refused else body
        else:
            self._read_answer(answer)

    async def _on_graded(self, result: ExecutionResult) -> None:
        if self._graded or self._grader_url is None:
            logger.error("the backend graded rollout %s twice; the first report stands", self.rollout_id)
            return
        self._graded = True
        self._remember(result)
        await self._deliver_owed_completion()
        self._archive.keep(self._unstored(), self._report)
        await self._deliver_patiently(self._grader_url, grader_body(self.rollout_id, result))

    async def _deliver_owed_completion(self) -> None:
        body, self._owed_completion = self._owed_completion, None
        if body is not None:
            await self._deliver_patiently(self._init.completion_callback_url, body)

    async def _deliver_patiently(self, url: str, body: bytes) -> None:
        try:
            self._read_answer(await self._delivery.deliver(url, body, self._headers, patience_s=PATIENCE_S))
        except DeliveryError as error:
            logger.error("rollout %s: its outcome is lost: %s", self.rollout_id, error)

    def _read_answer(self, answer: bytes) -> None:
        report = report_from_response(answer)
        if report is not None:
            self._report = report
        self._controller_stores = self._controller_stores or controller_stores_conversation(answer)

    def _unstored(self) -> ExecutionResult | None:
        """Return the best result, or None if the controller stores the same conversation."""
        sample = self._best.sample if self._best is not None else None
        if self._controller_stores and sample is not None and sample.trajectory_messages == sample.messages:
            return None
        return self._best

    def _remember(self, result: ExecutionResult) -> None:
        """Keep the latest result with a sample and the latest diagnostics for the archive."""
        if result.sample is not None:
            self._best = result
        if result.extra_fields:
            self._diagnostics = result.extra_fields


def completion_body(rollout_id: str, result: ExecutionResult) -> bytes:
    """Encode a RolloutCompleteRequest: the workflow's result without its sample."""
    payload = {
        "status": result.status,
        "rollout_id": rollout_id,
        "extra_fields": None,
        "err_message": result.err_message,
        "err_category": result.err_category,
    }
    return _encode(payload)


def grader_body(rollout_id: str, result: ExecutionResult) -> bytes:
    """Encode a GraderCompleteRequest: the sample and, if earned and allowed, its reward."""
    succeeded = result.status is RolloutStatus.SUCCESS
    payload: dict[str, Any] = {
        "status": GraderStatus.SUCCESS if succeeded else GraderStatus.FAILURE,
        "rollout_id": rollout_id,
        "sample": None,
        "err_message": result.err_message,
        "err_category": result.err_category,
    }
    sample = result.sample
    if sample is None:
        return _encode(payload)
    minimal: dict[str, Any] = {
        "messages": [],
        "label": sample.label,
        "reward": sample.reward if succeeded and not sample.remove_sample else None,
        "remove_sample": sample.remove_sample,
        "metrics": {},
        "extra_fields": {},
    }
    try:
        _require_messages(sample.messages)
        safe = sample.json_safe_copy()
        whole = {"messages": sample.messages, "metrics": safe.metrics, "extra_fields": safe.extra_fields}
        return _encode({**payload, "sample": {**minimal, **whole}}, sample)
    except Exception:
        # The messages may come from any framework, and encoding them can raise any error.
        logger.warning(
            "rollout %s: its sample has no JSON form; only its score is sent", rollout_id, exc_info=True
        )
    # This entry holds all scores of an agent loop.
    if LOOP_KEY in sample.extra_fields:
        minimal["extra_fields"] |= read_outcome(sample.extra_fields).to_fields()
    minimal["extra_fields"] |= read_judge_calls(sample.extra_fields).to_fields()
    read_grader_notes(sample.extra_fields).write(minimal["extra_fields"])
    return _encode({**payload, "sample": minimal})


def _require_messages(messages: Any) -> None:
    """Raise TypeError if a grader replaced the messages: controllers would refuse them together with the score."""
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise TypeError("the messages are no longer a list of dicts")


def _encode(payload: dict[str, Any], sample: RolloutSample | None = None) -> bytes:
    """Encode with orjson if possible, or else with pydantic, which supports more types."""
    try:
        return orjson.dumps(payload)
    except TypeError:
        if sample is not None:
            messages = sample.model_dump(mode="json", include={"messages"})["messages"]
            payload = {**payload, "sample": {**payload["sample"], "messages": messages}}
        # Models produce lone surrogates, which are invalid UTF-8 and would be refused by the receiver.
        text = json.dumps(payload, ensure_ascii=False, allow_nan=False)
        return text.encode("utf-8", errors="replace")


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
