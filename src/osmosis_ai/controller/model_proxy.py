"""The OpenAI-compatible endpoint of each rollout: forwards model calls, seeds, counts and records them."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import Any

from aiohttp import web

from osmosis_ai.errors import OsmosisError
from osmosis_ai.llm.client import ModelClient
from osmosis_ai.llm.errors import Category, ModelCallError
from osmosis_ai.llm.prices import TokenUsage, read_usage
from osmosis_ai.llm.providers import (
    OPENAI_COMPATIBLE,
    ModelEndpoint,
    key_variables,
    openai_base_url,
    resolve_model,
)
from osmosis_ai.llm.replies import FinishReason, dumps, loads

logger = logging.getLogger(__name__)

MAX_REQUEST_BYTES = 64 * 1024 * 1024
MAX_KEPT_REQUEST_BYTES = 8 << 20
"""Limit per open rollout; longer requests are only kept on the recorded path."""
MAX_KEPT_REQUESTS_BYTES = 256 << 20
"""Limit of all open rollouts together."""
KEPT_ANSWER_BYTES = 256 * 1024
PING_INTERVAL_S = 15.0
DONE = b"data: [DONE]\n\n"

SeedFor = Callable[[int], int]
Body = dict[str, Any]
Names = tuple[str, ...]
"""Names of parameters that are dropped if the model rejects them."""
Prepare = Callable[[Body], Awaitable[Names]]


@dataclass(frozen=True, slots=True)
class LastCall:
    """A model call of a rollout, and the part of its answer that has arrived."""

    request: bytes
    answer: bytes | bytearray

    def messages(self) -> list[dict[str, Any]]:
        """Return the conversation, including the model's answer if it has one."""
        body = loads(self.request)
        sent = body.get("messages")
        messages = [each for each in sent if isinstance(each, dict)] if isinstance(sent, list) else []
        if not self.answer:
            return messages
        content = bytes(self.answer)
        if body.get("stream"):
            answer: Any = _streamed_message(content)
        else:
            answer = next((choice.get("message") for choice in _first_choices(loads(content))), None)
        if not isinstance(answer, dict):
            answer = {}
        return [*messages, _without_none(answer)]

    def tools(self) -> list[dict[str, Any]]:
        """Return the tools on offer."""
        sent = loads(self.request).get("tools")
        return [each for each in sent if isinstance(each, dict)] if isinstance(sent, list) else []


