"""No secret value leaves a sink: logs, stored errors and replies pass through here.

Only text is blanked: a structure is walked and its texts are blanked one by one, since a blank in serialized
JSON could end the document (a secret of `true`, or of digits). So what JSON writes without quotes can not be
hidden, and what is too short is not: :func:`why_not_hidden` says so where a value is set.

All places where a value occurs are found first and then blanked together, so that values which contain or
overlap one another leave no rest behind, and text put in for one value is never taken for another. A text may have been
cut in the midst of a value: what it ends with is blanked, too, where a value begins so.
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
# A value of several lines is also hidden line by line, since logs are; short lines ("}", "EOF") are no secrets.
_SHORTEST_LINE = 8
# Errors are cut at a length by programs that know no secrets. Less than this of a value gives nothing away.
_SHORTEST_BEGINNING = 8
# Arguments of a tool are JSON in JSON, and what it answers may be JSON once more.
_JSON_IN_JSON = 3
_JSON_WORDS = frozenset({"true", "false", "null"})
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(NaN|Infinity)")


class Redactor:
    """Blanks the given values, also as JSON (in JSON), Python, HTML or a URL would spell them."""

    def __init__(self, values: Iterable[str] = (), *, shortest: int = SHORTEST_CHARACTERS) -> None:
        self._shortest = shortest
        self._spellings: tuple[str, ...] = ()
        self.add(values)

    def __repr__(self) -> str:
        return f"Redactor({len(self._spellings)} spellings)"

    def add(self, values: Iterable[str]) -> None:
        """Also blank ``values`` from now on."""
        found = {spelling for value in set(values) for spelling in _spellings(value, self._shortest)}
        self._spellings = tuple({*self._spellings, *found})

    def text(self, text: str) -> str:
        """Return ``text`` with every secret blanked."""
        spans = _merged(sorted(self._occurrences(text)))
        pieces, end = [], 0
        for start, stop in spans:
            pieces += [text[end:start], REDACTED]
            end = stop
        return "".join([*pieces, text[end:]]) if pieces else text

    def in_pieces(self, texts: Iterable[str]) -> Iterator[str]:
        """Yield, piece by piece, what :meth:`text` returns of all ``texts`` as one; of them only a piece is kept at a time."""
        rest, blanked = "", -1
        for text in texts:
            rest += text
            # What begins before it is in `rest` to its end, however a value is spelled.
            end = max(0, len(rest) - max(map(len, self._spellings), default=1) + 1)
            piece, blanked = self._blanked(rest, blanked, end, self._whole(rest))
            yield piece
            rest = rest[end:]
        yield self._blanked(rest, blanked, len(rest), self._occurrences(rest))[0]

    def _blanked(self, text: str, before: int, end: int, found: Iterable[tuple[int, int]]) -> tuple[str, int]:
        """Return what is said of ``text`` up to ``end``, and how far behind it the last blank reaches."""
        said, at = [], 0
        spans = sorted(span for span in found if span[0] < end)
        for start, stop in _merged([(-1, before), *spans] if before >= 0 else spans):
            said += [text[at : max(at, start)], REDACTED if start >= 0 else ""]
            at = stop
        return "".join([*said, text[at:end]]), at - end if at >= end and (said or before >= 0) else -1

    def tree(self, value: Any) -> Any:
        """Return a JSON value with every secret blanked in its texts and keys."""
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
    """Return why a secret of this value would show in logs and results, or None when it is hidden everywhere."""
    if value in _JSON_WORDS:
        return "it is a word of JSON (true, false, null)"
    if len(value) < SHORTEST_CHARACTERS:
        return f"it has fewer than {SHORTEST_CHARACTERS} characters"
    if _NUMBER.fullmatch(value):
        return "it is a number"
    return None


def exposure_warnings(values: Mapping[str, str]) -> list[str]:
    """Return one sentence for each secret, by name, whose value can not be hidden; none repeats a value."""
    return [
        f"the value of {name} can not be hidden in logs and results: {reason}."
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
    """Return where in ``text`` the beginning of ``spelling`` stands that the text ends with."""
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
    """Join spans, sorted by their start, that overlap or touch."""
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


def clean_json(content: bytes, redactor: Redactor) -> bytes:
    """Return a document of JSON without secrets; byte for byte as it was where it has none."""
    import orjson

    document = orjson.loads(content)
    try:
        clean = redactor.tree(document)
        if clean == document:
            return content
        # What stood in a line of a file stays in one.
        return orjson.dumps(clean, option=orjson.OPT_INDENT_2 if b"\n" in content.strip() else None)
    except (RecursionError, TypeError):  # orjson writes 254 levels, and reads more
        raise ValueError("it is nested too deeply") from None
