"""Agreement of a session's judges with themselves, with each other and with human scores, and their biases.

A perfectly consistent judge may still be wrong, so each question has its own figures. A figure that cannot be computed
has a reason instead of a value; no value is NaN.

A correlation of scores with length is not necessarily a bias, because longer answers may be better. Human scores
separate the two: with them, each effect is what the judge adds. Human scores are noisy as well. Controlling for a noisy
score leaves some of the quality it measures, and the difference of judge and human does not, so both are reported.

Sources:
    Dawid 1982, "The Well-Calibrated Bayesian" (bins of the forecast, here of the judge's score).
    Dubois et al. 2024, "Length-Controlled AlpacaEval" (judges' preference for length).
    Wang et al. 2023, "Large Language Models are not Fair Evaluators" (order of what is quoted).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any

from osmosis_ai.decisions.differences import Pairs, mean_difference
from osmosis_ai.rubric.coefficients import (
    ONCE,
    Intraclass,
    cohen_kappa,
    krippendorff_alpha,
    one_way_icc,
    partial,
    pearson,
    slope,
    spearman,
    two_way_icc,
)
from osmosis_ai.rubric.estimate import BOOTSTRAP, CONFIDENCE, TOO_FEW, JudgeFigure, bootstrap_interval
from osmosis_ai.rubric.scores import mean_where_known, score_ranges
from osmosis_ai.statistics.estimates import holm

if TYPE_CHECKING:
    from osmosis_ai.rubric.scores import Floats, Integers, ScoreTable

LISTED_RECORDS = 20
_MOST_LEVELS = 11
_PARTS = 5
_NO_PEOPLE = "no record has a score given by people (`label` or `human_score`)"
_NO_PAIR = "the judge scored none of the records that people scored"
_ONE_ORDER = "all calls quoted their texts in the same order; `--swap` reverses it in every other call"


@dataclass(frozen=True, slots=True)
class SessionCounts:
    """Sample sizes behind the figures."""

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
class Spread:
    """Standard deviation of repeated scores, and share of records with constant scores."""

    within: JudgeFigure
    unchanged: JudgeFigure


@dataclass(frozen=True, slots=True)
class Bin:
    """The records with the judge's score in one category."""

    name: str
    judge: float | None
    people: float | None
    bias: JudgeFigure


@dataclass(frozen=True, slots=True)
class Calibration:
    """Comparison of a judge with human scores."""

    pearson: JudgeFigure
    spearman: JudgeFigure
    kappa: JudgeFigure
    weighted_kappa: JudgeFigure
    exact: JudgeFigure
    mean_absolute_error: JudgeFigure
    bias: JudgeFigure
    bins: tuple[Bin, ...]
    levels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LengthBias:
    """Relation between a judge's scores and text length."""

    correlation: JudgeFigure
    controlled: JudgeFigure
    per_doubling: JudgeFigure
    against_people: bool

    @property
    def p(self) -> float | None:
        """The p-value of no bias: both figures must differ from zero in the same direction."""
        if self.controlled.p is None or self.per_doubling.p is None:
            return None
        same_side = (self.controlled.value or 0.0) * (self.per_doubling.value or 0.0) > 0
        return max(self.controlled.p, self.per_doubling.p) if same_side else 1.0


@dataclass(frozen=True, slots=True)
class JudgeAgreement:
    """The figures of one judge."""

    model: str
    unscored_calls: int
    mean: JudgeFigure
    spread: Spread
    alpha: JudgeFigure
    alpha_ordinal: JudgeFigure
    retest: Intraclass
    calibration: Calibration
    length: LengthBias
    order_in_file: JudgeFigure
    position: JudgeFigure
    mean_at_worst: JudgeFigure | None = None
    mean_at_best: JudgeFigure | None = None


