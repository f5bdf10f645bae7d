"""Runs, compared: each candidate against one baseline, by every metric that both can tell.

Pure: what goes in are samples, what comes out are numbers and sentences, and the same samples with the same seed give the
same. One metric decides; the others stand beside it and are never picked because they came out well.

Many slices are many chances to be fooled: p-values are adjusted for all slices of a candidate at once, and a slice of a few rows
gets a number but no verdict. A single row has too few attempts for a test (4 of 4 passes against 0 of 4 has p = 0.029, which may
be chance among 100 rows), so rows are listed by the size of their change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from osmosis_ai.decisions.comparability import Allowances, Comparability, require_comparable
from osmosis_ai.decisions.metric_changes import (
    ChangeSettings,
    MetricChange,
    adjust,
    change_of,
    described,
    metrics_of,
    pass_or_fail,
)
from osmosis_ai.decisions.numbers import benjamini_hochberg, holm
from osmosis_ai.decisions.run_pairs import HUGE, RunPair
from osmosis_ai.decisions.verdict import (
    Circumstances,
    CompareVerdict,
    Direction,
    decide,
    direction_of,
)
from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.statistics.estimates import CONFIDENCE

if TYPE_CHECKING:
    from osmosis_ai.decisions.run_pairs import LabelledRun, RunPair
    from osmosis_ai.decisions.run_samples import ComparedInputs, RunSamples


_DIGEST_CHARACTERS = 12


@dataclass(frozen=True, slots=True)
class InputDifference:
    """An input that runs do not share."""

    name: str
    values: tuple[str | None, ...]

    def data(self) -> dict[str, Any]:
        """Return it as scripts see it."""
        return {"input": self.name, "values": list(self.values)}


def input_differences(runs: Sequence[RunSamples]) -> Iterator[InputDifference]:
    """Yield each input of which not all runs have the same."""
    for name, value in _INPUTS.items():
        values = tuple(value(run.inputs) for run in runs)
        if len(set(values)) > 1:
            yield InputDifference(name, values)
    rows = tuple(f"{len(run.row_keys):,}" if run.row_keys else None for run in runs)
    if len(set(rows)) > 1:
        yield InputDifference("distinct rows", rows)


def _digest(text: str | None) -> str | None:
    return None if text is None else text.removeprefix("sha256:")[:_DIGEST_CHARACTERS]


def _commit(inputs: ComparedInputs) -> str | None:
    if inputs.commit is None:
        return None
    return f"{inputs.commit[:_DIGEST_CHARACTERS]}{' with changes' if inputs.dirty else ''}"


def _number(number: float | None) -> str | None:
    return None if number is None else f"{number:g}"


def _whole(number: int | None) -> str | None:
    """Return every digit: of large seeds the last ones tell them apart."""
    return None if number is None else str(number)


_INPUTS: dict[str, Callable[[ComparedInputs], str | None]] = {
    "model": lambda inputs: inputs.model,
    "rollout": lambda inputs: inputs.rollout,
    "entrypoint": lambda inputs: inputs.entrypoint,
    "commit": _commit,
    "code": lambda inputs: _digest(inputs.source_digest),
    "grader": lambda inputs: _digest(inputs.grader_digest),
    "judges": lambda inputs: ", ".join(inputs.judges) or None,
    "passes at": lambda inputs: _number(inputs.pass_threshold),
    "n": lambda inputs: _whole(inputs.n),
    "seed": lambda inputs: _whole(inputs.seed),
    "dataset": lambda inputs: inputs.dataset_name,
    "dataset's content": lambda inputs: _digest(inputs.dataset_sha256),
    "config": lambda inputs: inputs.config,
}


@dataclass(frozen=True, slots=True)
class RunTotals:
    """A run without its samples."""

    name: str
    place: str
    location: str
    status: str
    inputs: ComparedInputs
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
    notes: tuple[str, ...]

    @classmethod
    def of(cls, run: RunSamples, name: str) -> RunTotals:
        """Return the totals of a run, under the name it has here."""
        import numpy as np

        if run.summary is not None:
            told = run.summary
            rows, tried, scored, attempts = told.rows, told.tried, told.scored, run.inputs.n or 0
        else:
            rows, tried, scored = len(run.row_keys), int(run.samples.size), int(run.scored.sum())
            attempts = int(np.bincount(run.samples["row"]).max(initial=0)) if tried else 0
        sums = {field: _sum(run, field) for field in ("cost_usd", "tokens", "duration_ms")}
        tokens, duration_ms = sums["tokens"], sums["duration_ms"]
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
            cost_usd=sums["cost_usd"],
            priced=int(np.isfinite(run.samples["cost_usd"]).sum()),
            tokens=None if tokens is None else round(tokens),
            tokens_reported=int(np.isfinite(run.samples["tokens"]).sum()),
            duration_s=None if duration_ms is None else duration_ms / 1000,
            notes=run.notes,
        )

    def data(self) -> dict[str, Any]:
        """Return them as scripts see them."""
        names = ("name", "place", "location", "status", "rows", "planned", "tried", "scored", "attempts")
        costs = ("cost_usd", "priced", "tokens", "tokens_reported", "duration_s")
        return {
            **{name: getattr(self, name) for name in (*names, *costs)},
            "inputs": self.inputs.data(),
            "notes": list(self.notes),
        }


def _sum(run: RunSamples, field: str) -> float | None:
    """Return the sum of what attempts have recorded; None where none has anything."""
    import numpy as np

    values = run.samples[field]
    known = values[np.abs(values) < HUGE]
    return math.fsum(known.tolist()) if known.size else None


_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class RowOfRun:
    """Passes and mean reward of one run on a row, over scored attempts."""

    passes: int
    attempts: int
    reward: float

    def data(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {"passes": self.passes, "attempts": self.attempts, "reward": self.reward}


@dataclass(frozen=True, slots=True)
class RowChange:
    """A row on which the runs differ."""

    source_row: int
    key: str
    baseline: RowOfRun
    candidate: RowOfRun
    change: float

    def data(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "source_row_index": self.source_row,
            "digest": self.key,
            "baseline": self.baseline.data(),
            "candidate": self.candidate.data(),
            "change": self.change,
        }


@dataclass(frozen=True, slots=True)
class RowChanges:
    """How the rows with a score in both runs changed."""

    metric: Literal["reward", "pass_rate"]
    compared: int
    higher: int
    lower: int
    largest: tuple[RowChange, ...]

    def data(self) -> dict[str, Any]:
        """Return them as JSON values."""
        return {
            "metric": self.metric,
            "compared": self.compared,
            "higher": self.higher,
            "lower": self.lower,
            "largest": [row.data() for row in self.largest],
        }


def row_changes(pair: RunPair, metric: str, *, shown: int) -> RowChanges:
    """Find the rows with the largest change of a paired comparison."""
    import numpy as np

    counted = [side.pass_counts() for side in (pair.a, pair.b)]
    both = np.flatnonzero((counted[0].counts > 0) & (counted[1].counts > 0))
    attempts, passes = (
        np.stack([getattr(each, name)[both] for each in counted]) for name in ("counts", "passes")
    )
    rewards = np.empty(attempts.shape)
    for place, side in enumerate((pair.a, pair.b)):
        values, rows = side.rewards()
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
        largest=tuple(row(place) for place in order.tolist()),
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
        """How many rows the change is of."""
        return self.change.change.rows if self.change.change is not None else 0

    def data(self) -> dict[str, Any]:
        """Return it as scripts see it."""
        return {"column": self.column, "value": self.value, "verdict": self.verdict, **self.change.data()}


def slice_changes(
    pair: RunPair, columns: Sequence[str], metric: str, settings: ChangeSettings
) -> tuple[SliceChange, ...]:
    """Return the change of a metric in every slice of every column, columns as they were asked, values by
    name."""
    found = [
        SliceChange(column, value, change_of(chosen, metric, settings), None)
        for column in columns
        for value, chosen in pairs_by_value(pair, column).items()
    ]
    large = [each.change for each in found if each.rows >= FEWEST_ROWS]
    adjusted = iter(adjust(large, benjamini_hochberg))
    return tuple(
        _judged(each, next(adjusted), settings) if each.rows >= FEWEST_ROWS else each for each in found
    )


def _judged(found: SliceChange, adjusted: MetricChange, settings: ChangeSettings) -> SliceChange:
    return replace(found, change=adjusted, verdict=direction_of(adjusted, settings.confidence))


def pairs_by_value(pair: RunPair, column: str) -> Mapping[str | None, RunPair]:
    """Return the pair of each value; where rows are paired, they have the values of the baseline's dataset."""
    values_a = _values(pair.a, column)
    values_b = values_a if pair.paired else _values(pair.b, column)
    names = sorted({*values_a, *values_b}, key=lambda value: (value is None, value))
    return {
        name: pair.of_rows([value == name for value in values_a], [value == name for value in values_b])
        for name in names
    }


