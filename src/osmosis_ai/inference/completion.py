"""Build the reply to a chat completion request, whole or in chunks.

Trainers rely on two properties of every reply: each sampled token, including the one that ends the turn, has one
log-probability and, if requested, one token id, and ``usage.completion_tokens`` is their number.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Any, Protocol

from osmosis_ai.inference.batching import Emission, Generation, SampledToken
from osmosis_ai.inference.chat import AssistantReply, TokenDecoding
from osmosis_ai.inference.engine import EngineBusyError, EngineStoppedError, Listener
from osmosis_ai.inference.language_model import Dimensions
from osmosis_ai.inference.protocol import ChatRequest, OpenAIError
from osmosis_ai.inference.tool_calls import ParsedToolCall, Piece, ToolCallStyle

Json = dict[str, Any]


class Cancellable(Protocol):
    """What an engine has accepted."""

    def cancel(self) -> None:
        """Give up on what has not been generated yet; harmless when all has."""


class ServedModel(Protocol):
    """What is known of an engine's model."""

    @property
    def config(self) -> Dimensions:
        """Its dimensions."""


class TokenEngine(Protocol):
    """Whatever continues prompts token by token: an ``InferenceEngine``, or one behind HTTP."""

    @property
    def model(self) -> ServedModel:
        """What it serves."""

    def submit(self, generations: Sequence[Generation], listener: Listener) -> Cancellable:
        """Queue the choices of one request; ``listener`` hears of their tokens, from any thread."""


class TokenFeed:
    """A submission as seen from an event loop: its tokens, as they come, in batches."""

    def __init__(self, engine: TokenEngine, generations: Sequence[Generation], *, every_token: bool) -> None:
        self._choices = {generation: index for index, generation in enumerate(generations)}
        self._every_token = every_token
        self._loop = asyncio.get_running_loop()
        self._arrived: deque[Emission] = deque()
        self._wake = asyncio.Event()
        self._error: EngineStoppedError | None = None
        self._submission = engine.submit(generations, self)

    def emitted(self, emission: Emission) -> None:
        """Called by the engine's thread."""
        self._arrived.append(emission)
        if self._every_token or emission.finish_reason:
            self._notify()

    def failed(self, error: EngineStoppedError) -> None:
        """Called by the engine's thread."""
        self._error = error
        self._notify()

    def _notify(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._wake.set)
        except RuntimeError:  # the loop has ended, and with it everyone who could read
            self._submission.cancel()

    async def read(self) -> list[tuple[int, Emission]]:
        """Wait for news; return emissions with the index of their choice."""
        await self._wake.wait()
        self._wake.clear()
        if self._error:
            raise self._error
        news = [self._arrived.popleft() for _ in range(len(self._arrived))]
        return [(self._choices[emission.generation], emission) for emission in news]

    def close(self) -> None:
        """Stop generating what nobody will read."""
        self._submission.cancel()


class ChatStream:
    """The chunks of one completion. Close it, read to the end or not: that stops the generation."""

    def __init__(self, feed: TokenFeed, chunks: AsyncGenerator[Json, None]) -> None:
        self._feed = feed
        self._chunks = chunks

    def __aiter__(self) -> AsyncIterator[Json]:
        return self._chunks

    async def aclose(self) -> None:
        """Stop generating; harmless when all has been read."""
        self._feed.close()
        await self._chunks.aclose()


