"""A trust report in a few sentences: what a reader must know before believing the scores."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from osmosis_ai.rubric.messages import RELIABLE, TENTATIVE, percent

if TYPE_CHECKING:
    from osmosis_ai.rubric.calibration import Calibration
    from osmosis_ai.rubric.estimate import TrustEstimate
    from osmosis_ai.rubric.panel import Panel
    from osmosis_ai.rubric.trust import JudgeTrust, SessionCounts

Level = Literal["good", "fair", "bad", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence for the head of a report.

    Attributes:
        level: ``good``, ``fair`` or ``bad`` news, or a ``note`` on what the session could not tell.
        topic: what it is about, in a word or two.
        text: the sentence.
    """

    level: Level
    topic: str
    text: str


def findings(
    counts: SessionCounts, judges: Sequence[JudgeTrust], panel: Panel | None, together: Calibration | None
) -> tuple[Finding, ...]:
    """Return the report in a few sentences, the questions in the order in which they matter.

    Args:
        counts: what was judged.
        judges: each judge by itself.
        panel: the judges with each other, if there are several.
        together: their consensus against people.
    """
    people = together if together is not None else (judges[0].calibration if judges else None)
    found = [_completeness(counts), *_copies(counts), _retest(judges, counts.runs)]
    if panel is not None:
        found.append(_panel(panel))
    if people is not None:
        found.append(_people(people))
    return (*found, *_biases(judges))


def _completeness(counts: SessionCounts) -> Finding:
    if not counts.scored_calls:
        return Finding(
            "bad", "Scored", f"None of {counts.calls:,} calls gave a score: there is nothing to measure."
        )
    made = counts.calls - counts.pending_calls
    share = counts.unscored_calls / made
    records = f"{counts.scored_records:,} of {counts.records:,} records have at least one score."
    if not counts.unscored_calls:
        text = f"All {made:,} calls gave a score."
    else:
        text = (
            f"{counts.unscored_calls:,} of {made:,} calls ({percent(share)}) gave no score. They are left out "
            f"of every figure; {records}"
        )
    if counts.pending_calls:
        text = f"{text} {counts.pending_calls:,} calls are pending" + (
            "." if counts.unscored_calls else f"; {records}"
        )
    level: Level = (
        "bad" if share > 0.05 else "fair" if counts.unscored_calls or counts.pending_calls else "good"
    )
    return Finding(level, "Scored", text)


def _copies(counts: SessionCounts) -> Iterator[Finding]:
    if counts.copied_records:
        are = "record is a copy" if counts.copied_records == 1 else "records are copies"
        text = f"{counts.copied_records:,} of {counts.records:,} {are} of another: each counts once in every figure."
        yield Finding("fair", "Copies", text)


def _retest(judges: Sequence[JudgeTrust], runs: int) -> Finding:
    measured = [judge for judge in judges if judge.alpha.value is not None]
    if not measured:
        reason = judges[0].alpha.reason if judges else "no judge"
        hint = " Repeat each call, for instance with `-n 5`." if runs < 2 else ""
        return Finding("note", "Repeatability", f"Not measurable: {reason}.{hint}")
    worst = min(measured, key=lambda judge: (_sure(judge.alpha), judge.alpha.value or 0.0))
    name = f"{worst.model} is the least repeatable judge. " if len(measured) > 1 else ""
    return Finding(_grade(worst.alpha), "Repeatability", name + worst.alpha.sentence)


def _panel(panel: Panel) -> Finding:
    if panel.alpha.value is None:
        return Finding("note", "Panel", panel.alpha.sentence)
    return Finding(_grade(panel.alpha), "Panel", panel.alpha.sentence)


def _people(people: Calibration) -> Finding:
    if people.bias.value is None:
        text = people.bias.sentence
        return Finding(
            "note", "People", f"{text} Without it a judge may repeat itself perfectly and still be wrong."
        )
    # Landis and Koch 1977: substantial above 0.6, moderate above 0.4.
    level = _level(people.weighted_kappa, good=0.6, fair=0.4)
    return Finding(level, "People", f"{people.weighted_kappa.sentence} {people.bias.sentence}")


def _biases(judges: Sequence[JudgeTrust]) -> Iterator[Finding]:
    """Yield the biases whose interval excludes zero."""
    for judge in judges:
        name = f"{judge.model}: " if len(judges) > 1 else ""
        if judge.length.is_clear:
            yield Finding("fair", "Length", f"{name}{judge.length.per_doubling.sentence}")
        if judge.position.excludes_zero:
            yield Finding("fair", "Position", f"{name}{judge.position.sentence}")
        if judge.order_in_file.excludes_zero:
            yield Finding("fair", "Order", f"{name}{judge.order_in_file.sentence}")


def _grade(alpha: TrustEstimate) -> Level:
    return _level(alpha, good=RELIABLE, fair=TENTATIVE)


def _level(figure: TrustEstimate, *, good: float, fair: float) -> Level:
    """Grade by what is sure of a figure; under too few records nothing is, which is news of neither kind."""
    sure = figure.graded
    return "note" if sure is None else "good" if sure >= good else "fair" if sure >= fair else "bad"


def _sure(figure: TrustEstimate) -> float:
    return -math.inf if figure.graded is None else figure.graded