def _values(side: LabelledRun, column: str) -> list[str | None]:
    of_rows = side.run.slice_values(column)
    return [of_rows[row] for row in side.index.tolist()]


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
        """How differences are found."""
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
        """What the candidate is called."""
        return self.totals.name

    def data(self) -> dict[str, Any]:
        """Return it as scripts see it."""
        matched = self.comparability.matched
        return {
            "run": self.totals.data(),
            **self.verdict.data(),
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
            "rows": None if self.rows is None else self.rows.data(),
            "slices": [each.data() for each in self.slices],
        }


@dataclass(frozen=True)
class RunComparison:
    """What `eval compare` found."""

    baseline: RunTotals
    candidates: tuple[ComparedCandidate, ...]
    metric: str
    options: CompareOptions
    differs: tuple[InputDifference, ...]

    @property
    def sentence(self) -> str:
        """What decides, a sentence for each candidate."""
        return " ".join(candidate.verdict.sentence for candidate in self.candidates)

    def data(self) -> dict[str, Any]:
        """Return it as scripts see it."""
        return {
            "metric": self.metric,
            "confidence": self.options.confidence,
            "seed": self.options.seed,
            "reward_range": None if self.options.reward_range is None else list(self.options.reward_range),
            "baseline": self.baseline.data(),
            "candidates": [candidate.data() for candidate in self.candidates],
            "differs": [difference.data() for difference in self.differs],
        }


