"""What a session remembers of every record: a few dozen bytes, whatever its text.

Made by one pass over the file before anything is asked of a judge, so that a mistake in the last line is
found before the first call is paid for.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import overload

from osmosis_ai.datasets import file_digest
from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.rubric.records import RecordRules, RubricRecord, iter_records


class PackedTexts(Sequence[str]):
    """Short texts one after the other in one block of bytes."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._ends = array("Q")

    def append(self, text: str) -> None:
        """Add a text."""
        self._bytes += text.encode("utf-8", "replace")
        self._ends.append(len(self._bytes))

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, position: int) -> str: ...
    @overload
    def __getitem__(self, position: slice) -> list[str]: ...
    def __getitem__(self, position: int | slice) -> str | list[str]:
        if isinstance(position, slice):
            return [self[number] for number in range(*position.indices(len(self)))]
        number = range(len(self))[position]
        start = self._ends[number - 1] if number else 0
        return self._bytes[start : self._ends[number]].decode()


class RecordIndex:
    """The records of a session, as far as they are remembered."""

    def __init__(self, path: Path, rules: RecordRules, bounds: tuple[float, float]) -> None:
        self.path = path
        self.rules = rules
        self.bounds = bounds
        self.digest = ""
        self.labels = PackedTexts()
        self.lengths = array("Q")
        self.lows, self.highs, self.human = array("d"), array("d"), array("d")
        self.bare_line: int | None = None
        self.ignored_labels = 0
        self.copy_of = array("Q")
        self._first_places: dict[str, int] = {}
        self._stamp = (0, 0)

    @classmethod
    def scan(
        cls,
        path: Path,
        rules: RecordRules,
        bounds: tuple[float, float],
        *,
        progress: Callable[[int], None] = lambda _: None,
    ) -> RecordIndex:
        """Read the whole file once."""
        if path.exists() and not path.is_file():
            raise OsmosisError(
                f"Data path '{path}' is no regular file, and records are read more than once.",
                hint="write them to a file first",
            )
        index = cls(path, rules, bounds)
        index._stamp = _stamp(path)
        for record in iter_records(path, rules):
            index._add(record)
            if record.index % 1000 == 0:
                progress(record.index)
        index._first_places.clear()
        index.digest = file_digest(path)
        index._require_unchanged()
        return index

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def has_copies(self) -> bool:
        """Whether a record is a copy of another."""
        return any(place != first for place, first in enumerate(self.copy_of))

    def records(self) -> Iterator[RubricRecord]:
        """Read the records again, one at a time."""
        self._require_unchanged()
        yield from iter_records(self.path, self.rules)
        self._require_unchanged()

    def _add(self, record: RubricRecord) -> None:
        low = self.bounds[0] if record.score_min is None else record.score_min
        high = self.bounds[1] if record.score_max is None else record.score_max
        if high <= low:
            raise OsmosisError(
                f"Line {record.line} of '{self.path}': 'score_max' ({high:g}) must be greater than "
                f"'score_min' ({low:g}).",
                details={"line": record.line},
            )
        if self.bare_line is None and not (record.ground_truth or record.original_input or record.metadata):
            self.bare_line = record.line
        self.copy_of.append(self._first_places.setdefault(record.digest, len(self)))
        self.labels.append(record.label)
        self.lengths.append(len(record.solution_str))
        self.lows.append(low)
        self.highs.append(high)
        self.human.append(self._human_score(record, low, high))

    def _human_score(self, record: RubricRecord, low: float, high: float) -> float:
        given = record.human_score
        if given is None:
            return math.nan
        if isinstance(given, bool):
            return high if given else low
        if low <= given <= high:
            return float(given)
        if record.human_field == "label":
            # A number that names a class: other tools use the field for that.
            self.ignored_labels += 1
            return math.nan
        raise OsmosisError(
            f"Line {record.line} of '{self.path}': 'human_score' {given:g} is outside the scale of {low:g} to {high:g}.",
            details={"line": record.line},
            hint="say which scale people used: `--score-min` and `--score-max`, or the bounds of the rubric",
        )

    def _require_unchanged(self) -> None:
        if _stamp(self.path) != self._stamp:
            raise ConflictError(f"'{self.path}' was changed while its records were being judged.")


def _stamp(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return (-1, -1)
    return found.st_size, found.st_mtime_ns
