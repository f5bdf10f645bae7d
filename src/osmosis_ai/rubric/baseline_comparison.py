"""A session against an earlier one, record by record where both say what was judged.

Two sessions scored the same texts, or other answers to the same questions: records are paired by all that was judged
where at least half of the smaller session has its match so, else by what was asked. Copies are one record. The scores of
another judge or by another rubric are compared, and every number says so; on another scale they are not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from osmosis_ai.evaluation.comparison.differences import Pairs, mean_difference
from osmosis_ai.evaluation.comparison.numbers import Difference, number_data
from osmosis_ai.evaluation.comparison.unpaired import unpaired_difference
from osmosis_ai.rubric.baseline import Baseline, ScoredRecord
from osmosis_ai.rubric.session_spec import input_differences

if TYPE_CHECKING:
    from osmosis_ai.rubric.scores import Floats
    from osmosis_ai.rubric.session_result import SessionResult

Pairing = Literal["record", "question"]

_OF_THE_JUDGE = frozenset({"models", "reasoning_effort", "system_prompt", "swap"})
_OF_THE_RUBRIC = frozenset({"rubric", "original_input", "ground_truth"})
_UNTOLD = frozenset({"data", "rubric_id", "reading"})
"""Inputs that differ between sessions as a matter of course: other records, or another name of the same."""
_PAIRED_BY: Mapping[Pairing, str] = {"record": "paired by record", "question": "paired by question"}


@dataclass(frozen=True)
class SessionComparison:
    """What became of the scores since an earlier session; differences are current minus baseline."""

    baseline: Baseline
    delta_statistics: Mapping[str, float]
    difference: Difference | None
    paired_by: Pairing | None
    common: int
    baseline_records: int
    current_records: int
    changed: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    reason: str | None = None

    @property
    def source_path(self) -> Path:
        """The earlier session's file."""
        return self.baseline.source_path

    @property
    def verdict(self) -> str:
        """What the comparison comes to, in a sentence."""
        found, label = self.difference, another(self.changed)
        if found is None:
            return f"The scores are not compared: {self.reason}."
        who = f"Scored by {label}, they" if label else "The scores"
        if found.low is None or found.high is None:
            how = f"lie {_signed(found.value)} from the baseline's; no interval: {found.reason}"
        elif not found.excludes_none:
            how = f"can not be told apart from the baseline's: {_signed(found.value)} ({self._interval})"
        else:
            way = "higher" if found.value > 0 else "lower"
            how = f"are {way} by {abs(found.value):.4f} ({self._interval})"
        return f"{who} {how}."

    @property
    def matched_words(self) -> str:
        """What the difference is over, in words."""
        scored = f"{self.current_records:,} scored records, {self.baseline_records:,} in the baseline"
        if self.paired_by is None:
            return f"unpaired: {self.reason} ({scored})" if self.difference is not None else scored
        return f"{self.common:,} in both, {_PAIRED_BY[self.paired_by]} ({scored})"

    @property
    def warnings(self) -> list[str]:
        """What should stand beside the difference."""
        found = [self.difference.warning] if self.difference is not None and self.difference.warning else []
        smaller = min(self.baseline_records, self.current_records)
        if self.paired_by and 2 * self.common < smaller:
            found.append(
                f"only {self.common:,} of {smaller:,} records are in both: they may not stand for the others"
            )
        return found

    @property
    def _interval(self) -> str:
        found = self.difference
        assert found is not None and found.low is not None and found.high is not None
        low, high = (
            (found.low, found.high)
            if found.value >= 0 or not found.excludes_none
            else (-found.high, -found.low)
        )
        over = f"{self.common:,} records" if self.paired_by else "unpaired"
        return f"95 % interval {low:.4f} to {high:.4f}, {over}"

    def data(self) -> dict[str, Any]:
        """Return it as result files have it; the first three keys are those of the public 0.2 SDK."""
        return {
            "source_path": str(self.source_path),
            "baseline_statistics": dict(self.baseline.statistics),
            "delta_statistics": dict(self.delta_statistics),
            "verdict": self.verdict,
            "difference": number_data(self.difference),
            "paired_by": self.paired_by,
            "records": {
                "common": self.common,
                "baseline": self.baseline_records,
                "current": self.current_records,
            },
            "changed_inputs": list(self.changed),
            "reason": self.reason,
            "warnings": self.warnings,
        }


