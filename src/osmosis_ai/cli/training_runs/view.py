"""How training runs are listed, shown and followed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from shlex import quote
from typing import Any

from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.formats import aligned, compact, next_block, percent, sparkline
from osmosis_ai.cli.output.results import (
    Block,
    Chart,
    Column,
    Curve,
    DetailResult,
    Row,
    Table,
    Text,
    Timestamp,
    Tone,
)
from osmosis_ai.cli.runs import RunStanding, RunView
from osmosis_ai.services import training_runs
from osmosis_ai.services.training_runs import DescribedTraining, LocalTraining
from osmosis_ai.training.runs.curves import CurveValue, SavedAdapter, TrainingCurves
from osmosis_ai.training.runs.metrics import (
    DROPPED,
    TRAINING_LOSS,
    TRAINING_REWARD,
    VALIDATION_LOSS,
    VALIDATION_PASS_RATE,
    VALIDATION_REWARD,
)
from osmosis_ai.training.runs.run_differences import flat_settings
from osmosis_ai.ui import numbers

_NOTICEABLE_S = 0.05
_LONGER = 1.01  # a smaller difference is one of measurement
_MOST_SETTINGS, _MOST_WARNINGS, _MOST_STEPS = 10, 5, 3
_STEP_TIME, _SAMPLING_SPEED = "time/step_s", "speed/sampling_tokens_per_s"
_PHASES = {
    "time/sampling_s": "sampling",
    "time/learning_s": "learning",
    "time/publishing_s": "publishing",
    "time/validation_s": "validation",
    "time/checkpoint_s": "checkpoint",
}
_TONES_OF_CURVES: Mapping[str, Tone] = {"training": "accent", "validation": "good"}
_TONES: Mapping[str, Tone] = {"finished": "good", "failed": "bad", "crashed": "bad", "running": "active"}


# -- one run -------------------------------------------------------------------------------


def platform_info(run: DescribedTraining) -> DetailResult:
    notes = [
        ("Waits", run.detail.waits if not run.ended else None),
        ("Metrics", f"not available: {run.metrics_error}" if run.metrics_error else None),
        ("Notes", run.run.notes),
        ("Page", run.run.platform_url),
    ]
    blocks = [*summary(run, notes)]
    if current().verbose:
        blocks.append(_table("Run", _run_rows(run)))
        blocks += [_table(part.title, part.rows) for part in VIEW.configuration(run)]
        blocks += metric_blocks(run)
    return DetailResult(data={}, blocks=blocks, hints=next_block(_next_steps(run)))


def local_info(run: LocalTraining, more: Mapping[str, Any]) -> DetailResult:
    place, detail = quote(formats.shown_path(run.directory)), run.run_detail
    blocks, steps = [*summary(run, ())], [("open it in a browser", f"osmosis view {place}")]
    if not run.curves.is_supervised:
        steps.append(("read conversations", f"osmosis train show {place}"))
    if current().verbose:
        blocks.append(_table("Run", [("Started", Timestamp(detail.summary.started_at)), *detail.facts]))
        blocks += metric_blocks(run)
        if detail.config_written is not None:
            blocks.append(Text(detail.config_written, title="Config"))
    else:
        steps.append(("print all metrics", f"osmosis train info {place} --verbose"))
    return DetailResult(data={**run.data(), **more}, blocks=blocks, hints=next_block(steps))


def summary(run: LocalTraining | DescribedTraining, notes: Iterable[tuple[str, str | None]]) -> list[Block]:
    """Return status, results, non-default settings, warnings and the checkpoints that matter."""
    entry, steps = run.run_detail.summary, dict(run.run_detail.facts).get("Steps")
    duration = None if run.duration_s is None else formats.duration(run.duration_s)
    progress = " in ".join(filter(None, [f"{steps} steps" if steps else None, duration]))
    facts = [
        ("Error", entry.error),
        *notes,
        ("Model", entry.model),
        ("Dataset", entry.dataset),
        ("Rollout", entry.rollout),
        ("Commit", entry.commit and entry.commit[:7]),
    ]
    settings = [
        (key, formats.one_line(numbers.setting(value))) for key, value in run.changed_settings.items()
    ]
    if len(settings) > _MOST_SETTINGS:
        settings[_MOST_SETTINGS:] = [("…", f"{len(settings) - _MOST_SETTINGS} more with --verbose")]
    known = [f"  {label:<9}{formats.one_line(text)}" for label, text in facts if text]
    status = f"Training run {formats.one_line(entry.name)}: {entry.status}"
    title = ", ".join(filter(None, [status, progress]))
    return [
        Text(title, tone=_TONES.get(entry.status), in_plain=True),
        *_text(known, *result_lines(run.curves), aligned("Non-default settings", settings)),
    ]


def result_lines(curves: TrainingCurves) -> Iterator[list[str]]:
    """Yield sections: results with their best and last value, warnings, the best and the last checkpoint."""
    measure, measured = _measured(curves)
    by_value = min if curves.is_supervised else max
    rows = [
        (f"Validation {name}", *_first_best_last(points, shown, by_value))
        for name, points, shown in _validations(curves)
    ]
    if training := measured["training"]:
        rows.append((f"Training {measure}", *_first_best_last(training, compact, by_value)))
    lines = aligned("Results", [("", "First", "Best", "Last"), *rows] if rows else [])
    lines += [f"  {label:<20}  {text}" for label, text in _averages(curves)]
    yield lines
    yield aligned("Warnings", _warnings(curves))
    yield aligned("Checkpoints", _checkpoints(curves))


def _measured(curves: TrainingCurves) -> tuple[str, Mapping[str, Sequence[CurveValue]]]:
    """Return what the run improves, the reward or the loss, and its values in training and validation."""
    if curves.is_supervised:
        name, keys = "loss", (TRAINING_LOSS, VALIDATION_LOSS)
    else:
        name, keys = "reward", (TRAINING_REWARD, VALIDATION_REWARD)
    return name, dict(zip(_TONES_OF_CURVES, map(curves.points, keys), strict=True))


def _text(*sections: Sequence[str]) -> Iterator[Text]:
    if any(sections):
        yield Text("\n\n".join("\n".join(lines) for lines in sections if lines), in_plain=True)


def _validations(
    curves: TrainingCurves,
) -> Iterator[tuple[str, Sequence[CurveValue], Callable[[float], str]]]:
    """Yield name, values and format of the pass rate, and of the reward unless it is the same; or of the loss."""
    if losses := curves.points(VALIDATION_LOSS):
        yield "loss", losses, compact
    rates, rewards = curves.points(VALIDATION_PASS_RATE), curves.points(VALIDATION_REWARD)
    # The platform reports an interval for the reward only.
    is_same = [(each.step, each.value) for each in rates] == [(each.step, each.value) for each in rewards]
    if rates:
        yield "pass rate", rewards if is_same else rates, percent
    if rewards and not is_same:
        yield "reward", rewards, compact


def _first_best_last(
    points: Sequence[CurveValue], shown: Callable[[float], str], by_value: Callable[..., CurveValue]
) -> Iterator[str]:
    best = by_value([each for each in points if not each.is_hollow] or points, key=lambda each: each.value)
    for point in (points[0], best, points[-1]):
        yield f"{_with_interval(point, shown)}, step {point.step}"


def _with_interval(point: CurveValue, shown: Callable[[float], str]) -> str:
    if point.low is None or point.high is None:
        return shown(point.value)
    return f"{shown(point.value)} ({shown(point.low).removesuffix('%')}–{shown(point.high)})"


def _averages(curves: TrainingCurves) -> Iterator[tuple[str, str]]:
    """Yield the means of sampling speed, time of a step with the share of each phase, staleness and replaced groups."""
    speeds, steps = curves.points(_SAMPLING_SPEED), curves.points(_STEP_TIME)
    if speeds:
        yield "Sampling speed", f"{_mean(speeds):,.0f} tokens/s"
    if steps:
        total = sum(each.value for each in steps)
        spent = {
            word: sum(each.value for each in curves.points(key) if each.step > 0)
            for key, word in _PHASES.items()
        }
        shares = [f"{word} {percent(part / total, digits=0)}" for word, part in spent.items() if part > 0]
        text = f"{formats.duration(_mean(steps))}: {', '.join(shares)}".removesuffix(": ")
        yield "Time per step", text + _overlap(spent, total)
    staleness, replaced = curves.points("rollout/staleness"), curves.points("rollout/replaced")
    if any(each.value for each in staleness):
        dropped = percent(_mean(curves.points(DROPPED)), digits=0)
        yield (
            "Staleness",
            f"{_mean(staleness):.1f} updates; {dropped} of attempts dropped as too old or too slow",
        )
    if any(each.value for each in replaced):
        yield "Replaced groups", f"{_mean(replaced):.1f} per step, because of equal rewards"


def _mean(points: Sequence[CurveValue]) -> float:
    return sum(each.value / len(points) for each in points)


def _warnings(curves: TrainingCurves) -> Iterator[tuple[str, str]]:
    marked = _marked(curves)
    for text in curves.headline.warnings if curves.headline is not None else ():
        if not any(text in known for _, known in marked):
            yield "validation", text
    for step, text in marked[-_MOST_WARNINGS:]:
        yield f"step {step}", text


def _marked(curves: TrainingCurves) -> list[tuple[int, str]]:
    """Return the warnings, each with the step where it was first given."""
    return [(mark.step, formats.one_line(mark.text)) for mark in curves.warnings]


def _checkpoints(curves: TrainingCurves) -> Iterator[Sequence[str]]:
    """Yield the best and the last checkpoint, or with ``--verbose`` all of them."""
    found, last = curves.best_checkpoint(), curves.checkpoints[-1] if curves.checkpoints else None
    best, count = found or (None, 0)
    selected = f"best (selected among {count} validations)"
    hidden = 0
    for saved in curves.checkpoints:
        marks = [mark for mark, marked in ((selected, best), ("last", last)) if saved == marked]
        if marks or current().verbose:
            yield saved.name, f"step {saved.step}", _validated(curves, saved), ", ".join(marks)
        else:
            hidden += 1
    if hidden:
        yield (f"… {hidden} more",)


def _validated(curves: TrainingCurves, saved: SavedAdapter) -> str:
    for name, points, shown in _validations(curves):
        for point in points:
            if point.step == saved.step:
                return f"validation {name} {_with_interval(point, shown)}"
    return "not validated"


def _next_steps(run: DescribedTraining) -> list[tuple[str, str]]:
    """Return at most three commands."""
    name, steps = quote(run.name), []
    if not run.ended:
        steps.append(("follow it", f"osmosis train watch {name}"))
        if "stopping" not in (run.detail.waits or ""):
            steps.append(("stop it", f"osmosis train stop {name}"))
    elif run.run.status in ("failed", "crashed"):
        steps.append(("read the log", f"osmosis train logs {name}"))
    if run.run.resumable:
        steps.append(("resume it", f"osmosis train resume {name}"))
    if run.curves.collapsed:
        steps.append(("read the warnings", f"osmosis train logs {name} --level warning"))
    elif run.curves.checkpoints and run.run.status not in ("failed", "crashed"):
        best = "best" if run.curves.best_checkpoint() else "last"
        steps.append((f"deploy the {best} checkpoint", f"osmosis model deploy {name}"))
    if run.curves.curves and not run.curves.is_supervised:
        steps.append(("read conversations", f"osmosis train show {name}"))
    if not current().verbose:
        all_of = "metrics" if run.curves.curves else "settings"
        steps.append((f"print all {all_of}", f"osmosis train info {name} --verbose"))
    return steps[:_MOST_STEPS]


# -- with --verbose ------------------------------------------------------------------------


def _run_rows(run: DescribedTraining) -> Iterator[Row]:
    own = run.run
    if run.detail.is_internal_user:
        yield "ID", own.id
    yield "Submitted", Timestamp(own.created_at, seconds=True)
    yield "Submitted by", own.creator_name
    yield "Started", Timestamp(own.started_at, seconds=True)
    yield "Completed", Timestamp(own.completed_at, seconds=True)
    # A supervised run has no attempts.
    yield "Attempts", formats.count(own.examples_processed_count or None)
    yield from (run.detail.adapter or {}).items()
    if run.in_progress:
        yield "Note", "The metrics are a snapshot: the run has not ended."


def _table(title: str, rows: Iterable[Row]) -> Table:
    return Table(("", ""), [row for row in rows if row[1] is not None], title=title, in_plain=True)


def metric_blocks(run: LocalTraining | DescribedTraining) -> Iterator[Block]:
    """Yield the chart of the rewards or losses, and a table of all metrics."""
    measure, measured = _measured(run.curves)
    curves = [
        Curve(name, [(each.step, each.value) for each in points], _TONES_OF_CURVES[name])
        for name, points in measured.items()
    ]
    if len(curves[0].points) > 1:
        title = measure.title()
        yield Chart([curve for curve in curves if curve.points], title=title, x_label="step")
    if run.curves.curves:
        headings = ("First, step", "Last, step", "Lowest, step", "Highest, step")
        rows = [
            (curve.title, *(f"{compact(each.value)}, {each.step}" for each in curve.summary))
            for curve in run.curves.curves
        ]
        columns = [Column("Metric", keep=True), *(Column(heading, right=True) for heading in headings)]
        yield Table(columns, rows, title="Metrics", in_plain=True)


# -- a run that is followed ----------------------------------------------------------------


def _standing(seen: DescribedTraining) -> RunStanding:
    run = seen.run
    return RunStanding(
        name=run.name or "Training",
        status=run.status,
        completed=run.current_step,
        total=run.total_steps,
        unit="steps",
        note=" · ".join(_now(seen)),
        below=tuple(_curve_lines(seen.curves)),
        warnings=tuple(f"step {step}: {text}" for step, text in _marked(seen.curves)),
        waits=seen.detail.waits or "",
        waits_for=seen.detail.waits_for,
    )


def _now(seen: DescribedTraining) -> Iterator[str]:
    """Yield the numbers of the last step, for one line."""
    measure, measured = _measured(seen.curves)
    trained, validated = measured.values()
    value = trained[-1].value if trained else seen.run.reward
    if value is not None:
        yield f"{measure} {compact(value)}"
    if validated:
        yield f"validation {compact(validated[-1].value)}"
    yield from _last_step(seen.curves)


def _curve_lines(curves: TrainingCurves) -> Iterator[str]:
    """Yield the lines under a progress bar: the reward or loss with its curve, and the numbers of the last step."""
    measure, measured = _measured(curves)
    trained, validated = measured.values()
    if not trained:
        return
    drawn = sparkline([each.value for each in trained], width=24)
    line = f"  {measure}  {drawn}  {_from_to(trained)}"
    yield line + (f"   validation {_from_to(validated)}" if validated else "")
    if last := " · ".join(_last_step(curves)):
        yield f"  {last}"


def _from_to(points: Sequence[CurveValue]) -> str:
    return f"{compact(points[0].value)} → {compact(points[-1].value)}"


def _last_step(curves: TrainingCurves) -> Iterator[str]:
    """Yield the last step's time with its phases, and its speed."""
    steps, speeds = curves.points(_STEP_TIME), curves.points(_SAMPLING_SPEED)
    if steps:
        spent = {}
        for key, word in _PHASES.items():
            # A validation takes place every so many steps only.
            measured = [each for each in curves.points(key) if each.step == steps[-1].step]
            if measured and measured[0].value >= _NOTICEABLE_S:
                spent[word] = measured[0].value
        phases = ", ".join(f"{word} {_seconds(value)}" for word, value in spent.items())
        phases += _overlap(spent, steps[-1].value)
        yield f"{_seconds(steps[-1].value)}/step" + (f" ({phases})" if phases else "")
    if speeds:
        yield f"{speeds[-1].value:,.0f} tokens/s"


