"""Agreement of a session's judges with themselves, with each other and with people, and their biases.

A perfectly consistent judge may still be wrong, so each question has its own table. A figure that cannot be computed has
a reason instead of a value; no value is NaN.

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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from osmosis_ai.decisions.differences import Pairs, mean_difference
from osmosis_ai.rubric.figures import (
    Figure,
    cohen_kappa,
    krippendorff_alpha,
    partial_correlation,
    slope,
    spearman,
    spread_of_calls,
)
from osmosis_ai.statistics.estimates import CONFIDENCE, holm

if TYPE_CHECKING:
    import numpy as np

    from osmosis_ai.rubric.figures import Floats, Integers

PANEL = "panel"
LISTED_RECORDS = 20
# Round means relative to the scale, so that the mean of 0.1 and 0.5 ties with a score of 0.3.
_DIGITS = 12
_MOST_LEVELS = 11
_PARTS = 5
_NO_PEOPLE = "no record has a score given by people (`label` or `human_score`)"
_NO_PAIR = "the judge scored none of the records that people scored"
_ONE_ORDER = "all calls quoted their texts in the same order; `--swap` reverses it in every other call"
_AGAINST_PEOPLE = ("spearman", "kappa", "weighted_kappa", "same_category", "mean_absolute_error", "bias")


@dataclass(frozen=True, eq=False)
class ScoreTable:
    """The scores of a session and the known properties of each record. A call without a score is never a zero.

    Attributes:
        models: Names of the judges; the second axis of ``scores``.
        labels: One name per record; the first axis of ``scores``. Numbering starts at 1.
        scores: (records, models, runs); NaN for calls without a score.
        score_min, score_max: The scale of all scores.
        human: (records,) human scores on the same scale; NaN if missing.
        lengths: (records,) characters of the scored text.
        swapped: Every other run quotes the texts in reverse order.
        copy_of: (records,) index of the first identical record, or its own; None if there are no copies.
    """

    models: Sequence[str]
    labels: Sequence[str]
    scores: Floats = field(repr=False)
    score_min: float
    score_max: float
    human: Floats = field(repr=False)
    lengths: Floats = field(repr=False)
    swapped: bool = False
    copy_of: Sequence[int] | None = None

    def __post_init__(self) -> None:
        import numpy as np

        for name in ("scores", "human"):
            object.__setattr__(self, name, self._rounded(np.asarray(getattr(self, name), dtype=np.float64)))

    def distinct(self) -> ScoreTable:
        """Return the table with one record per group of copies, preferring human scores, then most scores."""
        import numpy as np

        if self.copy_of is None:
            return self
        groups = np.asarray(self.copy_of, dtype=np.int64)
        known = (~np.isnan(self.scores)).sum(axis=(1, 2))
        # Sort by group, the best record of each group first, ties in file order.
        order = np.lexsort((-known, np.isnan(self.human), groups))
        _, first = np.unique(groups[order], return_index=True)
        kept = np.sort(order[first])
        rows = {name: getattr(self, name)[kept] for name in ("scores", "human", "lengths")}
        return replace(self, labels=[self.labels[place] for place in kept], copy_of=None, **rows)

    def model_means(self) -> Floats:
        """Return (records, models): each model's mean over its runs; NaN without a score."""
        return self._rounded(mean_where_known(self.scores))

    def consensus(self) -> Floats:
        """Return (records,): the mean of the models' means, which weighs models equally."""
        return self._rounded(mean_where_known(self.model_means()))

    def most_disputed(self, most: int) -> set[int]:
        """Return up to ``most`` records whose scores differ most from each other or from human scores."""
        import numpy as np

        low, high = _extremes(self.scores.reshape(len(self.labels), -1))
        gap = np.abs(self.consensus() - self.human)
        # A record without any score needs the most explanation.
        spread = np.nan_to_num(high - low, nan=self.score_max - self.score_min)
        return set(np.argsort(-np.fmax(spread, np.nan_to_num(gap)), kind="stable")[:most].tolist())

    def _rounded(self, values: Floats) -> Floats:
        """Round away floating-point errors, so that equal scores tie."""
        import numpy as np

        span = self.score_max - self.score_min
        rounded: Floats = np.round(values, _DIGITS - math.ceil(math.log10(span)))
        return rounded


