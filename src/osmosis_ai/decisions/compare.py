"""Compare runs: each candidate with one baseline, by every metric that both report.

Pure: the same samples with the same seed give the same result. One metric decides; the others are context. B is better or
worse if the interval of the difference excludes zero, after Holm's adjustment for several candidates, and if it still does
with every unscored attempt placed against the result.

P-values are adjusted for all slices of a candidate at once, and a slice of a few rows has no verdict. A single row has too
few attempts for a test (4 of 4 passes against 0 of 4 has p = 0.029, which may be chance among 100 rows), so rows are listed
by the size of their change.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np

from osmosis_ai.config.decisions import attempts_asked
from osmosis_ai.decisions.changes import (
    ChangeSettings,
    MetricChange,
    adjust,
    change_of,
    described,
    metrics_of,
    pass_or_fail,
)
from osmosis_ai.decisions.comparability import Allowances, Comparability, require_comparable
from osmosis_ai.decisions.differences import Difference
from osmosis_ai.decisions.samples import HUGE, ComparedInputs, RunPair, RunSamples, by_slice
from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.statistics.estimates import CONFIDENCE, benjamini_hochberg, holm
from osmosis_ai.statistics.power import POWER
from osmosis_ai.ui import numbers

DIGEST_CHARACTERS = 12


def _inputs_of(run: RunSamples) -> dict[str, str | None]:
    """Return the inputs of a run as a reader compares them."""
    inputs = run.inputs

    def short(digest: str | None) -> str | None:
        return None if digest is None else digest.removeprefix("sha256:")[:DIGEST_CHARACTERS]

    env = None
    if inputs.env is not None:
        env = ", ".join(f"{name}={value}" for name, value in sorted(inputs.env.items())) or "none"
    limits: list[str | None] = [None, None]
    if inputs.time_limits_s is not None:
        limits = ["none" if limit is None else f"{limit:g} s" for limit in inputs.time_limits_s]
    changes = " with changes" if inputs.dirty else ""
    return {
        "model": inputs.model,
        "rollout": inputs.rollout,
        "entrypoint": inputs.entrypoint,
        "commit": None if inputs.commit is None else f"{inputs.commit[:DIGEST_CHARACTERS]}{changes}",
        "code": short(inputs.source_digest),
        "grader": short(inputs.grader_digest),
        "judges": ", ".join(inputs.judges) or ("none" if run.place == "local" else None),
        "passes at": f"{inputs.pass_threshold:g}",
        "n": None if inputs.n is None else str(inputs.n),
        # Every digit: large seeds may differ in the last ones only.
        "seed": None if inputs.seed is None else str(inputs.seed),
        "env": env,
        "agent time limit": limits[0],
        "grader time limit": limits[1],
        "dataset": inputs.dataset_name,
        "dataset's content": short(inputs.dataset_sha256),
        "config": inputs.config,
        "distinct rows": f"{len(run.row_keys):,}" if run.row_keys else None,
    }


@dataclass(frozen=True, slots=True)
class RunTotals:
    """A run without its samples."""

    name: str
    place: str
    location: str
    status: str
    rows: int | None
    planned: int
    tried: int | None
    scored: int | None
    attempts: int
    cost_usd: float | None
    priced: int
    tokens: int | None
    tokens_reported: int
    duration_s: float | None
    inputs: ComparedInputs
    notes: tuple[str, ...]
    revision: int = 0

    @classmethod
    def of(cls, run: RunSamples, name: str) -> RunTotals:
        if run.summary is not None:
            told = run.summary
            rows, tried, scored, attempts = told.rows, told.tried, told.scored, run.inputs.n or 0
        else:
            rows, tried, scored = len(run.row_keys), int(run.samples.size), int(run.scored.sum())
            attempts = int(np.bincount(run.samples["row"]).max(initial=0)) if tried else 0

        def total(field: str) -> float | None:
            values = run.samples[field]
            known = values[np.abs(values) < HUGE]
            return math.fsum(known.tolist()) if known.size else None

        tokens, duration_ms = total("tokens"), total("duration_ms")
        return cls(
            name=name,
            place=run.place,
            location=run.location,
            status=run.status,
            inputs=run.inputs,
            rows=rows,
            planned=run.planned,
            tried=tried,
            scored=scored,
            attempts=run.inputs.n or attempts,
            cost_usd=total("cost_usd"),
            priced=int(np.isfinite(run.samples["cost_usd"]).sum()),
            tokens=None if tokens is None else round(tokens),
            tokens_reported=int(np.isfinite(run.samples["tokens"]).sum()),
            duration_s=None if duration_ms is None else duration_ms / 1000,
            notes=run.notes,
            revision=run.revision,
        )

    def data(self) -> dict[str, Any]:
        return asdict(self)


_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class RowOfRun:
    """Passes and mean reward of one run on a row, over scored attempts."""

    passes: int
    attempts: int
    reward: float


@dataclass(frozen=True, slots=True)
class RowChange:
    """A row on which the runs differ."""

    source_row_index: int
    digest: str
    baseline: RowOfRun
    candidate: RowOfRun
    change: float


@dataclass(frozen=True, slots=True)
class RowChanges:
    """How the rows with a score in both runs changed."""

    metric: Literal["reward", "pass_rate"]
    compared: int
    higher: int
    lower: int
    largest: list[RowChange]


def row_changes(pair: RunPair, metric: str, *, shown: int) -> RowChanges:
    """Find the rows with the largest change of a paired comparison."""
    counted = [side.pass_counts() for side in (pair.a, pair.b)]
    both = np.flatnonzero((counted[0].counts > 0) & (counted[1].counts > 0))
    attempts, passes = (
        np.stack([getattr(each, name)[both] for each in counted]) for name in ("counts", "passes")
    )
    rewards = np.empty(attempts.shape)
    for place, side in enumerate((pair.a, pair.b)):
        values, rows = side.values("reward")
        rewards[place] = np.bincount(rows, weights=values, minlength=side.index.size)[both] / attempts[place]
    before, after = rewards if metric == "reward" else passes / attempts
    change = after - before
    change[np.abs(change) <= _ROUNDING * np.maximum(np.abs(before), np.abs(after))] = 0.0
    order = np.lexsort((both, change, -np.abs(change)))[: np.count_nonzero(change)][:shown]

    def row(place: int) -> RowChange:
        at = int(pair.a.index[both[place]])
        sides = [
            RowOfRun(int(passes[side, place]), int(attempts[side, place]), float(rewards[side, place]))
            for side in (0, 1)
        ]
        run = pair.a.run
        return RowChange(int(run.source_rows[at]), run.row_keys[at], sides[0], sides[1], float(change[place]))

    return RowChanges(
        metric="reward" if metric == "reward" else "pass_rate",
        compared=int(both.size),
        higher=int(np.count_nonzero(change > 0)),
        lower=int(np.count_nonzero(change < 0)),
        largest=[row(place) for place in order.tolist()],
    )


FEWEST_ROWS = 10
"""A slice of fewer rows has no verdict."""


@dataclass(frozen=True, slots=True)
class SliceChange:
    """The rows of one value of a column."""

    column: str
    value: str | None
    change: MetricChange
    verdict: Direction | None

    @property
    def rows(self) -> int:
        return self.change.change.rows if self.change.change is not None else 0

    def data(self) -> dict[str, Any]:
        return {"column": self.column, "value": self.value, "verdict": self.verdict, **self.change.data()}


def slice_changes(
    pair: RunPair, columns: Sequence[str], metric: str, settings: ChangeSettings
) -> tuple[SliceChange, ...]:
    """Return the change of a metric in every slice of every column, columns as they were asked, values by
    name."""
    found = [
        SliceChange(column, value, change_of(chosen, metric, settings), None)
        for column in columns
        for (_, value), chosen in by_slice(pair, column).items()
    ]
    large = [each.change for each in found if each.rows >= FEWEST_ROWS]
    adjusted = iter(adjust(large, benjamini_hochberg))
    judged = []
    for each in found:
        if each.rows >= FEWEST_ROWS:
            change = next(adjusted)
            each = replace(each, change=change, verdict=direction_of(change, settings.confidence))
        judged.append(each)
    return tuple(judged)


@dataclass(frozen=True)
class CompareOptions:
    """How runs are compared."""

    metric: str | None = None
    slices: tuple[str, ...] = ()
    confidence: float = CONFIDENCE
    reward_range: tuple[float, float] | None = None
    seed: int = 0
    rows_shown: int = 10
    allowances: Allowances = field(default_factory=Allowances)

    @property
    def settings(self) -> ChangeSettings:
        return ChangeSettings(self.confidence, self.seed, self.reward_range)


@dataclass(frozen=True)
class ComparedCandidate:
    """A candidate against the baseline."""

    totals: RunTotals
    comparability: Comparability
    changes: tuple[MetricChange, ...]
    rows: RowChanges | None
    slices: tuple[SliceChange, ...]
    verdict: CompareVerdict

    @property
    def name(self) -> str:
        return self.totals.name

    def data(self) -> dict[str, Any]:
        matched = self.comparability.matched
        return {
            "run": self.totals.data(),
            "verdict": self.verdict.direction,
            "sentence": self.verdict.sentence,
            "reason": self.verdict.reason,
            "detectable": self.verdict.detectable,
            "paired": matched is not None,
            "label": self.comparability.label,
            "notes": list(self.comparability.notes),
            "rows_matched": None
            if matched is None
            else {
                "common": matched.common,
                "only_baseline": int(matched.only_a.size),
                "only_candidate": int(matched.only_b.size),
                "changed": len(matched.changed),
            },
            "metrics": [change.data() for change in self.changes],
            "rows": None if self.rows is None else asdict(self.rows),
            "slices": [each.data() for each in self.slices],
        }


@dataclass(frozen=True)
class RunComparison:
    """The result of `eval compare`."""

    baseline: RunTotals
    candidates: tuple[ComparedCandidate, ...]
    metric: str
    options: CompareOptions
    differs: dict[str, tuple[str | None, ...]]

    @property
    def runs(self) -> list[RunTotals]:
        """All runs, the baseline first."""
        return [self.baseline, *(candidate.totals for candidate in self.candidates)]

    @property
    def sentence(self) -> str:
        """The decisive finding, one sentence for each candidate."""
        return " ".join(candidate.verdict.sentence for candidate in self.candidates)

    def data(self) -> dict[str, Any]:
        return {
            "metric": self.metric,
            "confidence": self.options.confidence,
            "seed": self.options.seed,
            "reward_range": None if self.options.reward_range is None else list(self.options.reward_range),
            "baseline": self.baseline.data(),
            "candidates": [candidate.data() for candidate in self.candidates],
            "differs": [{"input": name, "values": list(values)} for name, values in self.differs.items()],
        }


def compare_runs(
    baseline: RunSamples, candidates: Sequence[RunSamples], options: CompareOptions
) -> RunComparison:
    """Compare candidates with a baseline."""
    runs = (baseline, *candidates)
    if options.metric is not None:
        described(options.metric)
    ids = [run.run_id for run in candidates]
    for run in candidates:
        if ids.count(run.run_id) > 1:
            raise ConflictError(f"the run {run.name} is named twice.", hint="name each candidate once")
    require_in_range(runs, options.reward_range)
    # Without a metric, the pass rate decides if passing means something.
    thresholds = any(run.inputs.pass_threshold != 1.0 for run in runs)
    metric = options.metric or ("pass_rate" if thresholds or pass_or_fail(*runs) else "reward")
    names = [run.name for run in runs]
    names = [f"{run.place}:{run.name}" if names.count(run.name) > 1 else run.name for run in runs]
    inputs = [_inputs_of(run) for run in runs]
    values = {name: tuple(each[name] for each in inputs) for name in inputs[0]}
    measured: list[tuple[RunPair, Comparability, dict[str, MetricChange]]] = []
    for run in candidates:
        comparability = require_comparable(baseline, run, options.allowances)
        pair = RunPair.of(baseline, run, comparability.matched)
        asked = dict.fromkeys([*metrics_of(pair), metric])
        changes = {each: change_of(pair, each, options.settings) for each in asked}
        measured.append((pair, comparability, changes))
    if len(measured) > 1:
        # The p-values of a metric are adjusted for all candidates that it was tried on.
        for each in {name for *_, changes in measured for name in changes}:
            tried = [changes for *_, changes in measured if each in changes]
            for changes, change in zip(
                tried, adjust([changes[each] for changes in tried], holm), strict=True
            ):
                changes[each] = change
    totals, *others = [RunTotals.of(run, name) for run, name in zip(runs, names, strict=True)]
    compared = []
    for (pair, comparability, changes), own in zip(measured, others, strict=True):
        verdict = _decide(changes[metric], comparability, totals, own, options, len(candidates))
        compared.append(
            ComparedCandidate(
                totals=own,
                comparability=comparability,
                changes=tuple(changes.values()),
                rows=row_changes(pair, metric, shown=options.rows_shown) if pair.paired else None,
                slices=slice_changes(pair, options.slices, metric, options.settings),
                verdict=verdict,
            )
        )
    return RunComparison(
        baseline=totals,
        candidates=tuple(compared),
        metric=metric,
        options=options,
        # An input that a run does not record may be the same.
        differs={name: of_runs for name, of_runs in values.items() if len({*of_runs} - {None}) > 1},
    )


def require_in_range(runs: Sequence[RunSamples], reward_range: tuple[float, float] | None) -> None:
    """Check that every reward is one there can be."""
    least, most = reward_range or (-HUGE, HUGE)
    for run in runs:
        rewards = run.samples["reward"][run.scored]
        beyond = rewards[(rewards < -HUGE) | (rewards > HUGE)]
        if beyond.size:
            raise OsmosisError(
                f"the run {run.name} has a reward of {beyond[0]:g}: its variance cannot be computed."
            )
        beyond = rewards[(rewards < least) | (rewards > most)]
        if beyond.size:
            raise OsmosisError(
                f"the run {run.name} has a reward of {beyond[0]:g}, which is not between {least:g} and {most:g}.",
                hint="set the range of rewards: --reward-range LOW,HIGH",
            )


Direction = Literal["better", "worse", "unclear"]
_NAMES = {
    "pass_rate": "pass rate",
    "unscored": "unscored attempts",
    "failed": "failed attempts",
    "cost_per_row": "cost of a row",
}
_TOO_LONG = 1e15
"""Larger floats have no decimals, and their last digits are meaningless."""


@dataclass(frozen=True, slots=True)
class CompareVerdict:
    """The verdict of a comparison."""

    direction: Direction
    sentence: str
    reason: str | None = None
    detectable: float | None = None


def _decide(
    found: MetricChange,
    comparability: Comparability,
    a: RunTotals,
    b: RunTotals,
    options: CompareOptions,
    candidates: int,
) -> CompareVerdict:
    """Return the verdict of the deciding metric on ``b``, and its sentence."""
    metric, change, confidence = found.metric, found.change, options.confidence
    scale, named = found.described.scale, _NAMES.get(metric, metric)
    paired = comparability.matched is not None

    def unclear(reason: str, detectable: float | None = None) -> CompareVerdict:
        sentence = f"No significant difference between {b.name} and {a.name}: {reason}"
        return CompareVerdict("unclear", sentence, reason, detectable)

    if change is None:
        reason = f"{_nothing_in_both(metric)}." if paired else f"the {named} is not known in both runs."
        sentence = f"{b.name} and {a.name} cannot be compared: {reason}"
        return CompareVerdict("unclear", sentence, reason)
    unit = " points" if metric == "pass_rate" else f" points in {named}"
    unit = {"value": f" in {metric}", "amount": f" times the {named}"}.get(scale, unit)
    rows = f"{change.rows:,} row{'' if change.rows == 1 else 's'}"
    if not paired and found.a is not None and found.b is not None:
        rows = f"{found.a.clusters:,} and {found.b.clusters:,} rows"
    missing = f"{found.unscored:,} unscored {'attempt' if found.unscored == 1 else 'attempts'}"
    signed = f"{format_signed(metric, change.value)}{unit}"

    def evidence(low: float | None, high: float | None) -> str:
        interval = change.reason
        if low is not None and high is not None:
            interval = (
                f"{100 * confidence:g}% CI {format_change(metric, low)} to {format_change(metric, high)}"
            )
        adjusted = None
        if change.p_adjusted is not None and candidates > 1:
            adjusted = f"p {format_p(change.p_adjusted)} among {candidates} candidates"
        parts = [interval, rows, None if paired else "unpaired", adjusted, comparability.label]
        return ", ".join(filter(None, parts))

    direction = _measured_direction(found, change, confidence)
    measured = f"{signed} ({evidence(change.low, change.high)})"
    if direction == "unclear":
        if found.unscored:
            measured = f"{measured} without {missing}"
        if change.excludes_none and change.p_adjusted is not None:
            return unclear(f"{measured}; significant alone, but not among {candidates} candidates.")
        least = _detectable(change, confidence)
        if least is None:
            return unclear(f"{measured}.")
        if scale == "share" and least > 1:
            return unclear(f"{measured}. The runs are too small to detect any difference.", least)
        shown = f"{format_change(metric, least)}{unit}"
        return unclear(
            f"{measured}. Smallest detectable difference: {shown} ({100 * POWER:.0f}% power).", least
        )
    if found.undecided is not None:
        return unclear(f"{found.undecided.rstrip('.')}.")
    if direction_of(found, confidence) == "unclear":
        against = found.against
        if against is None:
            return unclear(
                f"{measured}, but {missing} could change it: the range of rewards is unknown (--reward-range LOW,HIGH)."
            )
        shown = format_signed(metric, against.value)
        if against.low is not None and against.high is not None:
            shown = f"{shown} ({format_interval(metric, against)})"
        how = "against" if change.value > change.none else "in favor of"
        return unclear(f"{measured}, but {shown} with {missing} counted {how} {b.name}.")
    low, high = change.low, change.high
    if change.kind == "ratio":
        much = f": its {named} is {format_change(metric, change.value)} times that of {a.name}"
        return CompareVerdict(direction, f"{b.name} is {direction}{much} ({evidence(low, high)}).")
    if change.value < 0:
        low, high = (None if end is None else -end for end in (high, low))
    also = f", also with {missing} counted {'against' if change.value > 0 else 'in favor of'} {b.name}"
    much = f"{format_change(metric, abs(change.value))}{unit} ({evidence(low, high)}){also if found.unscored else ''}"
    return CompareVerdict(direction, f"{b.name} is {direction} than {a.name} by {much}.")


def _nothing_in_both(metric: str) -> str:
    if described(metric).scale == "amount":
        return f"no row has more than zero {metric.removesuffix('_per_row')} in both runs"
    attempts = attempts_asked(metric) or 1
    asked = "a score" if attempts == 1 else f"{attempts} attempts with a score"
    return f"no row has {asked} in both runs"


def direction_of(found: MetricChange, confidence: float) -> Direction:
    """Return the direction of a change; "unclear" also if the unscored attempts could alter it."""
    change = found.change
    direction = "unclear" if change is None else _measured_direction(found, change, confidence)
    if found.undecided is not None:
        return "unclear"
    if direction == "unclear" or not found.unscored:
        return direction
    against = found.against
    agrees = against is not None and _measured_direction(found, against, confidence) == direction
    return direction if agrees else "unclear"


def _measured_direction(found: MetricChange, change: Difference, confidence: float) -> Direction:
    if not change.excludes_none:
        return "unclear"
    if change.p_adjusted is not None and change.p_adjusted > 1 - confidence:
        return "unclear"
    return "better" if (change.value > change.none) == found.described.higher_is_better else "worse"


def format_change(metric: str, number: float | None) -> str:
    """Return a change of a metric: ``6.2`` of a share, in points; ``0.062`` of a reward; ``1.25`` times."""
    if number is None:
        return numbers.MISSING
    scale = described(metric).scale
    if scale != "share":
        return _rounded(number, 3 if scale == "value" else 2)
    return _rounded(100 * number, 1)


def format_signed(metric: str, number: float) -> str:
    """Return a change with a sign, ``+6.2``; ratios and zero have no sign."""
    text = format_change(metric, number)
    shows_more = number > 0 and any(digit in "123456789∞" for digit in text)
    return f"+{text}" if shows_more and described(metric).scale != "amount" else text


def format_p(p: float | None) -> str:
    """Return a p-value with three decimals: ``0.012``, ``< 0.001``."""
    if p is None:
        return numbers.MISSING
    return "< 0.001" if p < 0.0005 else f"{p:.3f}"


def _detectable(change: Difference, confidence: float) -> float | None:
    """Return the difference that would be detected with probability ``POWER``; None without an interval.

    ``(t[1-a/2] + t[power])`` standard errors (Cohen 1988, 12.2), where the interval is ``t[1-a/2]`` of them wide towards
    no difference, whichever method it is by.
    """
    if change.low is None or change.high is None or change.kind == "ratio" or change.rows < 2:
        return None
    from scipy.special import stdtrit

    below, above = change.value - change.low, change.high - change.value
    half = below if change.value > 0 else above if change.value < 0 else max(below, above)
    degrees = change.rows - 1
    return half * (1 + float(stdtrit(degrees, POWER)) / float(stdtrit(degrees, (1 + confidence) / 2)))


def _rounded(number: float, digits: int) -> str:
    """Return a number with so many decimals, one more where it would look like none."""
    if not math.isfinite(number):
        return "∞" if number > 0 else "-∞"
    if abs(number) >= _TOO_LONG:
        return f"{number:.4g}"
    text = f"{number:,.{digits}f}"
    if float(text.replace(",", "")) == 0:
        text = f"{number:.{digits + 1}f}"
        return f"{0:.{digits}f}" if float(text) == 0 else text
    return text


def format_value(metric: str, value: float | None) -> str:
    """Return a metric's value: ``62.5%``, ``0.625``, ``$0.0123``, ``1,234``, ``1.5s``."""
    if value is None:
        return numbers.MISSING
    if metric == "cost_per_row":
        return numbers.money(value)
    if metric == "tokens":
        return f"{value:,.0f}"
    if metric == "latency":
        return numbers.duration(value)
    return numbers.percent(value) if described(metric).scale == "share" else format_change(metric, value)


