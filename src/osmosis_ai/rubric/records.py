"""Read a session's records from JSON Lines one at a time, keeping a few hundred bytes of each in memory.

Each line is one record: a conversation (``messages``, whose last assistant turn is judged) or a text
(``solution_str``). Errors name their line. The whole file is checked before the first paid call.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osmosis_ai.datasets import file_digest
from osmosis_ai.datasets.readers import (
    BYTE_ORDER_MARK,
    LFS_POINTER,
    decode_json,
    name_of_type,
)
from osmosis_ai.errors import ConflictError, NotFoundError, OsmosisError

# The largest contexts hold a few million tokens of about four characters.
MAX_LINE_BYTES = 8 << 20
_LOOKED_AT = 1 << 16
HUMAN_FIELDS = ("human_score", "label")
# 128 bits make accidental collisions practically impossible.
_DIGEST_DIGITS = 32


@dataclass(frozen=True, slots=True)
class RubricRecord:
    """One text to be judged."""

    index: int
    line: int
    label: str
    solution_str: str
    ground_truth: str | None
    original_input: str | None
    metadata: dict[str, Any] | None
    score_min: float | None
    score_max: float | None
    human_score: float | bool | None
    human_field: str | None
    source: dict[str, Any]

    @property
    def digest(self) -> str:
        """Digest of everything the judge sees of a record, without human scores."""
        return _digest(
            self.solution_str,
            self.ground_truth,
            self.original_input,
            self.metadata,
            self.score_min,
            self.score_max,
        )

    @property
    def question_digest(self) -> str | None:
        """Digest of the question without the answer; None if the record has no question."""
        before = _before_the_judged_turn(self.source.get("messages"))
        if not before and self.original_input is None:
            return None
        asked = (before, self.original_input, self.ground_truth, self.metadata)
        return _digest(*asked, self.score_min, self.score_max)


@dataclass(frozen=True, slots=True)
class RecordRules:
    """Selects and interprets the lines of a file that are records of a session."""

    rubric_id: str | None = None
    tagged_only: bool = False
    wrap_metadata: bool = False


def iter_records(path: Path, rules: RecordRules | None = None) -> Iterator[RubricRecord]:
    """Yield the records of a file, checking every line, including those of other rubrics."""
    rules = rules or RecordRules()
    index, seen = 0, False
    for number, raw in _lines(path):
        seen = True
        source = _decode(path, number, raw)
        text = _judged_text(path, number, source)
        if _is_of(source, rules):
            index += 1
            yield _record(path, number, index, source, text, rules)
    if not seen:
        raise OsmosisError(f"No JSON records found in '{path}'.")
    if not index:
        raise OsmosisError(f"No records in '{path}' reference rubric '{rules.rubric_id}'.")


def iter_objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, object) of every line that is not blank."""
    number = 0
    for number, raw in _lines(path):
        yield number, _decode(path, number, raw)
    if not number:
        raise OsmosisError(f"No JSON records found in '{path}'.")


def require_file(path: Path, what: str) -> None:
    """Check that a path is a file."""
    if path.is_dir():
        raise OsmosisError(f"{what} '{path}' is a directory; expected a file.")
    if not path.exists():
        raise NotFoundError(f"{what} '{path}' does not exist.")
    if not os.access(path, os.R_OK):
        raise OsmosisError(f"{what} '{path}' cannot be read: permission denied.")


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    require_file(path, "Data path")
    with path.open("rb") as handle:
        number = 0
        while raw := handle.readline(MAX_LINE_BYTES + 1):
            number += 1
            if number == 1:
                raw = raw.removeprefix(BYTE_ORDER_MARK)
                if raw.startswith(LFS_POINTER):
                    raise OsmosisError(f"Data path '{path}' is a Git LFS pointer.", hint="git lfs pull")
            if len(raw) > MAX_LINE_BYTES:
                _refuse_bytes(path, number, raw[:_LOOKED_AT])
                raise OsmosisError(
                    f"Line {number} of '{path}' is longer than {MAX_LINE_BYTES >> 20} MiB, more than any judge reads.",
                    details={"line": number},
                )
            if not raw.isspace():
                yield number, raw


def _decode(path: Path, number: int, raw: bytes) -> dict[str, Any]:
    try:
        value = decode_json(raw)
    except json.JSONDecodeError as error:
        _refuse_bytes(path, number, raw)
        raise OsmosisError(
            f"Invalid JSON on line {number} of '{path}': {error.msg} (column {error.colno})",
            details={"line": number},
        ) from None
    if not isinstance(value, dict):
        raise _problem(
            path, number, f"Expected JSON object on line {number} of '{path}', found {name_of_type(value)}."
        )
    return value


def _refuse_bytes(path: Path, number: int, raw: bytes) -> None:
    """Reject bytes that are not text. The end may be cut inside a character."""
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.end == len(raw) and len(raw) - error.start < 4 and len(raw) == _LOOKED_AT:
            return
        raise OsmosisError(
            f"Line {number} of '{path}' is not UTF-8 text (byte 0x{raw[error.start]:02x} at position "
            f"{error.start} of the line); expected JSON Lines.",
            details={"line": number},
        ) from None


