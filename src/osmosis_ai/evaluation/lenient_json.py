"""JSON from untrusted processes. The values contain no number that JSON cannot represent and no lone surrogate."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

# Longer integers fit no float (308 digits), and Python refuses more than 4,300.
_MAX_INTEGER_DIGITS = 300
_MAX_NUMBER = 1e300
_SURROGATE = re.compile("[\ud800-\udfff]")


def as_text(value: Any) -> str | None:
    """Return a nonempty string; None for everything else."""
    return value if isinstance(value, str) and value else None


def as_table(value: Any) -> Mapping[str, Any]:
    """Return an object; an empty one for everything else."""
    return value if isinstance(value, dict) else {}


def as_objects(value: Any) -> list[dict[str, Any]]:
    """Return the objects in a list; an empty list for everything else."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def as_number(value: Any) -> float | None:
    """Return a number whose sums and squares are finite; None for everything else."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < _MAX_NUMBER else None


def read_object(content: bytes) -> tuple[dict[str, Any], list[str]]:
    """Return the object in ``content``, empty without one, and the problems of the file."""
    problems: list[str] = []
    if not content.strip():
        return {}, ["The file is empty."]
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        problems.append("The file is not valid UTF-8: invalid bytes are shown as \ufffd.")
        text = content.decode("utf-8-sig", "replace")
    try:
        found = loads(text)
        # JSON can contain a lone surrogate as an escape, UTF-8 cannot. Pairs are one character by now.
        if "\\ud" in text or "\\uD" in text:
            written = json.dumps(found, ensure_ascii=False)
            if _SURROGATE.search(written):
                problems.append("The file contains lone surrogates: they are shown as \ufffd.")
                found = loads(_SURROGATE.sub("\ufffd", written))
    except RecursionError:
        return {}, [*problems, "The file is nested too deeply."]
    except ValueError:
        return {}, [*problems, "The file is not valid JSON."]
    if isinstance(found, dict):
        return found, problems
    return {}, [*problems, "The file contains JSON, but no object."]


def loads(text: str) -> Any:
    """Read JSON; NaN, infinities, 1e999 and very long integers become text."""
    return _DECODER.decode(text)


def _finite(digits: str) -> float | str:
    number = float(digits)
    return number if math.isfinite(number) else digits


def _integer(digits: str) -> int | str:
    return int(digits) if len(digits) <= _MAX_INTEGER_DIGITS else digits


_DECODER = json.JSONDecoder(parse_constant=str, parse_float=_finite, parse_int=_integer, strict=False)