def _first_choices(answer: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """Yield the entries of the choice that the conversation continues with."""
    choices = answer.get("choices")
    return (each for each in choices or () if isinstance(each, dict) and not each.get("index"))


def _streamed_message(content: bytes) -> dict[str, Any]:
    """Return the message of a stream of server-sent events."""
    message: dict[str, Any] = {"role": "assistant"}
    calls: dict[int, dict[str, Any]] = {}
    events = [line for line in content.splitlines() if line.startswith(b"data: {")]
    for choice in (choice for event in events for choice in _first_choices(loads(event[6:]))):
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            continue
        for part in delta.pop("tool_calls", None) or ():
            # Names and ids arrive whole, arguments in pieces.
            call = calls.setdefault(part.get("index") or 0, {"function": {"name": "", "arguments": ""}})
            function, added = call["function"], part.get("function") or {}
            function["name"] = added.get("name") or function["name"]
            function["arguments"] += added.get("arguments") or ""
            call["id"] = part.get("id") or call.get("id")
            call["type"] = part.get("type") or call.get("type") or "function"
        for name, value in delta.items():
            is_text = isinstance(value, str) and name != "role" and isinstance(message.get(name), str)
            if value is not None:
                message[name] = message[name] + value if is_text else value
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    return message


@dataclass
class RolloutUsage:
    """Totals of the model calls of one rollout."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    uncounted: int = 0
    cost_usd: float | None = 0.0
    model_latency_s: list[float] = field(default_factory=list)
    last_error: ModelCallError | None = None
    last_call: LastCall | None = None
    finish_reasons: dict[str, int] = field(default_factory=dict)
    report: dict[str, Any] | None = None


@dataclass(eq=False)
class Call:
    """One model call of a rollout, which any number of clients wait for."""

    rollout_id: str
    index: int
    digest: int | None
    answer: bytearray = field(default_factory=bytearray)
    """The part that has arrived; clients receive it when :attr:`task` is done, because the call may be retried."""
    error: Exception | None = None
    recorded: LastCall | None = None
    clients: list[asyncio.BaseTransport] = field(default_factory=list)
    is_delivered: bool = False
    task: asyncio.Task[None] = field(init=False)

    @property
    def is_abandoned(self) -> bool:
        """Whether every client disconnected before it had the whole answer."""
        return not self.is_delivered and all(client.is_closing() for client in self.clients)


@dataclass
class CallMetrics:
    """The facts of one answered call; token ids and logprobs if the endpoint returned them."""

    usage: TokenUsage | None = None
    cost_usd: float | None = None
    latency_s: float = 0.0
    attempts: int = 1
    prompt_token_ids: list[int] | None = None
    completion_token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: FinishReason = field(default_factory=FinishReason)
    entry: dict[str, Any] = field(default_factory=dict)
    """Its entry in the trajectory report (ATIF metrics)."""

    def read(self, response: Mapping[str, Any]) -> None:
        """Add the tokens in a completion or in a chunk of one; of further choices, only the usage counts."""
        self.finish.read(response)
        prompt_ids = response.get("prompt_token_ids")
        for choice in _first_choices(response):
            prompt_ids = prompt_ids or choice.get("prompt_token_ids")
            extra, logprobs = choice.get("provider_specific_fields"), choice.get("logprobs")
            sampled = choice.get("token_ids") or (extra.get("token_ids") if isinstance(extra, dict) else None)
            if isinstance(sampled, list):
                self.completion_token_ids += sampled
            entries = logprobs.get("content") if isinstance(logprobs, dict) else None
            for entry in entries if isinstance(entries, list) else ():
                if isinstance(entry, dict) and "logprob" in entry:
                    self.logprobs.append(entry["logprob"])
        if isinstance(prompt_ids, list):
            self.prompt_token_ids = prompt_ids

    def set_entry(self, model: str) -> None:
        """Set the report's entry of a call that just ended."""
        usage, started_at = self.usage, datetime.now(timezone.utc) - timedelta(seconds=self.latency_s)
        extra = {
            "latency_ms": round(self.latency_s * 1000, 3),
            "attempts": self.attempts,
            "finish_reason": self.finish.value,
            "started_at": started_at.isoformat(timespec="milliseconds"),
        }
        entry = {
            "model_name": model,
            "prompt_tokens": usage.prompt_tokens if usage else None,
            "completion_tokens": usage.completion_tokens if usage else None,
            "cached_tokens": usage.cached_tokens if usage else None,
            "cost_usd": self.cost_usd,
            "prompt_token_ids": self.prompt_token_ids,
            "completion_token_ids": self.completion_token_ids or None,
            "logprobs": self.logprobs or None,
            "extra": _without_none(extra),
        }
        self.entry = _without_none(entry)


def _without_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


class RolloutCalls:
    """The calls of one open rollout."""

    def __init__(self, rollout_id: str, model: str, seed_for: SeedFor | None) -> None:
        self.seed_for = seed_for
        self.running: list[Call] = []
        self.last_begun: LastCall | None = None
        """The latest call, answered or not; None if it was too long to keep."""
        self.last_recorded: LastCall | None = None
        self._rollout_id = rollout_id
        self._model = model
        self._next_index = 0
        self._freed_indices: dict[int | None, int] = {}
        self._answered: deque[Call] = deque()
        self._answered_bytes = 0
        self._metrics: dict[int, CallMetrics] = {}
        self._last_recorded_index = -1
        self._last_failure: tuple[int, ModelCallError] | None = None

    def find_repeated(self, digest: int, *, is_retry: bool) -> Call | None:
        """Return the call that a request with this hash repeats, if any."""
        calls = [call for call in (*self._answered, *self.running) if call.digest == digest]
        abandoned = [call for call in calls if call.is_abandoned]
        if abandoned:
            return abandoned[0]
        return calls[-1] if is_retry and calls else None

    def begin(self, digest: int | None, request: bytes | None = None) -> Call:
        """Add a new call; a repeated call that failed gets its index, and so its seed, again."""
        index = self._freed_indices.pop(digest, None)
        if index is None:
            index, self._next_index = self._next_index, self._next_index + 1
        call = Call(self._rollout_id, index, digest)
        self.last_begun = None if request is None else LastCall(request, call.answer)
        self.running.append(call)
        return call

    def answered(self, call: Call, metrics: CallMetrics) -> None:
        """Record a call that was answered, and keep its answer for a client that repeats it."""
        metrics.set_entry(self._model)
        self._metrics[call.index] = metrics
        if call.recorded is not None and call.index > self._last_recorded_index:
            self._last_recorded_index, self.last_recorded = call.index, call.recorded
        call.recorded = None  # it has the request
        self.running.remove(call)
        self._answered.append(call)
        self._answered_bytes += len(call.answer)
        while self._answered_bytes > KEPT_ANSWER_BYTES and len(self._answered) > 1:
            self._answered_bytes -= len(self._answered.popleft().answer)

    def failed(self, call: Call, error: Exception) -> None:
        call.error = error
        if isinstance(error, ModelCallError):
            self._last_failure = call.index, error
        self._freed_indices[call.digest] = call.index
        self.running.remove(call)

    def usage(self) -> RolloutUsage:
        metrics = [self._metrics[index] for index in sorted(self._metrics)]
        counted = [each.usage for each in metrics if each.usage is not None]
        costs = [each.cost_usd for each in metrics if each.cost_usd is not None]
        total = RolloutUsage(
            calls=len(metrics),
            prompt_tokens=sum(usage.prompt_tokens for usage in counted),
            completion_tokens=sum(usage.completion_tokens for usage in counted),
            total_tokens=sum(usage.total_tokens for usage in counted),
            uncounted=len(metrics) - len(counted),
            cost_usd=math.fsum(costs) if len(costs) == len(metrics) else None,
            model_latency_s=[each.latency_s for each in metrics],
            last_call=self.last_begun,
            finish_reasons=dict(Counter(each.finish.value for each in metrics if each.finish.value)),
        )
        if self._last_failure is not None and self._last_failure[0] > max(self._metrics, default=-1):
            total.last_error = self._last_failure[1]
        if metrics:
            sample = {"model_name": self._model, "llm_call_metrics": [each.entry for each in metrics]}
            total.report = {"model_name": self._model, "samples": {"main": sample}}
        return total


_STATUS: dict[Category, tuple[int, str]] = {
    "rate_limit": (429, "rate_limit_error"),
    "timeout": (504, "api_error"),
    "connection": (502, "api_error"),
    "server": (502, "api_error"),
    "invalid_reply": (502, "api_error"),
    "auth": (401, "authentication_error"),
    "not_found": (404, "not_found_error"),
    "bad_request": (400, "invalid_request_error"),
    "context_length": (400, "invalid_request_error"),
}


_NO_RETRY = {"x-should-retry": "false"}


class RefusedCallError(web.HTTPException):
    """Refuses a call to the proxy, in OpenAI's format."""

    def __init__(self, status: int, message: str, code: str) -> None:
        self.status_code = status
        text = _error_body("invalid_request_error", message, code).decode()
        super().__init__(headers=_NO_RETRY, text=text, content_type="application/json")


def _error_body(kind: str, message: str, code: object, param: object = None) -> bytes:
    return dumps({"error": {"message": message, "type": kind, "param": param, "code": code}})


def _describe(error: Exception) -> tuple[int, bytes]:
    """Return the HTTP status and the JSON of a failed call."""
    if isinstance(error, RefusedCallError):
        return error.status, (error.text or "").encode()
    if not isinstance(error, ModelCallError):
        return 500, _error_body("api_error", "internal error in the model call", "internal")
    status, kind = _STATUS[error.category]
    if status in (400, 401, 404):  # the provider's own status says more about the request's mistake
        status = error.status or status
    body, is_too_long = error.body or {}, error.category == "context_length"
    code = body.get("code") or ("context_length_exceeded" if is_too_long else error.category)
    return status, _error_body(kind, error.message, code, body.get("param"))


class ModelProxy(ABC):
    """Serves one model to the agents of many rollouts; the server that mounts its routes authenticates callers."""

    def __init__(self, model_path: str) -> None:
        self.model_path = model_path
        """The model's name, for reports and for agents that name none."""
        self._rollouts: dict[str, RolloutCalls] = {}

    @abstractmethod
    async def _complete(self, call: Call, body: Body, optional: Names) -> CallMetrics:
        """Answer a call with one JSON object."""

    @abstractmethod
    async def _stream(self, call: Call, body: Body, optional: Names) -> CallMetrics:
        """Answer a call with server-sent events, including the final ``[DONE]``."""

    def open(self, rollout_id: str, *, seed_for: SeedFor | None = None) -> None:
        """Serve a rollout's calls from now on; call it before the rollout is dispatched."""
        if rollout_id in self._rollouts:
            raise ValueError(f"rollout {rollout_id!r} is already open")
        self._rollouts[rollout_id] = RolloutCalls(rollout_id, self.model_path, seed_for)

    def close(self, rollout_id: str) -> RolloutUsage:
        """Serve no more calls of a rollout, cancel the running ones, and return the totals."""
        usage = self.usage(rollout_id)
        calls = self._rollouts.pop(rollout_id, None)
        for call in calls.running if calls is not None else ():
            call.error = RefusedCallError(404, "the rollout has ended", "rollout_not_found")
            call.task.cancel()
        return usage

    def usage(self, rollout_id: str) -> RolloutUsage:
        """Return the totals of a rollout's calls so far; empty if it is not open."""
        calls = self._rollouts.get(rollout_id)
        return calls.usage() if calls is not None else RolloutUsage()

    def routes(self) -> list[web.RouteDef]:
        rollout = "/v1/rollouts/{rollout_id}"
        return [
            web.post(f"{rollout}/chat/completions", self._chat_completions),
            web.post(f"{rollout}/{{recorded:recorded}}/chat/completions", self._chat_completions),
            web.route("GET", f"{rollout}/recorded", self._conversation),
            web.route("*", f"{rollout}/{{endpoint:.+}}", self._unknown_endpoint),
        ]

    async def _chat_completions(self, request: web.Request) -> web.StreamResponse:
        # Connecting again is quick, whereas a pool of connections may search all of its idle ones for every request.
        keep_alive = "Keep-Alive" in request.headers
        return await self.answer(request, request.match_info["rollout_id"], keep_alive=keep_alive)

    async def _conversation(self, request: web.Request) -> web.StreamResponse:
        """Return the conversation of a rollout whose calls are recorded; null before the first answer."""
        last = self._find(request.match_info["rollout_id"]).last_recorded
        messages = None if last is None else last.messages()
        return web.Response(body=dumps({"messages": messages}), content_type="application/json")

    async def _unknown_endpoint(self, request: web.Request) -> web.StreamResponse:
        """Name the endpoint to use: clients of the Responses API would report a wrong address."""
        endpoint = request.match_info["endpoint"].removeprefix("recorded/")
        message = f"{request.method} /{endpoint[:100]} is not supported; use POST /chat/completions"
        raise RefusedCallError(404, message, "unknown_endpoint")

    async def answer(
        self, request: web.Request, rollout_id: str, prepare: Prepare | None = None, keep_alive: bool = True
    ) -> web.StreamResponse:
        """Answer a model call of an authenticated agent; raises RefusedCallError."""
        self._find(rollout_id)
        content, body = await _read_request(request)
        optional = await prepare(body) if prepare is not None else ()
        calls = self._find(rollout_id)
        recorded = "recorded" in request.match_info
        retries = request.headers.get("x-stainless-retry-count", "0")
        # SipHash is several times faster than BLAKE2, and a conversation is hashed at every turn.
        digest = hash(content)
        call = calls.find_repeated(digest, is_retry=retries.isdecimal() and int(retries) > 0)
        if call is None:
            max_kept = min(MAX_KEPT_REQUEST_BYTES, MAX_KEPT_REQUESTS_BYTES // len(self._rollouts))
            call = calls.begin(digest, content if recorded or len(content) <= max_kept else None)
            call.recorded = calls.last_begun if recorded else None
            self._begin(calls, call, body, optional)
        return await _send(request, call, is_stream=bool(body.get("stream")), keep_alive=keep_alive)

    def _find(self, rollout_id: str) -> RolloutCalls:
        calls = self._rollouts.get(rollout_id)
        if calls is None:
            raise RefusedCallError(404, "no rollout with this id is running", "rollout_not_found")
        return calls

    def _begin(self, calls: RolloutCalls, call: Call, body: Body, optional: Names = ()) -> None:
        """Start the upstream call, which lives as long as the rollout."""
        if calls.seed_for is not None and body.get("seed") is None:
            body["seed"] = calls.seed_for(call.index)
            optional = (*optional, "seed")
        call.task = asyncio.create_task(self._run(calls, call, body, optional))

    async def _run(self, calls: RolloutCalls, call: Call, body: Body, optional: Names) -> None:
        answer = self._stream if body.get("stream") else self._complete
        try:
            metrics = await answer(call, body, optional)
        except Exception as error:
            # Edge of the process: whatever failed, the agent gets an error and the log has the traceback.
            if not isinstance(error, ModelCallError):
                logger.exception("a model call could not be served")
            calls.failed(call, error)
        else:
            calls.answered(call, metrics)


async def _read_request(request: web.Request) -> tuple[bytes, Body]:
    try:
        content = await request.clone(client_max_size=MAX_REQUEST_BYTES).read()
        body = loads(content)
    except web.HTTPRequestEntityTooLarge:
        message = f"the request is larger than {MAX_REQUEST_BYTES} bytes"
        raise RefusedCallError(413, message, "request_too_large") from None
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise RefusedCallError(400, "the body is not a JSON object", "invalid_request")
    return content, body


async def _send(request: web.Request, call: Call, *, is_stream: bool, keep_alive: bool) -> web.StreamResponse:
    """Send a call's answer; its error is a plain response before the first byte, an event after it."""
    transport = request.transport
    if transport is not None:
        call.clients.append(transport)
    content_type = "text/event-stream" if is_stream else "application/json"
    response = web.StreamResponse(headers={"Content-Type": content_type, "Cache-Control": "no-cache"})
    if not keep_alive:
        response.force_close()
    try:
        while not (await asyncio.wait({call.task}, timeout=PING_INTERVAL_S if is_stream else None))[0]:
            await response.prepare(request)
            await response.write(b": ping\n\n")
        content: bytes | bytearray = call.answer
        if call.error is not None and not response.prepared:
            status, content = _describe(call.error)
            return web.Response(
                status=status, body=content, content_type="application/json", headers=_NO_RETRY
            )
        if call.error is not None:
            content = b"event: error\ndata: " + _describe(call.error)[1] + b"\n\n" + DONE
        await response.prepare(request)
        await response.write_eof(bytes(content))
    except ConnectionError:
        return response
    if transport is not None and not transport.is_closing():
        call.is_delivered = True
    return response


class ProviderProxy(ModelProxy):
    """Answers with a provider's model; without a ``client``, connect one before the first rollout."""

    client: ModelClient

    def __init__(self, client: ModelClient | None = None) -> None:
        super().__init__("")
        if client is not None:
            self.connect(client)

    def connect(self, client: ModelClient) -> None:
        self.client, self.model_path = client, client.endpoint.model_path

    async def _complete(self, call: Call, body: Body, optional: Names) -> CallMetrics:
        completion = await self.client.complete(body, optional=optional)
        response = completion.response
        metrics = CallMetrics(
            completion.usage, completion.cost_usd, completion.latency_s, completion.attempts
        )
        metrics.read(response)
        response["model"] = body.get("model") or self.model_path
        call.answer += dumps(response)
        return metrics

    async def _stream(self, call: Call, body: Body, optional: Names) -> CallMetrics:
        """Forward the chunks, and the usage in a last chunk if the request asked for it."""
        metrics = CallMetrics()
        started = time.perf_counter()
        usage: object = None
        chunk: dict[str, Any] = {}

        def restart() -> None:
            nonlocal metrics, started, usage
            metrics, started, usage = CallMetrics(attempts=metrics.attempts + 1), time.perf_counter(), None
            call.answer.clear()

        async with aclosing(self.client.stream(body, restarted=restart, optional=optional)) as chunks:
            async for chunk in chunks:
                metrics.read(chunk)
                chunk["model"] = body.get("model") or self.model_path
                stated = chunk.pop("usage", None)
                if stated:
                    usage, metrics.usage = stated, read_usage(stated) or metrics.usage
                if chunk.get("choices") or not stated:
                    call.answer += stream_event(chunk)
        if usage is not None and (body.get("stream_options") or {}).get("include_usage"):
            call.answer += stream_event({**chunk, "choices": [], "usage": usage})
        call.answer += DONE
        metrics.latency_s = time.perf_counter() - started
        metrics.cost_usd = self.client.cost_of(metrics.usage)
        return metrics


def stream_event(chunk: Mapping[str, Any]) -> bytes:
    return b"data: " + dumps(chunk) + b"\n\n"


class InvalidModelError(OsmosisError, RuntimeError):
    """The model's name cannot be resolved, or its key or address is missing."""


class LiteLLMBridge(ProviderProxy):
    """Serves one model, by its LiteLLM name, to any rollout; a class of the hosted SDK."""

    def __init__(self, *, model: str, api_key: str | None = None, api_base: str | None = None) -> None:
        super().__init__(ModelClient(_endpoint(model, api_key, api_base)))

    async def preflight_check(self) -> None:
        """Make one tiny call; raises :class:`ModelCallError` when no call can succeed."""
        await self.client.preflight()

    async def complete(self, body: Mapping[str, Any], *, rollout_id: str) -> dict[str, Any]:
        """Answer one chat completion request for a rollout."""
        calls = self._find(rollout_id)
        call = calls.begin(None)
        self._begin(calls, call, {**body, "stream": False})
        await asyncio.wait({call.task})
        if call.error is not None:
            raise call.error
        response: dict[str, Any] = loads(bytes(call.answer))
        return response

    def collect_tokens(self, rollout_id: str) -> int | None:
        """Return the tokens of a rollout, once; None without calls, or if a call has an unknown size."""
        usage = self.close(rollout_id)
        return usage.total_tokens if usage.calls and not usage.uncounted else None

    def discard(self, rollout_id: str) -> None:
        """Forget a rollout."""
        self.close(rollout_id)

    async def aclose(self) -> None:
        """Close the connections."""
        await self.client.aclose()

    def _find(self, rollout_id: str) -> RolloutCalls:
        if rollout_id not in self._rollouts:
            self.open(rollout_id)
        return self._rollouts[rollout_id]


def _endpoint(model: str, api_key: str | None, api_base: str | None) -> ModelEndpoint:
    environment = dict(os.environ)
    provider = model.partition("/")[0]
    if api_base:
        environment[OPENAI_COMPATIBLE.get(provider, OPENAI_COMPATIBLE["openai"]).bases[0]] = api_base
    if api_key:
        environment |= dict.fromkeys(key_variables(provider), api_key)
    try:
        endpoint = resolve_model(model, environment)
    except OsmosisError as error:
        message = f"Invalid LiteLLM model format: {error.message}"
        raise InvalidModelError(message, hint=error.hint) from None
    base_url = openai_base_url(api_base) if api_base else endpoint.base_url
    return replace(endpoint, api_key=api_key or endpoint.api_key, base_url=base_url)
