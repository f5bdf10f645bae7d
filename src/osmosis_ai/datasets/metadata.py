"""The rules for a `metadata` column, checked row by row.

Every row has a non-empty object without empty objects inside it, and its integers fit in 64 bits. A key path has one
JSON type in the whole file: integers and other numbers are one type, nulls have none, and the elements of an array
share the path ``key[]``. The checker remembers one type per path, for a limited number of paths.
"""

from __future__ import annotations

import math
from typing import Any

from osmosis_ai.datasets.reader import (
    METADATA_COLUMN,
    may_have_lost_digits,
    may_repeat_keys,
    name_of_type,
    repeated_keys,
)
from osmosis_ai.datasets.rows import as_object

MOST_PATHS = 100_000
MOST_LEVELS = 100

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_ELEMENT = "[]"
_SETTLED: dict[str, type] = {"a string": str, "a boolean": bool}


class MetadataChecker:
    """Checks the metadata of one file's rows."""

    def __init__(self, unit: str) -> None:
        self.unit = unit
        self.overflowed = False
        self.doubtful = False
        self.repeated: list[str] = []
        self._root = _Path(None, METADATA_COLUMN)
        self._paths = 1
        self._found: list[str] = []

    def check(self, number: int, value: object) -> list[str]:
        """Return the problems in the metadata of line or row ``number``, one sentence each."""
        self._found, self.repeated = [], []
        self.doubtful = False
        try:
            metadata = as_object(value)
        except ValueError as error:
            return [str(error)]
        if isinstance(value, str) and may_repeat_keys(value, metadata):
            self.repeated = repeated_keys(value)
        if metadata is None:
            found = "an empty object" if isinstance(value, (dict, str)) and value else "nothing"
            return [f"'{METADATA_COLUMN}' must be a non-empty JSON object, found {found}"]
        self._check(number, self._root, metadata, 0)
        return self._found

    def _check(self, number: int, path: _Path, value: Any, level: int) -> None:
        if value is None:
            return
        problem = self._compare(number, path, name_of_type(value)) or self._describe_problem(value, level)
        if problem is not None:
            self._found.append(f"'{path}' {problem}")
        elif isinstance(value, dict):
            for key, item in value.items():
                child = path.children.get(key) or self._child(path, key)
                if item.__class__ is not child.settled:
                    self._check(number, child, item, level + 1)
        elif isinstance(value, list):
            child = path.children.get(_ELEMENT) or self._child(path, _ELEMENT)
            for item in value:
                if item.__class__ is not child.settled:
                    self._check(number, child, item, level + 1)

    def _child(self, path: _Path, key: str) -> _Path:
        child = _Path(path, key)
        if self._paths < MOST_PATHS:
            path.children[key] = child
            self._paths += 1
        else:
            self.overflowed = True
        return child

    def _compare(self, number: int, path: _Path, kind: str) -> str | None:
        if path.kind is None:
            path.kind, path.number = kind, number
            path.settled = _SETTLED.get(kind)
        if path.kind == kind:
            return None
        return f"is {kind}, but {path.kind} on {self.unit} {path.number}"

    def _describe_problem(self, value: Any, level: int) -> str | None:
        """Describe a problem with a value that does not depend on other rows."""
        if isinstance(value, (str, bool)):
            return None
        if isinstance(value, (dict, list)):
            if level > MOST_LEVELS:
                return f"is nested deeper than {MOST_LEVELS} levels"
            return "is an empty object" if value == {} else None
        if isinstance(value, int):
            fits = _INT64_MIN <= value <= _INT64_MAX
            return None if fits else f"is {_shorten(value)}, beyond 64-bit integers"
        if isinstance(value, float):
            self.doubtful = self.doubtful or may_have_lost_digits(value)
            return None if math.isfinite(value) else f"is {value}, which JSON cannot hold"
        return f"is {name_of_type(value)}, which JSON cannot hold"


class _Path:
    """A key path, its type in this file, and the line or row that determined it."""

    __slots__ = ("children", "key", "kind", "number", "parent", "settled")

    def __init__(self, parent: _Path | None, key: str) -> None:
        self.parent = parent
        self.key = key
        self.kind: str | None = None
        self.number = 0
        self.settled: type | None = None
        self.children: dict[str, _Path] = {}

    def __str__(self) -> str:
        if self.parent is None:
            return self.key
        return f"{self.parent}{self.key}" if self.key == _ELEMENT else f"{self.parent}.{self.key}"


def _shorten(value: int) -> str:
    # Formatting an integer takes time quadratic in its digits, so for a long one only the size is shown.
    return str(value) if value.bit_length() <= 128 else f"an integer of {value.bit_length()} bits"
