"""Compute how many rows and attempts an evaluation needs."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from osmosis_ai.config.decisions import MOST_CONFIDENCE
from osmosis_ai.datasets import count_records
from osmosis_ai.decisions.comparability import Allowances, require_comparable
from osmosis_ai.decisions.plan import ICC_RANGE, SMALL_PILOT, AttemptPrice, EvalPlan, Goal, Outlook
from osmosis_ai.decisions.samples import ComparedInputs, RunSamples, match_rows
from osmosis_ai.errors import ConflictError, OsmosisError, UsageError
from osmosis_ai.services.eval_runs.resolver import Client
from osmosis_ai.services.eval_runs.samples import find_run_samples
from osmosis_ai.statistics.variance import VarianceComponents
from osmosis_ai.workspace.config_files import EvalConfig, decisions_about, load_eval_config
from osmosis_ai.workspace.layout import find_dataset_file, find_workspace

_MOST_USD = 1e12

PlannedMetric: TypeAlias = Literal["pass_rate", "reward"]

if TYPE_CHECKING:
    from osmosis_ai.statistics.estimates import Floats, Integers


@dataclass(frozen=True)
class PlanRequest:
    """Options of a plan: ``detect`` is on the metric's scale, costs are in US dollars.

    The variance is estimated from ``pilot`` and ``against``, with both that of their difference, or is assumed from
    ``pass_rate`` and ``icc``. ``row_cost`` is the cost of creating one more row, excluding its attempts.
    """

    config: Path
    metric: PlannedMetric
    pilot: str | None
    against: str | None
    detect: float | None
    power: float
    confidence: float | None
    max_cost: float | None
    rows_at_most: int | None
    row_cost: float
    pass_rate: float | None
    icc: float | None

    @property
    def from_runs(self) -> bool:
        return self.pilot is not None or self.against is not None

    def check(self) -> None:
        most_confidence = math.nextafter(MOST_CONFIDENCE, 1)
        for option, number, low, high, said in (
            ("--power", self.power, 0.5, 1, "between 0.5 and 1, such as 0.8"),
            ("--confidence", self.confidence, 0.5, most_confidence, "between 0.5 and 1, such as 0.95"),
            ("--pass-rate", self.pass_rate, 0, 1, "between 0 and 1: write 60% as 0.6"),
        ):
            if number is not None and not low < number < high:
                raise UsageError(f"{option} must be {said}, got {number:g}.")
        if "" in (self.pilot, self.against):
            raise UsageError("--pilot and --against name a run; omit them to plan without one.")
        if self.icc is not None and not 0 <= self.icc <= 1:
            raise UsageError(f"--icc must be between 0 and 1, got {self.icc:g}.")
        if self.detect is not None and not (math.isfinite(self.detect) and self.detect > 0):
            raise UsageError(f"--detect must be a difference above 0, got {self.detect:g}.")
        for option, cost in (("--max-cost", self.max_cost), ("--row-cost", self.row_cost)):
            if cost is not None and not 0 <= cost <= _MOST_USD:
                raise UsageError(
                    f"{option} must be an amount of US dollars, from 0 to {_MOST_USD:g}, got {cost:g}."
                )
        if self.rows_at_most is not None and self.rows_at_most < 2:
            raise UsageError("--rows-at-most must be at least 2: the variance between rows needs two.")
        if self.from_runs and (self.pass_rate is not None or self.icc is not None):
            raise UsageError("--pass-rate and --icc are assumptions for a plan without a run; omit them.")
        if self.metric == "pass_rate":
            self.check_scale(1.0)
        elif not self.from_runs:
            raise UsageError("--metric reward needs a --pilot: the variance of rewards cannot be assumed.")

    def check_scale(self, width: float | None) -> None:
        if self.detect is None or width is None or self.detect <= width:
            return
        what = f"a {self.metric.replace('_', ' ')} can change by {width:g} at most"
        points = f": write {self.detect:g} points as {self.detect / 100:g}" if width == 1 else ""
        raise UsageError(
            f"no number of rows or attempts can detect a difference of {self.detect:g}: {what}{points}."
        )


ASSUMED_PASS_RATE, ASSUMED_ICC = 0.5, 0.3


@dataclass(frozen=True)
class PlannedEval:
    """A plan with its inputs; numbers are None if unknown, ``rows`` and ``n`` are those of the config."""

    config: str
    metric: PlannedMetric
    dataset_rows: int | None
    rows: int | None
    n: int
    pilot: str | None
    against: str | None
    pass_rate: float | None
    icc: float | None
    plan: EvalPlan
    notes: tuple[str, ...]

    def data(self) -> dict[str, Any]:
        known = {key: value for key, value in vars(self).items() if key != "plan"}
        return {**known, **self.plan.data(), "notes": list(self.notes)}


def plan_eval(
    request: PlanRequest, *, client: Client, count_rows: Callable[[str], int | None]
) -> PlannedEval:
    """Plan an eval config; ``count_rows`` asks the platform for the size of a dataset."""
    request.check()
    workspace = find_workspace()
    config = load_eval_config(request.config, workspace)
    decided = decisions_about(config.path, workspace)
    path = find_dataset_file(workspace, config.experiment.dataset)
    dataset_rows = count_rows(config.experiment.dataset) if path is None else count_records(path)
    most = request.rows_at_most or dataset_rows
    width = None if decided.reward_range is None else decided.reward_range[1] - decided.reward_range[0]
    if request.metric == "pass_rate":
        width = 1.0
    goal = Goal(
        detect=request.detect,
        power=request.power,
        confidence=request.confidence or decided.confidence,
        most_cost_usd=request.max_cost,
        most_rows=most,
        row_cost_usd=request.row_cost,
        width=width,
        pass_or_fail=request.metric == "pass_rate",
    )
    request.check_scale(goal.width)
    like = ComparedInputs(
        config=config.path.relative_to(workspace.root).as_posix(),
        rollout=config.experiment.rollout,
        dataset_name=config.experiment.dataset,
    )
    evidence = _Evidence.of(
        request, goal, lambda reference: find_run_samples(reference, client=client, like=like)
    )
    notes = [*evidence.notes]
    if dataset_rows is None:
        notes.append(f"how many rows the dataset {config.experiment.dataset} has is not known here.")
    elif most is not None and most > dataset_rows:
        notes.append(f"the dataset has {dataset_rows:,} rows; beyond them, rows have to be made.")
    if evidence.model not in (None, config.experiment.model_path):
        notes.append(
            f"the pilot used {evidence.model}, but the config uses {config.experiment.model_path}; cost, time and "
            "variance are those of the pilot."
        )
    cost = 0.0 if evidence.cost_usd is None and _is_free(config) else evidence.cost_usd
    price = AttemptPrice(cost, evidence.per_second)
    if cost is None:
        notes.append("the cost of an attempt is unknown; use a pilot that recorded it.")
        if request.max_cost is not None:
            raise OsmosisError(
                f"--max-cost needs what an attempt with {config.experiment.model_path} costs, and it is not known.",
                hint="give a run that recorded its cost with --pilot, or ask for --rows-at-most instead",
            )
    rows, n = config.evaluation.limit, config.evaluation.n
    rows = dataset_rows if rows is None else rows if dataset_rows is None else min(rows, dataset_rows)
    return PlannedEval(
        config=like.config or config.path.name,
        metric=request.metric,
        dataset_rows=dataset_rows,
        rows=rows,
        n=n,
        pilot=evidence.names[0] if evidence.names else None,
        against=evidence.names[1] if len(evidence.names) > 1 else None,
        pass_rate=evidence.pass_rate,
        icc=evidence.icc,
        plan=EvalPlan(goal, evidence.outlook, price, own_rows=rows, own_n=n),
        notes=tuple(notes),
    )


@dataclass(frozen=True)
class _Evidence:
    """Measured or assumed variance, and the cost and speed of the pilot's attempts."""

    outlook: Outlook
    names: tuple[str, ...] = ()
    pass_rate: float | None = None
    icc: float | None = None
    model: str | None = None
    cost_usd: float | None = None
    per_second: float | None = None
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, request: PlanRequest, goal: Goal, find: Callable[[str], RunSamples]) -> _Evidence:
        pilot, against = request.pilot or request.against, request.against
        if pilot is None:
            return cls.assumed(request)
        first = find(pilot)
        if against is None or request.pilot is None:
            found = cls.of_one(request, goal, first)
            if request.pilot is None:
                note = f"{first.name} (--against) is the pilot; add --pilot to plan with the variance of the difference."
                found = replace(found, notes=(note, *found.notes))
            return found
        return cls.of_two(request, goal, first, find(against))

    @classmethod
    def assumed(cls, request: PlanRequest) -> _Evidence:
        rate = ASSUMED_PASS_RATE if request.pass_rate is None else request.pass_rate
        icc = ASSUMED_ICC if request.icc is None else request.icc
        note = (
            f"assumed, not measured: a pass rate of {rate:g} and an ICC of {icc:g} (the share of the variance that is between "
            f"rows); the range is over ICCs of {ICC_RANGE[0]:g} to {ICC_RANGE[1]:g}. Measure them with a run of 30 rows and n = 2: "
            "--pilot."
        )
        return cls(Outlook.assumed(rate, icc), pass_rate=rate, icc=icc, notes=(note, _HALF_SHARED))

    @classmethod
    def of_one(cls, request: PlanRequest, goal: Goal, run: RunSamples) -> _Evidence:
        values, rows = _scored(run, request.metric)
        spread = VarianceComponents.of(values, rows)
        if spread is None:
            _require_usual_size(run, values)
            raise _too_small(run, values)
        _require_variance(spread, f"every attempt of the pilot {run.name}", request, values)
        outlook = Outlook.of_one_run(spread, goal, samples=int(values.size))
        note = _HALF_SHARED if spread.within is not None else _ONE_ATTEMPT
        return cls.measured(request, outlook, spread, (run,), values, [note])

    @classmethod
    def of_two(cls, request: PlanRequest, goal: Goal, run: RunSamples, base: RunSamples) -> _Evidence:
        try:
            matched = require_comparable(base, run, Allowances(partial=True)).matched or match_rows(base, run)
        except ConflictError as error:
            error.hint = _PILOT_ALONE
            raise
        a, b = _scored(base, request.metric, matched.index_a), _scored(run, request.metric, matched.index_b)
        spread = VarianceComponents.of_pairs(*a, *b)
        if spread is None:
            _require_usual_size(run, a[0], b[0])
            raise OsmosisError(
                f"{run.name} and {base.name} have {'no' if not matched.common else 'fewer than two'} rows with a score "
                f"in common: {matched.words}.",
                hint=_PILOT_ALONE,
            )
        _require_variance(spread, f"every row of {run.name} and {base.name}", request, b[0])
        outlook = Outlook.of_two_runs(spread, goal, samples=int(a[0].size + b[0].size))
        notes = [f"the variance is that of the difference of {run.name} from {base.name}: {matched.words}."]
        if spread.within is None:
            notes.append(_ONE_ATTEMPT_EACH)
        return cls.measured(request, outlook, spread, (run, base), b[0], [*matched.notes, *notes])

    @classmethod
    def measured(
        cls,
        request: PlanRequest,
        outlook: Outlook,
        spread: VarianceComponents,
        runs: Sequence[RunSamples],
        values: Floats,
        notes: Sequence[str],
    ) -> _Evidence:
        """Return the evidence of runs, the pilot first, with the cost of an attempt of the pilot."""
        pilot = runs[0]
        return cls(
            outlook,
            names=tuple(run.name for run in runs),
            pass_rate=float(values.mean()) if request.metric == "pass_rate" else None,
            icc=spread.icc,
            model=pilot.inputs.model,
            cost_usd=_mean(pilot, "cost_usd"),
            per_second=pilot.samples.size / pilot.duration_s if pilot.duration_s else None,
            notes=(
                *(note for run in runs for note in _run_notes(run)),
                *notes,
                *_spread_notes(spread.rows, spread.negative),
            ),
        )


