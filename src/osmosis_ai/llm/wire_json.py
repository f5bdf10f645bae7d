"""JSON as models and agents write it: fast for what is valid, lenient for what Python lets through.

A model can produce half of a surrogate pair, and Python's writers pass it on as ``\\ud83d``; orjson
refuses it both ways. Such a reply is rare and must not be lost: the standard library takes over.
"""

from __future__ import annotations

import json
from typing import Any

import orjson


def loads(content: bytes) -> Any:
    """Read JSON."""
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        try:
            return json.loads(content)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None


def dumps(value: Any) -> bytes:
    """Write compact JSON."""
    try:
        return orjson.dumps(value)
    except TypeError:
        try:
            return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
