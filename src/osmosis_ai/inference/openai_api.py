"""The Chat Completions API over an engine, for any web framework.

With a seed, a request's tokens depend only on its body. Replies are assembled token by token, whole or streamed, so
that both are equal. Trainers rely on two properties: each sampled token, including the one that ends the turn, has one
log-probability and, if requested, one token id, and ``usage.completion_tokens`` is their number.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from osmosis_ai.inference.chat import ChatFormat, TemplateError
from osmosis_ai.inference.engine import (
    Dimensions,
    Emission,
    EngineBusyError,
    EngineStoppedError,
    FinishReason,
    Generation,
    InferenceEngine,
    Listener,
    SampledToken,
    random_stream,
)
from osmosis_ai.inference.protocol import ChatRequest, OpenAIError, parse_request
from osmosis_ai.inference.tool_calls import ParsedToolCall, Piece, ToolCallReader, beginning_of_any

Json = dict[str, Any]


class Cancellable(Protocol):
    def cancel(self) -> None: ...


class ServedModel(Protocol):
    @property
    def config(self) -> Dimensions: ...


class TokenEngine(Protocol):
    """Continues prompts token by token: an ``InferenceEngine``, or one behind HTTP."""

    @property
    def model(self) -> ServedModel: ...

    def submit(self, generations: Sequence[Generation], listener: Listener) -> Cancellable:
        """Queue the choices of one request; ``listener`` is called from any thread."""


class TokenFeed:
    """The tokens of a submission, in batches, for one event loop."""

    def __init__(self, engine: TokenEngine, generations: Sequence[Generation], *, every_token: bool) -> None:
        self._choices = {generation: index for index, generation in enumerate(generations)}
        self._every_token = every_token
        self._loop = asyncio.get_running_loop()
        self._arrived: deque[Emission] = deque()
        self._wake = asyncio.Event()
        self._error: EngineStoppedError | None = None
        self._submission = engine.submit(generations, self)

    def emitted(self, emission: Emission) -> None:
        self._arrived.append(emission)
        if self._every_token or emission.finish_reason:
            self._notify()

    def failed(self, error: EngineStoppedError) -> None:
        self._error = error
        self._notify()

    def _notify(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._wake.set)
        except RuntimeError:  # the loop has ended, so no reader is left
            self._submission.cancel()

    async def read(self) -> list[tuple[int, Emission]]:
        """Wait for emissions; return them with the index of their choice."""
        await self._wake.wait()
        self._wake.clear()
        if self._error:
            raise self._error
        emissions = [self._arrived.popleft() for _ in range(len(self._arrived))]
        return [(self._choices[emission.generation], emission) for emission in emissions]

    def close(self) -> None:
        self._submission.cancel()


class StopStrings:
    """Cuts text before the first occurrence of any stop string."""

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = tuple(strings)
        self._buffer = ""
        self.reached = False

    def feed(self, text: str) -> str:
        """Return the text that precedes any stop string."""
        if self.reached or not self._strings:
            return "" if self.reached else text
        self._buffer += text
        ends = [end for string in self._strings if (end := self._buffer.find(string)) >= 0]
        if ends:
            self.reached = True
            return self._take(min(ends))
        return self._take(len(self._buffer) - beginning_of_any(self._strings, self._buffer))

    def finish(self) -> str:
        return "" if self.reached else self._take(len(self._buffer))

    def _take(self, length: int) -> str:
        taken, self._buffer = self._buffer[:length], self._buffer[length:]
        return taken


@dataclass
class AssistantReply:
    """One choice of a completion, growing."""

    chat: ChatFormat
    end_tokens: frozenset[int]
    stop: Sequence[str] = ()
    reader: ToolCallReader | None = None
    tokens: list[SampledToken] = field(default_factory=list)
    tool_calls: list[ParsedToolCall] = field(default_factory=list)
    finish_reason: str | None = None

    def __post_init__(self) -> None:
        self._text = ""
        self._decoder = self.chat.decoder()
        self._stop = StopStrings(self.stop)

    def feed(self, tokens: Sequence[SampledToken], finish_reason: FinishReason | None) -> list[Piece]:
        """Add the next tokens; return the new pieces of the message."""
        self.tokens.extend(tokens)
        text = self._decoder.feed(*(token.id for token in tokens if token.id not in self.end_tokens))
        pieces = self._parse(self._stop.feed(text))
        if self._stop.reached:
            finish_reason = "stop"
        if finish_reason:
            pieces += self._parse(self._stop.feed(self._decoder.finish()) + self._stop.finish())
            pieces += self.reader.feed("", ended=True) if self.reader else []
        for piece in pieces:
            if isinstance(piece, ParsedToolCall):
                self.tool_calls.append(piece)
            else:
                self._text += piece
        if finish_reason:
            self.finish_reason = (
                "tool_calls" if self.tool_calls and finish_reason == "stop" else finish_reason
            )
        return pieces

    def message(self) -> dict[str, Any]:
        """Return the assistant's message; content is None only next to tool calls."""
        content = None if self.tool_calls and not self._text else self._text
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if self.tool_calls:
            message["tool_calls"] = [call.to_dict() for call in self.tool_calls]
        return message

    def _parse(self, text: str) -> list[Piece]:
        if self.reader:
            return list(self.reader.feed(text))
        return [text] if text else []


