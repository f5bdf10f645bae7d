"""Read secret values from a file of `NAME=value` lines. Errors show the number of a line, never its text."""

from __future__ import annotations

import re
import sys

from osmosis_ai.errors import OsmosisError
from osmosis_ai.files import expanded

_LINE = re.compile(r"""(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(?:'(.*)'|"(.*)"|((?!['"]).*))""")
MAX_SECRET_BYTES = 64 * 1024


def value_problem(value: object) -> str | None:
    """Return why ``value`` cannot be a secret's value, without repeating it, or None."""
    if not isinstance(value, str) or not value:
        return "must be a non-empty string"
    if "\0" in value:
        return "must not contain a NUL character"
    if len(value.encode("utf-8", "replace")) > MAX_SECRET_BYTES:
        return f"must not be longer than {MAX_SECRET_BYTES // 1024} KiB"
    return None


def read_secrets_file(source: str) -> dict[str, str]:
    shown = "standard input" if source == "-" else source
    values: dict[str, str] = {}
    for number, line in enumerate(_read(source, shown).splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        match = _LINE.fullmatch(stripped)
        if match is None or "\0" in stripped:
            raise OsmosisError(
                f"Line {number} of {shown} is not `NAME=value` (one line for each value, quotes in pairs).",
                details={"line": number},
            )
        values[match[1]] = match[2] or match[3] or match[4] or ""
    return values


def _read(source: str, shown: str) -> str:
    try:
        data = sys.stdin.buffer.read() if source == "-" else expanded(source).read_bytes()
    except FileNotFoundError:
        raise OsmosisError(f"Secrets file not found: {shown}") from None
    except OSError as error:
        raise OsmosisError(f"Cannot read secrets file {shown}: {error.strerror}.") from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise OsmosisError(f"Cannot read secrets file {shown}: it is not UTF-8.") from None
