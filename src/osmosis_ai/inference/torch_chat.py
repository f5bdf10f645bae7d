"""Chat format of any Hugging Face model, with its own template and tokenizer.

Byte-level vocabularies (GPT-2's kind: Qwen, Llama 3 and most newer ones) are decoded byte by byte, like the built-in
model's. Others use the tokenizer's incremental decoder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from osmosis_ai.errors import OsmosisError
from osmosis_ai.inference.chat import ReplyDecoder
from osmosis_ai.inference.template import TemplateError
from osmosis_ai.inference.tokenizer import Tokenizer
from osmosis_ai.inference.tool_calls import FormatName
from osmosis_ai.inference.tool_format_detection import detect_tool_template


class PretrainedChat:
    """The format of a model of transformers."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        *,
        tool_call_format: FormatName | None = None,
        note: Callable[[str], None] | None = None,
    ) -> None:
        if not tokenizer.is_fast:
            raise OsmosisError(f"`{tokenizer.name_or_path}` has no fast tokenizer, which serving it needs.")
        if not tokenizer.chat_template:
            raise OsmosisError(
                f"`{tokenizer.name_or_path}` has no chat template, so it cannot hold a conversation.",
                hint="train the instruct version of the model, or put a `chat_template.jinja` in its folder",
            )
        self._tokenizer = tokenizer
        self._byte_level = _byte_level(tokenizer)
        self._tool_template = detect_tool_template(
            self._apply,
            source=str(tokenizer.chat_template),
            has_token=lambda token: self.token_id(token) is not None,
            chosen=tool_call_format,
            note=note,
        )
        self.tool_calls = self._tool_template.calls

    @classmethod
    def load(
        cls,
        model_path: str | Path,
        *,
        tool_call_format: FormatName | None = None,
        note: Callable[[str], None] | None = None,
    ) -> PretrainedChat:
        """Load the tokenizer of a model by its name or from a Hugging Face folder; raises OsmosisError."""
        try:
            tokenizer = AutoTokenizer.from_pretrained(model_path)
            return cls(tokenizer, tool_call_format=tool_call_format, note=note)
        except (OSError, ValueError) as error:
            raise OsmosisError(f"the tokenizer of `{model_path}` cannot be loaded: {error}") from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
    ) -> str:
        """Return the text of a conversation; raises TemplateError."""
        fitted = [self._tool_template.fitted(message) for message in messages]
        return self._apply(fitted, tools, add_generation_prompt=add_generation_prompt)

    def encode(self, text: str) -> list[int]:
        """Return the tokens of ``text``, in which the model's special tokens are recognised."""
        ids: list[int] = self._tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def token_id(self, token: str) -> int | None:
        """Return the id of a token written as in the vocabulary, or None when there is none."""
        found: int | None = self._tokenizer.backend_tokenizer.token_to_id(token)
        return found

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that ``token`` stands for."""
        if self._byte_level:
            return self._byte_level.token_bytes(token)
        text: str = self._tokenizer.decode([token])
        return text.encode()

    def decoder(self) -> ReplyDecoder:
        """Start decoding one reply."""
        return self._byte_level.decoder() if self._byte_level else _StreamDecoder(self._tokenizer)

    def _apply(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
    ) -> str:
        try:
            text: str = self._tokenizer.apply_chat_template(
                list(messages),
                tools=list(tools) or None,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
            )
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise TemplateError(f"the chat template cannot render these messages: {error}") from error
        return text


class _StreamDecoder:
    """Incremental decoding by the tokenizer's own rules."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        from tokenizers.decoders import DecodeStream

        self._raw = tokenizer.backend_tokenizer
        self._stream = DecodeStream(skip_special_tokens=False)

    def feed(self, *tokens: int) -> str:
        return "".join(self._stream.step(self._raw, token) or "" for token in tokens)

    def finish(self) -> str:
        return ""


def _byte_level(tokenizer: PreTrainedTokenizerFast) -> Tokenizer | None:
    try:
        return Tokenizer(tokenizer.backend_tokenizer)
    except ValueError:
        return None
