"""How far a judge can be trusted: every figure with its interval, its denominator and a sentence.

Three questions are kept apart. Does the judge repeat itself (spread, test-retest reliability)? Do
judges agree with each other (panel)? Do they agree with people (calibration), and is it quality they
score (biases)? A judge that repeats itself perfectly may still be wrong. Where the data allow no
answer the figure says why; nothing is a NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from osmosis_ai.evaluation.statistics import estimate_mean
from osmosis_ai.rubric.agreement import Intraclass, krippendorff_alpha, one_way_icc
from osmosis_ai.rubric.biases import (
    JudgeBiases,
    LengthBias,
    adjusted_for_all,
    length_bias,
    order_in_file,
    position_bias,
)
from osmosis_ai.rubric.calibration import Calibration, calibrate
from osmosis_ai.rubric.estimate import CONFIDENCE, TrustEstimate
from osmosis_ai.rubric.messages import RELIABLE, TENTATIVE, Wording, percent
from osmosis_ai.rubric.panel import ONE_JUDGE, Panel, measure_panel
from osmosis_ai.rubric.spread import Spread, measure_spread

if TYPE_CHECKING:
    from osmosis_ai.rubric.scores import Floats, ScoreTable

Level = Literal["good", "fair", "bad", "note"]
LISTED_RECORDS = 20


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence for the head of a report."""

    level: Level
    topic: str
    text: str


@dataclass(frozen=True, slots=True)
class SessionCounts:
    """What the figures were taken from."""

    records: int
    models: int
    runs: int
    calls: int
    scored_calls: int
    unscored_calls: int
    pending_calls: int
    scored_records: int
    complete_records: int
    labelled_records: int
    copied_records: int


@dataclass(frozen=True, slots=True)
class JudgeTrust:
    """How far one judge can be trusted."""

    model: str
    unscored_calls: int
    mean: TrustEstimate
    stderr: float | None
    stderr_by_call: float | None
    spread: Spread
    alpha: TrustEstimate
    alpha_ordinal: TrustEstimate
    retest: Intraclass
    calibration: Calibration
    length: LengthBias
    order_in_file: TrustEstimate
    position: TrustEstimate
    mean_at_worst: TrustEstimate | None = None
    mean_at_best: TrustEstimate | None = None


@dataclass(frozen=True, slots=True)
class Disputed:
    """A record on which scores differ most."""

    record: int
    label: str
    scores: tuple[float, float]
    gap: float


@dataclass(frozen=True, slots=True)
class TrustReport:
    """How far the judges of a session can be trusted."""

    score_min: float
    score_max: float
    seed: int
    counts: SessionCounts
    findings: tuple[Finding, ...]
    judges: tuple[JudgeTrust, ...]
    panel: Panel | None
    panel_reason: str | None
    consensus_calibration: Calibration | None
    disputed: tuple[Disputed, ...]
    unstable: tuple[Disputed, ...]
    far_from_people: tuple[Disputed, ...]

    def to_json(self) -> Mapping[str, Any]:
        """Return the report as JSON-encodable data; what could not be measured is null with a reason."""
        return {"confidence": CONFIDENCE, **_encoded(self)}

    @classmethod
    def from_json(cls, data: object) -> TrustReport:
        """Read what :meth:`to_json` returned."""
        from pydantic import TypeAdapter

        found: TrustReport = TypeAdapter(cls).validate_python(data)
        return found


def trust_report(table: ScoreTable, *, seed: int = 0, pending_calls: int = 0) -> TrustReport:
    """Measure how far the judges of a session can be trusted."""
    wording = Wording(table.score_min, table.score_max, table.runs)
    # Copies are one draw, and a record that stands thrice is no more evidence than one that stands once.
    units = table.distinct()
    biases = adjusted_for_all([_biases_of(units, place) for place in range(len(table.models))])
    judges = tuple(_judge(units, place, found, wording, seed) for place, found in enumerate(biases))
    panel = measure_panel(units, seed=seed)
    together = None
    if panel is not None:
        panel = wording.panel(panel)
        together = wording.calibration(_against_people(units, units.consensus(), seed), "the panel")
    counts = _counts(table, pending_calls)
    return TrustReport(
        score_min=table.score_min,
        score_max=table.score_max,
        seed=seed,
        counts=counts,
        findings=findings(counts, judges, panel, together),
        judges=judges,
        panel=panel,
        panel_reason=None if panel is not None else ONE_JUDGE,
        consensus_calibration=together,
        disputed=_listed(table, *_extremes(table.model_means())),
        unstable=_listed(table, *_least_stable(table.scores)),
        far_from_people=_listed(table, table.consensus(), table.human),
    )


