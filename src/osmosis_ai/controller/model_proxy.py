"""The OpenAI-compatible endpoint of each rollout: forwards model calls, seeds, counts and records them."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import math
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any, Generic, TypeVar

from aiohttp import web

from osmosis_ai.llm.client import ModelClient
from osmosis_ai.llm.completion import TokenUsage, read_usage
from osmosis_ai.llm.errors import Category, ModelCallError
from osmosis_ai.llm.finish_reasons import FinishReason
from osmosis_ai.llm.wire_json import dumps, loads

RECORDED = "recorded"
"""The path below a rollout's address where calls are kept."""

MOST_KEPT_BYTES = 8 << 20
"""Of an open rollout: a longer request, which nobody asked to be recorded, is not kept."""
MOST_KEPT_OF_ALL_BYTES = 256 << 20
"""Of all open rollouts: where they are many, what is kept of each is less."""

_EVENT = b"data: "


@dataclass(frozen=True, slots=True)
class LastCall:
    """The latest model call of a rollout, as it was sent and as far as it was answered."""

    request: bytes
    pieces: Sequence[bytes]

    def messages(self) -> list[dict[str, Any]]:
        """Return what was said, the model's answer last where it gave one."""
        return conversation(self.request, self.pieces)


def conversation(request: bytes, pieces: Iterable[bytes]) -> list[dict[str, Any]]:
    """Return the messages of a call, its answer last."""
    body = loads(request)
    sent = body.get("messages")
    messages = [message for message in sent if isinstance(message, dict)] if isinstance(sent, list) else []
    pieces = list(pieces)
    if not pieces:
        return messages
    answer = _merged(pieces) if body.get("stream") else _message(loads(b"".join(pieces)))
    return [*messages, {name: value for name, value in answer.items() if value is not None}]


def _message(completion: Mapping[str, Any]) -> dict[str, Any]:
    message = next((choice.get("message") for choice in _first_choices(completion)), None)
    return dict(message) if isinstance(message, dict) else {}


