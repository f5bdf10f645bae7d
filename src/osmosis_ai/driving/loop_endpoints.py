"""What a served agent calls back: the model at `/v1/chat/completions`, and `/v1/rollout/completed` when it is done.

Every rollout has a key of its own, made when it is opened and good for its own calls alone; it says whose request it
is before a byte of the body is read. A rollout is completed once: what comes later, or again, is refused in plain JSON,
so that an agent that repeats itself, or was given up long ago, changes nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import secrets
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import orjson
from aiohttp import web
from pydantic import BaseModel, FailFast, Field, ValidationError

from osmosis_ai.driving.bridge_errors import RefusedCallError, refusal
from osmosis_ai.driving.callback_registry import UnknownRolloutIdError
from osmosis_ai.llm.wire_json import loads
from osmosis_ai.rollout.loop.outcome import CANCELLED, LoopOutcome
from osmosis_ai.rollout.types import (
    ExecutionResult,
    GraderCompleteRequest,
    GraderStatus,
    RolloutCompleteRequest,
    RolloutErrorCategory,
    RolloutSample,
    RolloutStatus,
)

if TYPE_CHECKING:
    from osmosis_ai.driving.bridge import RolloutBridge
    from osmosis_ai.driving.callback_registry import CallbackStore
    from osmosis_ai.driving.driver import RolloutRunRequest

logger = logging.getLogger(__name__)

MAX_COMPLETION_BYTES = 64 * 1024 * 1024
TOOLS_TIMEOUT_S = 60.0
REMEMBERED_KEYS = 16_384
NO_REWARD = "the served agent reported no reward, and nothing else grades its rollouts: give `RolloutResult` a `reward`"
# What clients of the agent-loop line write into every call, whether or not the agent asked for it.
_UNASKED: Mapping[str, Any] = {"temperature": 1.0, "top_p": 1.0, "logprobs": True}
_MAX_ERROR_CHARS = 10_000


class _Completion(BaseModel):
    """The body of `/v1/rollout/completed`, as far as it is read."""

    rollout_id: str
    status: Literal["COMPLETED", "ERROR"]
    # One wrong message says enough: a body may hold millions, and each would become a problem of its own.
    final_messages: Annotated[list[dict[str, Any]], FailFast()] = Field(default_factory=list)
    finish_reason: str | None = None
    error_message: str | None = None
    reward: float | None = None
    metrics: dict[str, Any] | None = None
    extra_fields: dict[str, Any] | None = None


@dataclass(eq=False)
class _OpenRollout:
    """A rollout that a served agent works on."""

    request: RolloutRunRequest
    tools: asyncio.Future[list[dict[str, Any]]]
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    completing: asyncio.Lock = field(default_factory=asyncio.Lock)
    completed: bool = False

    @property
    def rollout_id(self) -> str:
        return self.request.rollout_id


class LoopEndpoints:
    """Serves the two paths of the agent-loop line, for as many rollouts as are open."""

    def __init__(
        self, store: CallbackStore, bridge: RolloutBridge[Any], *, artifact_root: Path | None = None
    ) -> None:
        self._store = store
        self._bridge = bridge
        self._artifact_root = artifact_root
        self._open: dict[bytes, _OpenRollout] = {}
        self._keys: dict[str, bytes] = {}
        self._ended: OrderedDict[bytes, str] = OrderedDict()

    def open(self, request: RolloutRunRequest) -> str:
        """Expect the calls of a rollout, and return the key that they must show."""
        rollout_id = request.rollout_id
        if rollout_id in self._keys:
            raise ValueError(f"rollout {rollout_id!r} is open already")
        key = secrets.token_urlsafe(32)
        digest = self._keys[rollout_id] = _digest(key)
        tools: asyncio.Future[list[dict[str, Any]]] = asyncio.get_running_loop().create_future()
        self._open[digest] = _OpenRollout(request, tools)
        return key

    def offer_tools(self, rollout_id: str, tools: Iterable[Mapping[str, Any]]) -> None:
        """Give the model these tools in every call of a rollout that names none; calls wait until they are known."""
        opened = self._open.get(self._keys.get(rollout_id, b""))
        if opened is not None and not opened.tools.done():
            opened.tools.set_result([_without_nulls(tool) for tool in tools])

    async def wait_cancelled(self, rollout_id: str) -> None:
        """Wait until the agent says that it gave up a rollout because it was told to end."""
        await self._open[self._keys[rollout_id]].cancelled.wait()

    def close(self, rollout_id: str) -> None:
        """Expect nothing of a rollout any more; harmless when it is not open."""
        digest = self._keys.pop(rollout_id, None)
        if digest is None:
            return
        self._open.pop(digest).tools.cancel()
        self._ended[digest] = rollout_id
        while len(self._ended) > REMEMBERED_KEYS:
            self._ended.popitem(last=False)

    def routes(self) -> list[web.RouteDef]:
        """Return the routes to mount in an aiohttp application."""
        return [
            web.post("/v1/chat/completions", self._chat_completions),
            web.post("/v1/rollout/completed", self._completed),
        ]

    async def _chat_completions(self, request: web.Request) -> web.StreamResponse:
        digest = _presented(request)
        opened = self._open.get(digest)
        if opened is not None:
            return await self._bridge.answer(request, opened.rollout_id, partial(_prepare, opened))
        if digest in self._ended:
            return refusal(404, f"the rollout {self._ended[digest]} has ended", "rollout_not_found")
        return refusal(
            401, "missing or wrong key: it is the `api_key` of the rollout's request", "invalid_api_key"
        )

    async def _completed(self, request: web.Request) -> web.StreamResponse:
        digest = _presented(request)
        opened = self._open.get(digest)
        if opened is None:
            if digest in self._ended:
                return _said(
                    409, f"the rollout {self._ended[digest]} has ended; this changes nothing any more"
                )
            return _said(401, "missing or wrong key: it is the `api_key` of the rollout's request")
        content = await _body_of(request)
        if isinstance(content, web.Response):
            return content
        try:
            completion = _Completion.model_validate(content)
        except ValidationError as error:
            return _said(422, error.errors(include_url=False, include_input=False, include_context=False))
        if completion.rollout_id != opened.rollout_id:
            return _said(404, "there is no rollout of this id that the key belongs to")
        async with opened.completing:
            return await self._complete(opened, completion)

    async def _complete(self, opened: _OpenRollout, completion: _Completion) -> web.Response:
        """Commit how a rollout ended; the agent hears of it when that is durable."""
        rollout_id = opened.rollout_id
        if opened.completed:
            return _said(409, f"the rollout {rollout_id} was completed before; the first completion stands")
        if completion.status == "ERROR" and completion.finish_reason == CANCELLED:
            opened.completed = True
            opened.cancelled.set()
            return _accepted()
        sample = _sample_of(completion)
        ended, graded = outcome_of_completion(completion, sample)
        try:
            if sample.messages and self._artifact_root is not None:
                report = self._bridge.usage(rollout_id).report
                await asyncio.to_thread(_archive, self._artifact_root, opened.request, sample, report)
            await self._store.handle_completion(rollout_id, ended)
            await self._store.handle_grader(rollout_id, graded)
        except UnknownRolloutIdError:
            return _said(409, f"the rollout {rollout_id} has ended; this changes nothing any more")
        except Exception:
            # Edge of the process: whatever the commit raised, the agent hears "not durable" and tries again.
            logger.exception("the result of rollout %s could not be committed", rollout_id)
            return _said(500, "the result could not be committed; try again")
        opened.completed = True
        return _accepted()


def outcome_of_completion(
    completion: _Completion, sample: RolloutSample
) -> tuple[RolloutCompleteRequest, GraderCompleteRequest]:
    """Return a completion in the words of the two callbacks that other rollouts end with."""
    if completion.status == "ERROR":
        said = (completion.error_message or "the agent failed without saying why")[:_MAX_ERROR_CHARS]
        kind = RolloutErrorCategory.AGENT_ERROR
        return (
            RolloutCompleteRequest(status=RolloutStatus.FAILURE, err_message=said, err_category=kind),
            _ungraded(said, sample if sample.messages else None, kind),
        )
    succeeded, reward = RolloutCompleteRequest(status=RolloutStatus.SUCCESS), completion.reward
    if reward is None:
        return succeeded, _ungraded(NO_REWARD)
    if not math.isfinite(reward):
        said = f"the served agent reported the reward {reward}, which is no finite number"
        return succeeded, _ungraded(said, sample, RolloutErrorCategory.VALIDATION_ERROR)
    sample.reward = reward
    return succeeded, GraderCompleteRequest(status=GraderStatus.SUCCESS, sample=sample)


def _ungraded(
    said: str, sample: RolloutSample | None = None, kind: RolloutErrorCategory | None = None
) -> GraderCompleteRequest:
    return GraderCompleteRequest(
        status=GraderStatus.FAILURE, sample=sample, err_message=said, err_category=kind
    )


def _sample_of(completion: _Completion) -> RolloutSample:
    # In the words of loops that are hosted here; what else the agent says under that key is not its to say.
    extra = (completion.extra_fields or {}) | LoopOutcome(completion.finish_reason).to_fields()
    return RolloutSample(
        messages=completion.final_messages, metrics=completion.metrics or {}, extra_fields=extra
    )


def _archive(
    root: Path, request: RolloutRunRequest, sample: RolloutSample, report: dict[str, Any] | None
) -> None:
    """Write the conversation of a rollout; what fails is logged, never raised."""
    from osmosis_ai.rollout.trajectory.archive import RolloutArchive
    from osmosis_ai.rollout.trajectory.report import TrajectoryReport

    archive = RolloutArchive(
        request.rollout_id,
        label=request.label,
        metadata=dict(request.metadata) if request.metadata is not None else None,
        extra_fields=dict(request.extra_fields) if request.extra_fields is not None else None,
        root=root,
    )
    told = TrajectoryReport.model_validate(report) if report is not None else None
    archive.publish(ExecutionResult(status=RolloutStatus.SUCCESS, sample=sample), told, None)


async def _prepare(opened: _OpenRollout, body: dict[str, Any]) -> tuple[str, ...]:
    """Make the call of a served agent one for a model; return what in it nobody asked for."""
    if body.pop("rollout_id", opened.rollout_id) != opened.rollout_id:
        raise RefusedCallError(
            404, "there is no rollout of this id that the key belongs to", "rollout_not_found"
        )
    for name in [name for name, value in body.items() if value is None]:
        del body[name]
    try:
        # An agent may begin before its acceptance, which names the tools, has arrived.
        tools = await asyncio.wait_for(asyncio.shield(opened.tools), TOOLS_TIMEOUT_S)
    except asyncio.TimeoutError:
        raise RefusedCallError(409, "the rollout was not accepted yet", "rollout_not_accepted") from None
    except asyncio.CancelledError:
        if not opened.tools.cancelled():
            raise
        raise RefusedCallError(404, "the rollout has ended", "rollout_not_found") from None
    if tools and "tools" not in body:
        body["tools"] = tools
    return tuple(name for name, value in _UNASKED.items() if body.get(name) == value)


async def _body_of(request: web.Request) -> Any:
    """Return the JSON of a request, or the reply that refuses it."""
    try:
        raw = await request.read()
    except web.HTTPRequestEntityTooLarge:
        return _said(413, f"the request is larger than {MAX_COMPLETION_BYTES} bytes")
    try:
        return loads(raw)
    except ValueError:
        return _said(422, "the body is not JSON")


def _presented(request: web.Request) -> bytes:
    """Return the digest of the key that a request shows, with or without the word Bearer."""
    header = request.headers.get("Authorization", "").strip()
    scheme, _, rest = header.partition(" ")
    return _digest(rest.strip() if scheme.lower() == "bearer" else header)


def _digest(key: str) -> bytes:
    # Keys are found by their digest, so that no comparison takes longer the more of a key is right.
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _accepted() -> web.Response:
    return web.Response(body=b'{"status":"ok"}', content_type="application/json")


def _said(status: int, detail: object) -> web.Response:
    return web.Response(status=status, body=orjson.dumps({"detail": detail}), content_type="application/json")


def _without_nulls(value: Any) -> Any:
    """Return a tool as models are given it; the agent-loop line writes out what it leaves open."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value
