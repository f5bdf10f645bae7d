"""Parse a judge's reply into a score, if its meaning is unambiguous.

The score is read from exactly one JSON object. Thoughts, code fences, prose and an enclosing object are ignored. The
parser
does not guess: it accepts no score from a word, a boolean, a string or a list, and refuses replies with several
objects or keys that give different scores.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from osmosis_ai.rubric.types import UnscoredReason

# No judge's answer is this long, and the search below is quadratic in the worst case.
_LONGEST_SEARCHED = 100_000
_MOST_STARTS = 500
_DEEPEST_WRAPPING = 3
_LONGEST_QUOTED = 120


class _ScoredTwice(dict[str, Any]):
    """An object that repeats the key ``score``; Python's reader would keep only the last value."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    twice = sum(key == "score" for key, _ in pairs) > 1
    return _ScoredTwice(pairs) if twice else dict(pairs)


# strict=False permits line breaks within strings, which many models write.
_DECODER = json.JSONDecoder(strict=False, object_pairs_hook=_object)
_START = re.compile(r"[{\[]")
_THOUGHTS = re.compile(r"<(?:think|thinking|reasoning|thought)>", re.IGNORECASE)
_END_OF_THOUGHTS = re.compile(r"</(?:think|thinking|reasoning|thought)>", re.IGNORECASE)
_REFUSAL = re.compile(
    r"^\W*(?:i['’]?m sorry|i am sorry|sorry,|i apologi[sz]e|unfortunately,? i|as an ai\b"
    r"|i (?:can(?: ?no|['’])t|am unable|am not able|won['’]t|will not|must decline|decline)\b"
    r"|i['’]m (?:unable|not able)\b)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """The judge's score, not yet checked against bounds, and its reasons."""

    score: float
    explanation: str


class ReplyError(ValueError):
    """A reply without a usable score."""

    def __init__(self, reason: UnscoredReason, problem: str, *, text: str = "") -> None:
        super().__init__(problem)
        self.reason: UnscoredReason = reason
        self.text = text


def read_completion(response: Mapping[str, Any]) -> ParsedReply:
    """Parse the verdict in a ``chat.completion`` object."""
    choices = response.get("choices")
    choice = _mapping(choices[0] if isinstance(choices, list) and choices else None)
    message = _mapping(choice.get("message"))
    text = _content(message.get("content"))
    refusal = message.get("refusal")
    if isinstance(refusal, str) and refusal.strip():
        raise ReplyError("refused", f"the judge refused: {_quoted(refusal)}.", text=refusal)
    cut = choice.get("finish_reason")
    if not text.strip():
        if cut == "content_filter":
            raise ReplyError("refused", "the provider's content filter held the reply back.")
        raise ReplyError("empty", "the reply did not include any content." + _cut_off(cut))
    try:
        return parse_reply(text)
    except ReplyError as error:
        if cut == "content_filter":
            raise ReplyError(
                "refused", "the provider's content filter cut the reply off.", text=text
            ) from None
        raise ReplyError(error.reason, f"{error}{_cut_off(cut)}", text=text) from None


def parse_reply(text: str) -> ParsedReply:
    """Parse the verdict in the text of a reply."""
    if not text.strip():
        raise ReplyError("empty", "the reply did not include any content.", text=text)
    whole = _decoded(text.strip())
    if isinstance(whole, dict | list):
        values = [whole]
    else:
        values = list(_values_within(_without_thoughts(text[-_LONGEST_SEARCHED:])))
    objects = [value for value in values if isinstance(value, dict)]
    holders = [holder for value in objects for holder in _holders(value, _DEEPEST_WRAPPING)]
    if not holders:
        raise _nothing_found(text, values, objects)
    if any(isinstance(holder, _ScoredTwice) for holder in holders):
        raise ReplyError("unparsable", "the reply's JSON object has 'score' more than once.", text=text)
    return _agreed([_verdict(holder, text) for holder in holders], text)


def _agreed(readings: list[ParsedReply | ReplyError], text: str) -> ParsedReply:
    """Return the single verdict of the readings; the last one if the same score is repeated."""
    verdicts = [reading for reading in readings if isinstance(reading, ParsedReply)]
    if len({verdict.score for verdict in verdicts}) > 1:
        raise ReplyError(
            "unparsable", "the reply holds several JSON objects with different scores.", text=text
        )
    if verdicts:
        return verdicts[-1]
    raise next(reading for reading in readings if isinstance(reading, ReplyError))


def _verdict(holder: Mapping[str, Any], text: str) -> ParsedReply | ReplyError:
    score, explanation = holder.get("score"), holder.get("explanation")
    if isinstance(score, bool) or not isinstance(score, int | float):
        return ReplyError("no_score", f"the reply lacks a numeric 'score'; it is {_kind(score)}.", text=text)
    try:
        number = float(score)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        return ReplyError("not_finite", f"the 'score' is not finite: {number}.", text=text)
    if not isinstance(explanation, str) or not explanation.strip():
        return ReplyError("unparsable", "the reply lacks a non-empty 'explanation'.", text=text)
    return ParsedReply(number, explanation.strip())


def _nothing_found(text: str, values: list[Any], objects: list[dict[str, Any]]) -> ReplyError:
    if objects:
        return ReplyError("no_score", "the reply's JSON object has no numeric 'score'.", text=text)
    if values:
        return ReplyError(
            "no_score", "the reply is a JSON list, not an object with a numeric 'score'.", text=text
        )
    if _REFUSAL.match(_without_thoughts(text)):
        return ReplyError("refused", f"the judge refused: {_quoted(text)}.", text=text)
    return ReplyError("unparsable", f"the reply is not valid JSON: {_quoted(text)}.", text=text)


def _holders(value: dict[str, Any], depth: int) -> Iterator[dict[str, Any]]:
    """Yield the outermost objects with a score: ``value`` itself, or those nested in it."""
    if "score" in value:
        yield value
    elif depth:
        for inner in value.values():
            if isinstance(inner, dict):
                yield from _holders(inner, depth - 1)


def _values_within(text: str) -> Iterator[dict[str, Any] | list[Any]]:
    """Yield the outermost JSON objects and lists in ``text``, from left to right."""
    position = 0
    for _ in range(_MOST_STARTS):
        start = _START.search(text, position)
        if start is None:
            return
        position = start.end()
        try:
            value, end = _DECODER.raw_decode(text, start.start())
        except (ValueError, RecursionError):
            continue
        position = end
        # "[1]" in prose is a footnote, and "{}" is empty; neither is an answer.
        items = value if isinstance(value, list) else [value]
        if any(isinstance(item, dict) and item for item in items):
            yield value


def _decoded(text: str) -> Any:
    """Parse all of ``text`` as JSON, including JSON inside a JSON string; None if it is not JSON."""
    for _ in range(2):
        try:
            value = _DECODER.decode(text.lstrip("\ufeff"))
        except (ValueError, RecursionError):
            return None
        if not isinstance(value, str):
            return value
        text = value
    return None


def _without_thoughts(text: str) -> str:
    """Return the text after the last thought, or before the first one if no text follows."""
    *thoughts, aloud = _END_OF_THOUGHTS.split(text)
    if thoughts and not aloud.strip():
        aloud = _THOUGHTS.split(text, maxsplit=1)[0]
    # An unterminated thought is not followed by an answer.
    return "" if _THOUGHTS.match(aloud.lstrip()) else aloud.strip()


def _content(content: object) -> str:
    """Return a message's text from a string or the text parts of a list."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        texts = (_mapping(part).get("text") for part in content)
        return "\n".join(text for text in texts if isinstance(text, str))
    return ""


def _cut_off(finish_reason: object) -> str:
    return " It was cut off at the model's limit of tokens." if finish_reason == "length" else ""


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _quoted(text: str) -> str:
    line = " ".join(text.split())
    return repr(line if len(line) <= _LONGEST_QUOTED else f"{line[:_LONGEST_QUOTED]}…")


def _kind(value: object) -> str:
    if value is None:
        return "missing or null"
    return {bool: "a boolean", str: "a string", list: "a list", dict: "an object"}.get(
        type(value), type(value).__name__
    )
