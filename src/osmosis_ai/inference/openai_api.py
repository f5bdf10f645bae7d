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
        self._text = self._undecided = ""
        self._stopped = False
        self._decode = self.chat.decoder()

    def feed(self, tokens: Sequence[SampledToken], finish_reason: FinishReason | None) -> list[Piece]:
        """Add the next tokens; return the new pieces of the message."""
        self.tokens.extend(tokens)
        ended = finish_reason is not None
        ids = [token.id for token in tokens if token.id not in self.end_tokens]
        text = self._before_stop(self._decode(ids, ended), ended=ended)
        if self._stopped:
            finish_reason, ended = "stop", True
        pieces: list[Piece] = [text] if text else []
        if self.reader:
            pieces = list(self.reader.feed(text, ended=ended))
        for piece in pieces:
            if isinstance(piece, ParsedToolCall):
                self.tool_calls.append(piece)
            else:
                self._text += piece
        if ended:
            called = self.tool_calls and finish_reason == "stop"
            self.finish_reason = "tool_calls" if called else finish_reason
        return pieces

    def _before_stop(self, text: str, *, ended: bool) -> str:
        """Return the text that certainly precedes any stop string."""
        text = self._undecided + text
        ends = [end for string in self.stop if (end := text.find(string)) >= 0]
        self._stopped = bool(ends)
        certain = min(ends, default=len(text) - (0 if ended else beginning_of_any(self.stop, text)))
        self._undecided = text[certain:]
        return text[:certain]

    def message(self) -> dict[str, Any]:
        """Return the assistant's message; content is None only next to tool calls."""
        content = None if self.tool_calls and not self._text else self._text
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if self.tool_calls:
            message["tool_calls"] = [call.to_dict() for call in self.tool_calls]
        return message


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
        prompt: tuple[int, ...],
        max_tokens: int,
        *,
        model_name: str,
        fingerprint: str,
        finished: Callable[[int, AssistantReply], None] | None = None,
        rollout: object | None = None,
    ) -> None:
        self._chat = chat
        self._request = request
        self._prompt = prompt
        self._prompt_ids: Json = {"prompt_token_ids": list(prompt)} if request.return_token_ids else {}
        self._finished = finished
        end_tokens = stop_tokens = engine.model.config.end_token_ids
        call_end = chat.tool_calls.end_token(chat.token_id)
        at_most_one = request.parallel_tool_calls is False
        if at_most_one and request.offered_tools and call_end is not None:
            stop_tokens |= {call_end}
        generations = [
            Generation(
                prompt=prompt,
                max_tokens=max_tokens,
                stream=random_stream(request.seed, choice),
                stop_tokens=stop_tokens,
                temperature=1.0 if request.temperature is None else request.temperature,
                top_p=1.0 if request.top_p is None else request.top_p,
                top_logprobs=(request.top_logprobs or 0) if request.logprobs else 0,
                rollout=rollout,
            )
            for choice in range(request.n or 1)
        ]
        self._replies = [
            AssistantReply(
                chat,
                end_tokens,
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
        answer = {"choices": choices, "usage": self.usage()}
        return self._envelope("chat.completion") | answer | self._prompt_ids

    async def aclose(self) -> None:
        self._feed.close()

    async def __aiter__(self) -> AsyncGenerator[Json, None]:
        """Yield the completion in chunks; the last one has the usage, if requested."""
        unsent = [0] * len(self._replies)
        for index in range(len(self._replies)):
            opening = {"role": "assistant", "content": "", "refusal": None}
            yield self._chunk(index, opening, []) | self._prompt_ids
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
        self, index: int, delta: Json, tokens: Sequence[SampledToken], finish_reason: str | None = None
    ) -> Json:
        choice: Json = {"index": index, "delta": delta, "finish_reason": finish_reason}
        choices = [choice | self._token_details(tokens)]
        usage = {"usage": None} if self._with_usage else {}
        return self._envelope("chat.completion.chunk") | {"choices": choices} | usage

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
        prompt, positions = self._prompt(request), self.engine.model.config.max_positions
        max_tokens = min(request.token_limit, positions - len(prompt))
        completion = ChatCompletion(
            self.engine,
            self.chat,
            request,
            prompt,
            max_tokens,
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
        prompt = () if least >= positions else tuple(self.chat.encode(text))
        if max(least, len(prompt)) >= positions:
            message = (
                f"this model's maximum context length is {positions} tokens, and the messages have "
                f"{len(prompt) or f'at least {least}'}; shorten the messages so that there is room for an answer."
            )
            raise OpenAIError(400, message, param="messages", code="context_length_exceeded")
        return prompt