def _first_choices(answer: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """Yield what is said of the choice that the conversation goes on with."""
    choices = answer.get("choices")
    return (each for each in choices or () if isinstance(each, dict) and not each.get("index"))


def _merged(pieces: Iterable[bytes]) -> dict[str, Any]:
    """Put the message of a stream together; of several choices, the first."""
    message: dict[str, Any] = {"role": "assistant"}
    calls: dict[int, dict[str, Any]] = {}
    for delta in _deltas(pieces):
        for call in delta.pop("tool_calls", None) or ():
            _add_call(calls.setdefault(call.get("index") or 0, {}), call)
        for name, value in delta.items():
            grows = isinstance(value, str) and name != "role" and isinstance(message.get(name), str)
            if value is not None:
                message[name] = message[name] + value if grows else value
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    return message


def _deltas(pieces: Iterable[bytes]) -> Iterable[dict[str, Any]]:
    for line in b"".join(pieces).splitlines():
        if not line.startswith(_EVENT + b"{"):
            continue
        for choice in _first_choices(loads(line.removeprefix(_EVENT))):
            if isinstance(choice.get("delta"), dict):
                yield choice["delta"]


def _add_call(call: dict[str, Any], delta: Mapping[str, Any]) -> None:
    """Add what a chunk says of a tool call: names and ids come whole, arguments in pieces."""
    function = call.setdefault("function", {"name": "", "arguments": ""})
    said = delta.get("function") or {}
    function["name"] = said.get("name") or function["name"]
    function["arguments"] += said.get("arguments") or ""
    call["id"] = delta.get("id") or call.get("id")
    call["type"] = delta.get("type") or call.get("type") or "function"


KEPT_ANSWER_BYTES = 256 * 1024


@dataclass
class RolloutUsage:
    """What the model calls of one rollout came to."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    uncounted: int = 0
    cost_usd: float | None = 0.0
    model_latency_s: list[float] = field(default_factory=list)
    last_error: ModelCallError | None = None
    finish_reasons: dict[str, int] = field(default_factory=dict)
    report: dict[str, Any] | None = None


class Answer:
    """The bytes a call answered, as they come; any number of readers follow from the beginning."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.finished = False
        self.error: Exception | None = None
        self._waiting: list[asyncio.Future[None]] = []

    def append(self, piece: bytes) -> None:
        """Add bytes for all readers."""
        self.pieces.append(piece)
        self._wake()

    def finish(self, error: Exception | None = None) -> None:
        """Say that nothing more comes, and why when that is a failure."""
        if not self.finished:
            self.finished, self.error = True, error
            self._wake()

    def size(self) -> int:
        """How many bytes are kept."""
        return sum(map(len, self.pieces))

    async def wait_beyond(self, position: int, *, timeout_s: float | None = None) -> bool:
        """Wait for more than ``position`` pieces or the end; False when the time is up before."""
        while len(self.pieces) <= position and not self.finished:
            change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(change)
            if timeout_s is None:
                await change
            elif not (await asyncio.wait((change,), timeout=timeout_s))[0]:
                self._waiting.remove(change)
                return False
        return True

    async def wait_finished(self) -> None:
        """Wait for the end."""
        while not self.finished:
            await self.wait_beyond(len(self.pieces))

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for change in waiting:
            if not change.done():
                change.set_result(None)


class Delivery:
    """One attempt to hand an answer to a client."""

    def __init__(self, transport: asyncio.BaseTransport | None) -> None:
        self._transport = transport
        self._complete = False

    @property
    def connected(self) -> bool:
        """Whether the client is still there."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def lost(self) -> bool:
        """Whether the client went away before it had everything."""
        return not self._complete and not self.connected

    def completed(self) -> None:
        """Note that everything was written to a client that is still there."""
        self._complete = self.connected


class Call:
    """One model call of a rollout."""

    def __init__(self, index: int, digest: bytes) -> None:
        self.index = index
        self.digest = digest
        self.request: bytes | None = None
        self.recorded = False
        self.answer = Answer()
        self.draft: list[bytes] = []
        self.task: asyncio.Task[None] | None = None
        self._deliveries: list[Delivery] = []

    def delivery(self, transport: asyncio.BaseTransport | None) -> Delivery:
        """Begin to hand the answer to a client."""
        delivery = Delivery(transport)
        self._deliveries.append(delivery)
        return delivery

    @property
    def failed(self) -> bool:
        """Whether it ended in an error: nothing was sampled, asking again is a new call."""
        return self.answer.error is not None

    @property
    def abandoned(self) -> bool:
        """Whether every client that asked went away before it had everything."""
        return all(delivery.lost for delivery in self._deliveries)


@dataclass
class CallMetrics:
    """The facts of one answered call; token ids and logprobs where the endpoint gave them."""

    usage: TokenUsage | None = None
    cost_usd: float | None = None
    latency_s: float = 0.0
    attempts: int = 1
    prompt_token_ids: list[int] | None = None
    completion_token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    ended_at: datetime | None = None
    finish: FinishReason = field(default_factory=FinishReason)

    def read(self, response: Mapping[str, Any]) -> None:
        """Take the tokens a completion or a chunk of one names; chunks add up."""
        self.finish.read(response)
        ids = response.get("prompt_token_ids")
        for choice in response.get("choices") or ():
            # The conversation goes on with the first choice; of the others only the tokens count.
            if isinstance(choice, dict) and not choice.get("index"):
                self._read_choice(choice)
                ids = ids or choice.get("prompt_token_ids")
        if isinstance(ids, list):
            self.prompt_token_ids = ids

    def _read_choice(self, choice: Mapping[str, Any]) -> None:
        extra = choice.get("provider_specific_fields")
        ids = choice.get("token_ids") or (extra.get("token_ids") if isinstance(extra, dict) else None)
        if isinstance(ids, list):
            self.completion_token_ids = [*(self.completion_token_ids or ()), *ids]
        logprobs = choice.get("logprobs")
        entries = logprobs.get("content") if isinstance(logprobs, dict) else None
        if isinstance(entries, list):
            values = [entry["logprob"] for entry in entries if isinstance(entry, dict) and "logprob" in entry]
            self.logprobs = [*(self.logprobs or ()), *values]

    def report(self, model: str) -> dict[str, Any]:
        """Return the entry of the trajectory report (ATIF metrics), unknown facts left out."""
        usage = self.usage
        entry = {
            "model_name": model,
            "prompt_tokens": usage.prompt_tokens if usage else None,
            "completion_tokens": usage.completion_tokens if usage else None,
            "cached_tokens": usage.cached_tokens if usage else None,
            "cost_usd": self.cost_usd,
            "prompt_token_ids": self.prompt_token_ids,
            "completion_token_ids": self.completion_token_ids,
            "logprobs": self.logprobs,
            "extra": self._course(),
        }
        return {name: value for name, value in entry.items() if value is not None}

    def _course(self) -> dict[str, Any]:
        took: dict[str, Any] = {"latency_ms": round(self.latency_s * 1000, 3), "attempts": self.attempts}
        if self.finish.value is not None:
            took["finish_reason"] = self.finish.value
        if self.ended_at is None:
            return took
        began = self.ended_at - timedelta(seconds=self.latency_s)
        return {**took, "started_at": began.isoformat(timespec="milliseconds")}


class RolloutCalls:
    """The calls of one open rollout."""

    def __init__(self) -> None:
        self._next_index = 0
        self._by_digest: dict[bytes, list[Call]] = {}
        self._kept: OrderedDict[Call, int] = OrderedDict()
        self._kept_bytes = 0
        self._metrics: dict[int, CallMetrics] = {}
        self._freed_indices: dict[bytes, int] = {}
        self._last_failure: tuple[int, ModelCallError] | None = None
        self._last_answered = -1
        self._last_recorded: Call | None = None
        self._last_begun: Call | None = None

    def earlier(self, content: bytes, *, is_retry: bool) -> tuple[bytes, Call | None]:
        """Find the call that this request repeats, if it repeats one."""
        digest = hashlib.blake2b(content, digest_size=16).digest()
        calls = [call for call in self._by_digest.get(digest, ()) if not call.failed]
        for call in calls:
            if call.abandoned:
                return digest, call
        return digest, calls[-1] if is_retry and calls else None

    def begin(
        self, digest: bytes, content: bytes = b"", *, recorded: bool = False, most: int = MOST_KEPT_BYTES
    ) -> Call:
        """Count a new call."""
        index = self._freed_indices.pop(digest, None)
        if index is None:
            index, self._next_index = self._next_index, self._next_index + 1
        call = Call(index, digest)
        kept = bool(content) and (recorded or len(content) <= most)
        call.request = content if kept else None
        call.recorded = recorded
        last, self._last_begun = self._last_begun, call
        if last is not None and not last.recorded and last.answer.finished:
            last.request = None
        self._by_digest.setdefault(digest, []).append(call)
        return call

    def answered(self, call: Call, metrics: CallMetrics) -> None:
        """Record a call that was answered, and keep its answer for a client that asks again."""
        metrics.ended_at = datetime.now(timezone.utc)
        self._metrics[call.index] = metrics
        self._last_answered = max(self._last_answered, call.index)
        if call.recorded:
            self._keep_conversation(call)
        elif call is not self._last_begun:
            call.request = None
        size = call.answer.size()
        self._kept[call] = size
        self._kept_bytes += size
        while self._kept_bytes > KEPT_ANSWER_BYTES and len(self._kept) > 1:
            oldest, oldest_size = self._kept.popitem(last=False)
            self._kept_bytes -= oldest_size
            self._forget(oldest)

    def conversation(self) -> list[dict[str, Any]] | None:
        """Return what was said in the last recorded call that was answered; None before there is one."""
        last = self._last_recorded
        return None if last is None else LastCall(last.request or b"{}", last.answer.pieces).messages()

    def last_call(self) -> LastCall | None:
        """Return the latest call, answered or not; None when there is none, or it was too long to be kept."""
        last = self._last_begun
        if last is None or last.request is None:
            return None
        return LastCall(last.request, (*last.answer.pieces, *last.draft))

    def failed(self, call: Call, error: Exception) -> None:
        """Record a call that failed for good."""
        if isinstance(error, ModelCallError):
            self._last_failure = call.index, error
        self._freed_indices[call.digest] = call.index
        self._forget(call)

    def cancel(self) -> None:
        """Give up what is still under way."""
        for calls in self._by_digest.values():
            for call in calls:
                if call.task is not None:
                    call.task.cancel()

    def usage(self, model: str) -> RolloutUsage:
        """Add everything up."""
        total = RolloutUsage(calls=len(self._metrics))
        if self._last_failure is not None and self._last_failure[0] > self._last_answered:
            total.last_error = self._last_failure[1]
        ordered = [self._metrics[index] for index in sorted(self._metrics)]
        costs = [metrics.cost_usd for metrics in ordered]
        known = [cost for cost in costs if cost is not None]
        total.cost_usd = math.fsum(known) if len(known) == len(costs) else None
        for metrics in ordered:
            total.model_latency_s.append(metrics.latency_s)
            if (finish := metrics.finish.value) is not None:
                total.finish_reasons[finish] = total.finish_reasons.get(finish, 0) + 1
            if metrics.usage is None:
                total.uncounted += 1
            else:
                total.prompt_tokens += metrics.usage.prompt_tokens
                total.completion_tokens += metrics.usage.completion_tokens
                total.total_tokens += metrics.usage.total_tokens
        if ordered:
            sample = {"model_name": model, "llm_call_metrics": [metrics.report(model) for metrics in ordered]}
            total.report = {"model_name": model, "samples": {"main": sample}}
        return total

    def _keep_conversation(self, call: Call) -> None:
        last = self._last_recorded
        older = call if last is not None and last.index > call.index else last
        if older is not None:
            older.request = None  # one conversation at a time is kept
        if older is not call:
            self._last_recorded = call

    def _forget(self, call: Call) -> None:
        calls = self._by_digest[call.digest]
        calls.remove(call)
        if not calls:
            del self._by_digest[call.digest]


_OWN_STATUS: dict[Category, int] = {
    "rate_limit": 429,
    "timeout": 504,
    "connection": 502,
    "server": 502,
    "invalid_reply": 502,
}
_DEFAULT_STATUS: dict[Category, int] = {
    "auth": 401,
    "not_found": 404,
    "bad_request": 400,
    "context_length": 400,
}
_TYPES: dict[Category, str] = {
    "rate_limit": "rate_limit_error",
    "auth": "authentication_error",
    "not_found": "not_found_error",
    "bad_request": "invalid_request_error",
    "context_length": "invalid_request_error",
}


class RolloutClosedError(Exception):
    """The rollout ended while the call was under way."""


class RefusedCallError(Exception):
    """A call that is not made, and the reply to it."""

    def __init__(self, status: int, message: str, code: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


def refusal(status: int, message: str, code: str, *, kind: str = "invalid_request_error") -> web.Response:
    """Return an error of the bridge's own."""
    return _response(status, {"message": message, "type": kind, "param": None, "code": code})


def error_response(error: Exception) -> web.Response:
    """Return the response for a call that failed."""
    if isinstance(error, ModelCallError):
        category = error.category
        status = _OWN_STATUS.get(category) or error.status or _DEFAULT_STATUS[category]
    else:
        status = 404 if isinstance(error, RolloutClosedError) else 500
    return _response(status, _error_object(error))


def error_event(error: Exception) -> bytes:
    """Return the event that ends a stream whose call failed."""
    return b"event: error\ndata: " + dumps({"error": _error_object(error)}) + b"\n\n"


def _error_object(error: Exception) -> dict[str, object]:
    if isinstance(error, RolloutClosedError):
        code, message, kind, param = (
            "rollout_not_found",
            "the rollout has ended",
            "invalid_request_error",
            None,
        )
    elif isinstance(error, ModelCallError):
        said = error.body or {}
        usual = "context_length_exceeded" if error.category == "context_length" else error.category
        code, param = said.get("code") or usual, said.get("param")
        message, kind = error.message, _TYPES.get(error.category, "api_error")
    else:
        code, message, kind, param = "internal", "the model call could not be served", "api_error", None
    return {"message": message, "type": kind, "param": param, "code": code}


def _response(status: int, error: dict[str, object]) -> web.Response:
    return web.Response(
        status=status,
        body=dumps({"error": error}),
        content_type="application/json",
        headers={"x-should-retry": "false"},
    )


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
