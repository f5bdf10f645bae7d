"""A model's conversation format: template, tokens and tool calls.

Serving and training use the same format, so that the text of a turn is produced in one place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from osmosis_ai.inference.chat import TokenDecoding
from osmosis_ai.inference.template import ChatTemplate
from osmosis_ai.inference.tokenizer import Decoder, Tokenizer
from osmosis_ai.inference.tool_call_formats import FORMATS
from osmosis_ai.inference.tool_calls import FormatName, ToolCallStyle


class ChatFormat(TokenDecoding, Protocol):
    """Messages to text, text to tokens, tokens to text."""

    tool_calls: ToolCallStyle

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
    ) -> str:
        """Return the text of a conversation."""

    def encode(self, text: str) -> list[int]:
        """Return the tokens of ``text``, in which the model's special tokens are recognised."""

    def token_id(self, token: str) -> int | None:
        """Return the id of a token written as in the vocabulary, or None when there is none."""


class BuiltInChat:
    """The format of a model that travels with the package; needs neither torch nor transformers."""

    def __init__(self, model_dir: Path, *, tool_call_format: FormatName | None = None) -> None:
        self.tool_calls = ToolCallStyle(FORMATS[tool_call_format or "hermes"])
        self._tokenizer = Tokenizer.load(model_dir)
        self._template = ChatTemplate.load(model_dir)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
    ) -> str:
        """Return the text of a conversation; raises TemplateError."""
        return self._template.render(messages, tools, add_generation_prompt=add_generation_prompt)

    def encode(self, text: str) -> list[int]:
        """Return the tokens of ``text``, in which the model's special tokens are recognised."""
        return self._tokenizer.encode(text)

    def token_id(self, token: str) -> int | None:
        """Return the id of a token written as in the vocabulary, or None when there is none."""
        return self._tokenizer.token_id(token)

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that ``token`` stands for."""
        return self._tokenizer.token_bytes(token)

    def decoder(self) -> Decoder:
        """Start decoding one reply."""
        return self._tokenizer.decoder()
