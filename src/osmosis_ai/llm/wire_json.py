"""Read and write JSON of models and agents: orjson, with the standard library as a lenient fallback.

A model can produce a lone surrogate, which Python writes as ``\\ud83d`` and orjson rejects in both directions. Such a
reply is rare and must not be lost.
"""

from __future__ import annotations

import json
from typing import Any

import orjson


def loads(content: bytes) -> Any:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        try:
            return json.loads(content)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None


def dumps(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:
        try:
            return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