def _overlap(spent: Mapping[str, float], step_s: float) -> str:
    """Return a note if the phases of a step take longer than it; a checkpoint is written after its step."""
    phases_s = sum(value for word, value in spent.items() if word != "checkpoint")
    return "; they overlap" if phases_s > _LONGER * step_s else ""


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value < 60 else formats.duration(value)


def _hints(run: DescribedTraining, followed: bool) -> list[str]:
    notes = [f"Notes: {run.run.notes}"] if followed and run.run.notes else []
    return [*notes, *next_block(_next_steps(run))]


# -- lists ---------------------------------------------------------------------------------


CHECKPOINT_COLUMNS = (
    Column("Checkpoint", value=lambda item: item["checkpoint_name"] or "(unnamed)", keep=True),
    Column("Step", "checkpoint_step", right=True),
    Column("Status", "status"),
    Column("Saved", "created_at"),
)


def _settings(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield every setting under a dotted name."""
    yield from (
        f"{key}={numbers.setting(value)}" for key, value in flat_settings(config) if value is not None
    )


VIEW = RunView(
    kind="train",
    columns=(
        Column("Base model", "model_name"),
        Column("Rollout", "rollout_name"),
        Column("Reward", value=lambda item: compact(item["summary"].get("reward")), right=True),
    ),
    fetch=training_runs.list_runs,
    item=training_runs.run_item,
    describe=training_runs.describe_run,
    look=training_runs.TrainingLook,
    standing=_standing,
    save=lambda context, run, output: training_runs.save_metrics(run, context.workspace, output),
    settings=_settings,
    details=platform_info,
    headline=lambda run: _text(*result_lines(run.curves)),
    hints=_hints,
)
