from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osmosis_ai.rubric.reply import ParsedReply, ReplyError, parse_reply, read_completion

GOOD = '{"score": 0.5, "explanation": "fine"}'

finite = st.floats(allow_nan=False, allow_infinity=False)
reasons = st.text(min_size=1).filter(str.strip)
# Prose that holds no JSON object with anything in it, and opens no thoughts.
prose = st.text(alphabet=st.characters(exclude_characters='{}<"[]'))
json_values = st.recursive(
    st.none() | st.booleans() | finite | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def reply(score: object, explanation: object) -> str:
    return json.dumps({"score": score, "explanation": explanation})


@given(score=finite, explanation=reasons, before=prose, after=prose, ascii_only=st.booleans())
def test_the_score_is_found_whatever_prose_is_around_it(
    score: float, explanation: str, before: str, after: str, ascii_only: bool
) -> None:
    said = json.dumps({"score": score, "explanation": explanation}, ensure_ascii=ascii_only)
    assert parse_reply(f"{before}{said}{after}") == ParsedReply(score, explanation.strip())


@given(score=finite, explanation=reasons, thoughts=st.text().filter(lambda text: "</" not in text))
def test_thoughts_and_fences_do_not_matter(score: float, explanation: str, thoughts: str) -> None:
    said = json.dumps({"explanation": explanation, "score": score}, indent=2)
    # A thought may hold a draft with another score.
    text = f"<think>{thoughts} {reply(0.123, 'draft')}</think>\nHere:\n```JSON\n{said}\n```\n"
    if "</" not in explanation:
        assert parse_reply(text).score == score


@given(text=st.text())
def test_any_text_is_a_verdict_with_a_finite_score_or_a_named_reason(text: str) -> None:
    outcome: ParsedReply | ReplyError
    try:
        outcome = parse_reply(text)
    except ReplyError as error:
        outcome = error
    if isinstance(outcome, ParsedReply):
        assert abs(outcome.score) < float("inf")
    else:
        assert outcome.reason in ("unparsable", "refused", "no_score", "not_finite", "empty")
        assert str(outcome).endswith(".")


@given(value=json_values, explanation=reasons)
def test_a_score_is_a_number_and_never_made_of_something_else(value: Any, explanation: str) -> None:
    text = reply(value, explanation)
    if isinstance(value, float):
        assert parse_reply(text).score == value
    else:
        with pytest.raises(ReplyError, match="numeric 'score'"):
            parse_reply(text)


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        f"\ufeff{GOOD}",
        f"```json\n{GOOD}\n```",
        f"Sure! {GOOD} Hope this helps.",
        f"<think>maybe {{'score': 1}}</think>{GOOD}",
        f"the template opened the thoughts</think>\n{GOOD}",
        f"{GOOD}\n<think>afterthought {{}}</think>",
        json.dumps({"judgement": {"result": json.loads(GOOD)}, "note": [1]}),
        json.dumps(GOOD),
        '{"score": 0.5, "explanation": "a raw\nline break"}',
        f"As said in [1] and {{}}: {GOOD}",
        f"{GOOD}\n\nSo, in JSON: {GOOD}",
        f'{{"score": <number>, "explanation": "<why>"}} filled in: {GOOD}',
        f'{{"score": "about a half", "explanation": "draft"}} or rather {GOOD}',
        '{"score": 5e-1, "explanation": "fine", "confidence": {"score": 0.9, "explanation": "inner"}}',
    ],
)
def test_what_is_plain_is_recovered(text: str) -> None:
    assert parse_reply(text).score == 0.5


@pytest.mark.parametrize(
    ("text", "reason", "words"),
    [
        ("", "empty", "did not include any content"),
        ("I would give it a seven.", "unparsable", "not valid JSON: 'I would give it a seven.'"),
        ("0.8", "unparsable", "not valid JSON"),
        (GOOD[:-1], "unparsable", "not valid JSON"),
        ("<think>still thinking " + GOOD, "unparsable", "not valid JSON"),
        (f"[{GOOD}]", "no_score", "JSON list"),
        ('{"grade": 1, "explanation": "x"}', "no_score", "no numeric 'score'"),
        (reply(True, "x"), "no_score", "numeric 'score'; it is a boolean"),
        (reply("0.5", "x"), "no_score", "numeric 'score'; it is a string"),
        (reply(float("nan"), "x"), "not_finite", "not finite: nan"),
        ('{"score": 1e999, "explanation": "x"}', "not_finite", "not finite: inf"),
        ('{"score": 1' + "0" * 400 + ', "explanation": "x"}', "not_finite", "not finite"),
        ('{"score": 0.5}', "unparsable", "'explanation'"),
        (reply(0.5, " "), "unparsable", "'explanation'"),
        (f"First {GOOD}, then {reply(0.9, 'better')}", "unparsable", "several JSON objects with different"),
        ('{"score": 0.9, "explanation": "x", "score": 0.1}', "unparsable", "'score' more than once"),
        (f'{GOOD} {{"a": {{"score": 0, "score": 0.5, "explanation": "x"}}}}', "unparsable", "more than once"),
        ("I'm sorry, but I can't help with that.", "refused", "refused: \"I'm sorry"),
        ("<think>hm</think>I must decline.", "refused", "refused"),
    ],
)
def test_what_is_not_plain_is_refused_with_the_reason(text: str, reason: str, words: str) -> None:
    with pytest.raises(ReplyError) as caught:
        parse_reply(text)
    assert caught.value.reason == reason
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 200_000,
        "{" * 200_000,
        '{"a":' * 100_000,
        '{"a": "' * 60_000,
        "<think>" * 100_000,
        '{"score": ' + "9" * 50_000,
    ],
)
def test_a_hostile_reply_overflows_no_stack(text: str) -> None:
    with pytest.raises(ReplyError):
        parse_reply(text)


def completion(content: object, finish_reason: str = "stop", **message: object) -> dict[str, Any]:
    return {"choices": [{"message": {"content": content, **message}, "finish_reason": finish_reason}]}


def test_a_reply_in_parts_is_joined() -> None:
    parts = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": GOOD}]
    assert read_completion(completion(parts)).score == 0.5


@pytest.mark.parametrize(
    ("response", "reason", "words"),
    [
        (completion(None), "empty", "did not include any content"),
        ({"choices": []}, "empty", "did not include any content"),
        (completion(None, refusal="I will not judge this."), "refused", "I will not judge this."),
        (completion(None, "content_filter"), "refused", "content filter"),
        (completion(GOOD[:-5], "content_filter"), "refused", "content filter"),
        (completion(GOOD[:-5], "length"), "unparsable", "cut off at the model's limit of tokens"),
        (completion("", "length"), "empty", "cut off at the model's limit of tokens"),
    ],
)
def test_a_provider_that_holds_a_reply_back_is_quoted(
    response: dict[str, Any], reason: str, words: str
) -> None:
    with pytest.raises(ReplyError) as caught:
        read_completion(response)
    assert caught.value.reason == reason
    assert words in str(caught.value)
