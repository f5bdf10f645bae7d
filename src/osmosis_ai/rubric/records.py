"""Read a session's records from JSON Lines one at a time, keeping a few hundred bytes of each in memory.

Each line is a conversation (``messages``, whose last assistant turn is judged) or a text (``solution_str``). Errors
name their line. The whole file is checked before the first paid call.
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
from typing import Any, NamedTuple

from osmosis_ai.datasets import file_digest
from osmosis_ai.datasets.readers import BYTE_ORDER_MARK, LFS_POINTER, decode_json, name_of_type
from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.evaluation.lenient_json import as_table

# The largest contexts hold a few million tokens of about four characters.
MAX_LINE_BYTES = 8 << 20
_LOOKED_AT = 1 << 16
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
        return self._digest(self.solution_str, self.ground_truth, self.original_input)

    @property
    def question_digest(self) -> str | None:
        """Digest of the question without the answer; None if the record has no question."""
        turns = self.source.get("messages")
        before = turns[: _judged_turn(turns)] if isinstance(turns, list) else []
        if not before and self.original_input is None:
            return None
        return self._digest(before, self.original_input, self.ground_truth)

    def _digest(self, *parts: object) -> str:
        seen = (*parts, self.metadata, self.score_min, self.score_max)
        text = json.dumps(seen, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_DIGITS]


class RecordRules(NamedTuple):
    """Selects and interprets the lines of a file that are records of a session.

    ``classic`` are the rules of `osmosis eval-rubric`: only records that name the rubric, and metadata of two sources.
    """

    rubric_id: str | None = None
    classic: bool = False

    def select(self, source: dict[str, Any]) -> bool:
        """Return whether a record is judged by this rubric."""
        named = _text(source.get("rubric_id"))
        if self.rubric_id is None or named is None:
            return self.rubric_id is None or not self.classic
        return named.strip().casefold() == self.rubric_id.casefold()


ALL_RECORDS = RecordRules()


class _Line:
    """One line of a file, and what is wrong with it."""

    def __init__(self, path: Path, number: int, raw: bytes) -> None:
        self.path, self.number, self.raw = path, number, raw

    def __str__(self) -> str:
        return f"Line {self.number} of '{self.path}'"

    def problem(self, message: str, *, hint: str | None = None) -> OsmosisError:
        return OsmosisError(message, details={"path": str(self.path), "line": self.number}, hint=hint)

    def decode(self) -> dict[str, Any]:
        """Return the line's object."""
        try:
            value = decode_json(self.raw)
        except json.JSONDecodeError as error:
            self.require_text(self.raw)
            raise self.problem(
                f"Invalid JSON on line {self.number} of '{self.path}': {error.msg} (column {error.colno})"
            ) from None
        if not isinstance(value, dict):
            raise self.problem(
                f"Expected JSON object on line {self.number} of '{self.path}', found {name_of_type(value)}."
            )
        return value

    def require_text(self, raw: bytes) -> None:
        """Reject bytes that are not text. The end may be cut inside a character."""
        try:
            raw.decode("utf-8")
        except UnicodeDecodeError as error:
            if error.end == len(raw) and len(raw) - error.start < 4 and len(raw) == _LOOKED_AT:
                return
            raise self.problem(
                f"{self} is not UTF-8 text (byte 0x{raw[error.start]:02x} at position {error.start} of the line); "
                "expected JSON Lines."
            ) from None

    def judged_text(self, source: dict[str, Any]) -> str:
        """Return the last assistant turn with text, or ``solution_str``."""
        messages, solution = source.get("messages"), source.get("solution_str")
        if isinstance(messages, list) and messages:
            place = _judged_turn(messages)
            if place == 0 and not _said_by_assistant(messages[0]):
                raise self.problem(f"{self} has 'messages', but no assistant message with text.")
            return _text_of(messages[place]["content"])
        if isinstance(solution, str) and solution.strip():
            return solution
        if isinstance(source.get("rubric_id"), str) and messages is None:
            name = _first_text(source, "conversation_id", "id", "rubric_id") or "<record>"
            raise self.problem(f"{self}: Record '{name}' must include a non-empty 'solution_str' string.")
        raise self.problem(f"{self} must include 'messages' (list) or 'solution_str' (string).")

    def record(self, index: int, source: dict[str, Any], text: str, rules: RecordRules) -> RubricRecord:
        extra = as_table(source.get("extra_info"))
        human = next(
            (name for name in ("human_score", "label") if _is_number(source.get(name), allow_bool=True)), None
        )
        if human is None and source.get("human_score") is not None:
            raise self.problem(f"{self}: 'human_score' must be a number, true or false.")
        metadata = source.get("metadata") if isinstance(source.get("metadata"), dict) else None
        if rules.classic:
            own = {"dataset_metadata": metadata} if metadata else {}
            metadata = {**own, **as_table(extra.get("metadata"))} or None
        names = ("conversation_id", "id") if rules.classic else ("id", "conversation_id")
        return RubricRecord(
            index=index,
            line=self.number,
            label=_first_text(source, *names) or f"record[{index}]",
            solution_str=text,
            ground_truth=_text(source.get("ground_truth")),
            original_input=_text(source.get("original_input")) or _text(extra.get("original_input")),
            metadata=metadata,
            score_min=self._bound(source, "score_min"),
            score_max=self._bound(source, "score_max"),
            human_score=source[human] if human is not None else None,
            human_field=human,
            source=source,
        )

    def _bound(self, source: dict[str, Any], name: str) -> float | None:
        value = source.get(name)
        if value is None or _is_number(value):
            return None if value is None else float(value)
        raise self.problem(f"{self}: '{name}' must be a number, not {name_of_type(value)}.")


