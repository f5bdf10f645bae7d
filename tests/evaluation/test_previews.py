from __future__ import annotations

from typing import Any

import pytest

from osmosis_ai.evaluation.previews import PREVIEW_CHARS, Previews, previews_of
from osmosis_ai.redaction import Redactor

NOTHING = Redactor()


def said(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def test_the_first_question_and_the_last_answer_in_words_are_shown_in_a_line() -> None:
    messages = [
        said("system", "be brief"),
        said("user", "  two\n\ttimes   two? "),
        said("assistant", "four"),
        said("user", "sure?"),
        said("assistant", [{"type": "output_text", "text": "yes,"}, {"type": "text", "text": "four"}]),
        said("assistant", None),
        said("tool", "42"),
    ]
    assert previews_of(messages, NOTHING) == Previews("two times two?", "yes, four")


def test_of_an_agent_that_left_nothing_its_prompt_is_shown() -> None:
    assert previews_of([], NOTHING, prompt=[said("user", "hi")]) == Previews("hi", None)
    assert previews_of([], NOTHING) == Previews()


@pytest.mark.parametrize("odd", [None, 3, {"text": "x"}, [3, {"type": "image"}], "", " \n", [{"text": None}]])
def test_what_is_no_text_is_passed_over(odd: Any) -> None:
    shown = previews_of([said("user", odd), said("user", "then"), {"role": odd}], NOTHING)
    assert shown.input == "then"


def test_a_preview_is_160_characters_and_utf_8() -> None:
    shown = previews_of([said("user", "\ud800" + "x" * 5_000_000)], NOTHING).input
    assert shown is not None and len(shown) == PREVIEW_CHARS and shown.endswith("x…")
    assert shown.encode()
    assert previews_of([said("user", "x" * PREVIEW_CHARS)], NOTHING).input == "x" * PREVIEW_CHARS


@pytest.mark.parametrize("before", [0, 150, 500, 4090, 4600])
def test_a_secret_is_in_no_preview_wherever_it_stands(before: int) -> None:
    secret = "canary-1234567890"
    text = "x" + " " * before + secret + " and on " * 3000
    shown = previews_of([said("user", text), said("assistant", text)], Redactor([secret]))
    for line in (shown.input, shown.output):
        assert line is None or "canary" not in line
