"""Runs, compared: each candidate against one baseline, by every metric that both can tell.

Pure: what goes in are samples, what comes out are numbers and sentences, and the same samples with the same seed give the
same. One metric decides; the others stand beside it and are never picked because they came out well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.evaluation.comparison.comparability import Allowances, Comparability, require_comparable
from osmosis_ai.evaluation.comparison.input_differences import InputDifference, input_differences
from osmosis_ai.evaluation.comparison.metric_changes import (
    ChangeSettings,
    MetricChange,
    adjust,
    change_of,
    described,
    metrics_of,
    pass_or_fail,
)
from osmosis_ai.evaluation.comparison.multiplicity import holm
from osmosis_ai.evaluation.comparison.row_changes import RowChanges, row_changes
from osmosis_ai.evaluation.comparison.run_pairs import HUGE, RunPair
from osmosis_ai.evaluation.comparison.run_totals import RunTotals
from osmosis_ai.evaluation.comparison.slice_changes import SliceChange, slice_changes
from osmosis_ai.evaluation.comparison.verdict import Circumstances, CompareVerdict, decide
from osmosis_ai.evaluation.statistics import CONFIDENCE

if TYPE_CHECKING:
    from osmosis_ai.evaluation.comparison.run_samples import RunSamples


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
