"""Parse the model's output into an assistant message with content and tool calls.

A reply is assembled token by token. Whole and streamed replies use the same code and cannot differ. All output is in
the
message: an invalid tool call stays in the content (``tool_calls``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from osmosis_ai.inference.batching import FinishReason, SampledToken
from osmosis_ai.inference.tool_calls import ParsedToolCall, Piece, ToolCallReader, beginning_of_any


class ReplyDecoder(Protocol):
    """The text of one reply, as its tokens come."""

    def feed(self, *tokens: int) -> str:
        """Return the text that ``tokens`` complete; empty inside a character."""

    def finish(self) -> str:
        """Return what is left when the reply ended inside a character."""


class TokenDecoding(Protocol):
    """The half of a tokenizer that replies need."""

    def decoder(self) -> ReplyDecoder:
        """Start decoding one reply."""

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that ``token`` stands for."""


class StopStrings:
    """Cuts text before the first occurrence of any stop string."""

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = tuple(strings)
        self._held = ""
        self.reached = False

    def feed(self, text: str) -> str:
        """Return the text that is certain to come before any stop string."""
        if self.reached or not self._strings:
            return "" if self.reached else text
        self._held += text
        places = [place for string in self._strings if (place := self._held.find(string)) >= 0]
        if places:
            self.reached = True
            return self._release(min(places))
        return self._release(len(self._held) - beginning_of_any(self._strings, self._held))

    def finish(self) -> str:
        """Return text that was buffered but did not become a tool call."""
        return "" if self.reached else self._release(len(self._held))

    def _release(self, length: int) -> str:
        released, self._held = self._held[:length], self._held[length:]
        return released


@dataclass
class AssistantReply:
    """One choice of a completion, growing."""

    tokenizer: TokenDecoding
    end_tokens: frozenset[int]
    stop: Sequence[str] = ()
    reader: ToolCallReader | None = None
    tokens: list[SampledToken] = field(default_factory=list)
    tool_calls: list[ParsedToolCall] = field(default_factory=list)
    finish_reason: str | None = None

    def __post_init__(self) -> None:
        self._text = ""
        self._decoder = self.tokenizer.decoder()
        self._stop = StopStrings(self.stop)

    def feed(self, tokens: Sequence[SampledToken], finish_reason: FinishReason | None) -> list[Piece]:
        """Add the next tokens; return what the message gained."""
        self.tokens.extend(tokens)
        text = self._decoder.feed(*(token.id for token in tokens if token.id not in self.end_tokens))
        pieces = self._parse(self._stop.feed(text))
        if self._stop.reached:
            finish_reason = "stop"
        if finish_reason:
            pieces += self._parse(self._stop.feed(self._decoder.finish()) + self._stop.finish())
            pieces += self.reader.finish() if self.reader else []
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
        """Return the assistant's message; content is None only beside tool calls."""
        content = None if self.tool_calls and not self._text else self._text
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if self.tool_calls:
            message["tool_calls"] = [call.to_dict() for call in self.tool_calls]
        return message

    def _parse(self, text: str) -> list[Piece]:
        if self.reader:
            return list(self.reader.feed(text))
        return [text] if text else []
