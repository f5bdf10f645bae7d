"""Redact secrets in logs, stored errors and replies.

Only text is redacted: a structure is walked and its texts are redacted one by one, because a replacement in serialized
JSON could break the document (a secret of `true`, or of digits). So values that JSON writes without quotes cannot be
hidden, and values that are too short are not; :func:`why_not_hidden` reports both where a value is set.

All occurrences of values are found first and then replaced together, so that values that contain or overlap one another
leave no remainder, and a replacement is never mistaken for another value. A text may be cut off inside a value, so the
beginning of a value at the end of a text is also redacted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from typing import Any
from urllib.parse import quote, quote_plus

REDACTED = "[REDACTED]"
SHORTEST_CHARACTERS = 6
# Logs are redacted line by line, so each line of a multi-line value is hidden; short lines ("}", "EOF") are not secret.
_SHORTEST_LINE = 8
# Programs that know no secrets cut errors at a length. A shorter beginning than this reveals nothing.
_SHORTEST_BEGINNING = 8
# Arguments of a tool are JSON in JSON, and its result may contain another level.
_JSON_IN_JSON = 3
_JSON_WORDS = frozenset({"true", "false", "null"})
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(NaN|Infinity)")


class Redactor:
    """Redacts the given values, also as written in JSON (in JSON), Python, HTML or a URL."""

    def __init__(self, values: Iterable[str] = (), *, shortest: int = SHORTEST_CHARACTERS) -> None:
        self._shortest = shortest
        self._spellings: tuple[str, ...] = ()
        # Matches the beginning of every spelling: most texts have none.
        self._beginning = re.compile("(?!)")
        self.add(values)

    def __repr__(self) -> str:
        return f"Redactor({len(self._spellings)} spellings)"

    def add(self, values: Iterable[str]) -> None:
        """Also redact ``values`` from now on."""
        found = {spelling for value in set(values) for spelling in _spellings(value, self._shortest)}
        self._spellings = tuple({*self._spellings, *found})
        beginnings = {spelling[:_SHORTEST_BEGINNING] for spelling in self._spellings}
        self._beginning = re.compile("|".join(map(re.escape, beginnings)) or "(?!)")

    def text(self, text: str) -> str:
        """Return ``text`` with every secret redacted."""
        if self._beginning.search(text) is None:
            return text
        spans = _merged(sorted(self._occurrences(text)))
        pieces, end = [], 0
        for start, stop in spans:
            pieces += [text[end:start], REDACTED]
            end = stop
        return "".join([*pieces, text[end:]]) if pieces else text

    def in_pieces(self, texts: Iterable[str]) -> Iterator[str]:
        """Yield the result of :meth:`text` on the joined ``texts``, keeping only one piece in memory."""
        rest, blanked = "", -1
        for text in texts:
            rest += text
            # Any value that starts before this position is complete in `rest`, in every spelling.
            end = max(0, len(rest) - max(map(len, self._spellings), default=1) + 1)
            piece, blanked = self._blanked(rest, blanked, end, self._whole(rest))
            yield piece
            rest = rest[end:]
        yield self._blanked(rest, blanked, len(rest), self._occurrences(rest))[0]

    def _blanked(self, text: str, before: int, end: int, found: Iterable[tuple[int, int]]) -> tuple[str, int]:
        """Return the redacted ``text`` up to ``end``, and how far the last replacement extends beyond it."""
        said, at = [], 0
        spans = sorted(span for span in found if span[0] < end)
        for start, stop in _merged([(-1, before), *spans] if before >= 0 else spans):
            said += [text[at : max(at, start)], REDACTED if start >= 0 else ""]
            at = stop
        return "".join([*said, text[at:end]]), at - end if at >= end and (said or before >= 0) else -1

    def tree(self, value: Any) -> Any:
        """Return a JSON value with every secret redacted in its texts and keys."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(key)): self.tree(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.tree(item) for item in value]
        if value is None or isinstance(value, (bool, int, float)):
            return value
        return self.text(str(value))

    def _occurrences(self, text: str) -> Iterator[tuple[int, int]]:
        yield from self._whole(text)
        for spelling in self._spellings:
            cut = _cut_off(text, spelling)
            if cut is not None:
                yield cut, len(text)

    def _whole(self, text: str) -> Iterator[tuple[int, int]]:
        for spelling in self._spellings:
            start = text.find(spelling)
            while start >= 0:
                yield start, start + len(spelling)
                start = text.find(spelling, start + 1)


def why_not_hidden(value: str) -> str | None:
    """Return why a secret with this value would be visible in logs and results, or None."""
    if value in _JSON_WORDS:
        return "it is a word of JSON (true, false, null)"
    if len(value) < SHORTEST_CHARACTERS:
        return f"it has fewer than {SHORTEST_CHARACTERS} characters"
    if _NUMBER.fullmatch(value):
        return "it is a number"
    return None


def exposure_warnings(values: Mapping[str, str]) -> list[str]:
    """Return a sentence for each secret whose value cannot be hidden; none contains a value."""
    return [
        f"the value of {name} cannot be hidden in logs and results: {reason}."
        for name, value in values.items()
        if (reason := why_not_hidden(value)) is not None
    ]


def _spellings(value: str, shortest: int) -> Iterator[str]:
    if not value or len(value) < shortest:
        return
    yield from _escapings(value)
    lines = [line.strip() for line in value.splitlines()]
    if len(lines) > 1:
        for line in lines:
            if len(line) >= _SHORTEST_LINE:
                yield from _escapings(line)


def _cut_off(text: str, spelling: str) -> int | None:
    """Return the position in ``text`` of a beginning of ``spelling`` that ends the text."""
    anchor = spelling[:_SHORTEST_BEGINNING]
    start = text.find(anchor, max(0, len(text) - len(spelling) + 1))
    while start >= 0:
        if spelling.startswith(text[start:]):
            return start
        start = text.find(anchor, start + 1)
    return None


def _escapings(text: str) -> Iterator[str]:
    found = {text, repr(text)[1:-1], escape(text), escape(text, quote=False)}
    for _ in range(_JSON_IN_JSON):
        found |= {json.dumps(each, ensure_ascii=ascii)[1:-1] for each in found for ascii in (True, False)}
    yield from found
    yield quote(text, safe="", errors="replace")
    yield quote_plus(text, errors="replace")


def _merged(spans: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Merge overlapping and adjacent spans, which are sorted by their start."""
    current: tuple[int, int] | None = None
    for start, stop in spans:
        if current and start <= current[1]:
            current = current[0], max(current[1], stop)
        else:
            if current:
                yield current
            current = start, stop
    if current:
        yield current


def clean_json(content: bytes, redactor: Redactor, *, document: Any = None) -> bytes:
    """Return a JSON document with secrets redacted; unchanged byte for byte if it has none.

    ``document`` is the parsed content, for a caller that has it already.
    """
    import orjson

    document = orjson.loads(content) if document is None else document
    try:
        clean = redactor.tree(document)
        if clean == document:
            return content
        # A single-line document stays on one line.
        return orjson.dumps(clean, option=orjson.OPT_INDENT_2 if b"\n" in content.strip() else None)
    except (RecursionError, TypeError):  # orjson writes 254 levels but reads more
        raise ValueError("it is nested too deeply") from None
