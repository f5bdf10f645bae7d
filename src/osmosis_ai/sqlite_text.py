"""Case-insensitive text search in SQLite for every alphabet; ``LIKE`` ignores case only from ``a`` to ``z``.

Case-folding a text in Python takes about ten times as long as searching it with ``LIKE``. So ``LIKE`` first excludes
the texts that lack the ASCII characters of the search text, and only texts with its first other letters, in any case,
are folded.
"""

from __future__ import annotations

import re
import sqlite3
from collections import defaultdict
from collections.abc import Mapping
from functools import cache, lru_cache

# The SQL function that returns whether a text contains another; combine it with :func:`like_pattern` for speed.
HOLDS = "osmosis_holds"
ESCAPE = "\\"
_SPECIAL = re.compile(r"[\\%_]")
# Includes `ss`, because `ß` in capitals is `SS`.
_BEYOND_ASCII = re.compile(r"(?:[^\0-\x7f]|[sS]{2})+")
_BEHIND_LETTERS = 0x1F000  # no alphabet beyond this code point has two cases
_FIRST, _FEW_CASES = 4, 4


def teach_holds(connection: sqlite3.Connection) -> None:
    """Register :data:`HOLDS` on a connection."""
    connection.create_function(HOLDS, 2, _holds, deterministic=True)


def bindable(text: str) -> str:
    """Return a text that SQLite accepts; characters it does not accept become one that hardly occurs in texts."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").replace("\0", "\ufffd")


def like_pattern(text: str) -> str:
    """Return a ``LIKE`` pattern (with :data:`ESCAPE`) that matches at least every text that contains ``text``."""
    known = _SPECIAL.sub(r"\\\g<0>", text)
    return f"%{_BEYOND_ASCII.sub('%', known)}%"


def _holds(text: str | None, wanted: str) -> bool:
    if text is None or wanted in text:
        return text is not None
    folded, letters = _known(wanted)
    for cases in letters:
        for case in cases:  # a generator would be slower than what it saves
            if case in text:
                break
        else:
            return False
    return folded in text.casefold()


@lru_cache
def _known(wanted: str) -> tuple[str, list[list[str]]]:
    """Return a case-folded text, and all case variants of its first letters that are not ASCII."""
    folded = wanted.casefold()
    letters = [_cases()[letter] for letter in dict.fromkeys(folded) if not letter.isascii()]
    return folded, [cases for cases in letters if len(cases) <= _FEW_CASES][:_FIRST]


@cache
def _cases() -> Mapping[str, list[str]]:
    """Return, for each folded letter, the letters that fold to it or to a sequence that contains it."""
    found = defaultdict[str, list[str]](list)
    for letter in map(chr, range(_BEHIND_LETTERS)):
        for folded in letter.casefold():
            found[folded].append(letter)
    return found
