"""TOML texts: parse them, find the lines of keys, and write them. A line number is either correct or None.

The TOML parser itself splits the text into statements: lines are added until they parse on their own, which a line
inside a multi-line value never does. So nothing in a string, a comment or an array can be mistaken for a key.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from osmosis_ai.errors import OsmosisError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

KeyPath = tuple[str, ...]

_POSITION = re.compile(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)$")
_EXCERPT_WIDTH = 100


def parse_toml(text: str, shown_path: str) -> dict[str, Any]:
    """Parse ``text``; errors call the file ``shown_path``."""
    try:
        document: dict[str, Any] = tomllib.loads(text)
    except ValueError as error:  # A plain ValueError: an integer has too many digits.
        raise _syntax_error(text, shown_path, str(error)) from None
    except RecursionError:
        raise OsmosisError(f"Invalid TOML in {shown_path}: values are nested too deeply.") from None
    return document


def key_lines(text: str) -> dict[KeyPath, int]:
    """Return the line (from 1) of each table and key of ``text``, except those inside arrays of tables."""
    found: dict[KeyPath, int] = {}
    arrays: set[KeyPath] = set()
    table: KeyPath | None = ()
    for line, statement, parsed in _statements(text):
        paths = list(_paths(parsed))
        if statement.lstrip().startswith("["):
            table = paths[-1]
            if statement.lstrip().startswith("[["):
                arrays.add(table)
            if arrays.intersection(paths):
                table = None
                continue
            found[table] = line
            paths = paths[:-1]
        elif table is not None:
            paths = [table + path for path in paths]
        else:
            continue
        for path in paths:
            found.setdefault(path, line)
    return found


def _statements(text: str) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield each statement (a header, or a key with its value): first line, text, parsed value."""
    statement, started = "", 1
    for number, line in enumerate(_lines(text), start=1):
        statement += line + "\n"
        try:
            yield started, statement, tomllib.loads(statement)
        except ValueError:
            continue
        statement, started = "", number + 1


def _lines(text: str) -> list[str]:
    # TOML has two line endings; str.splitlines splits at ten, some of which may occur inside a string.
    return text.replace("\r\n", "\n").split("\n")


def _paths(value: Any, prefix: KeyPath = ()) -> Iterator[KeyPath]:
    """Yield the paths of all keys, those of a table before its own."""
    for key, inner in value.items() if isinstance(value, dict) else ():
        yield (*prefix, key)
        yield from _paths(inner, (*prefix, key))


def _syntax_error(text: str, shown_path: str, problem: str) -> OsmosisError:
    position = _POSITION.search(problem)
    sentence = problem[: position.start()] if position else problem
    headline = f"Invalid TOML in {shown_path}: {sentence[:1].lower()}{sentence[1:]}"
    if position is None:
        return OsmosisError(headline, details={"path": shown_path})
    lines = _lines(text)
    if position[1]:
        line, column = int(position[1]), int(position[2])
    else:
        while len(lines) > 1 and not lines[-1].strip():
            lines.pop()
        line, column = len(lines), len(lines[-1]) + 1
    content = lines[line - 1] if line <= len(lines) else ""
    first = max(0, column - _EXCERPT_WIDTH)
    gutter = f"  {line} | "
    # Tabs are kept, so that the caret is under its column at any tab width.
    space = "".join("\t" if character == "\t" else " " for character in content[first : column - 1])
    return OsmosisError(
        f"{headline} (line {line}, column {column})\n\n"
        f"{gutter}{content[first : first + _EXCERPT_WIDTH]}\n{' ' * (len(gutter) - 2)}| {space}^",
        details={"path": shown_path, "line": line, "column": column},
    )


def config_text(parts: Mapping[str, Any]) -> str:
    """Return a config as TOML; null and values without a TOML form are omitted."""
    import tomli_w

    return tomli_w.dumps(
        {name.removesuffix("_config"): value for name, value in _without_nulls(parts).items()}
    )


def _without_nulls(value: Any) -> Any:
    """Return a value without nulls, also inside it."""
    if isinstance(value, Mapping):
        return {str(key): _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [_without_nulls(item) for item in value if item is not None]
    return value