def iter_records(path: Path, rules: RecordRules = ALL_RECORDS) -> Iterator[RubricRecord]:
    """Yield the records of a file, checking every line, including those of other rubrics."""
    index = 0
    for line, source in _objects(path):
        text = line.judged_text(source)
        if rules.select(source):
            index += 1
            yield line.record(index, source, text, rules)
    if not index:
        raise OsmosisError(f"No records in '{path}' reference rubric '{rules.rubric_id}'.")


def iter_objects(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the object of every line that is not blank."""
    return (source for _, source in _objects(path))


def _objects(path: Path) -> Iterator[tuple[_Line, dict[str, Any]]]:
    line = None
    for line in _lines(path):
        yield line, line.decode()
    if line is None:
        raise OsmosisError(f"No JSON records found in '{path}'.")


def require_file(path: Path, what: str) -> None:
    """Check that a path is a file."""
    if path.is_dir():
        raise OsmosisError(f"{what} '{path}' is a directory; expected a file.")
    if not path.exists():
        raise OsmosisError(f"{what} '{path}' does not exist.")
    if not os.access(path, os.R_OK):
        raise OsmosisError(f"{what} '{path}' cannot be read: permission denied.")


def _lines(path: Path) -> Iterator[_Line]:
    require_file(path, "Data path")
    with path.open("rb") as handle:
        number = 0
        while raw := handle.readline(MAX_LINE_BYTES + 1):
            number += 1
            if number == 1:
                raw = raw.removeprefix(BYTE_ORDER_MARK)
                if raw.startswith(LFS_POINTER):
                    raise OsmosisError(f"Data path '{path}' is a Git LFS pointer.", hint="git lfs pull")
            line = _Line(path, number, raw)
            if len(raw) > MAX_LINE_BYTES:
                line.require_text(raw[:_LOOKED_AT])
                raise line.problem(
                    f"{line} is longer than {MAX_LINE_BYTES >> 20} MiB, more than any judge reads."
                )
            if not raw.isspace():
                yield line


def _judged_turn(messages: list[Any]) -> int:
    """Return the position of the last assistant turn with text; 0 without one."""
    return next(
        (place for place in range(len(messages) - 1, -1, -1) if _said_by_assistant(messages[place])), 0
    )


def _said_by_assistant(turn: object) -> bool:
    return (
        isinstance(turn, dict)
        and turn.get("role") == "assistant"
        and bool(_text_of(turn.get("content")).strip())
    )


def _text_of(content: object) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    parts = [
        part["text"]
        for part in content
        if isinstance(part, dict) and part.get("type") == "text" and "text" in part
    ]
    return "\n".join(part for part in parts if isinstance(part, str))


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


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value.strip() else None


class RecordIndex:
    """What is kept in memory of a session's records, after reading the whole file once.

    Attributes:
        digest: the digest of the file.
        lows, highs, human: the scale of each record, and its human score or NaN.
        bare_line: the first line whose record has nothing but the text to judge.
        ignored_labels: records with a number as ``label`` that is outside the scale.
        copy_of: for each record, the index of the first one that a judge cannot tell apart.
    """

    def __init__(
        self,
        path: Path,
        rules: RecordRules,
        bounds: tuple[float, float],
        *,
        progress: Callable[[int], None] = lambda _: None,
    ) -> None:
        if path.exists() and not path.is_file():
            raise OsmosisError(
                f"Data path '{path}' is not a regular file.", hint="write the records to a file first"
            )
        self.path, self.rules, self.bounds = path, rules, bounds
        self.labels: list[str] = []
        self.lengths, self.copy_of = array("Q"), array("Q")
        self.lows, self.highs, self.human = array("d"), array("d"), array("d")
        self.bare_line: int | None = None
        self.ignored_labels = 0
        self._stamp = _stamp(path)
        first_places: dict[str, int] = {}
        for record in iter_records(path, rules):
            self.copy_of.append(first_places.setdefault(record.digest, len(self)))
            self._add(record)
            if record.index % 1000 == 0:
                progress(record.index)
        self.digest = file_digest(path)
        self._require_unchanged()

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
        line = _Line(self.path, record.line, b"")
        if high <= low:
            raise line.problem(f"{line}: 'score_max' ({high:g}) must be greater than 'score_min' ({low:g}).")
        if self.bare_line is None and not (record.ground_truth or record.original_input or record.metadata):
            self.bare_line = record.line
        self.labels.append(record.label.encode("utf-8", "replace").decode())
        self.lengths.append(len(record.solution_str))
        self.lows.append(low)
        self.highs.append(high)
        given = record.human_score
        if isinstance(given, bool):
            given = high if given else low
        if given is not None and not low <= given <= high:
            if record.human_field != "label":
                raise line.problem(
                    f"{line}: 'human_score' {given:g} is outside the scale of {low:g} to {high:g}.",
                    hint="set the scale with '--score-min' and '--score-max', or in the rubric",
                )
            # A number here is a class label, as other tools use the field.
            self.ignored_labels += 1
            given = None
        self.human.append(math.nan if given is None else given)

    def _require_unchanged(self) -> None:
        if _stamp(self.path) != self._stamp:
            raise ConflictError(
                f"'{self.path}' was changed during the session.",
                hint="restore the file and run the same command with '--resume'",
            )


def _stamp(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return (-1, -1)
    return found.st_size, found.st_mtime_ns
