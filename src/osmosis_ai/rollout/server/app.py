"""HTTP application of the rollout server: runs the rollouts of a backend and reports them to their controllers.

A repeated request does not start a second rollout. Each rollout sends exactly one terminal report per channel, the
workflow's first. Unless the controller stores the conversation, it is on disk before the final report is sent.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson
from fastapi import FastAPI, HTTPException, Request, Response
from pydantic import BaseModel, ValidationError

from osmosis_ai.event_loop import LoopMonitor

from ..backend import ExecutionBackend
from ..client import OsmosisLLMClient as OsmosisLLMClient
from ..context import RolloutContext
from ..extra_fields import LOOP_KEY, read_grader_notes, read_judge_calls, read_outcome
from ..model_client import close_shared_connections
from ..trajectory import RolloutArchive, TrajectoryReport, report_from_response
from ..types import (
    CancelRolloutsRequest,
    CancelRolloutsResponse,
    ExecutionRequest,
    ExecutionResult,
    GraderStatus,
    RolloutInitRequest,
    RolloutSample,
    RolloutStatus,
    RolloutStatusResponse,
)
from .agent_loop import create_app as create_app
from .callback_delivery import ATTEMPTS, DeliveryError, deliver
from .state import AppState as AppState

logger = logging.getLogger(__name__)

T = TypeVar("T", bound=BaseModel)

INSTANCE_ID_ENV = "_OSMOSIS_ROLLOUT_INSTANCE_ID"
RETRY_AFTER = {"Retry-After": "5"}

DRAIN_S = 10.0  # for rollouts to finish at shutdown
REMEMBERED_IDS = 65_536  # of finished rollouts

_CANCELLED = b"cancelled"
_BACKEND_FAILED = ExecutionResult(status=RolloutStatus.FAILURE, err_message="Internal server error")

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[Any]]


@dataclass(frozen=True)
class ControllerAuth:
    """The controller's key for callbacks."""

    api_key: str | None = None

    def __repr__(self) -> str:
        return f"ControllerAuth(api_key={'<set>' if self.api_key else None})"

    def as_bearer_headers(self) -> dict[str, str] | None:
        """Return the ``Authorization`` header, or None without a key."""
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else None


def create_rollout_server(
    *, backend: ExecutionBackend, lifespan: Lifespan | None = None, configure_logging: bool = True
) -> FastAPI:
    """Return the application that serves ``backend`` to a controller.

    At shutdown, rollouts have 10 seconds to finish and are then cancelled. ``lifespan`` exits last.

    Args:
        backend: Executes the rollouts.
        lifespan: The caller's startup and shutdown, wrapped around the server's.
        configure_logging: Show INFO lines if the process has not configured logging, and disable uvicorn's
            access log.
    """
    if configure_logging and not logging.getLogger().handlers:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    lag = LoopMonitor()
    instance_id = os.environ.get(INSTANCE_ID_ENV)
    # Digest of each request, by rollout id; _CANCELLED after a cancellation.
    running: dict[str, tuple[bytes, asyncio.Task[None]]] = {}
    ended: OrderedDict[str, bytes] = OrderedDict()
    closing = False

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[Any]:
        nonlocal closing
        if configure_logging:
            # Set it here, because uvicorn sets its own levels when it starts.
            logging.getLogger("uvicorn.access").setLevel(logging.WARNING)
        lag.start()
        try:
            async with lifespan(app) if lifespan is not None else nullcontext() as state:
                try:
                    yield state
                finally:
                    closing = True
                    await _drain([task for _, task in running.values()])
                    await close_shared_connections()
        finally:
            lag.stop()

    app = FastAPI(title="Osmosis rollout server", lifespan=life)

    # The handlers read and write JSON themselves: FastAPI's validation costs more than the rest of the request, and
    # cannot render an error about a number that is not finite. The busiest route is one of Starlette's.

    @app.get("/health")
    async def health() -> Response:
        loop = lag.state()
        # Controllers limit concurrency by how busy this process is.
        busy = {"lag_ms": round(loop.lag_s * 1000, 1), "busy": round(loop.busy, 3)}
        identity = {"instance_id": instance_id} if instance_id else {}
        return _reply({**backend.health(), "event_loop": busy, **identity})

    async def start(request: Request) -> Response:
        body = await request.body()
        init = _read(RolloutInitRequest, body)
        rollout_id = init.rollout_id or uuid.uuid4().hex
        digest = hashlib.blake2b(body, digest_size=16).digest()
        known = running[rollout_id][0] if rollout_id in running else ended.get(rollout_id)
        if known == _CANCELLED:
            raise HTTPException(409, "the rollout with this id was cancelled; start it again under a new id")
        if known is not None and known != digest:
            raise HTTPException(409, "a rollout with this id was started by another request; use another id")
        if known is None:
            if closing:
                raise HTTPException(503, "the server is shutting down", RETRY_AFTER)
            if not backend.has_capacity():
                raise HTTPException(429, "the server has too many rollouts; try again later", RETRY_AFTER)
            running[rollout_id] = digest, asyncio.ensure_future(run(rollout_id, init, digest))
        return _reply({}, 202)

    async def run(rollout_id: str, init: RolloutInitRequest, digest: bytes) -> None:
        try:
            await RolloutExecution(rollout_id, init, backend).run()
        except asyncio.CancelledError:
            # The canceller knows the outcome, so nothing is reported.
            digest = _CANCELLED
        except Exception:  # the edge of this task: nothing awaits it
            logger.exception("rollout %s ended with an internal error", rollout_id)
        finally:
            del running[rollout_id]
            ended[rollout_id] = digest
            if len(ended) > REMEMBERED_IDS:
                ended.popitem(last=False)

    app.add_route("/rollout", start, methods=["POST"])

    @app.get("/rollout/{rollout_id}/status")
    async def status(rollout_id: str) -> Response:
        known = backend.rollout_status(rollout_id)
        if known is None:
            known = {"status": RolloutStatus.RUNNING if rollout_id in running else RolloutStatus.UNKNOWN}
        checked = RolloutStatusResponse.model_validate({**known, "rollout_id": rollout_id})
        return _reply(checked.model_dump())

    @app.post("/rollout/cancel")
    async def cancel(request: Request) -> Response:
        selection = _read(CancelRolloutsRequest, await request.body())
        dispositions = backend.cancel_rollouts(selection.ids, selection.prefix, selection.all)
        return _reply(CancelRolloutsResponse(dispositions=dispositions).model_dump())

    return app