def compare_sessions(
    baseline: Baseline, result: SessionResult, statistics: Mapping[str, float]
) -> SessionComparison:
    """Compare a session with an earlier one."""
    shared = {key: statistics[key] - old for key, old in baseline.statistics.items() if key in statistics}
    now = result.spec.inputs(result.index)
    changed = changed_inputs(baseline, now)
    (low, high), current = result.spec.bounds, _current_records(result)
    earlier = [record for record in baseline.records if low <= record.score <= high or "bounds" in changed]
    found, paired_by, common, reason = _difference(
        earlier, current, changed, result.spec.bounds, result.spec.seed
    )
    return SessionComparison(
        baseline,
        shared,
        found,
        paired_by,
        common,
        len(earlier),
        len(current),
        changed=changed,
        changes=tuple(input_differences(changed, baseline.inputs, now)),
        reason=reason,
    )


def changed_inputs(baseline: Baseline, now: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the inputs that are others than the baseline's, as far as its file tells them."""
    before = baseline.inputs
    return tuple(key for key in now if key in before and key not in _UNTOLD and before[key] != now[key])


def another(changed: Iterable[str]) -> str:
    """Return what no longer scores as it did, such as ``another judge and another rubric``; "" for nothing."""
    found = set(changed)
    labels = (("another judge", _OF_THE_JUDGE), ("another rubric", _OF_THE_RUBRIC))
    return " and ".join(label for label, keys in labels if found & keys)


def _current_records(result: SessionResult) -> list[ScoredRecord]:
    scores: Floats = result.table.consensus()
    return [
        ScoredRecord(float(score), record.digest, record.question_digest)
        for record, score in zip(result.index.records(), scores, strict=True)
        if score == score  # NaN is the one value that differs from itself
    ]


def _difference(
    earlier: Sequence[ScoredRecord],
    current: Sequence[ScoredRecord],
    changed: Iterable[str],
    scale: tuple[float, float],
    seed: int,
) -> tuple[Difference | None, Pairing | None, int, str | None]:
    """Return (the difference, what records were paired by, how many are, why they are not)."""
    if "bounds" in changed:
        return None, None, 0, "they are on another scale"
    if not earlier:
        return None, None, 0, "the baseline's file has no records with scores, only their statistics"
    if not current:
        return None, None, 0, "no record has a score"
    paired_by = _pairing(earlier, current)
    if paired_by is None:
        untold = all(record.digest is None for record in earlier)
        reason = "the baseline's file does not say what was judged" if untold else "no record is in both"
        return _unpaired(earlier, current, scale), None, 0, reason
    names = _Names(paired_by)
    pairs = Pairs.of(*names.columns(earlier), *names.columns(current), scale=scale)
    assert pairs is not None  # they have records in common
    return mean_difference(pairs, seed=seed), paired_by, pairs.rows, None


def _pairing(earlier: Sequence[ScoredRecord], current: Sequence[ScoredRecord]) -> Pairing | None:
    """Return what records can be matched by; None where none can."""
    before, now = ({record.digest for record in records} - {None} for records in (earlier, current))
    if before & now and 2 * len(before & now) >= min(len(before), len(now)):
        return "record"
    asked_before, asked_now = (
        {_question(record) for record in records} - {None} for records in (earlier, current)
    )
    return "question" if asked_before & asked_now else None


def _question(record: ScoredRecord) -> str | None:
    return record.question or record.digest


def _unpaired(
    earlier: Sequence[ScoredRecord], current: Sequence[ScoredRecord], scale: tuple[float, float]
) -> Difference | None:
    names = _Names("question")
    return unpaired_difference(*names.columns(earlier), *names.columns(current), scale=scale)


class _Names:
    """Numbers records so that those that are the same have the same number, in both sessions."""

    def __init__(self, by: Pairing) -> None:
        self._by = by
        self._known: dict[str, int] = {}
        self._nameless = 0

    def columns(self, records: Sequence[ScoredRecord]) -> tuple[list[float], list[int]]:
        """Return the scores and the number of each record."""
        return [record.score for record in records], [self._number(record) for record in records]

    def _number(self, record: ScoredRecord) -> int:
        name = record.digest if self._by == "record" else _question(record)
        if name is None:
            self._nameless -= 1  # nobody knows what it is: the same as no other
            return self._nameless
        return self._known.setdefault(name, len(self._known))


def _signed(value: float) -> str:
    return f"{value:+.4f}"
