"""How far a judge can be trusted: every figure with its interval, its denominator and a sentence.

Three questions are kept apart. Does the judge repeat itself (spread, test-retest reliability)? Do
judges agree with each other (panel)? Do they agree with people (calibration), and is it quality they
score (biases)? A judge that repeats itself perfectly may still be wrong. Where the data allow no
answer the figure says why; nothing is a NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any

from osmosis_ai.evaluation.statistics import estimate_mean
from osmosis_ai.rubric.agreement import Intraclass, krippendorff_alpha, one_way_icc
from osmosis_ai.rubric.biases import LengthBias, length_bias, order_in_file, position_bias
from osmosis_ai.rubric.calibration import Calibration, calibrate
from osmosis_ai.rubric.estimate import CONFIDENCE, TrustEstimate
from osmosis_ai.rubric.findings import Finding, findings
from osmosis_ai.rubric.messages import Wording
from osmosis_ai.rubric.panel import ONE_JUDGE, Panel, measure_panel
from osmosis_ai.rubric.spread import Spread, measure_spread

if TYPE_CHECKING:
    from osmosis_ai.rubric.scores import Floats, ScoreTable

LISTED_RECORDS = 20


@dataclass(frozen=True, slots=True)
class SessionCounts:
    """What the figures were taken from.

    Attributes:
        records, models, runs: the size of the session; ``calls`` is their product.
        scored_calls, unscored_calls: calls that were made, with and without a usable score.
        pending_calls: calls that were not made.
        scored_records: records with at least one score.
        complete_records: records that every model scored in every run.
        labelled_records: records that carry a score given by people.
        copied_records: records that are copies of another; the figures are taken over one of each.
    """

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
    """How far one judge can be trusted.

    Attributes:
        model: its name.
        unscored_calls: calls that gave no score.
        mean: the mean score; its interval counts records, not calls.
        stderr: the standard error behind it, clustered by record.
        stderr_by_call: what it would be if every call were independent: too small with repeated calls.
        spread: how far repeated scores of a record lie apart.
        alpha, alpha_ordinal: Krippendorff's alpha over repeated calls.
        retest: ICC(1,1) of one call and ICC(1,k) of the mean of all runs.
        calibration: against people.
        length: whether longer texts score higher.
        order_in_file: whether the score goes with the place in the file.
        position: whether the order of the quoted blocks matters.
    """

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


@dataclass(frozen=True, slots=True)
class Disputed:
    """A record on which scores differ most.

    Attributes:
        record: its 1-based place.
        label: its name.
        scores: the two that differ: the lowest and the highest, or the judges' and people's.
        gap: how far they lie apart.
    """

    record: int
    label: str
    scores: tuple[float, float]
    gap: float


@dataclass(frozen=True, slots=True)
class TrustReport:
    """How far the judges of a session can be trusted.

    Attributes:
        score_min, score_max: the scale.
        seed: of the bootstrap; the same table and seed give the same report.
        counts: what the figures were taken from.
        findings: the report in a few sentences.
        judges: each judge by itself.
        panel: the judges with each other; None when there is one, ``panel_reason`` says so.
        consensus_calibration: the mean of the judges against people, when there are several.
        disputed: records whose judges differ most, greatest gap first.
        unstable: records whose repeated scores by one judge differ most.
        far_from_people: records on which the consensus is farthest from people.
    """

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


def trust_report(table: ScoreTable, *, seed: int = 0, pending_calls: int = 0) -> TrustReport:
    """Measure how far the judges of a session can be trusted.

    100,000 records by 3 models by 5 runs take a few seconds and some hundred megabytes.

    Args:
        table: the scores.
        seed: of the bootstrap.
        pending_calls: how many of the calls without a score were not made.
    """
    wording = Wording(table.score_min, table.score_max, table.runs)
    # Copies are one draw, and a record that stands thrice is no more evidence than one that stands once.
    units = table.distinct()
    judges = tuple(_judge(units, place, wording, seed) for place in range(len(table.models)))
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


def _judge(table: ScoreTable, place: int, wording: Wording, seed: int) -> JudgeTrust:
    import numpy as np

    scores = table.scores[:, place, :]
    means = table.model_means()[:, place]
    rows, runs = np.nonzero(~np.isnan(scores))
    values = scores[rows, runs]
    mean = estimate_mean(values, rows)
    return JudgeTrust(
        model=table.models[place],
        unscored_calls=scores.size - values.size,
        mean=wording.mean(TrustEstimate.of_mean(values, rows), table.models[place]),
        stderr=mean.stderr if mean is not None else None,
        stderr_by_call=float(values.std(ddof=1) / values.size**0.5) if values.size > 1 else None,
        spread=wording.spread(measure_spread(scores, seed=seed)),
        alpha=wording.retest_alpha(krippendorff_alpha(scores, seed=seed)),
        alpha_ordinal=wording.ordinal_alpha(krippendorff_alpha(scores, level="ordinal", seed=seed)),
        retest=wording.retest(one_way_icc(scores, seed=seed)),
        calibration=wording.calibration(_against_people(table, means, seed), table.models[place]),
        length=wording.length(length_bias(means, table.lengths, table.human)),
        order_in_file=wording.order_in_file(order_in_file(means, table.human)),
        position=wording.position(position_bias(scores, table.presentations), table.presentations),
    )


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
