"""Evaluations of the platform, as people see them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_ai.cli.connection import platform_context
from osmosis_ai.cli.eval_runs import tables
from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import Block, Column, DetailResult, Row, Section, Styled, Table
from osmosis_ai.cli.runs.following import RunStanding, evaluation_note
from osmosis_ai.cli.runs.view import RunView
from osmosis_ai.services.eval_runs import info
from osmosis_ai.services.eval_runs.info import DescribedEvaluation
from osmosis_ai.services.eval_runs.watch import EvaluationLook, SeenEvaluation

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.services.context import PlatformContext
    from osmosis_ai.services.listing import Listing


class EvalRunView(RunView[DescribedEvaluation, SeenEvaluation]):
    """Rows, attempts and rates."""

    kind = "eval"
    model_heading = "Model"
    shows_who = False

    def fetch(
        self, client: PlatformClient, *, limit: int, everything: bool
    ) -> tuple[Listing[Any], Callable[[Any], Mapping[str, Any]]]:
        return info.list_runs(client, limit=limit, everything=everything), info.run_item

    def describe(self, client: PlatformClient, name: str) -> DescribedEvaluation:
        return info.describe_run(client, name)

    def sliced_info(self, name: str, output: str | None, columns: Sequence[str]) -> DetailResult:
        """Return one run in full as ``info`` does, and its numbers by the values of columns."""
        shown = self.info(name, output)
        if not columns:
            return shown
        from osmosis_ai.services.eval_runs.slices import platform_slices

        with platform_context() as context, current().status("Fetching samples"):
            found = platform_slices(context.client, name, columns)
        return replace(
            shown,
            data={**shown.data, "slices": [each.data() for each in found]},
            blocks=[*shown.blocks, *tables.slices(found)],
        )

    def look(self, client: PlatformClient, name: str) -> EvaluationLook:
        return EvaluationLook(client, name)

    def standing(self, seen: SeenEvaluation) -> RunStanding:
        run, progress = seen.detail.eval_run, seen.progress
        return RunStanding(
            name=run.name or "Evaluating",
            status=run.status,
            completed=progress.completed if progress else None,
            total=progress.total if progress else None,
            unit="samples",
            note=evaluation_note(progress) if progress else "",
            waits=seen.detail.waits or "",
            waits_for=seen.detail.waits_for,
        )

    def save(
        self, context: PlatformContext, described: DescribedEvaluation, output: str | None
    ) -> tuple[Path | None, str | None]:
        from osmosis_ai.services.runs.download import save_metrics

        directory = Path(output) if output is not None else None
        return save_metrics(context.client, described.run, context.workspace, directory)

    def own_columns(self) -> Sequence[Column]:
        return (
            Column("Rollout", "rollout"),
            Column("Result, over scored samples", value=_result, in_rich=False),
            Column("Result, over scored samples", value=_short_result, in_plain=False),
            Column("Reward", value=_reward, right=True),
        )

    def results(self, described: DescribedEvaluation) -> Iterator[Row]:
        rows, headline = (
            info.rows_drawn(described.detail.results, described.detail.config),
            described.headline,
        )
        if described.run.imported is not None:
            yield "Imported", Styled(described.run.imported.words, "warn")
        if rows is not None:
            yield "Rows", rows.words
        if headline is not None:
            yield "Scored", headline.scored_words
            if headline.failed:
                yield "Failed", headline.failed_words
            yield "Pass Rate", f"{headline.rate_words} ({headline.rule})"
            for warning in headline.warnings:
                yield "Warning", Styled(warning, "warn")
        yield "Tokens Used", formats.count(described.summary.get("total_tokens") or None)

    def settings(self, config: Mapping[str, Any]) -> Iterable[str]:
        from osmosis_ai.config.sections import EvaluationSettings

        known = EvaluationSettings.model_fields
        others = sorted(key for key in config if key not in known and key != "model_path")
        return (f"{key}={config[key]}" for key in (*known, *others) if config.get(key) is not None)

    def own_sections(self, described: DescribedEvaluation) -> Iterator[Section]:
        """Yield the results where there is no fuller table of them, and those with retries."""
        rows = list(_counted(described))
        if described.estimates is None and rows:
            yield Section("Results", rows)
        if related := list(_related(described)):
            yield Section("Retries", related)

    def numbers(self, described: DescribedEvaluation) -> Iterator[Block]:
        """Yield the numbers as `eval run` shows them, where the platform has computed them so."""
        estimates, headline = described.estimates, described.headline
        if estimates is None or (described.metrics and described.metrics.overview.total_samples == 0):
            return
        more: list[Row] = []
        if estimates.counts.pending:
            more.append(("Pending", Styled(formats.count(estimates.counts.pending), "pending")))
        if described.metrics and described.metrics.overview.duration_ms is not None:
            more.append(("Duration", formats.duration(described.metrics.overview.duration_ms / 1000)))
        yield from tables.numbers(estimates, headline.rows if headline is not None else None, more)

    def headline(self, described: DescribedEvaluation) -> Iterator[Block]:
        if described.estimates is not None:
            yield from self.numbers(described)
        elif rows := [*_counted(described), *_measured(described)]:
            yield Table(("", ""), rows, title="Results", in_plain=True)
        if described.headline is not None:
            yield tables.headline(described.headline)
        if related := list(_related(described)):
            yield Table(("", ""), related, title="Retries", in_plain=True)

    def own_hints(self, described: DescribedEvaluation, *, followed: bool) -> Iterator[str]:
        if followed and described.metrics is not None:
            yield f"Conversations: osmosis eval download {described.run.name or described.run.id}"
        failed = described.headline is not None and described.headline.failed
        if failed and described.ended and described.run.imported is None:
            yield f"Why samples failed: osmosis eval logs {described.run.name or described.run.id}"


VIEW = EvalRunView()


def _reward(item: Mapping[str, Any]) -> str:
    """Return the mean reward, over scored samples as the pass rate beside it where the platform tells that."""
    told = (item["headline"] or {}).get("reward")
    return _number(item["summary"].get("avg_reward") if told is None else told)


def _result(item: Mapping[str, Any]) -> str | None:
    headline, rows = item["headline"], item["rows"]
    told = ["imported"] if "imported" in item else []
    told += [headline["brief"]] if headline is not None else []
    related = item.get("retry_of")
    retry = [f"retry of {related.get('name') or related.get('id')}"] if related else []
    return "; ".join([*told, *([rows] if rows else []), *retry]) or None


def _short_result(item: Mapping[str, Any]) -> str | None:
    """The same in a terminal's width of 120."""
    headline, related = item["headline"], item.get("retry_of")
    told = ["imported"] if "imported" in item else []
    if headline is not None:
        rate, failed = headline["pass_rate"], headline["failed"]
        told.append(
            f"{formats.percent(rate)} pass, " * (rate is not None)
            + f"{headline['scored']:,} of {headline['planned']:,} scored"
            + f", {failed:,} failed" * bool(failed)
        )
    told += [f"retry of {related.get('name') or related.get('id')}"] if related else []
    return "; ".join(told) or None