_PILOT_ALONE = "leave out --against to plan with the pilot alone"
_HALF_SHARED = (
    "half of the between-row variance is assumed to be shared with the other run; --pilot and --against "
    "together measure it."
)
_ONE_ATTEMPT = (
    "the pilot has one attempt per row, so row and attempt variance cannot be separated; use n = 2 or more. Planned with rows only, "
    "as if the runs had nothing in common."
)
_ONE_ATTEMPT_EACH = (
    "a run has one attempt per row, so row and attempt variance cannot be separated; use n = 2 or more in both. Planned with rows "
    "only."
)


def _scored(
    run: RunSamples, metric: PlannedMetric, common: Integers | None = None
) -> tuple[Floats, Integers]:
    """Return the metric and row label of each scored attempt; labels are indices into ``common`` if given."""
    import numpy as np

    scored = run.scored
    values = (run.passed if metric == "pass_rate" else run.samples["reward"])[scored].astype(np.float64)
    rows = run.samples["row"][scored].astype(np.int64)
    if common is None:
        return values, rows
    labels = np.full(len(run.row_keys), -1, dtype=np.int64)
    labels[common] = np.arange(common.size)
    there = labels[rows] >= 0
    return values[there], labels[rows][there]


def _mean(run: RunSamples, field: str) -> float | None:
    import numpy as np

    values = run.samples[field]
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else None