def generations_for(
    request: ChatRequest,
    chat: ChatFormat,
    config: Dimensions,
    prompt: tuple[int, ...],
    max_tokens: int,
    *,
    temperature: float | None = None,
    top_p: float | None = None,
) -> list[Generation]:
    """Return one generation for each choice of a request; the given sampling parameters override the request's."""
    stop_tokens = config.end_token_ids
    call_end = chat.tool_calls.end_token(chat.token_id)
    if request.parallel_tool_calls is False and request.offered_tools and call_end is not None:
        stop_tokens |= {call_end}
    temperature = request.temperature if temperature is None else temperature
    top_p = request.top_p if top_p is None else top_p
    return [
        Generation(
            prompt=prompt,
            max_tokens=max_tokens,
            stream=random_stream(request.seed, choice),
            stop_tokens=stop_tokens,
            temperature=1.0 if temperature is None else temperature,
            top_p=1.0 if top_p is None else top_p,
            top_logprobs=(request.top_logprobs or 0) if request.logprobs else 0,
        )
        for choice in range(request.n or 1)
    ]


class ChatCompletion:
    """One accepted request: ``whole`` returns its answer, and iteration yields the answer in chunks.

    Closing it stops the generation. ``finished`` is called with the index and the reply of each finished choice. Raises
    OpenAIError if the engine is busy or has stopped.
    """

    def __init__(
        self,
        engine: TokenEngine,
        chat: ChatFormat,
        request: ChatRequest,
        generations: Sequence[Generation],
        *,
        model_name: str,
        fingerprint: str,
        finished: Callable[[int, AssistantReply], None] | None = None,
    ) -> None:
        self._chat = chat
        self._request = request
        self._prompt = generations[0].prompt
        self._finished = finished
        at_most_one = request.parallel_tool_calls is False
        self._replies = [
            AssistantReply(
                chat,
                engine.model.config.end_token_ids,
                request.stop or (),
                chat.tool_calls.reader(request.offered_tools, at_most_one=at_most_one),
            )
            for _ in generations
        ]
        self._identity = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model_name,
            "system_fingerprint": fingerprint,
        }
        self._with_usage = bool(request.stream_options and request.stream_options.include_usage)
        self._token_by_token = bool(request.stream or request.stop)
        try:
            self._feed = TokenFeed(engine, generations, every_token=self._token_by_token)
        except EngineBusyError as error:
            codes = {"type": "rate_limit_error", "code": "rate_limit_exceeded"}
            message = f"{error.message} {error.hint}."
            raise OpenAIError(429, message, **codes, retry_after_s=error.retry_after_s) from error
        except EngineStoppedError as error:
            raise _server_error(error) from error

    async def whole(self) -> Json:
        async for _ in self._progress():
            pass
        choices = [
            {"index": index, "message": reply.message(), "finish_reason": reply.finish_reason}
            | self._token_details(reply.tokens)
            for index, reply in enumerate(self._replies)
        ]
        completion = self._envelope("chat.completion") | {"choices": choices, "usage": self.usage()}
        if self._request.return_token_ids:
            completion["prompt_token_ids"] = list(self._prompt)
        return completion

    async def aclose(self) -> None:
        self._feed.close()

    async def __aiter__(self) -> AsyncGenerator[Json, None]:
        """Yield the completion in chunks; the last one has the usage, if requested."""
        unsent = [0] * len(self._replies)
        for index in range(len(self._replies)):
            yield self._chunk(index, {"role": "assistant", "content": "", "refusal": None}, [], opening=True)
        async for index, pieces in self._progress():
            reply = self._replies[index]
            calls = len(reply.tool_calls) - sum(isinstance(piece, ParsedToolCall) for piece in pieces)
            for piece in pieces:
                delta: Json = {"content": piece}
                if isinstance(piece, ParsedToolCall):
                    delta = {"tool_calls": [{"index": calls, **piece.to_dict()}]}
                    calls += 1
                new, unsent[index] = reply.tokens[unsent[index] :], len(reply.tokens)
                yield self._chunk(index, delta, new)
            if reply.finish_reason:
                yield self._chunk(index, {}, reply.tokens[unsent[index] :], reply.finish_reason)
        if self._with_usage:
            yield self._envelope("chat.completion.chunk") | {"choices": [], "usage": self.usage()}

    async def _progress(self) -> AsyncGenerator[tuple[int, list[Piece]], None]:
        """Yield the new pieces of each choice, until all choices are complete."""
        try:
            unfinished = len(self._replies)
            while unfinished:
                for index, emissions in _grouped(await self._feed.read(), each=self._token_by_token):
                    reply = self._replies[index]
                    if reply.finish_reason:  # a stop string ended it while the engine was a step ahead
                        continue
                    tokens = [emission.token for emission in emissions]
                    pieces = reply.feed(tokens, emissions[-1].finish_reason)
                    unfinished -= reply.finish_reason is not None
                    if reply.finish_reason and self._finished:
                        self._finished(index, reply)
                    yield index, pieces
        except EngineStoppedError as error:
            raise _server_error(error) from error
        finally:
            self._feed.close()

    def _envelope(self, kind: str) -> Json:
        return {"object": kind, **self._identity}

    def _chunk(
        self,
        index: int,
        delta: Json,
        tokens: Sequence[SampledToken],
        finish_reason: str | None = None,
        *,
        opening: bool = False,
    ) -> Json:
        choice: Json = {"index": index, "delta": delta, "finish_reason": finish_reason}
        chunk = self._envelope("chat.completion.chunk") | {"choices": [choice | self._token_details(tokens)]}
        if self._with_usage:
            chunk["usage"] = None
        if opening and self._request.return_token_ids:
            chunk["prompt_token_ids"] = list(self._prompt)
        return chunk

    def _token_details(self, tokens: Sequence[SampledToken]) -> Json:
        """Return the log-probabilities and ids of ``tokens``, if requested."""
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
        raw = self._chat.token_bytes(token)
        return {"token": raw.decode("utf-8", errors="replace"), "logprob": logprob, "bytes": list(raw)}

    def usage(self) -> Json:
        completion_tokens = sum(len(reply.tokens) for reply in self._replies)
        return {
            "prompt_tokens": len(self._prompt),
            "completion_tokens": completion_tokens,
            "total_tokens": len(self._prompt) + completion_tokens,
        }