def _judged_text(path: Path, number: int, source: dict[str, Any]) -> str:
    messages = source.get("messages")
    if isinstance(messages, list) and messages:
        for message in reversed(messages):
            if isinstance(message, dict) and message.get("role") == "assistant":
                text = _text_of(message.get("content"))
                if text.strip():
                    return text
        raise _problem(
            path, number, f"Line {number} of '{path}' has 'messages', but no assistant message with text."
        )
    solution = source.get("solution_str")
    if isinstance(solution, str) and solution.strip():
        return solution
    if isinstance(source.get("rubric_id"), str) and messages is None:
        name = _first_text(source, "conversation_id", "id", "rubric_id") or "<record>"
        raise _problem(
            path,
            number,
            f"Line {number} of '{path}': Record '{name}' must include a non-empty 'solution_str' string.",
        )
    raise _problem(
        path, number, f"Line {number} of '{path}' must include 'messages' (list) or 'solution_str' (string)."
    )


def _before_the_judged_turn(messages: object) -> list[object]:
    """Return the turns before the last assistant turn with text."""
    turns = messages if isinstance(messages, list) else []
    for place in range(len(turns) - 1, -1, -1):
        turn = turns[place]
        if (
            isinstance(turn, dict)
            and turn.get("role") == "assistant"
            and _text_of(turn.get("content")).strip()
        ):
            return turns[:place]
    return []


def _text_of(content: object) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    parts = [
        part["text"]
        for part in content
        if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
    ]
    return "\n".join(parts)


def _is_of(source: dict[str, Any], rules: RecordRules) -> bool:
    if rules.rubric_id is None:
        return True
    named = source.get("rubric_id")
    if not isinstance(named, str) or not named.strip():
        return not rules.tagged_only
    return named.strip().casefold() == rules.rubric_id.casefold()


def _record(
    path: Path, number: int, index: int, source: dict[str, Any], text: str, rules: RecordRules
) -> RubricRecord:
    extra = source.get("extra_info")
    extra = extra if isinstance(extra, dict) else {}
    human_field = next((name for name in HUMAN_FIELDS if _is_number(source.get(name), allow_bool=True)), None)
    if human_field is None and source.get("human_score") is not None:
        raise _problem(
            path, number, f"Line {number} of '{path}': 'human_score' must be a number, true or false."
        )
    names = ("conversation_id", "id") if rules.wrap_metadata else ("id", "conversation_id")
    return RubricRecord(
        index=index,
        line=number,
        label=_first_text(source, *names) or f"record[{index}]",
        solution_str=text,
        ground_truth=_text_or_none(source.get("ground_truth")),
        original_input=_text_or_none(source.get("original_input"))
        or _text_or_none(extra.get("original_input")),
        metadata=_wrapped_metadata(source, extra) if rules.wrap_metadata else _object(source.get("metadata")),
        score_min=_bound(path, number, source, "score_min"),
        score_max=_bound(path, number, source, "score_max"),
        human_score=source[human_field] if human_field is not None else None,
        human_field=human_field,
        source=source,
    )


def _wrapped_metadata(source: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any] | None:
    shown = dict(_object(extra.get("metadata")) or {})
    own = _object(source.get("metadata"))
    if own:
        shown.setdefault("dataset_metadata", own)
    return shown or None


def _bound(path: Path, number: int, source: dict[str, Any], name: str) -> float | None:
    value = source.get(name)
    if value is None:
        return None
    if not _is_number(value):
        raise _problem(
            path, number, f"Line {number} of '{path}': '{name}' must be a number, not {name_of_type(value)}."
        )
    return float(value)


def _is_number(value: object, *, allow_bool: bool = False) -> bool:
    if isinstance(value, bool):
        return allow_bool
    return isinstance(value, int | float) and math.isfinite(value)


def _first_text(source: dict[str, Any], *names: str) -> str | None:
    """Return the first field with a name; numbers count as names."""
    for name in names:
        value = source.get(name)
        if isinstance(value, str) and value.strip():
            return value.strip()
        if isinstance(value, int | float) and not isinstance(value, bool):
            return str(value)
    return None


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) and value.strip() else None


def _object(value: object) -> dict[str, Any] | None:
    return value if isinstance(value, dict) else None


def _problem(path: Path, number: int, message: str) -> OsmosisError:
    return OsmosisError(message, details={"path": str(path), "line": number})


def _digest(*parts: object) -> str:
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_DIGITS]


class RecordIndex:
    """Index of a session's records."""

    def __init__(self, path: Path, rules: RecordRules, bounds: tuple[float, float]) -> None:
        self.path = path
        self.rules = rules
        self.bounds = bounds
        self.digest = ""
        self.labels: list[str] = []
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
                f"Data path '{path}' is not a regular file, and records are read more than once.",
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
        """Whether any record is a copy of another."""
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
        self.labels.append(record.label.encode("utf-8", "replace").decode())
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
            # A number here is a class label, as other tools use the field.
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
