"""A stand-in for a model provider: a local OpenAI-compatible server whose replies a test decides.

In a test::

    async with StandInModel() as model:
        model.script(Reply(status=429, headers={"retry-after": "1"}), Reply(content="hi"))
        ...  # point the code at model.base_url
        assert model.requests[0].body["messages"] == [...]

As a process (it prints its base URL, then serves until it is stopped)::

    python -m tests.standin_model --port 0 --latency-ms 200 --reply "The product is 42."

Scripted replies are used up in order; then ``respond``, a function of the request's body, makes the reply.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web


@dataclass
class Reply:
    """A reply of the stand-in; by default a plain success.

    Attributes:
        tool_calls: pairs of function name and arguments.
        logprobs: one value per word of ``content``, sent when the request asks for logprobs.
        body: replaces the whole body (bytes as they are, anything else as JSON).
        chunks: replaces the stream's events; an exception among them cuts the connection there.
        usage: False leaves usage out; a dict replaces it.
        extra: merged into the top level, ``choice_extra`` into every choice.
        wait_for: the reply is held until this event is set.
        disconnect: close the connection without an answer.
    """

    content: str | None = "ok"
    reasoning: str | None = None
    tool_calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    logprobs: list[float] | None = None
    finish_reason: str | None = None
    usage: dict[str, Any] | bool = True
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: Any = None
    chunks: list[Any] | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    choice_extra: dict[str, Any] = field(default_factory=dict)
    latency_s: float | None = None
    wait_for: asyncio.Event | None = None
    disconnect: bool = False


def error_reply(status: int, message: str, *, code: str | None = None, **headers: str) -> Reply:
    """Return an error as OpenAI does; ``retry_after="1"`` becomes a header."""
    error = {"message": message, "type": "error", "param": None, "code": code}
    return Reply(
        status=status,
        body={"error": error},
        headers={name.replace("_", "-"): value for name, value in headers.items()},
    )


@dataclass(frozen=True)
class RecordedRequest:
    body: dict[str, Any]
    headers: dict[str, str]
    path: str


Respond = Callable[[dict[str, Any]], Reply]


class StandInModel:
    """An OpenAI-compatible server on 127.0.0.1, for as long as its ``async with`` block runs.

    Args:
        respond: decides the reply once the script is used up.
        latency_s: how long every reply takes, in seconds, unless the reply says otherwise.
        record: keep every request in ``requests`` (leave off for benchmarks).
        api_key: refuse requests that carry another bearer token.
    """

    def __init__(
        self,
        respond: Respond | None = None,
        *,
        latency_s: float = 0.0,
        record: bool = True,
        api_key: str | None = None,
        port: int = 0,
    ) -> None:
        self.respond: Respond = respond or (lambda _: Reply())
        self.latency_s = latency_s
        self.requests: list[RecordedRequest] = []
        self.calls = 0
        self.in_flight = 0
        self.most_in_flight = 0
        self.arrived = asyncio.Event()
        self._record = record
        self._api_key = api_key
        self._port = port
        self._script: deque[Reply] = deque()
        self._runner: web.AppRunner | None = None

    def script(self, *replies: Reply) -> None:
        """Queue replies for the next requests."""
        self._script.extend(replies)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._port}/v1"

    async def __aenter__(self) -> StandInModel:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_post("/v1/chat/completions", self._chat_completions)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, backlog=4096)
        await site.start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    async def _chat_completions(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        self.calls += 1
        if self._record:
            self.requests.append(RecordedRequest(body, dict(request.headers), request.path_qs))
        self.arrived.set()
        if self._api_key and request.headers.get("Authorization") != f"Bearer {self._api_key}":
            refusal = error_reply(401, "Incorrect API key provided.", code="invalid_api_key")
            return await self._answer(request, body, refusal)
        reply = self._script.popleft() if self._script else self.respond(body)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            if reply.wait_for is not None:
                await reply.wait_for.wait()
            latency = self.latency_s if reply.latency_s is None else reply.latency_s
            if latency:
                await asyncio.sleep(latency)
        finally:
            self.in_flight -= 1
        return await self._answer(request, body, reply)

    async def _answer(self, request: web.Request, body: dict[str, Any], reply: Reply) -> web.StreamResponse:
        if reply.disconnect:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if body.get("stream") and reply.status == 200 and reply.body is None:
            return await self._answer_in_chunks(request, body, reply)
        content = reply.body if reply.body is not None else completion(self.calls, body, reply)
        return web.Response(
            status=reply.status,
            body=content if isinstance(content, bytes) else orjson.dumps(content),
            headers={"Content-Type": "application/json", **reply.headers},
        )

    async def _answer_in_chunks(
        self, request: web.Request, body: dict[str, Any], reply: Reply
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", **reply.headers})
        await response.prepare(request)
        chunks = reply.chunks if reply.chunks is not None else completion_chunks(self.calls, body, reply)
        for chunk in chunks:
            if isinstance(chunk, asyncio.Event):
                await chunk.wait()
            elif isinstance(chunk, Exception):
                assert request.transport is not None
                request.transport.abort()
                return response
            elif isinstance(chunk, bytes):
                await response.write(chunk)
            else:
                await response.write(b"data: " + orjson.dumps(chunk) + b"\n\n")
        await response.write_eof()
        return response


def completion(number: int, body: dict[str, Any], reply: Reply) -> dict[str, Any]:
    """Return the ``chat.completion`` object of ``reply``."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.content}
    if reply.reasoning is not None:
        message["reasoning_content"] = reply.reasoning
    if reply.tool_calls:
        message["tool_calls"] = _tool_calls(reply)
    choice: dict[str, Any] = {
        "index": 0,
        "message": message,
        "finish_reason": _finish_reason(reply),
        **reply.choice_extra,
    }
    if body.get("logprobs"):
        choice["logprobs"] = {"content": _logprobs(reply)}
    result: dict[str, Any] = {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 1_760_000_000,
        "model": body.get("model"),
        "choices": [choice],
        **reply.extra,
    }
    if (usage := _usage(body, reply)) is not None:
        result["usage"] = usage
    return result


