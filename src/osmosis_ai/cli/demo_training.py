"""What `osmosis demo --train` found out: the model before and after, side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.results import Block, Cell, Column, Table
from osmosis_ai.evaluation.headline import breakdown, pass_rule, scored_of_planned

if TYPE_CHECKING:
    from osmosis_ai.evaluation.statistics import Estimate
    from osmosis_ai.services.demo import DemoOutcome, TrainingOutcome


def message(outcome: TrainingOutcome) -> str:
    """Return what came of the training, in a sentence."""
    found = outcome.data()
    before, after = found["base"]["pass_rate"], found["trained"]["pass_rate"]
    took = f" in {formats.duration(outcome.run.duration_s)}" if outcome.run.duration_s is not None else ""
    steps = len(outcome.run.rewards)
    return (
        f"{steps} training steps{took} took the pass rate from {formats.percent(before)} to {formats.percent(after)} "
        "on rows that were not trained on."
    )


def side_by_side(outcome: TrainingOutcome) -> list[Block]:
    """Return both evaluations, and how far their difference can be trusted."""
    base, trained = outcome.base, outcome.trained
    rows: list[list[Cell]] = [
        [
            f"Pass rate ({pass_rule(base.metrics['estimates']['pass_threshold'])})",
            *(_with_interval(_estimate(run, "pass_rate")) for run in (base, trained)),
            _points(outcome.pass_rate),
        ],
        [
            "Reward",
            *(_mean(_estimate(run, "reward")) for run in (base, trained)),
            _mean_change(outcome.reward),
        ],
        ["Tokens a sample", *(_tokens(run) for run in (base, trained)), None],
        ["Samples scored", *(scored_of_planned(run.scored, run.total) for run in (base, trained)), None],
        ["Samples failed", *(_failed(run) for run in (base, trained)), None],
    ]
    columns = (
        Column("", keep=True),
        Column("Base", right=True),
        Column("Trained", right=True),
        Column("Difference", right=True),
    )
    paired = outcome.pass_rate.clusters if outcome.pass_rate else 0
    note = f"95 % intervals; the difference is paired over the {paired} rows that both answered"
    return [Table(columns, rows, title="Before and after training", note=note, in_plain=True)]


def further(outcome: TrainingOutcome, program: str) -> list[str]:
    """Return where else to look while the platform still runs."""
    if outcome.platform_url is None:
        return []
    run = outcome.run
    return [
        f"  how the training went         {program} train info {run.name}",
        f"  the adapter, to take away     {program} model download {run.checkpoint}",
        f'  evaluate it yourself          set model_path = "{run.model}" in a config of configs/eval/',
    ]


def _estimate(outcome: DemoOutcome, name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = outcome.metrics["estimates"][name]
    return found


def _with_interval(found: Mapping[str, Any]) -> str:
    value = formats.percent(found["value"])
    if found["low"] is None:
        return value
    return f"{value} ({100 * found['low']:.1f} – {100 * found['high']:.1f})"


def _points(found: Estimate | None) -> str:
    if found is None:
        return formats.MISSING
    value = f"{100 * found.value:+.1f} points"
    if found.low is None or found.high is None:
        return value
    return f"{value} ({100 * found.low:+.1f} – {100 * found.high:+.1f})"


def _mean(found: Mapping[str, Any]) -> str:
    if found["low"] is None:
        return f"{found['value']:.3f}"
    return f"{found['value']:.3f} ({found['low']:.3f} – {found['high']:.3f})"


def _mean_change(found: Estimate | None) -> str:
    if found is None:
        return formats.MISSING
    if found.low is None or found.high is None:
        return f"{found.value:+.3f}"
    return f"{found.value:+.3f} ({found.low:+.3f} – {found.high:+.3f})"


def _failed(outcome: DemoOutcome) -> str:
    failed = outcome.counts["failed_by_boundary"]
    return breakdown(failed) if failed else "0"


def _tokens(outcome: DemoOutcome) -> str:
    tokens = outcome.metrics["estimates"]["tokens"]["per_sample"]
    return formats.count(round(tokens)) if tokens is not None else formats.MISSING