def _counts(table: ScoreTable, pending: int) -> SessionCounts:
    import numpy as np

    known = ~np.isnan(table.scores)
    scored = int(known.sum())
    return SessionCounts(
        records=table.records,
        models=len(table.models),
        runs=table.runs,
        calls=known.size,
        scored_calls=scored,
        unscored_calls=known.size - scored - pending,
        pending_calls=pending,
        scored_records=int(known.any(axis=(1, 2)).sum()),
        complete_records=int(known.all(axis=(1, 2)).sum()),
        labelled_records=int((~np.isnan(table.human)).sum()),
        copied_records=table.records - table.distinct().records,
    )


def _biases_of(table: ScoreTable, place: int) -> JudgeBiases:
    means = table.model_means()[:, place]
    scale = (table.score_min, table.score_max)
    return JudgeBiases(
        length_bias(means, table.lengths, table.human),
        order_in_file(means, table.human),
        position_bias(table.scores[:, place, :], table.presentations, scale=scale),
    )


def _judge(table: ScoreTable, place: int, biases: JudgeBiases, wording: Wording, seed: int) -> JudgeTrust:
    import numpy as np

    scores = table.scores[:, place, :]
    means = table.model_means()[:, place]
    rows, runs = np.nonzero(~np.isnan(scores))
    values = scores[rows, runs]
    mean = estimate_mean(values, rows)
    return JudgeTrust(
        model=table.models[place],
        unscored_calls=scores.size - values.size,
        mean=wording.mean(
            TrustEstimate.of_mean(values, rows, low=table.score_min, high=table.score_max),
            table.models[place],
        ),
        stderr=mean.stderr if mean is not None else None,
        stderr_by_call=float(values.std(ddof=1) / values.size**0.5) if values.size > 1 else None,
        spread=wording.spread(measure_spread(scores, seed=seed)),
        alpha=wording.retest_alpha(krippendorff_alpha(scores, seed=seed)),
        alpha_ordinal=wording.ordinal_alpha(krippendorff_alpha(scores, level="ordinal", seed=seed)),
        retest=wording.retest(one_way_icc(scores, seed=seed)),
        calibration=wording.calibration(_against_people(table, means, seed), table.models[place]),
        length=wording.length(biases.length),
        order_in_file=wording.order_in_file(biases.order_in_file),
        position=wording.position(biases.position, table.presentations),
        mean_at_worst=_mean_with(table, scores, table.score_min),
        mean_at_best=_mean_with(table, scores, table.score_max),
    )


def _mean_with(table: ScoreTable, scores: Floats, unscored_as: float) -> TrustEstimate | None:
    """Return a judge's mean score with a score for every unscored call; None without such a call."""
    import numpy as np

    missing = np.isnan(scores)
    if not missing.any():
        return None
    rows = np.repeat(np.arange(scores.shape[0]), scores.shape[1])
    filled = np.where(missing, unscored_as, scores).ravel()
    found = TrustEstimate.of_mean(filled, rows, low=table.score_min, high=table.score_max)
    sentence = f"With every unscored call at {unscored_as:g}, the mean score is {found.value:.4g}."
    return replace(found, sentence=sentence)


def _against_people(table: ScoreTable, judge: Floats, seed: int) -> Calibration:
    return calibrate(judge, table.human, low=table.score_min, high=table.score_max, seed=seed)


def _listed(table: ScoreTable, first: Floats, second: Floats) -> tuple[Disputed, ...]:
    """Return the records where the two scores lie farthest apart, by gap and then by place."""
    import numpy as np

    gaps = np.nan_to_num(np.abs(second - first), nan=0.0)
    found = np.argsort(-gaps, kind="stable")[:LISTED_RECORDS]
    return tuple(
        Disputed(int(row) + 1, table.labels[row], (float(first[row]), float(second[row])), float(gaps[row]))
        for row in found
        if gaps[row] > 0
    )


def _extremes(scores: Floats) -> tuple[Floats, Floats]:
    """Return the least and the greatest score along the last axis; NaN where there is none."""
    import numpy as np

    unknown = np.isnan(scores)
    low = np.where(unknown, np.inf, scores).min(axis=-1)
    high = np.where(unknown, -np.inf, scores).max(axis=-1)
    scored = ~unknown.all(axis=-1)
    return np.where(scored, low, np.nan), np.where(scored, high, np.nan)


def _least_stable(scores: Floats) -> tuple[Floats, Floats]:
    """Return the extremes of the one judge whose repeated scores of a record differ most."""
    import numpy as np

    low, high = _extremes(scores)
    widest = np.argmax(np.nan_to_num(high - low, nan=-1.0), axis=1)[:, None]
    return np.take_along_axis(low, widest, axis=1)[:, 0], np.take_along_axis(high, widest, axis=1)[:, 0]


def _encoded(value: Any) -> Any:
    if is_dataclass(value):
        return {field.name: _encoded(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return [_encoded(item) for item in value]
    return value


def findings(
    counts: SessionCounts, judges: Sequence[JudgeTrust], panel: Panel | None, together: Calibration | None
) -> tuple[Finding, ...]:
    """Return the report in a few sentences, the questions in the order in which they matter."""
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
    """Yield the biases that are significant among all judges and biases."""
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
