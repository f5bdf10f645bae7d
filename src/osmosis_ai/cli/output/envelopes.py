"""The JSON that scripts read: every envelope's shape, and the one function that writes JSON.

An envelope is one line; it never holds NaN or an infinity, and a command's extra keys never
replace the contract's own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import date
from typing import Any

from osmosis_ai._version import __version__
from osmosis_ai.cli.output.results import (
    DetailResult,
    ListResult,
    MessageResult,
    OperationResult,
    Result,
    SectionedListResult,
)

SCHEMA_VERSION = 1


def dumps(value: Any) -> str:
    """Return ``value`` as one line of JSON, not escaped beyond what JSON asks for."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_encode)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        # A file name that is not UTF-8 holds lone surrogates; escaped they survive the trip.
        return json.dumps(value, allow_nan=False, separators=(",", ":"), default=_encode)
    return text


def _encode(value: Any) -> Any:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, date):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} has no JSON form")


def result_envelope(result: Result) -> dict[str, Any]:
    """Return the envelope of a command's result."""
    if isinstance(result, ListResult):
        return _with_extra(_page(result), result.extra)
    if isinstance(result, SectionedListResult):
        return _with_extra({name: _page(part) for name, part in result.sections.items()}, result.extra)
    if isinstance(result, DetailResult):
        return _with_extra({"data": dict(result.data)}, {})
    if isinstance(result, OperationResult):
        return _with_extra(_operation(result), result.extra, reserved=_OPERATION_KEYS)
    if isinstance(result, MessageResult):
        return _with_extra({"message": result.message}, result.extra)
    raise TypeError(f"a command returned {type(result).__name__}, which is not a result")


def error_envelope(
    *,
    command: str,
    code: str,
    message: str,
    details: Mapping[str, Any],
    cause: str,
    hint: str | None = None,
) -> dict[str, Any]:
    """Return the envelope of an error."""
    kept = dict(details)
    try:
        dumps(kept)
    except (TypeError, ValueError, RecursionError):
        kept = {"details_omitted": cause}
    error = {"code": code, "message": message, "details": kept}
    return {
        "schema_version": SCHEMA_VERSION,
        "command": command,
        "cli_version": __version__,
        "error": {**error, "hint": hint} if hint else error,
    }


def warning_envelope(message: str, code: str | None) -> dict[str, Any]:
    """Return the line a warning makes on stderr in JSON mode."""
    return {
        "schema_version": SCHEMA_VERSION,
        "cli_version": __version__,
        "warning": {"code": code, "message": message},
    }


_OPERATION_KEYS = frozenset({"status", "operation", "resource", "message", "next_steps_structured"})


def _page(result: ListResult) -> dict[str, Any]:
    items = [dict(item) for item in result.items]
    return {
        "items": items,
        "total_count": len(items) if result.total_count is None else result.total_count,
        "has_more": result.has_more,
        "next_offset": result.next_offset,
    }


def _operation(result: OperationResult) -> dict[str, Any]:
    optional = {
        "resource": dict(result.resource) if result.resource is not None else None,
        "message": result.message,
        "next_steps_structured": [dict(step) for step in result.next_steps_structured] or None,
    }
    present = {key: value for key, value in optional.items() if value is not None}
    return {"status": result.status, "operation": result.operation, **present}


def _with_extra(
    body: dict[str, Any], extra: Mapping[str, Any], *, reserved: frozenset[str] = frozenset()
) -> dict[str, Any]:
    taken = {"schema_version", *body, *reserved}
    further = {key: value for key, value in extra.items() if key not in taken}
    return {"schema_version": SCHEMA_VERSION, **body, **further}