def _related(described: DescribedEvaluation) -> Iterator[Row]:
    """Yield what the run is a retry of, its retries, and what they have come to together."""
    detail, merged = described.detail, described.merged
    if detail.retry_of is not None:
        gone = "" if detail.retry_of.status else " (deleted)"
        yield "Retry Of", f"{detail.retry_of.name or detail.retry_of.id}{gone}"
        yield "Note", "This run alone has only samples that had no score before."
    for run in detail.retries:
        yield "Retry", f"{run.name or run.id} ({run.status})"
    headline = merged.headline if merged is not None else None
    if merged is None or headline is None or len(merged.wire.runs) < 2:
        return
    yield "Together", ", ".join(f"{formats.count(run.samples)} of {run.name}" for run in merged.wire.runs)
    yield "Scored", headline.scored_words
    if headline.failed:
        yield "Failed", headline.failed_words
    yield "Pass Rate", f"{headline.rate_words} ({headline.rule})"
    for warning in filter(None, [merged.unfinished, *headline.warnings]):
        yield "Warning", Styled(warning, "warn")


def _counted(described: DescribedEvaluation) -> Iterator[Row]:
    """Yield the numbers of a platform that computes no intervals."""
    summary, metrics, results = described.summary, described.metrics, described.detail.results
    words = [word for word in ("graded", "passed", "failed", "skipped") if word in summary]
    if words:
        yield "Samples", ", ".join(f"{formats.count(summary[word])} {word}" for word in words)
    if "pass_threshold" in summary:
        yield "Pass Threshold", f"{summary['pass_threshold']:g}"
    stats = (results.reward_stats if results else None) or (metrics.reward_stats if metrics else None) or {}
    names = ("mean", "std", "min", "median", "max")
    known = [f"{name} {stats[name]:.3f}" for name in names if isinstance(stats.get(name), (int, float))]
    if known:
        yield "Reward", " · ".join(known)
    points = stats.get("pass_at_k")
    for k, value in points.items() if isinstance(points, Mapping) else ():
        yield f"pass@{k}", formats.percent(value) if isinstance(value, (int, float)) else None


def _measured(described: DescribedEvaluation) -> Iterator[Row]:
    """Yield what only the metrics of such a platform say."""
    metrics, results = described.metrics, described.detail.results
    if metrics is None or metrics.overview.total_samples == 0:
        return
    overview = metrics.overview
    if not ((results.reward_stats if results else None) or {}).get("pass_at_k"):
        for point in metrics.pass_at_k:
            yield f"pass@{point.k}", formats.percent(point.value)
    if overview.pass_rate is not None:
        over = formats.count(overview.completed_samples)
        yield "Pass rate", f"{formats.percent(overview.pass_rate)} of {over} samples"
    for word in ("graded", "passed", "failed", "skipped"):
        if word not in described.summary and (value := getattr(overview, word)) is not None:
            yield word.title(), formats.count(value)
    if overview.tokens_used:
        yield "Tokens", formats.count(overview.tokens_used)
    if overview.duration_ms is not None:
        yield "Duration", formats.duration(overview.duration_ms / 1000)


def _number(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, (int, float)) else formats.MISSING
