"""Compare a session with an earlier one: shifts of all statistics, and a paired comparison of common records.

Records are paired by all judged content if at least half of the smaller session matches that way, and otherwise by
question. Duplicates count as one record. Scores of another judge or rubric are compared and labelled; scores on another
scale are not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from osmosis_ai.decisions.differences import Difference, Pairs, mean_difference, number_data
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.lenient_json import as_objects, as_table, as_text, loads
from osmosis_ai.rubric.documents import mean_of_judges, read_calls, text_digest
from osmosis_ai.rubric.records import require_file

if TYPE_CHECKING:
    from osmosis_ai.rubric.session import JudgingSession

Pairing = Literal["record", "question"]

_TOP_LEVEL = ("average", "variance", "stdev")
_LABELS = (
    ("another judge", frozenset({"models", "reasoning_effort", "system_prompt"})),
    ("another rubric", frozenset({"rubric", "original_input", "ground_truth"})),
    ("another order of texts (--swap)", frozenset({"swap"})),
)
_EXPECTED_TO_DIFFER = frozenset({"data", "rubric_id", "reading"})


class ScoredRecord(NamedTuple):
    """A scored record and the digests that identify it."""

    score: float
    digest: str | None = None
    question: str | None = None

    def key(self, by: Pairing) -> str | None:
        """Return the pairing key, or None if the file does not contain it."""
        return self.digest if by == "record" else self.question or self.digest


class Baseline(NamedTuple):
    """An earlier session."""

    source_path: Path
    statistics: Mapping[str, float]
    records: Sequence[ScoredRecord]
    inputs: Mapping[str, Any]

    def changed_inputs(self, now: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the inputs that differ from the baseline's, as far as its file contains them."""
        known = (key for key in now if key in self.inputs and key not in _EXPECTED_TO_DIFFER)
        return tuple(key for key in known if self.inputs[key] != now[key])


@dataclass(frozen=True)
class SessionComparison:
    """Change of the scores since an earlier session. Differences are current minus baseline."""

    baseline: Baseline
    delta_statistics: Mapping[str, float]
    difference: Difference | None
    paired_by: Pairing | None
    common: int
    current_records: int
    changed: tuple[str, ...]
    changes: tuple[str, ...]
    reason: str | None

    @property
    def verdict(self) -> str:
        """The comparison in one sentence."""
        found, label = self.difference, describe_change(self.changed)
        if found is None:
            return f"The scores are not compared: {self.reason}."
        by = f" ({label})" if label else ""
        if found.low is None or found.high is None:
            return f"The mean score differs by {found.value:+.4f}{by}; no interval: {found.reason}."
        to = "–" if found.low >= 0 else " to "
        over = f"95% CI {found.low:.4f}{to}{found.high:.4f}, {self.common:,} records"
        if not found.excludes_none:
            return f"No significant difference{by}: {found.value:+.4f} ({over})."
        way = "higher" if found.value > 0 else "lower"
        return f"The mean score is {way}{by}: {found.value:+.4f} ({over})."

    @property
    def warnings(self) -> list[str]:
        found = [self.difference.warning] if self.difference is not None and self.difference.warning else []
        smaller = min(len(self.baseline.records), self.current_records)
        if self.paired_by and 2 * self.common < smaller:
            found.append(
                f"only {self.common:,} of {smaller:,} records are in both: they may not represent the others"
            )
        return found

    def data(self) -> dict[str, Any]:
        """Return the comparison for result files. The first three keys are those of the public 0.2 SDK."""
        return {
            "source_path": str(self.baseline.source_path),
            "baseline_statistics": dict(self.baseline.statistics),
            "delta_statistics": dict(self.delta_statistics),
            "verdict": self.verdict,
            "difference": number_data(self.difference),
            "paired_by": self.paired_by,
            "records": {
                "common": self.common,
                "baseline": len(self.baseline.records),
                "current": self.current_records,
            },
            "changed_inputs": list(self.changed),
            "reason": self.reason,
            "warnings": self.warnings,
        }


def describe_change(changed: Iterable[str]) -> str:
    """Describe the changed inputs, such as "another judge and another rubric"; "" if unchanged."""
    found = set(changed)
    return " and ".join(label for label, keys in _LABELS if found & keys)


