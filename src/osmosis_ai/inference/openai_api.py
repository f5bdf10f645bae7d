"""The Chat Completions API over an engine, for any web framework.

Two things a trainer relies on hold for every reply: there is one log-probability and, when asked
for, one token id for each sampled token, the one that ends the turn included, and
``usage.completion_tokens`` is their number. And a request's tokens depend on its body alone once
it has a seed.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any

from osmosis_ai.inference.batching import Emission, Generation, SampledToken
from osmosis_ai.inference.chat import TOOL_CALL_END, Piece, Reply, ToolCall
from osmosis_ai.inference.engine import EngineBusyError, EngineStoppedError, InferenceEngine
from osmosis_ai.inference.protocol import ApiError, ChatRequest, parse_request
from osmosis_ai.inference.sampling import SamplingParams
from osmosis_ai.inference.template import ChatTemplate, TemplateError
from osmosis_ai.inference.tokenizer import Tokenizer

Json = dict[str, Any]


class TokenFeed:
    """A submission as seen from an event loop: its tokens, as they come, in batches.

    Args:
        engine: who generates.
        generations: the choices.
        every_token: wake the reader for each token; otherwise when a choice is complete, which
            costs the event loop a fraction.

    Raises:
        EngineBusyError, EngineStoppedError: from the engine, at once.
    """

    def __init__(
        self, engine: InferenceEngine, generations: Sequence[Generation], *, every_token: bool
    ) -> None:
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
        """Wait for news; return emissions with the index of their choice.

        Raises:
            EngineStoppedError: when the engine ended before all was generated.
        """
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


class ChatCompletions:
    """Serves one model.

    Args:
        engine: a running engine.
        tokenizer: of the engine's model.
        template: of the engine's model.
        names: the model's name in replies, then other names under which it may be asked for.
    """

    def __init__(
        self, engine: InferenceEngine, tokenizer: Tokenizer, template: ChatTemplate, names: Sequence[str]
    ) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.model_name = names[0]
        self._names = frozenset(names)
        self._template = template
        self._started = int(time.time())
        self.fingerprint = f"fp_{engine.model.fingerprint[:12]}"

    def models(self) -> Json:
        """Return the reply to `GET /v1/models`."""
        model = {
            "id": self.model_name,
            "object": "model",
            "created": self._started,
            "owned_by": "osmosis",
            "max_model_len": self.engine.model.config.max_positions,
        }
        return {"object": "list", "data": [model]}

    async def create(self, body: Any) -> Json | ChatStream:
        """Answer the decoded body of a chat completion request.

        Returns:
            The completion, or with ``"stream": true`` its chunks as they come. Closing the stream,
            or cancelling this coroutine, stops the generation.

        Raises:
            ApiError: when the request is refused; with streams, before the first chunk.
        """
        request = parse_request(body)
        if request.model not in self._names:
            raise ApiError(
                404,
                f"the model '{request.model}' does not exist; this server has '{self.model_name}'.",
                param="model",
                code="model_not_found",
            )
        call = _Call(self, request, self._prompt(request))
        return call.stream() if request.stream else await call.completion()

    def _prompt(self, request: ChatRequest) -> tuple[int, ...]:
        try:
            text = self._template.render(request.template_messages(), request.offered_tools)
        except TemplateError as error:
            raise ApiError(400, f"{error}.", param="messages", code="invalid_value") from error
        positions = self.engine.model.config.max_positions
        # A text of megabytes is refused for its length alone: tokenizing it would hold up everyone.
        least = len(text) // self.tokenizer.longest_token
        if least >= positions:
            raise _context_exceeded(positions, f"at least {least}")
        prompt = tuple(self.tokenizer.encode(text))
        if len(prompt) >= positions:
            raise _context_exceeded(positions, str(len(prompt)))
        return prompt


class _Call:
    """One accepted request on its way."""

    def __init__(self, api: ChatCompletions, request: ChatRequest, prompt: tuple[int, ...]) -> None:
        self._api = api
        self._request = request
        self._prompt = prompt
        config = api.engine.model.config
        parse_tools = bool(request.offered_tools)
        self._replies = [
            Reply(api.tokenizer, config.end_token_ids, request.stop or (), parse_tools)
            for _ in range(request.n or 1)
        ]
        self._id = f"chatcmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())
        try:
            self._feed = TokenFeed(
                api.engine, self._generations(), every_token=bool(request.stream or request.stop)
            )
        except EngineBusyError as error:
            raise ApiError(
                429,
                f"{error.message} {error.hint}.",
                type="rate_limit_error",
                code="rate_limit_exceeded",
                retry_after_s=error.retry_after_s,
            ) from error
        except EngineStoppedError as error:
            raise _server_error(error) from error

    def _generations(self) -> list[Generation]:
        request, config = self._request, self._api.engine.model.config
        stop_tokens = config.end_token_ids
        call_end = self._api.tokenizer.token_id(TOOL_CALL_END)
        if request.parallel_tool_calls is False and request.offered_tools and call_end is not None:
            stop_tokens |= {call_end}
        temperature = 1.0 if request.temperature is None else request.temperature
        top_p = 1.0 if request.top_p is None else request.top_p
        sampling = SamplingParams(request.seed, temperature, top_p)
        return [
            Generation(
                prompt=self._prompt,
                max_tokens=min(request.token_limit, config.max_positions - len(self._prompt)),
                stream=sampling.stream(choice),
                stop_tokens=stop_tokens,
                temperature=temperature,
                top_p=top_p,
                top_logprobs=(request.top_logprobs or 0) if request.logprobs else 0,
            )
            for choice in range(request.n or 1)
        ]

    async def completion(self) -> Json:
        """Wait for all choices."""
        try:
            async for _ in self._progress():
                pass
        except EngineStoppedError as error:
            raise _server_error(error) from error
        choices = [self._choice(index, reply) for index, reply in enumerate(self._replies)]
        completion = self._envelope("chat.completion") | {"choices": choices, "usage": self._usage()}
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
                calls = len(reply.tool_calls) - sum(isinstance(piece, ToolCall) for piece in pieces)
                for piece in pieces:
                    new, unsent[index] = reply.tokens[unsent[index] :], len(reply.tokens)
                    yield self._chunk(index, _delta(piece, calls), new)
                    calls += isinstance(piece, ToolCall)
                if reply.finish_reason:
                    yield self._chunk(index, {}, reply.tokens[unsent[index] :], reply.finish_reason)
            if self._request.stream_options and self._request.stream_options.include_usage:
                yield self._envelope("chat.completion.chunk") | {"choices": [], "usage": self._usage()}
        except EngineStoppedError as error:
            raise _server_error(error) from error

    async def _progress(self) -> AsyncGenerator[tuple[int, list[Piece]], None]:
        """Yield what each token adds to which choice, until all choices are complete."""
        try:
            unfinished = len(self._replies)
            while unfinished:
                for index, emission in await self._feed.read():
                    reply = self._replies[index]
                    if reply.finish_reason:  # a stop string ended it, and the engine was a step ahead
                        continue
                    pieces = reply.feed(emission.token, emission.finish_reason)
                    unfinished -= reply.finish_reason is not None
                    yield index, pieces
        finally:
            self._feed.close()

    def _envelope(self, kind: str) -> Json:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._api.model_name,
            "system_fingerprint": self._api.fingerprint,
        }

    def _chunk(
        self, index: int, delta: Json, tokens: Sequence[SampledToken], finish_reason: str | None = None
    ) -> Json:
        choice: Json = {"index": index, "delta": delta, "finish_reason": finish_reason}
        choice |= self._token_details(tokens)
        chunk = self._envelope("chat.completion.chunk") | {"choices": [choice]}
        if self._request.stream_options and self._request.stream_options.include_usage:
            chunk["usage"] = None
        return chunk

    def _choice(self, index: int, reply: Reply) -> Json:
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
        raw = self._api.tokenizer.token_bytes(token)
        return {"token": raw.decode("utf-8", errors="replace"), "logprob": logprob, "bytes": list(raw)}

    def _usage(self) -> Json:
        completion_tokens = sum(len(reply.tokens) for reply in self._replies)
        return {
            "prompt_tokens": len(self._prompt),
            "completion_tokens": completion_tokens,
            "total_tokens": len(self._prompt) + completion_tokens,
        }


def _delta(piece: Piece, earlier_calls: int) -> Json:
    if isinstance(piece, ToolCall):
        return {"tool_calls": [{"index": earlier_calls, **piece.to_dict()}]}
    return {"content": piece}


def _context_exceeded(positions: int, count: str) -> ApiError:
    return ApiError(
        400,
        f"this model's maximum context length is {positions} tokens, and the messages have {count}; "
        "shorten the messages so that there is room for an answer.",
        param="messages",
        code="context_length_exceeded",
    )


def _server_error(error: EngineStoppedError) -> ApiError:
    return ApiError(503, error.message, type="server_error", code="engine_stopped")
