"""An earlier session, as its result file tells it: its statistics, and what it knows of each record.

A result file, or any JSON with its statistics, can be a baseline. A file that states what was judged is compared record by
record (:mod:`~osmosis_ai.rubric.baseline_comparison`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from osmosis_ai.errors import OsmosisError
from osmosis_ai.rubric.records import require_file
from osmosis_ai.rubric.scores import rescaled

_TOP_LEVEL = ("average", "variance", "stdev")


@dataclass(frozen=True, slots=True)
class ScoredRecord:
    """What comparing sessions needs of a record that has a score."""

    score: float
    digest: str | None = None
    question: str | None = None


@dataclass(frozen=True)
class Baseline:
    """An earlier session."""

    source_path: Path
    statistics: Mapping[str, float]
    records: Sequence[ScoredRecord] = ()
    inputs: Mapping[str, Any] = field(default_factory=dict)


def read_baseline(path: Path) -> Baseline:
    """Read a result file."""
    require_file(path, "Baseline path")
    try:
        document = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise OsmosisError(f"Failed to parse baseline JSON '{path}': {error}.") from None
    if not isinstance(document, dict):
        raise OsmosisError(f"Baseline JSON '{path}' must be an object.")
    found = document.get("overall_statistics")
    if not isinstance(found, dict):
        found = document if all(key in document for key in _TOP_LEVEL) else None
        if found is None:
            raise OsmosisError(
                f"Baseline JSON '{path}' must include an 'overall_statistics' object or top-level statistics."
            )
    numbers = {key: value for key, raw in found.items() if (value := _number(raw)) is not None}
    if not numbers:
        raise OsmosisError(f"The statistics in '{path}' could not be parsed into numeric values.")
    inputs = _inputs(document)
    return Baseline(path, numbers, tuple(_scored_records(document.get("records"), inputs)), inputs)


def _inputs(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the scores depend on, as far as the file states it."""
    from osmosis_ai.rubric.session_spec import text_digest

    known: dict[str, Any] = {}
    if isinstance(document.get("models"), list) and _is_plain(document["models"]):
        known["models"] = document["models"]
    if isinstance(document.get("rubric"), str):
        known["rubric"] = text_digest(document["rubric"])
    low, high = (_number(document.get(name)) for name in ("score_min", "score_max"))
    if low is not None and high is not None:
        known["bounds"] = [low, high]
    found = document.get("inputs")
    told = found if isinstance(found, dict) else {}
    return known | {key: value for key, value in told.items() if _is_plain(value)}


def _is_plain(value: object) -> bool:
    """Whether a value is such as sessions write for an input: a text or number, or a list of them."""
    return not any(isinstance(part, list | dict) for part in (value if isinstance(value, list) else [value]))


def _scored_records(entries: object, inputs: Mapping[str, Any]) -> Iterator[ScoredRecord]:
    bounds = _bounds(inputs.get("bounds"))
    for entry in entries if isinstance(entries, list) else ():
        if not isinstance(entry, dict):
            continue
        means = [sum(scores) / len(scores) for scores in _scores_by_judge(entry).values()]
        if not means:
            continue
        score = sum(means) / len(means)
        own = _bounds([entry.get("score_min"), entry.get("score_max")], bounds)
        if bounds is not None and own is not None and own != bounds:
            score = float(rescaled(score, *own, to_low=bounds[0], to_high=bounds[1]))
        if math.isfinite(score):
            yield ScoredRecord(score, _text(entry.get("digest")), _text(entry.get("question_digest")))


def _scores_by_judge(entry: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return the scores of a record in either form of entry, by judge."""
    calls = entry.get("judgements", entry.get("runs"))
    found: dict[str, list[float]] = {}
    for call in calls if isinstance(calls, list) else ():
        score = _number(call.get("score")) if isinstance(call, dict) else None
        if score is not None:
            found.setdefault(str(call.get("model")), []).append(score)
    return found


def _bounds(written: object, otherwise: tuple[float, float] | None = None) -> tuple[float, float] | None:
    """Return a scale; each end that is not written is that of ``otherwise``."""
    ends = written if isinstance(written, list) and len(written) == 2 else (None, None)
    low, high = (
        found if (found := _number(end)) is not None else (otherwise[place] if otherwise else None)
        for place, end in enumerate(ends)
    )
    return (low, high) if low is not None and high is not None and low < high else otherwise


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
