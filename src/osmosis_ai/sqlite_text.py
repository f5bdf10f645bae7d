"""Text looked for in SQLite without regard to case in every alphabet: its own ``LIKE`` knows ``a`` to ``z`` alone.

To fold a text in Python takes some ten times as long as ``LIKE`` looks at it. So ``LIKE`` leaves out what lacks the ASCII
of what is looked for, and of the rest only that is folded which has its first other letters, in one case or another.
"""

from __future__ import annotations

import re
import sqlite3
from collections import defaultdict
from collections.abc import Mapping
from functools import cache, lru_cache

HOLDS = "osmosis_holds"
"""The function that tells whether a text holds another; it needs :func:`like_pattern` beside it to be quick."""

ESCAPE = "\\"
_SPECIAL = re.compile(r"[\\%_]")
# With `ss`, which `ß` is to whoever writes it in capitals.
_BEYOND_ASCII = re.compile(r"(?:[^\0-\x7f]|[sS]{2})+")
_BEHIND_LETTERS = 0x1F000
"""No alphabet that has two cases goes on here."""
_FIRST = 4
_FEW_CASES = 4


def teach_holds(connection: sqlite3.Connection) -> None:
    """Have a connection know :data:`HOLDS`."""
    connection.create_function(HOLDS, 2, _holds, deterministic=True)


def bindable(text: str) -> str:
    """Return a text as SQLite takes it; what it can not take becomes what hardly any text has."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").replace("\0", "\ufffd")


def like_pattern(text: str) -> str:
    """Return the pattern of ``LIKE`` (with :data:`ESCAPE`) that fits whatever holds ``text``, and more."""
    known = _SPECIAL.sub(r"\\\g<0>", text)
    return f"%{_BEYOND_ASCII.sub('%', known)}%"


def _holds(text: str | None, wanted: str) -> bool:
    if text is None or wanted in text:
        return text is not None
    folded, letters = _known(wanted)
    for cases in letters:
        for case in cases:  # a generator would take longer than what it finds
            if case in text:
                break
        else:
            return False
    return folded in text.casefold()


@lru_cache
def _known(wanted: str) -> tuple[str, list[list[str]]]:
    """Return a text case-folded, and of the first letters of it that are not ASCII all cases they may be written in."""
    folded = wanted.casefold()
    letters = [_cases()[letter] for letter in dict.fromkeys(folded) if not letter.isascii()]
    return folded, [cases for cases in letters if len(cases) <= _FEW_CASES][:_FIRST]


@cache
def _cases() -> Mapping[str, list[str]]:
    """Return of every folded letter those that fold to it, or to several with it among them."""
    found = defaultdict[str, list[str]](list)
    for letter in map(chr, range(_BEHIND_LETTERS)):
        for folded in letter.casefold():
            found[folded].append(letter)
    return found
