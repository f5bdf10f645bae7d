from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from osmosis_ai.inference.catalog import built_in_model
from osmosis_ai.inference.chat_format import BuiltInChat
from osmosis_ai.training.engines.prompt_prefix_cache import KEPT, PromptPrefixCache


class CountingChat(BuiltInChat):
    """Counts how often the template runs."""

    rendered = 0

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
    ) -> str:
        self.rendered += 1
        return super().render(messages, tools, add_generation_prompt=add_generation_prompt)


def counting_chat() -> CountingChat:
    return CountingChat(built_in_model("osmosis/tiny").directory)


def asking(question: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": question}]


def tool(*parameters: str) -> dict[str, Any]:
    properties = {name: {"type": "integer"} for name in parameters}
    function = {"name": "multiply", "parameters": {"type": "object", "properties": properties}}
    return {"type": "function", "function": function}


def test_the_attempts_on_a_row_share_one_rendering() -> None:
    chat = counting_chat()
    prefix_cache = PromptPrefixCache(chat)
    read = [prefix_cache.read(asking("What is 2 * 3?"), [tool("a", "b")]) for _ in range(8)]
    assert chat.rendered == 1
    text = chat.render(asking("What is 2 * 3?"), [tool("a", "b")])
    assert set(read) == {(text, tuple(chat.encode(text)))}


def test_whatever_the_template_could_write_differently_is_another_opening() -> None:
    chat = counting_chat()
    prefix_cache = PromptPrefixCache(chat)
    asked: list[tuple[list[dict[str, Any]], list[dict[str, Any]]]] = [
        (asking("What is 2 * 3?"), []),
        (asking("What is 2 * 4?"), []),
        (asking("What is 2 * 3?"), [tool("a", "b")]),
        (asking("What is 2 * 3?"), [tool("b", "a")]),
    ]
    for messages, tools in asked:
        assert prefix_cache.read(messages, tools)[0] == chat.render(messages, tools)


def test_only_the_latest_are_remembered() -> None:
    chat = counting_chat()
    prefix_cache = PromptPrefixCache(chat)
    for number in range(KEPT + 1):
        prefix_cache.read(asking(f"What is 2 * {number}?"), [])
    prefix_cache.read(asking(f"What is 2 * {KEPT}?"), [])
    assert chat.rendered == KEPT + 1
    prefix_cache.read(asking("What is 2 * 0?"), [])
    assert chat.rendered == KEPT + 2
