"""Evaluation runs of a platform, as people see them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.results import Block, Column, Moment, Row, Section, Status, Styled, Table
from osmosis_ai.cli.runs.details import configuration_rows, standing_rows
from osmosis_ai.services.eval_runs.info import rows_drawn

if TYPE_CHECKING:
    from osmosis_ai.api.wire.eval_runs import EvalMetrics, EvalRunDetail
    from osmosis_ai.services.eval_runs.info import DescribedRun

_SETTINGS = ("limit", "n", "batch_size", "pass_threshold", "agent_workflow_timeout_s", "grader_timeout_s")


def columns() -> tuple[Column, ...]:
    """Return what a list shows of each run."""
    return (
        Column("Name", value=lambda item: item["name"] or "(unnamed)", keep=True),
        Column("Status", value=lambda item: Status(item["status"]), keep=True),
        Column("Rollout", "rollout"),
        Column("Result, over scored samples", value=_result),
        Column("Reward", value=lambda item: _number(item["summary"].get("avg_reward")), right=True),
        Column("Submitted", value=lambda item: Moment(item["created_at"])),
        Column("Submitted By", "creator_name"),
    )


def rows(described: DescribedRun) -> list[Row]:
    """Return the main facts of a run."""
    return list(_rows(described))


def sections(described: DescribedRun) -> list[Section]:
    """Return how the run was configured, and its results where there is no fuller table of them."""
    found = [Section("Configuration", list(_configuration(described.detail)))]
    if described.estimates is None:
        found.append(Section("Results", list(_results(described))))
    return [section for section in found if section.rows]


def hints(described: DescribedRun) -> list[str]:
    """Return where to look next."""
    run, said = described.run, []
    name = run.name or run.id
    if run.platform_url:
        said.append(f"View: {run.platform_url}")
    if run.status == "failed":
        said.append(f"See logs with: osmosis eval logs {name}")
    if run.status in ("pending", "running"):
        said.append(f"Follow with: osmosis eval watch {name}")
        said.append(f"Stop with: osmosis eval stop {name}")
    return said


def numbers(described: DescribedRun) -> list[Block]:
    """Return a run's numbers as `eval run` shows them, as far as the platform has computed them."""
    metrics, estimates, headline = described.metrics, described.estimates, described.headline
    if metrics is None or metrics.overview.total_samples == 0:
        return []
    if estimates is None:
        known = list(_overview(metrics))
        return [Table(("", ""), known, title="Results", in_plain=True)] if known else []
    from osmosis_ai.cli.eval_runs.tables import results_table, sample_counts

    counted = list(sample_counts(estimates, headline.rows if headline is not None else None))
    if estimates.counts.pending:
        counted.append(("Pending", Styled(formats.count(estimates.counts.pending), "pending")))
    if metrics.overview.duration_ms is not None:
        counted.append(("Duration", formats.duration(metrics.overview.duration_ms / 1000)))
    return [results_table(estimates), Table(("", ""), counted, title="Samples", in_plain=True)]


def _result(item: Mapping[str, Any]) -> str | None:
    headline, rows = item["headline"], item["rows"]
    told = [headline["brief"]] if headline is not None else []
    return "; ".join([*told, *([rows] if rows else [])]) or None


def _rows(described: DescribedRun) -> Iterator[Row]:
    run, detail = described.run, described.detail
    summary = described.data()["summary"]
    yield from standing_rows(
        run,
        with_id=detail.is_internal_user,
        waiting=run.status == "pending",
        progress=summary.get("progress"),
    )
    yield "Duration", formats.duration(_duration_s(described))
    yield from _headline(described)
    yield "Tokens Used", formats.count(summary.get("total_tokens"))
    yield "Submitted", Moment(run.created_at, seconds=True)
    yield "Submitted By", run.creator_name
    yield "Started", Moment(run.started_at, seconds=True)
    yield "Completed", Moment(run.completed_at, seconds=True)
    yield "Dataset", detail.dataset.name if detail.dataset else None
    yield "Model", described.model
    yield "Rollout", detail.rollout.name if detail.rollout else None
    if described.metrics_error is not None:
        yield "Note", f"The metrics cannot be had now: {described.metrics_error}"
    elif run.status == "running":
        yield "Note", "The run is under way: the metrics are a snapshot."


def _headline(described: DescribedRun) -> Iterator[Row]:
    """Yield the run's result, with what it leaves out."""
    rows = rows_drawn(described.detail.results, described.detail.config)
    if rows is not None:
        yield "Rows", rows.words
    headline = described.headline
    if headline is None:
        return
    yield "Scored", headline.scored_words
    if headline.failed:
        yield "Failed", headline.failed_words
    yield "Pass Rate", f"{headline.rate_words} ({headline.rule})"
    for warning in headline.warnings:
        yield "Warning", Styled(warning, "warn")


def _configuration(detail: EvalRunDetail) -> Iterator[Row]:
    return configuration_rows(detail, _settings(detail.config or {}))


def _settings(config: Mapping[str, Any]) -> str:
    others = sorted(key for key in config if key not in _SETTINGS and key != "model_path")
    known = [key for key in (*_SETTINGS, *others) if config.get(key) is not None]
    return ", ".join(f"{key}={config[key]}" for key in known)


def _results(described: DescribedRun) -> Iterator[Row]:
    summary, results = described.data()["summary"], described.detail.results
    counted = [
        f"{formats.count(summary[word])} {word}"
        for word in ("graded", "passed", "failed", "skipped")
        if word in summary
    ]
    if counted:
        yield "Samples", ", ".join(counted)
    if "pass_threshold" in summary:
        yield "Pass Threshold", f"{summary['pass_threshold']:g}"
    stats = (results.reward_stats if results else None) or {}
    yield from _reward_stats(stats)
    points = stats.get("pass_at_k")
    if isinstance(points, Mapping):
        for k, value in points.items():
            yield f"pass@{k}", formats.percent(value) if isinstance(value, (int, float)) else None


def _overview(metrics: EvalMetrics) -> Iterator[Row]:
    overview = metrics.overview
    if overview.pass_rate is not None:
        over = formats.count(overview.completed_samples)
        yield "Pass rate", f"{formats.percent(overview.pass_rate)} of {over} samples"
    yield from _reward_stats(metrics.reward_stats or {})
    for point in metrics.pass_at_k:
        yield f"pass@{point.k}", formats.percent(point.value)
    for label, value in (
        ("Graded", overview.graded),
        ("Passed", overview.passed),
        ("Failed", overview.failed),
        ("Skipped", overview.skipped),
        ("Tokens", overview.tokens_used),
    ):
        if value is not None:
            yield label, formats.count(value)
    if overview.duration_ms is not None:
        yield "Duration", formats.duration(overview.duration_ms / 1000)


def _reward_stats(stats: Mapping[str, Any]) -> Iterator[Row]:
    known = [
        f"{name} {stats[name]:.3f}"
        for name in ("mean", "std", "min", "median", "max")
        if isinstance(stats.get(name), (int, float))
    ]
    if known:
        yield "Reward", " · ".join(known)


def _duration_s(described: DescribedRun) -> float | None:
    from osmosis_ai.services.runs.lifecycle import elapsed_s

    metrics, run = described.metrics, described.run
    if metrics is not None and metrics.overview.duration_ms is not None:
        return metrics.overview.duration_ms / 1000
    return elapsed_s(run, under_way=run.status == "running")


def _number(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, (int, float)) else formats.MISSING