def format_difference(metric: str, change: Difference | None) -> str:
    """Return a difference with its sign, ``+6.2 points``; a ratio as ``x 1.25``."""
    if change is None:
        return numbers.MISSING
    text, scale = format_signed(metric, change.value), described(metric).scale
    return f"x {text}" if scale == "amount" else f"{text} points" if scale == "share" else text


def format_interval(metric: str, change: Difference | None) -> str:
    if change is None or change.low is None or change.high is None:
        return numbers.MISSING
    return f"{format_change(metric, change.low)} to {format_change(metric, change.high)}"


def row_counts(rows: RowChanges) -> str:
    """Return ``Pass rate by row: 3 higher, 1 lower, 96 equal.``"""
    metric = "Reward" if rows.metric == "reward" else "Pass rate"
    equal = rows.compared - rows.higher - rows.lower
    return f"{metric} by row: {rows.higher:,} higher, {rows.lower:,} lower, {equal:,} equal."


DECIDES = " (decides)"
Cells = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ComparedTable:
    """A table of a comparison."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Cells]
    texts: Sequence[int] = (0,)
    note: str | None = None
    keys: Sequence[str] = ()


def differing_inputs(found: RunComparison) -> ComparedTable | None:
    """Return the inputs that differ between the runs; None if all are equal."""
    if not found.differs:
        return None
    headings = ["Input", *(run.name for run in found.runs)]
    rows = [(name, *(value or numbers.MISSING for value in values)) for name, values in found.differs.items()]
    return ComparedTable("What differs", headings, rows, range(len(headings)))


def changed_metrics(found: RunComparison, candidate: ComparedCandidate) -> ComparedTable:
    """Return a candidate's metrics against the baseline's."""
    rows = [row for change in candidate.changes for row in _metric_rows(change, found.metric)]
    notes = ["unpaired" if candidate.comparability.matched is None else "rows with a score in both runs"]
    amounts = [each for each in candidate.changes if each.described.scale == "amount"]
    if amounts:
        notes.append("tokens and latency are means per attempt")
    if any(each.change is not None for each in amounts):
        notes.append("x is the geometric mean of the rows' ratios")
    warnings = dict.fromkeys(each.change.warning for each in candidate.changes if each.change is not None)
    note = "; ".join([*notes, *filter(None, warnings)])
    headings = _change_headings(found, candidate, "Metric")
    return ComparedTable(_against(found, candidate), headings, rows, note=note)


def changed_slices(found: RunComparison, candidate: ComparedCandidate) -> ComparedTable | None:
    """Return the deciding metric by the values of columns; None if no column was given."""
    if not candidate.slices:
        return None
    headings = [*_change_headings(found, candidate, "Slice"), "Verdict"]
    rows = [
        (
            f"{each.column} = {numbers.MISSING if each.value is None else each.value}",
            *_change_cells(each.change, each.change.change),
            "inconclusive" if each.verdict == "unclear" else each.verdict or "too few rows",
        )
        for each in candidate.slices
    ]
    title = f"{_against(found, candidate)}: {found.metric} by slice"
    note = "p is adjusted for all slices; below 10 rows there is no verdict"
    return ComparedTable(title, headings, rows, (0, len(headings) - 1), note)


def changed_rows(runs: tuple[str, str], rows: RowChanges | None, more: str) -> ComparedTable | None:
    """Return the rows with the largest change between two runs; ``more`` follows the number of rows left out."""
    if rows is None or not rows.largest:
        return None

    def cells(row: RowChange) -> Cells:
        sides = (row.baseline, row.candidate)
        if rows.metric == "reward":
            return tuple(format_value("reward", side.reward) for side in sides)
        return tuple(f"{side.passes} of {side.attempts}" for side in sides)

    unit = "" if rows.metric == "reward" else " points"
    left_out = rows.higher + rows.lower - len(rows.largest)
    note = "single rows have too few attempts for a verdict"
    return ComparedTable(
        "Rows with the largest change",
        ("Row", "Digest", *runs, "Change"),
        [
            (
                str(row.source_row_index),
                row.digest[:DIGEST_CHARACTERS],
                *cells(row),
                f"{format_signed(rows.metric, row.change)}{unit}",
            )
            for row in rows.largest
        ],
        (1,),
        f"{left_out:,} more{more}; {note}" if left_out else note,
        [row.digest for row in rows.largest],
    )


def taken(found: RunComparison) -> ComparedTable:
    """Return the attempts, cost, tokens and time of each run."""
    headings = ("Run", "Rows", "Attempts", "Scored", "Cost", "Tokens", "Time in attempts")

    def over(total: str, known: int, tried: int | None) -> str:
        return f"{total} ({known:,} of {tried:,})" if tried is not None and 0 < known < tried else total

    rows = [
        (
            run.name,
            *map(numbers.count, (run.rows, run.tried, run.scored)),
            over(numbers.money(run.cost_usd), run.priced, run.tried),
            over(numbers.count(run.tokens), run.tokens_reported, run.tried),
            numbers.duration(run.duration_s),
        )
        for run in found.runs
    ]
    return ComparedTable("What the runs took", headings, rows)


def _against(found: RunComparison, candidate: ComparedCandidate) -> str:
    label = candidate.comparability.label
    return f"{candidate.name} against {found.baseline.name}{f' ({label})' if label else ''}"


def _change_headings(found: RunComparison, candidate: ComparedCandidate, first: str) -> Sequence[str]:
    several = len(found.candidates) > 1 and first == "Metric"
    p = "p (Holm)" if several else "p (BH)" if first == "Slice" else "p"
    interval = f"{100 * found.options.confidence:g}% CI"
    return (first, found.baseline.name, candidate.name, "Difference", interval, p, "Rows")


def _metric_rows(each: MetricChange, deciding: str) -> Iterator[Cells]:
    decides = each.metric == deciding
    yield (each.metric + DECIDES if decides else each.metric, *_change_cells(each, each.change))
    if decides and each.bounds is not None:
        for name, bound in (("worst", each.bounds.worst), ("best", each.bounds.best)):
            yield (f"  unscored at {name}", *_change_cells(each, bound, has_values=False))


def _change_cells(each: MetricChange, change: Difference | None, *, has_values: bool = True) -> Cells:
    p = None if change is None else change.p if change.p_adjusted is None else change.p_adjusted
    values = (side.value if side is not None and has_values else None for side in (each.a, each.b))
    return (
        *(format_value(each.metric, value) for value in values),
        format_difference(each.metric, change),
        format_interval(each.metric, change),
        format_p(p),
        numbers.count(change.rows if change else None),
    )