def _is_free(config: EvalConfig) -> bool:
    """Whether the config's model costs nothing: served by Osmosis or by the user's own server."""
    from osmosis_ai.inference import served_models
    from osmosis_ai.llm.prices import FREE, price_of
    from osmosis_ai.llm.providers import resolve_model

    model = config.experiment.model_path
    if model in served_models():
        return True
    try:
        endpoint = resolve_model(model, {**os.environ, **config.env})
    except OsmosisError:
        return False  # the server is unknown without its key or address
    return price_of(endpoint) == FREE


def _run_notes(run: RunSamples) -> list[str]:
    from osmosis_ai.controller.outcomes import STATUSES

    imported = f"was imported ({run.imported})." if run.imported else None
    missing = int((run.samples["status"] != STATUSES.index("skipped")).sum() - run.scored.sum())
    unscored = (
        f"{missing:,} of {run.samples.size:,} attempts have no score and are omitted." if missing else None
    )
    return [f"{run.name}: {said}" for said in (run.unfinished, imported, unscored) if said]


def _spread_notes(rows: int, negative: bool) -> list[str]:
    notes = []
    if rows < SMALL_PILOT:
        notes.append(f"{rows} rows give an imprecise variance, so each design has a range.")
    if negative:
        notes.append("rows differ less than expected by chance: their part of the variance is taken as 0.")
    return notes