def mean_where_known(values: Floats) -> Floats:
    """Return the mean over the last axis, ignoring NaN; NaN if all values are."""
    import numpy as np

    known = ~np.isnan(values)
    counts = known.sum(axis=-1)
    sums = np.where(known, values, 0.0).sum(axis=-1)
    means: Floats = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    return means


def rescaled(
    values: float | Floats, low: float | Floats, high: float | Floats, *, to_low: float, to_high: float
) -> Floats:
    """Map ``values`` linearly from the scale ``low`` … ``high`` to ``to_low`` … ``to_high``."""
    import numpy as np

    # Extreme bounds in a file can give a non-finite result, which callers check.
    with np.errstate(all="ignore"):
        share = (np.asarray(values, dtype=np.float64) - low) / (np.asarray(high) - np.asarray(low))
        moved: Floats = to_low + share * (to_high - to_low)
    return moved


class SessionCounts(msgspec.Struct, frozen=True):
    """Sample sizes behind the figures."""

    records: int
    models: int
    runs: int
    calls: int
    scored_calls: int
    unscored_calls: int
    pending_calls: int
    scored_records: int
    labelled_records: int
    copied_records: int


class Bin(msgspec.Struct, frozen=True):
    """The records with the judge's score in one category: mean scores and the judge's bias."""

    name: str
    judge: float | None
    people: float | None
    bias: Figure


class JudgeAgreement(msgspec.Struct, frozen=True):
    """The figures of one judge, or of the panel's consensus, by name."""

    model: str
    unscored_calls: int
    figures: dict[str, Figure]
    bins: tuple[Bin, ...] = ()


class Disputed(msgspec.Struct, frozen=True):
    """A record with a large difference of scores."""

    between: str
    record: int
    label: str
    scores: tuple[float, float]