def compare_sessions(
    baseline: Baseline, session: JudgingSession, statistics: Mapping[str, float]
) -> SessionComparison:
    """Compare a session, whose statistics these are, with an earlier one."""
    from osmosis_ai.rubric.session import input_differences

    now = session.spec.inputs(session.index)
    changed = baseline.changed_inputs(now)
    low, high = session.spec.bounds
    current = [
        ScoredRecord(float(score), record.digest, record.question_digest)
        for record, score in zip(session.index.records(), session.table.consensus(), strict=True)
        if not math.isnan(score)
    ]
    earlier = [record for record in baseline.records if low <= record.score <= high or "bounds" in changed]
    baseline = baseline._replace(records=earlier)
    difference, paired_by, common, reason = None, None, 0, None
    if "bounds" in changed:
        reason = "they are on another scale"
    elif not earlier:
        reason = "the baseline's file contains no records with scores"
    elif not current:
        reason = "no record has a score"
    elif (paired_by := _pairing(earlier, current)) is None:
        known = any(record.digest or record.question for record in earlier)
        reason = (
            "no record is in both sessions" if known else "the baseline's file does not identify its records"
        )
    else:
        pairs = _pairs(paired_by, earlier, current, (low, high))
        difference, common = mean_difference(pairs, seed=session.spec.seed), pairs.rows
    before = baseline.statistics.items()
    return SessionComparison(
        baseline=baseline,
        delta_statistics={key: statistics[key] - old for key, old in before if key in statistics},
        difference=difference,
        paired_by=paired_by,
        common=common,
        current_records=len(current),
        changed=changed,
        changes=tuple(input_differences(changed, baseline.inputs, now)),
        reason=reason,
    )


def _pairing(earlier: Sequence[ScoredRecord], current: Sequence[ScoredRecord]) -> Pairing | None:
    before, now = ({record.digest for record in records} - {None} for records in (earlier, current))
    if before & now and 2 * len(before & now) >= min(len(before), len(now)):
        return "record"
    before, now = ({record.key("question") for record in records} - {None} for records in (earlier, current))
    return "question" if before & now else None


def _pairs(
    by: Pairing, earlier: Sequence[ScoredRecord], current: Sequence[ScoredRecord], scale: tuple[float, float]
) -> Pairs:
    rows: dict[str, int] = {}

    def columns(records: Sequence[ScoredRecord]) -> tuple[list[float], list[int]]:
        known = [(record.score, key) for record in records if (key := record.key(by)) is not None]
        return [score for score, _ in known], [rows.setdefault(key, len(rows)) for _, key in known]

    pairs = Pairs.of(*columns(earlier), *columns(current), scale=scale)
    assert pairs is not None  # the pairing found common records
    return pairs


def read_baseline(path: Path) -> Baseline:
    """Read an earlier result; OsmosisError if it is none."""
    require_file(path, "Baseline path")
    try:
        document = loads(path.read_bytes().decode("utf-8-sig"))
        found = document.get("overall_statistics")
        if not isinstance(found, dict):
            found = {key: document[key] for key in document if all(name in document for name in _TOP_LEVEL)}
        if not found:
            raise ValueError("it has no statistics")
    except (ValueError, RecursionError, AttributeError):
        raise OsmosisError(
            f"'{path}' is not a result file of `osmosis eval rubric`.",
            hint="--baseline takes the file that an earlier `osmosis eval rubric --output FILE` wrote",
        ) from None
    numbers = {key: value for key, raw in found.items() if (value := _number(raw)) is not None}
    if not numbers:
        raise OsmosisError(f"The statistics in '{path}' could not be parsed into numeric values.")
    inputs = _inputs(document)
    return Baseline(path, numbers, list(_scored_records(document, inputs)), inputs)


def _inputs(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs that determine the scores, as far as the file contains them."""
    known: dict[str, Any] = {"models": document.get("models")}
    if isinstance(document.get("rubric"), str):
        known["rubric"] = text_digest(document["rubric"])
    if (bounds := _bounds(document.get("score_min"), document.get("score_max"))) is not None:
        known["bounds"] = list(bounds)
    known |= as_table(document.get("inputs"))
    return {key: value for key, value in known.items() if value is not None and _is_plain(value)}


def _is_plain(value: object) -> bool:
    """Return whether a value is a text, a number or a list of them, as sessions write."""
    return not any(isinstance(part, list | dict) for part in (value if isinstance(value, list) else [value]))


def _scored_records(document: Mapping[str, Any], inputs: Mapping[str, Any]) -> Iterator[ScoredRecord]:
    from osmosis_ai.rubric.agreement import rescaled

    given = inputs.get("bounds")
    bounds = _bounds(*given) if isinstance(given, list) and len(given) == 2 else None
    for entry in as_objects(document.get("records")):
        score = mean_of_judges((call.model, call.score) for call in read_calls(entry))
        if score is None:
            continue
        if bounds is not None:
            ends = (
                entry.get(name, end) for name, end in zip(("score_min", "score_max"), bounds, strict=True)
            )
            own = _bounds(*ends) or bounds
            if own != bounds:
                score = float(rescaled(score, *own, to_low=bounds[0], to_high=bounds[1]))
        if math.isfinite(score):
            yield ScoredRecord(score, as_text(entry.get("digest")), as_text(entry.get("question_digest")))


def _bounds(low: object, high: object) -> tuple[float, float] | None:
    lowest, highest = _number(low), _number(high)
    return None if lowest is None or highest is None or lowest >= highest else (lowest, highest)


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
