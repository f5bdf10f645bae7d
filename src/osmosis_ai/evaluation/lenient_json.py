"""JSON of a process that nobody vouches for: what can be read of it, and a sentence about the rest.

What comes out holds no number that JSON can not say and no half of a surrogate pair, so that every writer takes it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

_LONGEST_WHOLE_NUMBER = 300
"""Digits: a longer number fits no float (308), and Python reads none of more than 4,300."""
MOST_ITEMS = 100_000
"""Of a list that is read item by item; who reads a whole one takes no more of it."""
_LARGEST_EXACT = 2**53 - 1
_LARGEST_DRAWN = 1e300
_ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[dD][89a-fA-F][0-9a-fA-F]{2}|.)"
)
# A string that never ends goes to the end of the text: else each of its quotes would begin another search.
_PIECE = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)
_TEXT = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_WORD = re.compile(r"[^\s,:\[\]{}\"]+")
_SPACE = re.compile(r"[\s,:]+")


@dataclass
class ReadObject:
    """An object as far as it could be read."""

    members: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def as_text(value: Any) -> str | None:
    """Return a text that says something; None for everything else."""
    return value if isinstance(value, str) and value else None


def as_table(value: Any) -> Mapping[str, Any]:
    """Return an object; an empty one for everything else."""
    return value if isinstance(value, dict) else {}


def as_number(value: Any) -> float | None:
    """Return a number that can be counted with and drawn (sums and squares of larger ones are infinite); else None."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < _LARGEST_DRAWN else None


def read_object(content: bytes, *, listed: str) -> ReadObject:
    """Read the object that ``content`` holds, member by member where it is damaged or too deeply nested."""
    found = ReadObject()
    if not content.strip():
        found.problems.append("The file is empty.")
        return found
    text = _decoded(content, found.problems)
    try:
        whole = loads(text)
    except (ValueError, RecursionError):
        _read_members(text, listed, found)
        return found
    if isinstance(whole, dict):
        found.members = whole
    else:
        found.problems.append("The file holds JSON, but no object.")
    return found


def has_usual_numbers(value: Any) -> bool:
    """Tell whether every number of a JSON value is finite, and every whole one exact in any reader (RFC 8259, 6)."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            waiting.extend(each.values())
        elif isinstance(each, list):
            waiting.extend(each)
        elif isinstance(each, int):
            if abs(each) > _LARGEST_EXACT:
                return False
        elif isinstance(each, float) and not math.isfinite(each):
            return False
    return True


def loads(text: str) -> Any:
    """Read JSON; numbers that are none (NaN, infinities, 1e999) and endless ones come as text."""
    return _DECODER.decode(text)


def _finite(digits: str) -> float | str:
    number = float(digits)
    return number if math.isfinite(number) else digits


def _whole(digits: str) -> int | str:
    return int(digits) if len(digits) <= _LONGEST_WHOLE_NUMBER else digits


# One for all: a file may have a hundred thousand pieces.
_DECODER = json.JSONDecoder(parse_constant=str, parse_float=_finite, parse_int=_whole, strict=False)


def _decoded(content: bytes, problems: list[str]) -> str:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        problems.append("The file is not UTF-8 throughout: what is not is shown as \ufffd.")
        text = content.decode("utf-8-sig", "replace")
    # A search of C over the text; few texts need the second pass.
    if "\\ud" not in text and "\\uD" not in text:
        return text
    whole = _ESCAPE.sub(_without_half, text)
    if whole != text:
        problems.append("The file has halves of characters (lone surrogates): they are shown as \ufffd.")
    return whole


def _without_half(escape: re.Match[str]) -> str:
    found = escape[0]
    return "\\ufffd" if len(found) == 6 and found[2] in "dD" else found


def _read_members(text: str, listed: str, found: ReadObject) -> None:
    """Read what can be read of an object that can not be read in one piece."""
    start = _past_space(text, 0)
    if not text.startswith("{", start):
        found.problems.append("The file holds no JSON object.")
        return
    pieces = _pieces(text, start + 1)
    for name in pieces:
        key, value = _value(name), next(pieces, None)
        if value is None or not isinstance(key, str):
            break
        if key == listed and value.startswith("["):
            found.members[key] = list(_items(value, listed, found.problems))
            continue
        read = _value(value)
        if read is _UNREADABLE and _end(value, 0) is None:
            break
        if read is _UNREADABLE:
            found.problems.append(f"`{key[:40]}` could not be read: {_why(value)}.")
        else:
            found.members[key] = read
    if not text.rstrip().endswith("}") or _end(text, start) is None:
        found.problems.append("The file ends before the conversation does: it was cut off.")
    elif not found.problems:
        found.problems.append("The file is damaged: what could be read of it is shown.")


def _items(array: str, listed: str, problems: list[str]) -> Iterator[Any]:
    unreadable: list[tuple[int, str]] = []
    for number, piece in enumerate(islice(_pieces(array, 1), MOST_ITEMS + 1), 1):
        read = _value(piece)
        if read is not _UNREADABLE:
            yield read
        elif _end(piece, 0) is not None:  # of one that is cut off the file's end is told
            unreadable.append((number, piece))
    if unreadable:
        number, piece = unreadable[0]
        others = f", nor could {len(unreadable) - 1:,} others" if len(unreadable) > 1 else ""
        problems.append(f"Number {number} of `{listed}` could not be read: {_why(piece)}{others}.")


_UNREADABLE = object()


def _value(piece: str) -> Any:
    try:
        return loads(piece)
    except (ValueError, RecursionError):
        return _UNREADABLE


def _why(piece: str) -> str:
    try:
        loads(piece)
    except RecursionError:
        return "it is nested too deeply"
    except ValueError:
        pass
    return "it is no JSON"


def _past_space(text: str, place: int) -> int:
    found = _SPACE.match(text, place)
    return found.end() if found is not None else place


def _pieces(text: str, start: int) -> Iterator[str]:
    """Yield the values of an array, or the names and values of an object, that begins before ``start``."""
    place = start
    while True:
        place = _past_space(text, place)
        if place >= len(text) or text[place] in "]}":
            return
        end = _end(text, place)
        yield text[place:end]
        if end is None:
            return
        place = end


def _end(text: str, start: int) -> int | None:
    """Return where the value that begins at ``start`` ends; None where the text ends before it."""
    if text[start] not in "[{":
        found = (_TEXT if text[start] == '"' else _WORD).match(text, start)
        return found.end() if found is not None else None
    depth = 0
    for piece in _PIECE.finditer(text, start):
        if piece[0] in "[{":
            depth += 1
        elif piece[0] in "]}":
            depth -= 1
            if depth == 0:
                return piece.end()
    return None