@dataclass(frozen=True, slots=True)
class JudgePair:
    """A judge compared with another one or the mean of the others, on commonly scored records."""

    first: str
    second: str
    pearson: JudgeFigure
    spearman: JudgeFigure
    difference: JudgeFigure
    mean_absolute_difference: JudgeFigure


@dataclass(frozen=True, slots=True)
class Panel:
    """Agreement and consensus of several judges, each represented by the mean of its runs."""

    alpha: JudgeFigure
    alpha_ordinal: JudgeFigure
    absolute: Intraclass
    consistency: Intraclass
    consensus: JudgeFigure
    consensus_median: JudgeFigure
    pairs: tuple[JudgePair, ...]
    left_out: tuple[JudgePair, ...]


@dataclass(frozen=True, slots=True)
class Disputed:
    """A record with a large difference of scores."""

    record: int
    label: str
    scores: tuple[float, float]
    gap: float


@dataclass(frozen=True, slots=True)
class AgreementReport:
    """All figures of a session."""

    score_min: float
    score_max: float
    seed: int
    counts: SessionCounts
    judges: tuple[JudgeAgreement, ...]
    panel: Panel | None
    consensus_calibration: Calibration | None
    disputed: tuple[Disputed, ...]
    unstable: tuple[Disputed, ...]
    far_from_people: tuple[Disputed, ...]

    def to_json(self) -> Mapping[str, Any]:
        """Return the report as JSON-encodable data. A missing value is null with a reason."""
        return {"confidence": CONFIDENCE, **_encoded(self)}

    @classmethod
    def from_json(cls, data: object) -> AgreementReport:
        """Parse the output of :meth:`to_json`."""
        from pydantic import TypeAdapter

        found: AgreementReport = TypeAdapter(cls).validate_python(data)
        return found


