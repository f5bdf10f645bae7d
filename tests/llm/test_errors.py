from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest

from osmosis_ai.llm.errors import error_from_reply, redact

SECRET = "sk-very-secret-0123456789"


def refusal(status: int, payload: Any, **headers: str) -> Any:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return error_from_reply(status, payload, named, model_path="openai/m", secrets=[SECRET])


@pytest.mark.parametrize(
    ("status", "payload", "category", "retryable"),
    [
        (401, {"error": {"message": "Incorrect API key"}}, "auth", False),
        (402, {"error": {"message": "Insufficient credits"}}, "auth", False),
        (403, {"error": {"message": "not allowed"}}, "auth", False),
        (404, {"error": {"message": "no such model"}}, "not_found", False),
        (400, {"error": {"message": "bad temperature"}}, "bad_request", False),
        (422, {"detail": [{"loc": ["body", "n"], "msg": "too big"}]}, "bad_request", False),
        (400, {"error": {"message": "x", "code": "context_length_exceeded"}}, "context_length", False),
        (400, {"message": "This model's maximum context length is 4096 tokens"}, "context_length", False),
        (400, {"error": "prompt is too long: 9 tokens > 8"}, "context_length", False),
        (408, {}, "timeout", True),
        (409, {}, "server", True),
        (429, {"error": {"message": "slow down"}}, "rate_limit", True),
        (429, {"error": {"message": "quota", "code": "insufficient_quota"}}, "rate_limit", False),
        (500, "<html><body>Internal <b>error</b></body></html>", "server", True),
        (501, {}, "server", False),
        (503, {}, "server", True),
        (504, {}, "timeout", True),
        (529, {"error": {"message": "overloaded"}}, "server", True),
    ],
)
def test_a_refusal_has_a_category_and_is_retried_only_when_that_can_help(
    status: int, payload: Any, category: str, retryable: bool
) -> None:
    error = refusal(status, payload)
    assert (error.category, error.retryable, error.status) == (category, retryable, status)


def test_the_provider_s_own_words_come_through_from_every_shape() -> None:
    assert refusal(400, {"error": {"message": "own words"}}).provider_message == "own words"
    assert refusal(400, {"error": "own words"}).provider_message == "own words"
    assert refusal(400, {"detail": "own words"}).provider_message == "own words"
    assert refusal(400, [{"error": {"message": "own words"}}]).provider_message == "own words"
    assert refusal(500, b"<p>own\n words</p>").provider_message == "own words"
    nested = {"error": {"message": "Provider returned error", "metadata": {"raw": "own words"}}}
    assert refusal(400, nested).provider_message == "Provider returned error: own words"
    assert (
        refusal(422, {"detail": [{"loc": ["body", "n"], "msg": "too big"}]}).provider_message
        == "body.n: too big"
    )


def test_a_page_of_unclosed_tags_is_read_in_linear_time() -> None:
    started = time.process_time()
    refusal(500, b"<" * (1 << 16))
    assert time.process_time() - started < 1


def test_the_provider_may_say_whether_to_try_again() -> None:
    assert refusal(500, {}, x_should_retry="false").retryable is False
    assert refusal(400, {}, x_should_retry="true").retryable is True


def test_a_key_is_in_no_part_of_an_error() -> None:
    error = refusal(401, {"error": {"message": f"key {SECRET} is wrong", "param": SECRET, "code": "x"}})
    shown = f"{error!r}{error}{error.provider_message}{error.body}{error.details}"
    assert SECRET not in shown
    assert "is wrong" in shown


def test_an_error_s_body_has_scalars_only() -> None:
    said = {"message": "bad", "type": SECRET, "param": {"k": SECRET}, "code": [SECRET]}
    assert refusal(400, {"error": said}).body == {"message": "bad", "type": "[redacted]"}
    assert refusal(400, {"error": {"code": 7, "param": None}}).body == {"code": 7, "param": None}


KEY = "abc/def+ghi=jkl0123456"


@pytest.mark.parametrize(
    "written",
    [
        KEY,
        quote(KEY, safe=""),
        "abc%2fdef%2bghi%3djkl0123456",
        "abc/def%2Bghi%3Djkl0123456",
        "".join(f"%{ord(character):02x}" for character in KEY),
        json.dumps(KEY.replace("/", "\\/")),
        json.dumps("".join(f"\\u{ord(character):04X}" for character in KEY)),
        quote(json.dumps({"url": KEY.replace("/", "\\/")})),
        KEY.replace("/", "&#x2F;").replace("+", "&#43;").replace("=", "&amp;#061;"),
    ],
)
def test_a_key_is_redacted_however_it_is_written(written: str) -> None:
    shown = redact(f"the key {written} is wrong", KEY)
    assert "[redacted]" in shown
    assert not any(part in shown for part in ("abc", "ghi", "0123", "61", "66")), shown


@pytest.mark.parametrize("key", ["a\\b\\\\c", "käse-€-😀"])
@pytest.mark.parametrize("write", [str, repr, json.dumps, quote])
def test_a_key_of_unusual_characters_is_redacted(key: str, write: Callable[[str], str]) -> None:
    assert redact(f"<{write(key)}>", key).strip("<>'\"") == "[redacted]"


@pytest.mark.parametrize("text", ["a", "abc/def+ghi=jkl012345", "\\", "\\u0061", "abc\\", "%", "&#0"])
def test_redaction_takes_linear_time(text: str) -> None:
    started = time.process_time()
    redact(text * ((1 << 20) // len(text)), KEY)
    redact(KEY[:3] + text * ((1 << 20) // len(text)), KEY)
    assert time.process_time() - started < 2


@pytest.mark.parametrize(
    "text",
    [
        "Incorrect API key provided: sk-abcd****wxyz.",
        "header Authorization: Bearer abcdefghijk",
        "gsk_0123456789abcdef",
        "AIzaSyA01234567890123456789",
    ],
)
def test_anything_shaped_like_a_key_is_redacted(text: str) -> None:
    assert "[redacted]" in redact(text)


def test_ordinary_words_are_left_alone() -> None:
    text = "max_tokens must be at most 4096; the bearer of this key-value pair asked for task-list"
    assert redact(text) == text