def _too_small(run: RunSamples, values: Floats) -> OsmosisError:
    counts = run.summary
    if counts is not None and counts.scored and counts.passed is not None:
        rate = min(max(counts.passed / counts.scored, 0.01), 0.99)
        return OsmosisError(
            f"the platform reports counts of {run.name}, not attempts: the variance is unknown.",
            hint=f"plan with its pass rate: --pass-rate {rate:.2f} --icc 0.3",
        )
    said = "no attempt with a score" if not values.size else "only one row with a score"
    return OsmosisError(
        f"the pilot {run.name} has {said}.", hint="assume the variance instead: --pass-rate 0.6 --icc 0.3"
    )


def _require_usual_size(run: RunSamples, *values: Floats) -> None:
    if any(each.size and float(abs(each).max()) > 1e100 for each in values):
        raise OsmosisError(f"{run.name} has rewards that are too large to compute a variance from.")


def _require_variance(spread: VarianceComponents, what: str, request: PlanRequest, values: Floats) -> None:
    if spread.row_mean_variance(1) == 0:
        passes = request.metric != "pass_rate" or bool(values.mean() > 0.5)
        raise OsmosisError(
            f"{what} has the same result: there is no variance to plan with.",
            hint=f"take a larger pilot, or assume the variance: --pass-rate {0.95 if passes else 0.05} --icc 0.3",
        )
