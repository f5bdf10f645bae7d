"""Safe display of untrusted text."""

from __future__ import annotations

import json
from functools import cache

# Zero width, directions (Unicode Standard Annex 9), separators of lines, and tags, which no screen shows.
_RANGES = (
    (0x7F, 0x9F),
    (0xAD, 0xAD),
    (0x61C, 0x61C),
    (0x180E, 0x180E),
    (0x200B, 0x200F),
    (0x2028, 0x202E),
    (0x2060, 0x206F),
    (0xD800, 0xDFFF),
    (0xFEFF, 0xFEFF),
    (0xFFF9, 0xFFFB),
    (0xE0000, 0xE007F),
)
_CONTROLS = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\t\n"}
UNSEEN = {code: f"‹U+{code:04X}›" for first, last in _RANGES for code in range(first, last + 1)}
"""Marks of invisible and direction-changing characters other than C0 controls, for ``str.translate``."""
_MARKS = {**_CONTROLS, **UNSEEN}


@cache
def unseen_in_json() -> dict[int, str]:
    """Escape these characters as in JSON, so that a page contains exact JSON."""
    return {code: json.dumps(chr(code))[1:-1].replace("\x7f", "\\u007f") for code in UNSEEN}


def visible(text: str) -> str:
    """Return text with invisible and direction-changing characters as marks."""
    # Two passes of C over the text; few texts need the second.
    shown = text.replace("\r\n", "\n")
    return shown if shown.isascii() and shown.isprintable() else shown.translate(_MARKS)