def _grouped(news: list[tuple[int, Emission]], *, each: bool) -> list[tuple[int, list[Emission]]]:
    """Group emissions by choice, which costs a fraction of reading ``each`` alone."""
    if each:
        return [(index, [emission]) for index, emission in news]
    by_choice: dict[int, list[Emission]] = {}
    for index, emission in news:
        by_choice.setdefault(index, []).append(emission)
    return list(by_choice.items())


def _server_error(error: EngineStoppedError) -> OpenAIError:
    return OpenAIError(503, error.message, type="server_error", code="engine_stopped")


class ChatCompletions:
    """Serves one model under ``names``; the first one is used in replies."""

    def __init__(self, engine: InferenceEngine, chat: ChatFormat, names: Sequence[str]) -> None:
        self.engine = engine
        self.chat = chat
        self.model_name = names[0]
        self.fingerprint = f"fp_{engine.model.fingerprint[:12]}"
        self._names = frozenset(names)
        self._started = int(time.time())

    def models(self) -> Json:
        model = {
            "id": self.model_name,
            "object": "model",
            "created": self._started,
            "owned_by": "osmosis",
            "max_model_len": self.engine.model.config.max_positions,
        }
        return {"object": "list", "data": [model]}

    async def create(self, body: Any) -> Json | ChatCompletion:
        """Answer the decoded body of a chat completion request; raises OpenAIError."""
        request = parse_request(body)
        if request.model not in self._names:
            raise OpenAIError(
                404,
                f"the model '{request.model}' does not exist; this server has '{self.model_name}'.",
                param="model",
                code="model_not_found",
            )
        prompt, config = self._prompt(request), self.engine.model.config
        max_tokens = min(request.token_limit, config.max_positions - len(prompt))
        completion = ChatCompletion(
            self.engine,
            self.chat,
            request,
            generations_for(request, self.chat, config, prompt, max_tokens),
            model_name=self.model_name,
            fingerprint=self.fingerprint,
        )
        return completion if request.stream else await completion.whole()

    def _prompt(self, request: ChatRequest) -> tuple[int, ...]:
        try:
            text = self.chat.render(request.template_messages(), request.offered_tools)
        except TemplateError as error:
            raise OpenAIError(400, f"{error}.", param="messages", code="invalid_value") from error
        positions = self.engine.model.config.max_positions
        # A text of megabytes is refused for its length alone: tokenizing it would block all requests.
        least = len(text) // self.chat.longest_token
        if least >= positions:
            raise _context_exceeded(positions, f"at least {least}")
        prompt = tuple(self.chat.encode(text))
        if len(prompt) >= positions:
            raise _context_exceeded(positions, str(len(prompt)))
        return prompt


def _context_exceeded(positions: int, count: str) -> OpenAIError:
    return OpenAIError(
        400,
        f"this model's maximum context length is {positions} tokens, and the messages have {count}; "
        "shorten the messages so that there is room for an answer.",
        param="messages",
        code="context_length_exceeded",
    )
