"""The rules for hostile text: what a model, a dataset or a file name says is shown, and does nothing."""

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
"""The marks of characters that are not seen, or that turn others around, but for C0 controls; as ``str.translate`` wants."""
_MARKS = {**_CONTROLS, **UNSEEN}


@cache
def unseen_in_json() -> dict[int, str]:
    """Return the same characters as JSON escapes them, so that a page can hold a text of JSON exactly."""
    return {code: json.dumps(chr(code))[1:-1].replace("\x7f", "\\u007f") for code in UNSEEN}


def visible(text: str) -> str:
    """Return ``text`` with characters that are not seen, or that turn others around, as marks."""
    # Two passes of C over the text; few texts need the second.
    shown = text.replace("\r\n", "\n")
    return shown if shown.isascii() and shown.isprintable() else shown.translate(_MARKS)
