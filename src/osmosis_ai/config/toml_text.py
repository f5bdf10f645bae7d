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
    except (
        ValueError
    ) as error:  # mostly TOMLDecodeError; an integer with too many digits is a plain ValueError
        raise _syntax_error(text, shown_path, str(error)) from None
    except RecursionError:
        raise OsmosisError(f"Invalid TOML in {shown_path}: values are nested too deeply.") from None
    return document


def key_lines(text: str) -> dict[KeyPath, int]:
    """Return the line (from 1) of each table and key of ``text``."""
    found: dict[KeyPath, int] = {}
    arrays: set[KeyPath] = set()
    table: KeyPath | None = ()
    for line, statement, parsed in _statements(text):
        if statement.lstrip().startswith("["):
            header, is_array = _header(parsed)
            ancestry = [header[:length] for length in range(1, len(header) + 1)]
            if is_array:
                arrays.add(header)
            table = None if arrays.intersection(ancestry) else header
            if table is not None:
                for parent in ancestry:
                    found.setdefault(parent, line)
                found[table] = line
        elif table is not None:
            for path in _paths(parsed):
                found.setdefault(table + path, line)
    return found


def _statements(text: str) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield each statement (a header, or a key with its value): first line, text, parsed value."""
    statement, started = "", 0
    for number, line in enumerate(_lines(text), start=1):
        if not statement:
            started = number
        statement += line + "\n"
        try:
            parsed = tomllib.loads(statement)
        except ValueError:
            continue
        yield started, statement, parsed
        statement = ""


def _lines(text: str) -> list[str]:
    # TOML has two line endings; str.splitlines splits at ten, some of which may occur inside a string.
    return text.replace("\r\n", "\n").split("\n")


def _header(parsed: dict[str, Any]) -> tuple[KeyPath, bool]:
    """Return the path of a header that was parsed alone, and whether it is an array element."""
    path: KeyPath = ()
    value: Any = parsed
    while isinstance(value, dict) and value:
        key, value = next(iter(value.items()))
        path += (key,)
    return path, isinstance(value, list)


def _paths(value: Any, prefix: KeyPath = ()) -> list[KeyPath]:
    if not isinstance(value, dict):
        return []
    paths: list[KeyPath] = []
    for key, inner in value.items():
        paths += [(*prefix, key), *_paths(inner, (*prefix, key))]
    return paths


def _syntax_error(text: str, shown_path: str, problem: str) -> OsmosisError:
    position = _POSITION.search(problem)
    sentence = problem[: position.start()] if position else problem
    headline = f"Invalid TOML in {shown_path}: {sentence[:1].lower()}{sentence[1:]}"
    lines = _lines(text)
    if position is None:
        return OsmosisError(headline, details={"path": shown_path})
    if position[1]:
        line, column = int(position[1]), int(position[2])
    else:
        while len(lines) > 1 and not lines[-1].strip():
            lines.pop()
        line, column = len(lines), len(lines[-1]) + 1
    return OsmosisError(
        f"{headline} (line {line}, column {column})\n\n{_excerpt(lines, line, column)}",
        details={"path": shown_path, "line": line, "column": column},
    )


def _excerpt(lines: list[str], line: int, column: int) -> str:
    content = lines[line - 1] if line <= len(lines) else ""
    first = max(0, column - _EXCERPT_WIDTH)
    shown = content[first : first + _EXCERPT_WIDTH]
    gutter = f"  {line} | "
    # Tabs are kept, so that the caret is under its column at any tab width.
    space = "".join("\t" if character == "\t" else " " for character in shown[: column - 1 - first])
    return f"{gutter}{shown}\n{' ' * (len(gutter) - 2)}| {space}^"


def config_text(parts: Mapping[str, Any]) -> str:
    """Return a config as TOML; null and values without a TOML form are omitted."""
    import tomli_w

    return tomli_w.dumps({name.removesuffix("_config"): value for name, value in _known(parts).items()})


def _known(value: Any) -> Any:
    """Return a value without nulls, also inside it."""
    if isinstance(value, Mapping):
        return {str(key): _known(item) for key, item in value.items() if _has_toml_form(item)}
    if isinstance(value, (list, tuple)):
        return [_known(item) for item in value if _has_toml_form(item)]
    return value


def _has_toml_form(value: Any) -> bool:
    return isinstance(value, (Mapping, list, tuple, str, bool, int, float))
