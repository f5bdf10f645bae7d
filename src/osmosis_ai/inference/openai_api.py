"""The Chat Completions API over an engine, for any web framework.

With a seed, a request's tokens depend only on its body.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from osmosis_ai.inference.batching import Generation
from osmosis_ai.inference.chat import TokenDecoding
from osmosis_ai.inference.completion import ChatCompletion, ChatStream
from osmosis_ai.inference.engine import InferenceEngine
from osmosis_ai.inference.protocol import ChatRequest, OpenAIError, parse_request
from osmosis_ai.inference.sampling import SamplingParams
from osmosis_ai.inference.template import TemplateError
from osmosis_ai.inference.tool_calls import ToolCallStyle

__all__ = ["ChatCompletions", "ChatStream"]

Json = dict[str, Any]


class TextTokenizer(TokenDecoding, Protocol):
    """Text to tokens and back."""

    @property
    def longest_token(self) -> int:
        """How many bytes the longest token stands for."""

    def encode(self, text: str) -> list[int]:
        """Return the tokens of ``text``, in which the model's special tokens are recognised."""

    def token_id(self, token: str) -> int | None:
        """Return the id of a token written as in the vocabulary, or None when there is none."""


class Template(Protocol):
    """Messages to text."""

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> str:
        """Return the text of a conversation, up to where the model answers; raises TemplateError."""


class ChatCompletions:
    """Serves one model."""

    def __init__(
        self,
        engine: InferenceEngine,
        tokenizer: TextTokenizer,
        template: Template,
        names: Sequence[str],
        tool_calls: ToolCallStyle,
    ) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.model_name = names[0]
        self._names = frozenset(names)
        self._template = template
        self._tool_calls = tool_calls
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
        """Answer the decoded body of a chat completion request."""
        request = parse_request(body)
        if request.model not in self._names:
            raise OpenAIError(
                404,
                f"the model '{request.model}' does not exist; this server has '{self.model_name}'.",
                param="model",
                code="model_not_found",
            )
        completion = ChatCompletion(
            self.engine,
            self.tokenizer,
            self._tool_calls,
            request,
            self._generations(request, self._prompt(request)),
            model_name=self.model_name,
            fingerprint=self.fingerprint,
        )
        return completion.stream() if request.stream else await completion.whole()

    def _generations(self, request: ChatRequest, prompt: tuple[int, ...]) -> list[Generation]:
        config = self.engine.model.config
        stop_tokens = config.end_token_ids
        call_end = self._tool_calls.end_token(self.tokenizer.token_id)
        if request.parallel_tool_calls is False and request.offered_tools and call_end is not None:
            stop_tokens |= {call_end}
        temperature = 1.0 if request.temperature is None else request.temperature
        top_p = 1.0 if request.top_p is None else request.top_p
        sampling = SamplingParams(request.seed, temperature, top_p)
        return [
            Generation(
                prompt=prompt,
                max_tokens=min(request.token_limit, config.max_positions - len(prompt)),
                stream=sampling.stream(choice),
                stop_tokens=stop_tokens,
                temperature=temperature,
                top_p=top_p,
                top_logprobs=(request.top_logprobs or 0) if request.logprobs else 0,
            )
            for choice in range(request.n or 1)
        ]

    def _prompt(self, request: ChatRequest) -> tuple[int, ...]:
        try:
            text = self._template.render(request.template_messages(), request.offered_tools)
        except TemplateError as error:
            raise OpenAIError(400, f"{error}.", param="messages", code="invalid_value") from error
        positions = self.engine.model.config.max_positions
        # A text of megabytes is refused for its length alone: tokenizing it would hold up everyone.
        least = len(text) // self.tokenizer.longest_token
        if least >= positions:
            raise context_exceeded(positions, f"at least {least}")
        prompt = tuple(self.tokenizer.encode(text))
        if len(prompt) >= positions:
            raise context_exceeded(positions, str(len(prompt)))
        return prompt


def context_exceeded(positions: int, count: str) -> OpenAIError:
    """Return the refusal of messages that leave no room for an answer."""
    return OpenAIError(
        400,
        f"this model's maximum context length is {positions} tokens, and the messages have {count}; "
        "shorten the messages so that there is room for an answer.",
        param="messages",
        code="context_length_exceeded",
    )
