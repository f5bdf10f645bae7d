"""The model, as an agent sees it: an OpenAI endpoint of its own for every rollout.

Whatever the agent asks of an OpenAI endpoint reaches the model, and whatever the model answers
reaches the agent; only ``model`` is exchanged on the way. A rollout's endpoint exists from
:meth:`ModelBridge.open` to :meth:`ModelBridge.close`. Upstream calls belong to the rollout and not
to a connection: a client that disconnects and asks again finds its call still running or answered
(``call_record``). Errors carry ``x-should-retry: false``: whatever retrying could mend has been
retried here already.

:class:`RolloutBridge` is the endpoint; who answers is up to the subclass: a provider for
:class:`ModelBridge`, the policy in this process for the trainer.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, Generic, TypeVar

from aiohttp import web

from osmosis_ai.driving.bridge_errors import (
    RefusedCallError,
    RolloutClosedError,
    error_event,
    error_response,
    refusal,
)
from osmosis_ai.driving.call_record import Call, CallMetrics, RolloutCalls, RolloutUsage
from osmosis_ai.driving.conversation import MOST_KEPT_BYTES, MOST_KEPT_OF_ALL_BYTES, RECORDED, LastCall
from osmosis_ai.llm.client import ModelClient
from osmosis_ai.llm.completion import read_usage
from osmosis_ai.llm.errors import ModelCallError
from osmosis_ai.llm.wire_json import dumps, loads

__all__ = ["ModelBridge", "RolloutBridge", "RolloutUsage"]

logger = logging.getLogger(__name__)

SeedFor = Callable[[int], int]
Prepare = Callable[[dict[str, Any]], Awaitable[tuple[str, ...]]]
CallsT = TypeVar("CallsT", bound=RolloutCalls)
MAX_REQUEST_BYTES = 64 * 1024 * 1024
PING_INTERVAL_S = 15.0
_RETRY_HEADER = "x-stainless-retry-count"
DONE = b"data: [DONE]\n\n"
_PING = b": ping\n\n"


class RolloutBridge(ABC, Generic[CallsT]):
    """Serves one model to the agents of many rollouts."""

    def __init__(self, *, auth_token: str) -> None:
        if not auth_token.strip():
            raise ValueError("auth_token must not be blank")
        self._expected = f"Bearer {auth_token}".encode()
        self._rollouts: dict[str, tuple[CallsT, SeedFor | None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    @abstractmethod
    def model_path(self) -> str:
        """The model's name, for reports and for agents that name none."""

    @abstractmethod
    def _new_calls(self, rollout_id: str) -> CallsT:
        """Return the record for a rollout's calls."""

    @abstractmethod
    async def _complete(
        self, calls: CallsT, call: Call, body: dict[str, Any], optional: tuple[str, ...]
    ) -> CallMetrics:
        """Answer a call with one JSON object."""

    @abstractmethod
    async def _stream(
        self, calls: CallsT, call: Call, body: dict[str, Any], optional: tuple[str, ...]
    ) -> CallMetrics:
        """Answer a call with server-sent events, the closing ``[DONE]`` included."""

    def open(self, rollout_id: str, *, seed_for: SeedFor | None = None) -> None:
        """Serve a rollout's calls from now on; call it before the rollout is dispatched."""
        if rollout_id in self._rollouts:
            raise ValueError(f"rollout {rollout_id!r} is open already")
        self._rollouts[rollout_id] = self._new_calls(rollout_id), seed_for

    def close(self, rollout_id: str) -> RolloutUsage:
        """Serve no more calls of a rollout, give up those under way, and say what they came to."""
        calls, _ = self._rollouts.pop(rollout_id, (None, None))
        if calls is None:
            return RolloutUsage()
        calls.cancel()
        return calls.usage(self.model_path)

    def usage(self, rollout_id: str) -> RolloutUsage:
        """Say what a rollout's calls came to so far; empty for one that is not open."""
        calls, _ = self._rollouts.get(rollout_id, (None, None))
        return calls.usage(self.model_path) if calls is not None else RolloutUsage()

    def last_call(self, rollout_id: str) -> LastCall | None:
        """Return the latest call of an open rollout: what its agent had said and heard by then."""
        calls, _ = self._find(rollout_id)
        return calls.last_call() if calls is not None else None

    def routes(self) -> list[web.RouteDef]:
        """Return the routes to mount in an aiohttp application."""
        rollout = "/v1/rollouts/{rollout_id}"
        return [
            web.post(f"{rollout}/chat/completions", self._chat_completions),
            web.post(f"{rollout}/{RECORDED}/chat/completions", self._recorded_chat_completions),
            web.route("GET", f"{rollout}/{RECORDED}", self._conversation),
            web.route("*", f"{rollout}/{{endpoint:.+}}", self._other_endpoint),
        ]

    async def _chat_completions(self, request: web.Request) -> web.StreamResponse:
        return self._refused(request) or await self.answer(request, request.match_info["rollout_id"])

    async def _recorded_chat_completions(self, request: web.Request) -> web.StreamResponse:
        return self._refused(request) or await self.answer(
            request, request.match_info["rollout_id"], recorded=True
        )

    async def _conversation(self, request: web.Request) -> web.StreamResponse:
        """Answer with the conversation of a rollout whose calls are recorded; null before the first answer."""
        if refused := self._refused(request):
            return refused
        calls, _ = self._find(request.match_info["rollout_id"])
        if calls is None:
            return _not_running()
        return web.Response(body=dumps({"messages": calls.conversation()}), content_type="application/json")

    async def _other_endpoint(self, request: web.Request) -> web.StreamResponse:
        """Say what is served: clients of the Responses API would be told of an address that is not there."""
        endpoint = request.match_info["endpoint"].removeprefix(f"{RECORDED}/")
        told = f"the model is asked by POST /chat/completions alone, not {request.method} /{endpoint[:100]}"
        return self._refused(request) or refusal(404, told, "unknown_endpoint")

    def _refused(self, request: web.Request) -> web.StreamResponse | None:
        presented = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        if self._is_authentic(presented):
            return None
        return refusal(401, "missing or wrong bearer token", "invalid_api_key")

    async def answer(
        self,
        request: web.Request,
        rollout_id: str,
        prepare: Prepare | None = None,
        *,
        recorded: bool = False,
    ) -> web.StreamResponse:
        """Answer the model call of a rollout whose agent has shown who it is."""
        if self._find(rollout_id)[0] is None:
            return _not_running()
        content = await _content(request)
        if content is None:
            return refusal(413, f"the request is larger than {MAX_REQUEST_BYTES} bytes", "request_too_large")
        body = _json_object(content)
        if body is None:
            return refusal(400, "the body is not a JSON object", "invalid_request")
        try:
            optional = await prepare(body) if prepare is not None else ()
        except RefusedCallError as refused:
            return refusal(refused.status, str(refused), refused.code)
        calls, seed_for = self._find(rollout_id)
        if calls is None:
            return _not_running()
        digest, call = calls.earlier(content, is_retry=_is_retry(request))
        if call is None:
            most = min(MOST_KEPT_BYTES, MOST_KEPT_OF_ALL_BYTES // len(self._rollouts))
            call = calls.begin(digest, content, recorded=recorded, most=most)
            self._begin(calls, call, body, seed_for, optional)
        if body.get("stream"):
            return await _send_stream(request, call)
        return await _send_whole(request, call)

    def _is_authentic(self, presented: bytes) -> bool:
        scheme, _, token = presented.partition(b" ")
        return hmac.compare_digest(scheme.capitalize() + b" " + token.strip(), self._expected)

    def _find(self, rollout_id: str) -> tuple[CallsT | None, SeedFor | None]:
        return self._rollouts.get(rollout_id, (None, None))

    def _begin(
        self,
        calls: CallsT,
        call: Call,
        body: dict[str, Any],
        seed_for: SeedFor | None,
        optional: tuple[str, ...] = (),
    ) -> Call:
        """Start the upstream call, which lives as long as the rollout."""
        if seed_for is not None and body.get("seed") is None:
            body["seed"] = seed_for(call.index)
            optional = (*optional, "seed")
        call.task = asyncio.get_running_loop().create_task(self._run(calls, call, body, optional))
        self._tasks.add(call.task)
        call.task.add_done_callback(self._tasks.discard)
        # One that is cancelled before its first step never comes to say so itself.
        call.task.add_done_callback(lambda _: call.answer.finish(RolloutClosedError()))
        return call

    async def _run(self, calls: CallsT, call: Call, body: dict[str, Any], optional: tuple[str, ...]) -> None:
        answer = self._stream if body.get("stream") else self._complete
        try:
            metrics = await answer(calls, call, body, optional)
        except asyncio.CancelledError:
            call.answer.finish(RolloutClosedError())
            raise
        except ModelCallError as error:
            calls.failed(call, error)
            call.answer.finish(error)
        except Exception as error:
            # Edge of the process: whatever went wrong, the agent hears of it and the log has the traceback.
            logger.exception("a model call could not be served")
            calls.failed(call, error)
            call.answer.finish(error)
        else:
            calls.answered(call, metrics)
            call.answer.finish()

    def _shown_model(self, body: Mapping[str, Any]) -> Any:
        return body.get("model") or self.model_path


class ModelBridge(RolloutBridge[RolloutCalls]):
    """Answers with a provider's model."""

    def __init__(self, client: ModelClient, *, auth_token: str) -> None:
        super().__init__(auth_token=auth_token)
        self._client = client

    @property
    def model_path(self) -> str:
        """The model's name, for reports and for agents that name none."""
        return self._client.model_path

    def _new_calls(self, rollout_id: str) -> RolloutCalls:
        return RolloutCalls()

    async def _complete(
        self, calls: RolloutCalls, call: Call, body: dict[str, Any], optional: tuple[str, ...]
    ) -> CallMetrics:
        completion = await self._client.complete(body, optional=optional)
        metrics = CallMetrics(
            completion.usage, completion.cost_usd, completion.latency_s, completion.attempts
        )
        response = completion.response
        metrics.read(response)
        response["model"] = self._shown_model(body)
        call.answer.append(dumps(response))
        return metrics

    async def _stream(
        self, calls: RolloutCalls, call: Call, body: dict[str, Any], optional: tuple[str, ...]
    ) -> CallMetrics:
        """Send the chunks of a complete reply, and the usage in a last chunk if the request asked for it."""
        metrics = CallMetrics()
        started = time.perf_counter()
        usage: object = None
        chunk: dict[str, Any] = {}

        def restart() -> None:
            nonlocal metrics, started, usage
            metrics, started, usage = CallMetrics(attempts=metrics.attempts + 1), time.perf_counter(), None
            call.draft.clear()

        async with aclosing(self._client.stream(body, restarted=restart, optional=optional)) as chunks:
            async for chunk in chunks:
                metrics.read(chunk)
                chunk["model"] = self._shown_model(body)
                stated = chunk.pop("usage", None)
                if stated:
                    usage, metrics.usage = stated, read_usage(stated) or metrics.usage
                if not stated or _says_something(chunk):
                    call.draft.append(stream_event(chunk))
        if usage is not None and (body.get("stream_options") or {}).get("include_usage"):
            call.draft.append(stream_event({**chunk, "choices": [], "usage": usage}))
        metrics.latency_s = time.perf_counter() - started
        metrics.cost_usd = self._client.cost_of(metrics.usage)
        call.answer.append(b"".join(call.draft) + DONE)
        call.draft.clear()
        return metrics


def _not_running() -> web.Response:
    return refusal(404, "no rollout of this id is running", "rollout_not_found")


async def _send_whole(request: web.Request, call: Call) -> web.StreamResponse:
    delivery = call.delivery(request.transport)
    await call.answer.wait_finished()
    if call.answer.error is not None:
        return error_response(call.answer.error)
    response = web.Response(body=call.answer.pieces[0], content_type="application/json")
    try:
        await response.prepare(request)
        await response.write_eof()
    except ConnectionError:
        return response
    delivery.completed()
    return response


async def _send_stream(request: web.Request, call: Call) -> web.StreamResponse:
    """Follow a call's chunks; errors are plain responses until the first byte, events after it."""
    delivery = call.delivery(request.transport)
    answer = call.answer
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    position = 0
    try:
        while True:
            if not await answer.wait_beyond(position, timeout_s=PING_INTERVAL_S):
                await response.prepare(request)
                await response.write(_PING)
                continue
            if position == 0 and answer.error is not None and not answer.pieces and not response.prepared:
                return error_response(answer.error)
            await response.prepare(request)
            pieces = answer.pieces[position:]
            position += len(pieces)
            if pieces:
                await response.write(b"".join(pieces))
            elif answer.finished:
                break
        if answer.error is not None:
            await response.write(error_event(answer.error) + DONE)
        await response.write_eof()
    except ConnectionError:
        return response
    delivery.completed()
    return response


async def _content(request: web.Request) -> bytes | None:
    """Read the request's bytes; None when there are too many."""
    if (request.content_length or 0) > MAX_REQUEST_BYTES:
        return None
    pieces: list[bytes] = []
    size = 0
    async for piece in request.content.iter_any():
        size += len(piece)
        if size > MAX_REQUEST_BYTES:
            return None
        pieces.append(piece)
    return b"".join(pieces)


def _json_object(content: bytes) -> dict[str, Any] | None:
    try:
        body = loads(content)
    except ValueError:
        return None
    return body if isinstance(body, dict) else None


def _is_retry(request: web.Request) -> bool:
    count = request.headers.get(_RETRY_HEADER, "0")
    return count.isdecimal() and int(count) > 0


def _says_something(chunk: Mapping[str, Any]) -> bool:
    """Whether anything but usage was in the chunk."""
    return any(
        not isinstance(choice, dict)
        or choice.get("finish_reason")
        or any(value not in (None, "", {}, []) for value in (choice.get("delta") or {}).values())
        or choice.get("logprobs")
        or choice.get("token_ids")
        for choice in chunk.get("choices") or ()
    )


def stream_event(chunk: Mapping[str, Any]) -> bytes:
    """Return a chunk as a server-sent event."""
    return b"data: " + dumps(chunk) + b"\n\n"
