"""A training run's page: what it has learned so far and how sure that is, its curves, and the adapters it saved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from shlex import quote
from typing import Any

from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.training.runs.curves import (
    LEAST_WORDS,
    SavedAdapter,
    TrainingCurves,
    ViewedCurve,
    after_steps,
)
from osmosis_ai.training.runs.metrics import TITLES, TRAINING_REWARD, VALIDATION_PASS_RATE, VALIDATION_REWARD
from osmosis_ai.ui.charts.drawing import ChartMark, ChartPoint, ChartSeries, SvgChart
from osmosis_ai.ui.numbers import duration, number, percent
from osmosis_ai.viewer.access import RenderedPage, Tile, Viewing
from osmosis_ai.viewer.pages.evaluation import FOLDED, flat_config, known_facts, log_tail
from osmosis_ai.viewer.queries import Words, word
from osmosis_ai.viewer.source import RunDetail
from osmosis_ai.viewer.validation import validated_entry

_CHARTS: Sequence[tuple[str, Sequence[str]]] = (
    ("Training reward", ("rollout/raw_reward",)),
    ("Validation reward", ("eval/validation/reward",)),
    ("Validation pass rate", ("eval/validation/pass_rate",)),
    ("KL (nats per token)", ("train/kl_sampler", "train/kl_base")),
    ("Entropy (nats per token)", ("train/entropy_loss",)),
    ("Length (tokens)", ("rollout/response_lengths", "rollout/total_lengths")),
    ("Cut off (share of rollouts)", ("rollout/truncated_ratio", "rollout/timed_out_ratio")),
    ("Learner and server, log-probability gap", ("train/logprob_gap_mean", "train/logprob_gap_max")),
    ("Time of a step (s)", [key for key in TITLES if key.startswith("time/")]),
)
"""What is drawn, under which heading; the first two with what happened on the way."""
MAIN_CHARTS = 3
"""How many of them are shown at once."""
_MOST_MARKS = 40
_MOST_VALIDATED = 10
HOLLOW = f"under {LEAST_WORDS} scored"


def page(view: Viewing, words: Words, *, run: str) -> RenderedPage:
    """Return a training run; ``smooth`` in the address is how much of what came before a point of a curve has."""
    smoothing = _smoothing(words)
    live = view.live("training", run)
    detail = view.read(view.source.run, "training", run)
    curves = view.read(view.source.curves, run) if _shows_curves(view) else TrainingCurves()
    summary = detail.summary
    return RenderedPage(
        "training.html",
        {
            **shown(detail, curves, smoothing, draws=view.wants("curves")),
            "crumbs": view.crumbs("training"),
            "here": view.run_href("training", run),
            "validated": _validated(view, run),
            "quote": None if view.is_local else quote,
            **log_tail(view, summary),
        },
        parts={name: f"training_{name}.html" for name in ("standing", "curves", "validation", "adapters")}
        | {"log": "run_log.html"},
        live=live,
    )


def _shows_curves(view: Viewing) -> bool:
    return view.can("curves") and any(map(view.wants, ("standing", "curves", "validation", "adapters")))


def shown(
    detail: RunDetail, curves: TrainingCurves, smoothing: float = 0.0, *, draws: bool = True
) -> dict[str, Any]:
    """Return what is shown of a training run wherever it is shown: no address, and nothing to type."""
    return {
        "title": detail.summary.name,
        "run": detail.summary,
        "detail": detail,
        "subject": " · ".join(filter(None, (detail.summary.model, detail.summary.dataset))),
        "tiles": list(_tiles(detail, curves)),
        "MAIN_CHARTS": MAIN_CHARTS,
        "MOST_VALIDATED": _MOST_VALIDATED,
        "FOLDED": FOLDED,
        "best": _best(curves.checkpoints),
        "validation": curves.headline,
        "rewards": curves.points("rollout/raw_reward"),
        "hollow": after_steps(curves.hollow_validations()),
        "least": LEAST_WORDS,
        "charts": list(_charts(curves, smoothing)) if draws else [],
        "smoothing": smoothing,
        "metrics": [_line(curve) for curve in curves.curves if curve.points],
        "warnings": [mark for mark in curves.marks if mark.kind == "warning"],
        "adapters": curves.checkpoints,
        "quote": None,
        "facts": known_facts(detail),
        "config": list(flat_config(detail.config_effective)),
    }


def _tiles(detail: RunDetail, curves: TrainingCurves) -> Iterator[Tile]:
    """Yield the tiles of a training run."""
    validated = [point for point in curves.points(VALIDATION_PASS_RATE) if isfinite(point.value)]
    rewards = [point for point in curves.points(VALIDATION_REWARD) if isfinite(point.value)]
    if validated:
        first, best = validated[0], max(validated, key=lambda point: point.value)
        yield Tile("Validation pass rate", percent(validated[-1].value), f"{percent(first.value)} at first")
        yield Tile("Best pass rate", percent(best.value), f"after step {best.step:,}")
    if rewards:
        last = rewards[-1]
        known = last.low is not None and last.high is not None
        limits = f"95% CI {last.low:.3f} – {last.high:.3f}" if known else None
        newest = curves.headline.scored_words if curves.headline is not None else None
        scored = f"{newest} scored" if newest else None
        yield Tile("Validation reward", number(last.value), "; ".join(filter(None, (limits, scored))))
    trained = curves.points(TRAINING_REWARD)
    if trained:
        yield Tile("Training reward", number(trained[-1].value), f"after step {trained[-1].step:,}")
    speed = [curves.points(f"speed/{phase}_tokens_per_s") for phase in ("sampling", "learning")]
    if speed[0]:
        learned = f"sampled; {speed[1][-1].value:,.0f} learned" if speed[1] else "sampled"
        yield Tile("Tokens per second", f"{speed[0][-1].value:,.0f}", learned)
    if steps := curves.points("time/step_s"):
        phases = [(phase, curves.points(f"time/{phase}_s")) for phase in ("sampling", "learning")]
        spent = ", ".join(f"{phase} {duration(points[-1].value)}" for phase, points in phases if points)
        yield Tile("Time per step", duration(steps[-1].value), spent)
    if detail.summary.duration_s is not None:
        yield Tile("Duration", duration(detail.summary.duration_s))


def _best(checkpoints: Sequence[SavedAdapter]) -> str | None:
    """Return the name of the checkpoint with the highest validation reward, the first of several."""
    known = [each for each in checkpoints if each.reward is not None]
    return max(known, key=lambda each: (each.reward or 0.0, -each.step)).name if known else None


def _validated(view: Viewing, run: str) -> Mapping[str, Any]:
    """Return the samples of the newest validation with their addresses, or what is wrong with the record of them."""
    samples = problem = None
    if view.can("conversations") and view.wants("validation"):
        try:
            samples = view.read(view.source.validation, run)
        except NotFoundError:
            raise
        except OsmosisError as error:
            problem = error.message
    here = replace(view, of_validation=True)
    found = [validated_entry(each, samples.pass_threshold) for each in samples.records] if samples else []
    lines = [(each, here.sample_href(run, each.row, each.attempt)) for each in found]
    return {"samples": samples, "lines": lines, "problem": problem}


def _smoothing(words: Words) -> float:
    given = word(words, "smooth") or "0"
    try:
        weight = float(given)
    except ValueError:
        weight = -1.0
    if not 0 <= weight < 1:
        raise OsmosisError(f"smooth is from 0 (none) to below 1, not {given!r}.")
    return weight


def _charts(curves: TrainingCurves, smoothing: float) -> Iterator[SvgChart]:
    from osmosis_ai.ui.charts.curves import line

    # There may be many warnings: where there is no room for all marks, they are left out.
    room = sorted(curves.marks, key=lambda mark: mark.kind == "warning")[:_MOST_MARKS]
    ordered = sorted(room, key=lambda mark: mark.step)
    marks = [ChartMark(mark.step, mark.kind, mark.text) for mark in ordered]
    for place, (title, keys) in enumerate(_CHARTS):
        found = [curve for key in keys for curve in curves.curves if curve.key == key and curve.points]
        if found:
            yield line(
                [ChartSeries(curve.title, chart_points(curve)) for curve in found],
                label=title,
                axis="step",
                # A validation stands on enough samples of its own to be read as it is, and is drawn with its interval.
                smoothing=0.0 if keys[0].startswith("eval/") else smoothing,
                marks=marks if place < 2 else (),
                hollow=HOLLOW,
            )


def chart_points(curve: ViewedCurve) -> list[ChartPoint]:
    """Return a curve's points as charts take them."""
    return [
        ChartPoint(point.step, point.value, point.low, point.high, point.over, point.is_hollow)
        for point in curve.points
    ]


def _line(curve: ViewedCurve) -> tuple[Any, ...]:
    """Return a metric's title, its first, last, least and greatest value, and how many steps have one."""
    values = [point.value for point in curve.points if isfinite(point.value)] or [float("nan")]
    return (curve.title, values[0], values[-1], min(values), max(values), len(curve.points))