def compare_runs(
    baseline: RunSamples, candidates: Sequence[RunSamples], options: CompareOptions
) -> RunComparison:
    """Compare candidates with a baseline."""
    runs = (baseline, *candidates)
    if options.metric is not None:
        described(options.metric)
    _require_once(candidates)
    require_in_range(runs, options.reward_range)
    metric = options.metric or default_metric(runs)
    names = run_names(runs)
    measured = [_measured(baseline, run, metric, options) for run in candidates]
    if len(measured) > 1:
        measured = _adjusted(measured)
    totals = [RunTotals.of(run, name) for run, name in zip(runs, names, strict=True)]
    return RunComparison(
        baseline=totals[0],
        candidates=tuple(
            _candidate(found, totals[0], own, metric, options, tried=len(candidates))
            for found, own in zip(measured, totals[1:], strict=True)
        ),
        metric=metric,
        options=options,
        differs=tuple(input_differences(runs)),
    )


def default_metric(runs: Sequence[RunSamples]) -> str:
    """Return what decides when nobody says: the pass rate wherever passing means something."""
    thresholds = any(run.inputs.pass_threshold != 1.0 for run in runs)
    return "pass_rate" if thresholds or pass_or_fail(*runs) else "reward"


def run_names(runs: Sequence[RunSamples]) -> list[str]:
    """Return what runs are called, with their places where two have one name."""
    names = [run.name for run in runs]
    return [f"{run.place}:{run.name}" if names.count(run.name) > 1 else run.name for run in runs]


@dataclass(frozen=True, eq=False)
class _Measured:
    pair: RunPair
    comparability: Comparability
    changes: tuple[MetricChange, ...]


def _measured(baseline: RunSamples, candidate: RunSamples, metric: str, options: CompareOptions) -> _Measured:
    comparability = require_comparable(baseline, candidate, options.allowances)
    pair = RunPair.of(baseline, candidate, comparability.matched)
    metrics = dict.fromkeys([*metrics_of(pair), metric])
    return _Measured(pair, comparability, tuple(change_of(pair, each, options.settings) for each in metrics))


def _adjusted(measured: Sequence[_Measured]) -> list[_Measured]:
    """Adjust the p-values of each metric for all candidates that it was tried on."""
    adjusted: list[dict[str, MetricChange]] = [
        {each.metric: each for each in found.changes} for found in measured
    ]
    for metric in {name: None for of_run in adjusted for name in of_run}:
        runs = [of_run for of_run in adjusted if metric in of_run]
        for of_run, each in zip(runs, adjust([of_run[metric] for of_run in runs], holm), strict=True):
            of_run[metric] = each
    return [
        replace(found, changes=tuple(of_run.values()))
        for found, of_run in zip(measured, adjusted, strict=True)
    ]


def _rows_of_each(found: _Measured, deciding: MetricChange) -> tuple[int, int] | None:
    if found.pair.paired or deciding.a is None or deciding.b is None:
        return None
    return deciding.a.clusters, deciding.b.clusters


def _candidate(
    found: _Measured, baseline: RunTotals, own: RunTotals, metric: str, options: CompareOptions, *, tried: int
) -> ComparedCandidate:
    deciding = next(each for each in found.changes if each.metric == metric)
    known = Circumstances(
        a=baseline.name,
        b=own.name,
        attempts=(baseline.attempts, own.attempts),
        confidence=options.confidence,
        paired=found.pair.paired,
        candidates=tried,
        rows=_rows_of_each(found, deciding),
        label=found.comparability.label,
    )
    return ComparedCandidate(
        totals=own,
        comparability=found.comparability,
        changes=found.changes,
        rows=row_changes(found.pair, metric, shown=options.rows_shown) if found.pair.paired else None,
        slices=slice_changes(found.pair, options.slices, metric, options.settings),
        verdict=decide(deciding, known),
    )


def _require_once(candidates: Sequence[RunSamples]) -> None:
    ids = [run.run_id for run in candidates]
    for run in candidates:
        if ids.count(run.run_id) > 1:
            raise ConflictError(f"the run {run.name} is named twice.", hint="name each candidate once")


def require_in_range(runs: Sequence[RunSamples], reward_range: tuple[float, float] | None) -> None:
    """Check that every reward is one there can be."""
    least, most = reward_range or (-HUGE, HUGE)
    for run in runs:
        rewards = run.samples["reward"][run.scored]
        beyond = rewards[(rewards < -HUGE) | (rewards > HUGE)]
        if beyond.size:
            raise OsmosisError(
                f"the run {run.name} has a reward of {beyond[0]:g}: no spread can be computed from it."
            )
        beyond = rewards[(rewards < least) | (rewards > most)]
        if beyond.size:
            raise OsmosisError(
                f"the run {run.name} has a reward of {beyond[0]:g}, which is not between {least:g} and {most:g}.",
                hint="give the range that rewards really have: --reward-range LOW,HIGH",
            )