class ChatCompletion:
    """One accepted request on its way."""

    def __init__(
        self,
        engine: TokenEngine,
        tokenizer: TokenDecoding,
        tool_calls: ToolCallStyle,
        request: ChatRequest,
        generations: Sequence[Generation],
        *,
        model_name: str,
        fingerprint: str,
        finished: Callable[[int, AssistantReply], None] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._request = request
        self._prompt = generations[0].prompt
        self._finished = finished
        self._replies = [
            AssistantReply(
                tokenizer,
                engine.model.config.end_token_ids,
                request.stop or (),
                tool_calls.reader(request.offered_tools, at_most_one=request.parallel_tool_calls is False),
            )
            for _ in generations
        ]
        self._identity = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model_name,
            "system_fingerprint": fingerprint,
        }
        self._token_by_token = bool(request.stream or request.stop)
        try:
            self._feed = TokenFeed(engine, generations, every_token=self._token_by_token)
        except EngineBusyError as error:
            raise OpenAIError(
                429,
                f"{error.message} {error.hint}.",
                type="rate_limit_error",
                code="rate_limit_exceeded",
                retry_after_s=error.retry_after_s,
            ) from error
        except EngineStoppedError as error:
            raise _server_error(error) from error

    async def whole(self) -> Json:
        """Wait for all choices."""
        try:
            async for _ in self._progress():
                pass
        except EngineStoppedError as error:
            raise _server_error(error) from error
        choices = [self._choice(index, reply) for index, reply in enumerate(self._replies)]
        completion = self._envelope("chat.completion") | {"choices": choices, "usage": self.usage()}
        if self._request.return_token_ids:
            completion["prompt_token_ids"] = list(self._prompt)
        return completion

    def stream(self) -> ChatStream:
        """The completion in parts; the last one, when asked for, carries the usage."""
        return ChatStream(self._feed, self._chunks())

    async def _chunks(self) -> AsyncGenerator[Json, None]:
        unsent = [0] * len(self._replies)
        try:
            for index in range(len(self._replies)):
                opening = self._chunk(index, {"role": "assistant", "content": "", "refusal": None}, [])
                if self._request.return_token_ids:
                    opening["prompt_token_ids"] = list(self._prompt)
                yield opening
            async for index, pieces in self._progress():
                reply = self._replies[index]
                calls = len(reply.tool_calls) - sum(isinstance(piece, ParsedToolCall) for piece in pieces)
                for piece in pieces:
                    new, unsent[index] = reply.tokens[unsent[index] :], len(reply.tokens)
                    yield self._chunk(index, _delta(piece, calls), new)
                    calls += isinstance(piece, ParsedToolCall)
                if reply.finish_reason:
                    yield self._chunk(index, {}, reply.tokens[unsent[index] :], reply.finish_reason)
            if self._request.stream_options and self._request.stream_options.include_usage:
                yield self._envelope("chat.completion.chunk") | {"choices": [], "usage": self.usage()}
        except EngineStoppedError as error:
            raise _server_error(error) from error

    async def _progress(self) -> AsyncGenerator[tuple[int, list[Piece]], None]:
        """Yield what new tokens add to which choice, until all choices are complete."""
        try:
            unfinished = len(self._replies)
            while unfinished:
                news = await self._feed.read()
                for index, emissions in _each(news) if self._token_by_token else _together(news):
                    reply = self._replies[index]
                    if reply.finish_reason:  # a stop string ended it, and the engine was a step ahead
                        continue
                    tokens = [emission.token for emission in emissions]
                    pieces = reply.feed(tokens, emissions[-1].finish_reason)
                    unfinished -= reply.finish_reason is not None
                    if reply.finish_reason and self._finished:
                        self._finished(index, reply)
                    yield index, pieces
        finally:
            self._feed.close()

    def _envelope(self, kind: str) -> Json:
        return {"object": kind, **self._identity}

    def _chunk(
        self, index: int, delta: Json, tokens: Sequence[SampledToken], finish_reason: str | None = None
    ) -> Json:
        choice: Json = {"index": index, "delta": delta, "finish_reason": finish_reason}
        choice |= self._token_details(tokens)
        chunk = self._envelope("chat.completion.chunk") | {"choices": [choice]}
        if self._request.stream_options and self._request.stream_options.include_usage:
            chunk["usage"] = None
        return chunk

    def _choice(self, index: int, reply: AssistantReply) -> Json:
        choice = {"index": index, "message": reply.message(), "finish_reason": reply.finish_reason}
        return choice | self._token_details(reply.tokens)

    def _token_details(self, tokens: Sequence[SampledToken]) -> Json:
        """Log-probabilities (null unless asked for) and, when asked for, ids of ``tokens``."""
        details: Json = {"logprobs": None}
        if self._request.logprobs:
            content = [
                self._token_logprob(token.id, token.logprob)
                | {"top_logprobs": [self._token_logprob(*alternative) for alternative in token.top]}
                for token in tokens
            ]
            details["logprobs"] = {"content": content, "refusal": None}
        if self._request.return_token_ids:
            details["token_ids"] = [token.id for token in tokens]
        return details

    def _token_logprob(self, token: int, logprob: float) -> Json:
        raw = self._tokenizer.token_bytes(token)
        return {"token": raw.decode("utf-8", errors="replace"), "logprob": logprob, "bytes": list(raw)}

    def usage(self) -> Json:
        """What the reply came to so far, in tokens."""
        completion_tokens = sum(len(reply.tokens) for reply in self._replies)
        return {
            "prompt_tokens": len(self._prompt),
            "completion_tokens": completion_tokens,
            "total_tokens": len(self._prompt) + completion_tokens,
        }


def _each(news: list[tuple[int, Emission]]) -> list[tuple[int, list[Emission]]]:
    return [(index, [emission]) for index, emission in news]


def _together(news: list[tuple[int, Emission]]) -> list[tuple[int, list[Emission]]]:
    """The news of each choice at once, which costs a fraction of reading them token by token."""
    by_choice: dict[int, list[Emission]] = {}
    for index, emission in news:
        by_choice.setdefault(index, []).append(emission)
    return list(by_choice.items())


def _delta(piece: Piece, earlier_calls: int) -> Json:
    if isinstance(piece, ParsedToolCall):
        return {"tool_calls": [{"index": earlier_calls, **piece.to_dict()}]}
    return {"content": piece}


def _server_error(error: EngineStoppedError) -> OpenAIError:
    return OpenAIError(503, error.message, type="server_error", code="engine_stopped")
