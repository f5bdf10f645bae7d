"""An evaluation of the platform, shown while it goes on, and what there is to say of it when it has ended."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from osmosis_ai.cli.output.results import Block, Text
from osmosis_ai.cli.runs import following

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.services.eval_runs.info import DescribedRun
    from osmosis_ai.services.eval_runs.watch import SeenRun


def follow(client: PlatformClient, name: str) -> following.Ending:
    """Show how far a run is until it has ended, and return what came of it."""
    from osmosis_ai.cli.eval_runs import platform_tables
    from osmosis_ai.services.eval_runs.info import describe_run, run_metrics
    from osmosis_ai.services.eval_runs.watch import PlatformLook

    following.show_to_the_end(PlatformLook(client, name), _moment, kind="eval", name=name)
    described = describe_run(client, name)
    outcome = {
        "status": described.run.status,
        "error": described.run.error,
        "commit_sha": described.detail.commit_sha,
        "summary": described.data()["summary"],
        "headline": described.data()["headline"],
        "metrics": run_metrics(described.metrics),
        "metrics_error": described.metrics_error,
    }
    return following.Ending(
        kind="eval",
        run=described.run,
        outcome=outcome,
        blocks=[*platform_tables.numbers(described), *_in_a_line(described)],
        hints=platform_tables.hints(described),
    )


def _in_a_line(described: DescribedRun) -> Iterator[Block]:
    if described.headline is not None:
        yield Text(f"Headline: {described.headline.words}", in_plain=True)


def _moment(seen: SeenRun) -> following.Moment:
    from osmosis_ai.cli.eval_runs.live import describe

    run, progress = seen.detail.eval_run, seen.progress
    return following.Moment(
        name=run.name or "Evaluating",
        status=run.status,
        completed=progress.completed if progress else None,
        total=progress.total if progress else None,
        unit="samples",
        note=describe(progress) if progress else "",
    )