async def _drain(tasks: Collection[asyncio.Task[None]]) -> None:
    """Give rollouts DRAIN_S seconds to finish, then cancel them."""
    if not tasks:
        return
    _, unfinished = await asyncio.wait(tasks, timeout=DRAIN_S)
    if unfinished:
        logger.warning("the shutdown cancels %d rollouts, unreported", len(unfinished))
    for task in unfinished:
        task.cancel()
    await asyncio.gather(*unfinished, return_exceptions=True)


def _read(model: type[T], body: bytes) -> T:
    """Parse the body as a ``model``. Raises an HTTPException with status 422."""
    try:
        try:
            content = orjson.loads(body)
        except orjson.JSONDecodeError:
            # Numbers out of range and lone surrogates: the model accepts them or names the field.
            content = json.loads(body)
        return model.model_validate(content)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False, include_input=False)
        raise HTTPException(422, problems) from error
    except (ValueError, RecursionError) as error:
        raise HTTPException(422, f"the body is not JSON: {error}") from error


def _reply(content: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(content), status, media_type="application/json")


class RolloutExecution:
    """Runs one rollout on a backend, reports it and archives it."""

    def __init__(self, rollout_id: str, init: RolloutInitRequest, backend: ExecutionBackend) -> None:
        self.rollout_id = rollout_id
        self._init = init
        self._backend = backend
        self._headers = ControllerAuth(init.controller_api_key).as_bearer_headers() or {}
        self._completed = self._graded = False
        self._owed_completion: bytes | None = None
        self._best: ExecutionResult | None = None
        self._diagnostics: dict[str, object] | None = None
        self._report: TrajectoryReport | None = None
        self._controller_stores = False
        self._archive = RolloutArchive(
            rollout_id,
            request_label=init.label,
            request_metadata=init.metadata,
            request_extra_fields=init.extra_fields,
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
        on_graded = self._on_graded if init.grader_callback_url else None
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
        if not self._graded and on_graded is not None:
            await self._on_graded(_BACKEND_FAILED)
        await self._deliver_owed_completion()
        diagnostics = self._diagnostics or (self._best.extra_fields if self._best else None)
        self._archive.publish(self._unstored(), self._report, diagnostics)

    async def _on_completed(self, result: ExecutionResult) -> None:
        if self._completed:
            logger.error("the backend completed rollout %s twice; the first report counts", self.rollout_id)
            return
        self._completed = True
        self._remember(result)
        body = completion_body(self.rollout_id, result)
        if not self._init.grader_callback_url:
            self._archive.keep(self._unstored(), self._report)
        if not await self._deliver(self._init.completion_callback_url, body, attempts=ATTEMPTS):
            # Continue with grading: the attempt deserves its reward, and the completion can still be sent first.
            self._owed_completion = body

    async def _on_graded(self, result: ExecutionResult) -> None:
        url = self._init.grader_callback_url
        if self._graded or not url:
            logger.error("the backend graded rollout %s twice; the first report counts", self.rollout_id)
            return
        self._graded = True
        self._remember(result)
        await self._deliver_owed_completion()
        self._archive.keep(self._unstored(), self._report)
        await self._deliver(url, grader_body(self.rollout_id, result))

    async def _deliver_owed_completion(self) -> None:
        body, self._owed_completion = self._owed_completion, None
        if body is not None:
            await self._deliver(self._init.completion_callback_url, body)

    async def _deliver(self, url: str, body: bytes, *, attempts: int | None = None) -> bool:
        """Deliver a callback. Return False if it can still be delivered after ``attempts`` tries."""
        try:
            answer = await deliver(url, body, self._headers, attempts=attempts)
        except DeliveryError as error:
            lost = error.refused or attempts is None
            what = "its outcome is lost: " if lost else ""
            logger.error("rollout %s: %s%s", self.rollout_id, what, error)
            return lost
        try:
            acknowledgement = orjson.loads(answer)
        except ValueError:
            acknowledgement = None
        if isinstance(acknowledgement, dict):
            self._report = report_from_response(acknowledgement) or self._report
            self._controller_stores |= acknowledgement.get("conversation") == "stored"
        return True

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
    return _encode(
        {
            "status": result.status,
            "rollout_id": rollout_id,
            "extra_fields": None,
            "err_message": result.err_message,
            "err_category": result.err_category,
        }
    )


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
    messages: Any = sample.messages
    try:
        if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
            # A grader replaced them. Controllers would refuse them together with the score.
            raise TypeError("the messages are no longer a list of dicts")
        safe = sample.json_safe_copy()
        whole = {"messages": messages, "metrics": safe.metrics, "extra_fields": safe.extra_fields}
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