def measure_agreement(table: ScoreTable, *, seed: int = 0, pending_calls: int = 0) -> AgreementReport:
    """Compute all agreement figures of a session."""
    # Copies are one observation: duplicated records add no evidence.
    units = table.distinct()
    panel = _panel(units, seed) if len(units.models) > 1 else None
    return AgreementReport(
        score_min=table.score_min,
        score_max=table.score_max,
        seed=seed,
        counts=_counts(table, pending_calls),
        judges=_adjusted([_judge(units, place, seed) for place in range(len(units.models))]),
        panel=panel,
        consensus_calibration=_against_people(units, units.consensus(), seed) if panel is not None else None,
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


def _judge(table: ScoreTable, place: int, seed: int) -> JudgeAgreement:
    import numpy as np

    scores = table.scores[:, place, :]
    means = table.model_means()[:, place]
    rows, runs = np.nonzero(~np.isnan(scores))
    low, high = table.score_min, table.score_max
    return JudgeAgreement(
        model=table.models[place],
        unscored_calls=scores.size - rows.size,
        mean=JudgeFigure.of_mean(scores[rows, runs], rows, low=low, high=high),
        spread=measure_spread(scores, seed=seed),
        alpha=krippendorff_alpha(scores, seed=seed),
        alpha_ordinal=krippendorff_alpha(scores, level="ordinal", seed=seed),
        retest=one_way_icc(scores, seed=seed),
        calibration=_against_people(table, means, seed),
        length=length_bias(means, table.lengths, table.human),
        order_in_file=order_in_file(means, table.human),
        position=position_bias(scores, table.presentations, scale=(low, high)),
        mean_at_worst=_mean_with(table, scores, low),
        mean_at_best=_mean_with(table, scores, high),
    )


def _adjusted(judges: Sequence[JudgeAgreement]) -> tuple[JudgeAgreement, ...]:
    """Adjust the p-values of all biases of all judges jointly with Holm's method."""
    tests = holm([p for each in judges for p in (each.length.p, each.order_in_file.p, each.position.p)])
    return tuple(
        replace(
            each,
            length=replace(
                each.length,
                controlled=replace(each.length.controlled, p_adjusted=length),
                per_doubling=replace(each.length.per_doubling, p_adjusted=length),
            ),
            order_in_file=replace(each.order_in_file, p_adjusted=order),
            position=replace(each.position, p_adjusted=position),
        )
        for each, length, order, position in zip(judges, tests[::3], tests[1::3], tests[2::3], strict=True)
    )


def _mean_with(table: ScoreTable, scores: Floats, unscored_as: float) -> JudgeFigure | None:
    """Return a judge's mean score with ``unscored_as`` for unscored calls; None without such a call."""
    import numpy as np

    missing = np.isnan(scores)
    if not missing.any():
        return None
    rows = np.repeat(np.arange(scores.shape[0]), scores.shape[1])
    filled = np.where(missing, unscored_as, scores).ravel()
    return JudgeFigure.of_mean(filled, rows, low=table.score_min, high=table.score_max)


def measure_spread(scores: Floats, *, seed: int = 0) -> Spread:
    """Return the variation of repeated scores of a record."""
    import numpy as np

    known = ~np.isnan(scores)
    counts = known.sum(axis=1)
    repeated = counts >= 2
    scores, known, counts = scores[repeated], known[repeated], counts[repeated]
    records, total = int(repeated.sum()), int(counts.sum())
    if records == 0:
        missing = JudgeFigure.missing(
            ONCE if scores.shape[1] < 2 else "no record has two scores of this judge"
        )
        return Spread(missing, missing)
    means = np.where(known, scores, 0.0).sum(axis=1) / counts
    squares = np.square(np.where(known, scores - means[:, None], 0.0)).sum(axis=1)
    sums = np.column_stack((squares, (counts - 1).astype(np.float64)))
    within = JudgeFigure(math.sqrt(squares.sum() / sums[:, 1].sum()), records=records, scores=total)
    interval = bootstrap_interval(sums, lambda totals: np.sqrt(totals[:, 0] / totals[:, 1]), seed=seed)
    otherwise = TOO_FEW if squares.any() else "every record got the same score each time"
    return Spread(
        within.within(interval, method=BOOTSTRAP, otherwise=otherwise),
        replace(JudgeFigure.of_rate(score_ranges(scores) == 0), scores=total),
    )


def _panel(table: ScoreTable, seed: int) -> Panel:
    import numpy as np

    means = table.model_means()
    places = range(len(table.models))

    def compared(place: int, other: Floats, name: str) -> JudgePair:
        """Compare a judge with other scores by record."""
        both = ~np.isnan(means[:, place]) & ~np.isnan(other)
        a, b, widest = means[both, place], other[both], table.span
        return JudgePair(
            first=table.models[place],
            second=name,
            pearson=pearson(a, b),
            spearman=spearman(a, b),
            difference=JudgeFigure.of_mean(a - b, low=-widest, high=widest),
            mean_absolute_difference=JudgeFigure.of_mean(np.abs(a - b), low=0.0, high=widest),
        )

    def mean_of_known(values: Floats) -> JudgeFigure:
        return JudgeFigure.of_mean(values[~np.isnan(values)], low=table.score_min, high=table.score_max)

    return Panel(
        alpha=krippendorff_alpha(means, seed=seed),
        alpha_ordinal=krippendorff_alpha(means, level="ordinal", seed=seed),
        absolute=two_way_icc(means, seed=seed),
        consistency=two_way_icc(means, consistency=True, seed=seed),
        consensus=mean_of_known(table.consensus()),
        consensus_median=mean_of_known(table.consensus_median()),
        pairs=tuple(compared(a, means[:, b], table.models[b]) for a, b in combinations(places, 2)),
        left_out=tuple(
            compared(place, mean_where_known(np.delete(means, place, axis=1)), "the others")
            for place in places
        ),
    )


def _against_people(table: ScoreTable, judge: Floats, seed: int) -> Calibration:
    return calibrate(judge, table.human, low=table.score_min, high=table.score_max, seed=seed)


def calibrate(judge: Floats, people: Floats, *, low: float, high: float, seed: int = 0) -> Calibration:
    """Compare a judge's scores with human scores."""
    import numpy as np

    both = ~np.isnan(judge) & ~np.isnan(people)
    unlabelled = _NO_PEOPLE if np.isnan(people).all() else _NO_PAIR
    judge, people = judge[both], people[both]
    if judge.size == 0:
        return _nothing(unlabelled)
    slack = 1e-9 * (high - low)
    if people.min() < low - slack or people.max() > high + slack:
        seen = f"people's scores run from {people.min():.4g} to {people.max():.4g}"
        reason = f"{seen}, the judge's scale from {low:.4g} to {high:.4g}"
        return _nothing(reason, pearson=pearson(judge, people), spearman=spearman(judge, people))
    levels = levels_of(people, low, high)
    difference, widest = judge - people, high - low
    return Calibration(
        pearson=pearson(judge, people),
        spearman=spearman(judge, people),
        kappa=cohen_kappa(levels.of(judge), levels.of(people), levels.size, seed=seed),
        weighted_kappa=cohen_kappa(
            levels.of(judge), levels.of(people), levels.size, weighted=True, seed=seed
        ),
        exact=JudgeFigure.of_rate(levels.of(judge) == levels.of(people)),
        mean_absolute_error=JudgeFigure.of_mean(np.abs(difference), low=0.0, high=widest),
        bias=JudgeFigure.of_mean(difference, low=-widest, high=widest),
        bins=_bins(judge, people, levels, widest),
        levels=tuple(levels.names),
    )


@dataclass(frozen=True, slots=True)
class Levels:
    """Score categories for statistics that need them."""

    low: float
    high: float
    parts: int
    centred: bool

    @property
    def size(self) -> int:
        return self.parts + 1 if self.centred else self.parts

    @property
    def names(self) -> list[str]:
        edges = [self.low + (self.high - self.low) * part / self.parts for part in range(self.parts + 1)]
        shown = [f"{edge:.4g}" for edge in edges]
        if self.centred:
            return shown
        return [f"{low} – {high}" for low, high in pairwise(shown)]

    def of(self, scores: Floats) -> Integers:
        """Return the category of each score, counted from 0."""
        import numpy as np

        steps = (scores - self.low) / (self.high - self.low) * self.parts
        # A mean of runs may miss its edge by a rounding error.
        found = np.floor(np.round(steps, 9) + (0.5 if self.centred else 0.0))
        return np.clip(found, 0, self.size - 1).astype(np.int64)


def levels_of(people: Floats, low: float, high: float) -> Levels:
    """Return the categories of the human scores: their even grid, or else five equal parts."""
    import numpy as np

    offsets = np.unique(np.round((people - low) / (high - low), 9))
    whole = high - low
    candidates = [*range(1, _MOST_LEVELS)]
    if float(low).is_integer() and float(whole).is_integer() and 2 <= whole < _MOST_LEVELS:
        candidates.insert(0, int(whole))
    for parts in candidates:
        if np.all(np.abs(offsets * parts - np.round(offsets * parts)) < 1e-6):
            return Levels(low, high, parts, centred=True)
    return Levels(low, high, _PARTS, centred=False)


def _bins(judge: Floats, people: Floats, levels: Levels, widest: float) -> tuple[Bin, ...]:
    found = []
    categories = levels.of(judge)
    for category, name in enumerate(levels.names):
        here = categories == category
        if not here.any():
            found.append(Bin(name, None, None, JudgeFigure.missing("no record has such a score")))
            continue
        bias = JudgeFigure.of_mean(judge[here] - people[here], low=-widest, high=widest)
        found.append(Bin(name, float(judge[here].mean()), float(people[here].mean()), bias))
    return tuple(found)


def _nothing(reason: str, **known: JudgeFigure) -> Calibration:
    missing = JudgeFigure.missing(reason)
    names = ("pearson", "spearman", "kappa", "weighted_kappa", "exact", "mean_absolute_error", "bias")
    return Calibration(**{name: known.get(name, missing) for name in names}, bins=(), levels=())


def length_bias(judge: Floats, lengths: Floats, people: Floats) -> LengthBias:
    """Return the relation of a judge's scores to text length."""
    import numpy as np

    scored = ~np.isnan(judge)
    doublings = np.log2(np.maximum(lengths, 1.0))
    both = scored & ~np.isnan(people)
    correlation = spearman(judge[scored], doublings[scored])
    if not both.any():
        controlled = JudgeFigure.missing(_NO_PEOPLE if np.isnan(people).all() else _NO_PAIR)
        return LengthBias(
            correlation, controlled, slope(judge[scored], doublings[scored]), against_people=False
        )
    controlled = partial(judge[both], doublings[both], people[both])
    beyond = slope(judge[both] - people[both], doublings[both])
    return LengthBias(correlation, controlled, beyond, against_people=True)


def order_in_file(judge: Floats, people: Floats) -> JudgeFigure:
    """Return the rank correlation of judge minus human score with the position in the file."""
    import numpy as np

    both = ~np.isnan(judge) & ~np.isnan(people)
    if not both.any():
        return JudgeFigure.missing(_NO_PEOPLE if np.isnan(people).all() else _NO_PAIR)
    return spearman(judge[both] - people[both], np.flatnonzero(both).astype(np.float64))


def position_bias(
    scores: Floats, presentations: Sequence[str] | None, *, scale: tuple[float, float] | None = None
) -> JudgeFigure:
    """Return how much higher the first block order scores than the second, on the same records."""
    import numpy as np

    orders = list(dict.fromkeys(presentations or ()))
    if len(orders) < 2:
        return JudgeFigure.missing(_ONE_ORDER)
    used = np.array([order == orders[0] for order in presentations or ()])
    other = np.array([order == orders[1] for order in presentations or ()])
    first, first_rows = _known(scores[:, used])
    second, second_rows = _known(scores[:, other])
    pairs = Pairs.of(second, second_rows, first, first_rows, scale=scale)
    if pairs is None:
        return JudgeFigure.missing("no record was scored in both orders")
    found = mean_difference(pairs)
    figure = JudgeFigure(found.value, records=found.rows, scores=found.samples)
    interval = None if found.low is None or found.high is None else (found.low, found.high)
    return figure.within(
        interval, method=f"{found.method}, by record", otherwise=f"no interval: {found.reason}", p=found.p
    )


def _known(scores: Floats) -> tuple[Floats, Integers]:
    """Return the available scores and the record of each."""
    import numpy as np

    rows, runs = np.nonzero(~np.isnan(scores))
    return scores[rows, runs], rows


def _listed(table: ScoreTable, first: Floats, second: Floats) -> tuple[Disputed, ...]:
    """Return the records with the largest gaps between the two scores, ordered by gap and position."""
    import numpy as np

    gaps = np.nan_to_num(np.abs(second - first), nan=0.0)
    found = np.argsort(-gaps, kind="stable")[:LISTED_RECORDS]
    return tuple(
        Disputed(int(row) + 1, table.labels[row], (float(first[row]), float(second[row])), float(gaps[row]))
        for row in found
        if gaps[row] > 0
    )


def _extremes(scores: Floats) -> tuple[Floats, Floats]:
    """Return the minimum and maximum along the last axis; NaN if there are no scores."""
    import numpy as np

    unknown = np.isnan(scores)
    low = np.where(unknown, np.inf, scores).min(axis=-1)
    high = np.where(unknown, -np.inf, scores).max(axis=-1)
    scored = ~unknown.all(axis=-1)
    return np.where(scored, low, np.nan), np.where(scored, high, np.nan)


def _least_stable(scores: Floats) -> tuple[Floats, Floats]:
    """Return the extremes of the judge whose repeated scores of a record differ most."""
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