class AgreementReport(msgspec.Struct, frozen=True):
    """All figures of a session."""

    confidence: float
    score_min: float
    score_max: float
    seed: int
    counts: SessionCounts
    judges: tuple[JudgeAgreement, ...]
    panel: JudgeAgreement | None
    disputed: tuple[Disputed, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON-encodable data. A missing value is null with a reason."""
        data: dict[str, Any] = msgspec.to_builtins(self)
        return data


def measure_agreement(table: ScoreTable, *, seed: int = 0, pending_calls: int = 0) -> AgreementReport:
    """Compute all agreement figures of a session."""
    import numpy as np

    # Copies are one observation: duplicated records add no evidence.
    units = table.distinct()
    known = ~np.isnan(table.scores)
    scored, (records, models, runs) = int(known.sum()), known.shape
    judges = [_judge(units, place, seed) for place in range(len(units.models))]
    _adjust_biases([judge.figures for judge in judges])
    return AgreementReport(
        confidence=CONFIDENCE,
        score_min=table.score_min,
        score_max=table.score_max,
        seed=seed,
        counts=SessionCounts(
            records=records,
            models=models,
            runs=runs,
            calls=known.size,
            scored_calls=scored,
            unscored_calls=known.size - scored - pending_calls,
            pending_calls=pending_calls,
            scored_records=int(known.any(axis=(1, 2)).sum()),
            labelled_records=int((~np.isnan(table.human)).sum()),
            copied_records=len(table.labels) - len(units.labels),
        ),
        judges=tuple(judges),
        panel=_panel(units, seed) if len(judges) > 1 else None,
        disputed=(
            *_disputed(table, "judges (lowest, highest)", *_extremes(table.model_means())),
            *_disputed(table, "calls of one judge (lowest, highest)", *_least_stable(table.scores)),
            *_disputed(table, "judge and people", table.consensus(), table.human),
        ),
    )


def _judge(table: ScoreTable, place: int, seed: int) -> JudgeAgreement:
    import numpy as np

    scores, means = table.scores[:, place, :], table.model_means()
    own, others = means[:, place], mean_where_known(np.delete(means, place, axis=1))
    missing = np.isnan(scores)
    rows = np.repeat(np.arange(scores.shape[0]), scores.shape[1]).reshape(scores.shape)

    def mean(used: np.ndarray, values: Floats) -> Figure:
        return Figure.of_mean(values[used], rows[used], low=table.score_min, high=table.score_max)

    figures = {"mean": mean(~missing, scores)}
    if missing.any():
        everything = np.ones_like(missing)
        for name, end in (("mean_at_worst", table.score_min), ("mean_at_best", table.score_max)):
            figures[name] = mean(everything, np.where(missing, end, scores))
    figures["alpha"] = krippendorff_alpha(scores, seed=seed)
    figures["deviation"], figures["identical"] = spread_of_calls(scores, seed=seed)
    if len(table.models) > 1:
        both = ~np.isnan(own) & ~np.isnan(others)
        figures["others_spearman"] = spearman(own[both], others[both])
        figures["others_difference"] = _mean_difference(own[both] - others[both], table)
    against_people, bins = calibrate(own, table, seed=seed)
    figures |= against_people
    figures |= length_bias(own, table.lengths, table.human)
    figures["order_in_file"] = order_in_file(own, table.human)
    figures["position"] = position_bias(
        scores, swapped=table.swapped, scale=(table.score_min, table.score_max)
    )
    return JudgeAgreement(table.models[place], int(missing.sum()), figures, bins)


def _panel(table: ScoreTable, seed: int) -> JudgeAgreement:
    import numpy as np

    consensus = table.consensus()
    known = consensus[~np.isnan(consensus)]
    against_people, bins = calibrate(consensus, table, seed=seed)
    figures = {
        "mean": Figure.of_mean(known, low=table.score_min, high=table.score_max),
        "alpha_between_judges": krippendorff_alpha(table.model_means(), seed=seed),
        **against_people,
    }
    return JudgeAgreement(PANEL, 0, figures, bins)


def _mean_difference(values: Floats, table: ScoreTable, *, least: float = -1.0) -> Figure:
    widest = table.score_max - table.score_min
    return Figure.of_mean(values, low=least * widest, high=widest)


def calibrate(
    judge: Floats, table: ScoreTable, *, seed: int = 0
) -> tuple[dict[str, Figure], tuple[Bin, ...]]:
    """Compare the judge's scores (records,) with human scores; also return its bias by its own score."""
    import numpy as np

    people, low, high = table.human, table.score_min, table.score_max
    both = ~np.isnan(judge) & ~np.isnan(people)
    if not both.any():
        return dict.fromkeys(_AGAINST_PEOPLE, _unlabelled(people)), ()
    judge, people = judge[both], people[both]
    levels = levels_of(people, low, high)
    of_judge, of_people = levels.of(judge), levels.of(people)
    figures = {
        "spearman": spearman(judge, people),
        "kappa": cohen_kappa(of_judge, of_people, levels.size, seed=seed),
        "weighted_kappa": cohen_kappa(of_judge, of_people, levels.size, weighted=True, seed=seed),
        "same_category": Figure.of_rate(of_judge == of_people),
        "mean_absolute_error": _mean_difference(np.abs(judge - people), table, least=0.0),
        "bias": _mean_difference(judge - people, table),
    }
    bins = []
    for category, name in enumerate(levels.names):
        here = of_judge == category
        if here.any():
            bias = _mean_difference(judge[here] - people[here], table)
            bins.append(Bin(name, float(judge[here].mean()), float(people[here].mean()), bias))
        else:
            bins.append(Bin(name, None, None, Figure.missing("no record has such a score")))
    return figures, tuple(bins)


def _unlabelled(people: Floats) -> Figure:
    import numpy as np

    return Figure.missing(_NO_PEOPLE if np.isnan(people).all() else _NO_PAIR)


@dataclass(frozen=True, slots=True)
class Levels:
    """Score categories for statistics that need them: ``parts`` of the scale, or the levels between them."""

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
        return shown if self.centred else [f"{low} – {high}" for low, high in pairwise(shown)]

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


def length_bias(judge: Floats, lengths: Floats, people: Floats) -> dict[str, Figure]:
    """Return the relation of a judge's scores to text length, all (records,); with human scores, beyond theirs."""
    import numpy as np

    scored, doublings = ~np.isnan(judge), np.log2(np.maximum(lengths, 1.0))
    both = scored & ~np.isnan(people)
    found = {"length": spearman(judge[scored], doublings[scored])}
    if not both.any():
        found["length_beyond_people"] = _unlabelled(people)
        return found | {"per_doubling": slope(judge[scored], doublings[scored])}
    found["length_beyond_people"] = partial_correlation(judge[both], doublings[both], people[both])
    return found | {"per_doubling_beyond_people": slope(judge[both] - people[both], doublings[both])}


def length_bias_p(figures: Mapping[str, Figure]) -> float | None:
    """Return the p-value of no length bias: both figures must differ from zero in the same direction."""
    both = [figures.get(name) for name in ("length_beyond_people", "per_doubling_beyond_people")]
    a, b = (figure or Figure(None) for figure in both)
    if a.p is None or b.p is None:
        return None
    return max(a.p, b.p) if (a.value or 0.0) * (b.value or 0.0) > 0 else 1.0


def _adjust_biases(judges: Sequence[dict[str, Figure]]) -> None:
    """Adjust the p-values of all biases of all judges jointly with Holm's method."""
    tests = [
        (figures, names, p)
        for figures in judges
        for names, p in (
            (("length_beyond_people", "per_doubling_beyond_people"), length_bias_p(figures)),
            (("order_in_file",), figures["order_in_file"].p),
            (("position",), figures["position"].p),
        )
    ]
    adjusted = holm([p for *_, p in tests])
    for (figures, names, _), p in zip(tests, adjusted, strict=True):
        for name in names:
            if name in figures:
                figures[name] = msgspec.structs.replace(figures[name], p_adjusted=p)


def order_in_file(judge: Floats, people: Floats) -> Figure:
    """Return the rank correlation of judge minus human score with the position in the file."""
    import numpy as np

    both = ~np.isnan(judge) & ~np.isnan(people)
    if not both.any():
        return _unlabelled(people)
    return spearman(judge[both] - people[both], np.flatnonzero(both).astype(np.float64))


def position_bias(
    scores: Floats, *, swapped: bool = True, scale: tuple[float, float] | None = None
) -> Figure:
    """Return how much higher even runs score than odd ones, which quote their texts in reverse, on the same records."""
    import numpy as np

    if not swapped or scores.shape[1] < 2:
        return Figure.missing(_ONE_ORDER)
    columns: list[np.ndarray] = []
    for first in (1, 0):
        rows, runs = np.nonzero(~np.isnan(scores[:, first::2]))
        columns += [scores[:, first::2][rows, runs], rows]
    pairs = Pairs.of(*columns, scale=scale)
    if pairs is None:
        return Figure.missing("no record was scored in both orders")
    found = mean_difference(pairs)
    interval = None if found.low is None or found.high is None else (found.low, found.high)
    return Figure(found.value, records=found.rows, scores=found.samples).within(
        interval, method=f"{found.method}, by record", otherwise=f"no interval: {found.reason}", p=found.p
    )


def _disputed(table: ScoreTable, between: str, first: Floats, second: Floats) -> list[Disputed]:
    """Return the records with the largest gaps between the two scores, ordered by gap and position."""
    import numpy as np

    gaps = np.nan_to_num(np.abs(second - first), nan=0.0)
    return [
        Disputed(between, int(row) + 1, table.labels[row], (float(first[row]), float(second[row])))
        for row in np.argsort(-gaps, kind="stable")[:LISTED_RECORDS]
        if gaps[row] > 0
    ]


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


GAP = "–"


@dataclass(frozen=True, slots=True)
class ScoreFormat:
    """Formats scores to three significant digits of the scale's width."""

    low: float
    high: float

    def points(self, value: float | None) -> str:
        return GAP if value is None else f"{self._rounded(value):.{self._digits}f}"

    def signed(self, value: float | None) -> str:
        shown = self._rounded(value or 0.0)
        return self.points(value) if not shown else f"{shown:+.{self._digits}f}"

    def coefficient(self, value: float | None) -> str:
        return GAP if value is None else f"{round(value, 2) + 0.0:.2f}"

    def percent(self, share: float | None) -> str:
        return GAP if share is None else f"{share * 100:.3g}%"

    @property
    def _digits(self) -> int:
        return min(6, max(0, 3 - max(0, math.ceil(math.log10(self.high - self.low)))))

    def _rounded(self, value: float) -> float:
        # Avoid a negative zero for a difference too small to show.
        return round(value, self._digits) + 0.0


class FigureTable(NamedTuple):
    """The figures that answer one question about the judges, as text."""

    anchor: str
    title: str
    note: str
    headings: tuple[str, ...]
    rows: list[tuple[str, ...]]
    missing: list[tuple[str, str]]
    """(reason, measure) of figures without a value."""


# Anchor, title, note, and for each figure its name, label and format.
_TABLES: tuple[tuple[str, str, str, tuple[tuple[str, str, str], ...]], ...] = (
    ("scores", "Mean scores", "", (("mean", "Mean score", "points"),)),
    (
        "repeatability",
        "Repeatability",
        "From 0.8 alpha is reliable, from 0.667 it allows tentative conclusions (Krippendorff 2004).",
        (
            ("alpha", "Krippendorff's alpha", "coefficient"),
            ("deviation", "Standard deviation of calls", "points"),
            ("identical", "Records with identical scores", "percent"),
        ),
    ),
    (
        "panel",
        "Agreement between judges",
        "",
        (
            ("alpha_between_judges", "Krippendorff's alpha", "coefficient"),
            ("others_spearman", "Spearman with the others", "coefficient"),
            ("others_difference", "Difference from the others", "signed"),
        ),
    ),
    (
        "people",
        "Agreement with people",
        "",
        (
            ("spearman", "Spearman", "coefficient"),
            ("kappa", "Cohen's kappa", "coefficient"),
            ("weighted_kappa", "Cohen's kappa, quadratic weights", "coefficient"),
            ("same_category", "Same category", "percent"),
        ),
    ),
    (
        "calibration",
        "Calibration",
        "Bias is the judge's score minus people's: a positive one is lenient.",
        (("mean_absolute_error", "Mean absolute error", "points"), ("bias", "Bias", "signed")),
    ),
    (
        "bias",
        "Bias by length and order",
        "p-values are adjusted for all judges and biases (Holm).",
        (
            ("length", "Length and score (Spearman)", "coefficient"),
            ("length_beyond_people", "Length and score, people's fixed", "coefficient"),
            ("per_doubling", "Per doubling of length", "signed"),
            ("per_doubling_beyond_people", "Per doubling of length, beyond people's", "signed"),
            ("order_in_file", "Position in the file (Spearman)", "coefficient"),
            ("position", "Usual order of quoted texts", "signed"),
        ),
    ),
)


def agreement_tables(report: AgreementReport) -> list[FigureTable]:
    """Return the tables of a session. Only a panel has a table of agreement between judges."""
    scale = ScoreFormat(report.score_min, report.score_max)
    judges = [*report.judges, *([report.panel] if report.panel is not None else [])]
    tables = []
    for anchor, title, note, measures in _TABLES:
        found = [
            (judge.model, label, judge.figures[name], getattr(scale, shown))
            for judge in judges
            for name, label, shown in measures
            if name in judge.figures
        ]
        if anchor == "calibration":
            # Only the bins of the panel or the single judge; the chart has those of every judge.
            found += [
                (judges[-1].model, f"Bias at score {each.name}", each.bias, scale.signed)
                for each in judges[-1].bins
                if each.judge is not None
            ]
        if found:
            headings: tuple[str, ...] = ("Judge", "Measure", "Value", "95% CI", "Records", "Scores")
            if anchor == "bias":
                headings += ("Adjusted p",)
            rows = [_row(*each)[: len(headings)] for each in found if each[2].value is not None]
            missing = [(each[2].reason or "", each[1]) for each in found if each[2].value is None]
            tables.append(FigureTable(anchor, title, note, headings, rows, missing))
    return tables


def _row(judge: str, label: str, figure: Figure, show: Any) -> tuple[str, ...]:
    interval = GAP
    if figure.low is not None and figure.high is not None:
        low, high = show(figure.low).removesuffix("%"), show(figure.high)
        interval = f"{low}–{high}" if low[0].isdigit() and figure.low >= 0 else f"{low} to {high}"
    adjusted = GAP if figure.p_adjusted is None else f"{figure.p_adjusted:.3f}"
    counts = f"{figure.records:,}", f"{figure.scores:,}"
    return judge, label, show(figure.value), interval, *counts, adjusted


def not_measured(tables: Iterable[FigureTable]) -> list[str]:
    """Return one line for each reason for missing values."""
    names: dict[str, dict[str, None]] = {}
    for reason, name in (each for table in tables for each in table.missing):
        names.setdefault(reason, {})[name] = None
    return [f"Not measured ({reason}): {'; '.join(without)}" for reason, without in names.items()]