def completion_chunks(number: int, body: dict[str, Any], reply: Reply) -> list[Any]:
    """Return the events of a stream with ``reply``, a word at a time, including ``[DONE]``."""
    base = {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion.chunk",
        "created": 1_760_000_000,
        "model": body.get("model"),
    }

    def chunk(delta: dict[str, Any], finish: str | None = None, **extra: Any) -> dict[str, Any]:
        return {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": finish, **extra}]}

    events: list[Any] = [{**chunk({"role": "assistant", "content": ""}), **reply.extra}]
    if reply.reasoning is not None:
        events.append(chunk({"reasoning_content": reply.reasoning}))
    entries = _logprobs(reply) if body.get("logprobs") else []
    for position, word in enumerate(_words(reply)):
        extra = {"logprobs": {"content": [entries[position]]}} if entries else {}
        events.append(chunk({"content": word}, **extra))
    for index, call in enumerate(_tool_calls(reply)):
        arguments = call["function"]["arguments"]
        half = len(arguments) // 2
        head = {**call, "index": index, "function": {**call["function"], "arguments": arguments[:half]}}
        events.append(chunk({"tool_calls": [head]}))
        tail = {"index": index, "function": {"arguments": arguments[half:]}}
        events.append(chunk({"tool_calls": [tail]}))
    events.append(chunk({}, _finish_reason(reply), **reply.choice_extra))
    usage = _usage(body, reply)
    if usage is not None and (body.get("stream_options") or {}).get("include_usage"):
        events.append({**base, "choices": [], "usage": usage})
    events.append(b"data: [DONE]\n\n")
    return events


def _words(reply: Reply) -> list[str]:
    words = (reply.content or "").split(" ")
    return [word if position == 0 else f" {word}" for position, word in enumerate(words) if word]


def _logprobs(reply: Reply) -> list[dict[str, Any]]:
    words = _words(reply)
    values = reply.logprobs or [-0.5] * len(words)
    return [
        {"token": word, "logprob": value, "bytes": list(word.encode()), "top_logprobs": []}
        for word, value in zip(words, values, strict=True)
    ]


def _tool_calls(reply: Reply) -> list[dict[str, Any]]:
    return [
        {
            "id": f"call_{position}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        for position, (name, arguments) in enumerate(reply.tool_calls)
    ]


def _finish_reason(reply: Reply) -> str:
    return reply.finish_reason or ("tool_calls" if reply.tool_calls else "stop")


def _usage(body: dict[str, Any], reply: Reply) -> dict[str, Any] | None:
    if isinstance(reply.usage, dict):
        return reply.usage
    if not reply.usage:
        return None
    prompt = sum(len(str(message.get("content") or "").split()) for message in body.get("messages", []))
    produced = max(1, len(_words(reply)))
    return {"prompt_tokens": prompt, "completion_tokens": produced, "total_tokens": prompt + produced}


async def _serve(arguments: argparse.Namespace) -> None:
    reply = Reply(content=arguments.reply)
    model = StandInModel(
        lambda _: reply, latency_s=arguments.latency_ms / 1000, record=False, port=arguments.port
    )
    async with model:
        print(model.base_url, flush=True)
        await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="A local OpenAI-compatible stand-in model.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--latency-ms", type=float, default=0.0)
    parser.add_argument("--reply", default="ok")
    try:
        asyncio.run(_serve(parser.parse_args()))
    except KeyboardInterrupt:
        return


if __name__ == "__main__":
    main()
