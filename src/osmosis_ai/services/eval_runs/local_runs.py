"""List and describe evaluations of this machine, and read their logs.

The numbers come from the same source as those of `osmosis view`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from osmosis_ai.errors import OsmosisError

if TYPE_CHECKING:
    from osmosis_ai.api.models.base import LogEntry, LogPage
    from osmosis_ai.viewer.local.source import LocalSource
    from osmosis_ai.viewer.source import RunDetail, RunEntry

_PAGE = 200


@dataclass(frozen=True)
class LocalRuns:
    """The newest evaluations of this machine.

    Attributes:
        total: number of evaluations.
        unreadable: names of directories without read permission.
        archived: names of runs archived by `--fresh`, newest first; they are not in the list.
    """

    items: Sequence[RunEntry]
    total: int
    archived: Sequence[str] = ()
    unreadable: Sequence[str] = ()


def list_local_runs(*, limit: int, everything: bool, start: Path | None = None) -> LocalRuns:
    """List the workspace's evaluations on this machine, newest first; empty outside a workspace.

    Raises:
        OsmosisError: both ``everything`` and a limit are given.
    """
    from osmosis_ai.files import cache_dir
    from osmosis_ai.services.eval_runs.resolver import evals_directory
    from osmosis_ai.services.eval_runs.run_directories import archived_names, unreadable_names
    from osmosis_ai.services.listing import require_one_size
    from osmosis_ai.viewer.source import RunQuery

    require_one_size(limit=limit, everything=everything)
    try:
        directory = evals_directory(start)
    except OsmosisError:
        return LocalRuns((), 0)
    with _source(directory, cache_dir()) as source:
        found: list[RunEntry] = []
        cursor = None
        while True:
            page = source.runs(RunQuery(kind="eval"), limit=_PAGE if everything else limit, cursor=cursor)
            found += page.items
            cursor = page.next
            if cursor is None or not everything:
                return LocalRuns(
                    found, page.counts["total"], archived_names(directory), unreadable_names(directory)
                )


def describe_local_run(directory: Path) -> RunDetail:
    """Return a local or downloaded evaluation with its metrics.

    Raises:
        OsmosisError: the run cannot be read.
    """
    from osmosis_ai.services.downloaded_runs import (
        NoSampleListedError,
        is_download,
        laid_out,
        require_types,
    )
    from osmosis_ai.services.eval_runs.run_directories import evaluation

    require_types(evaluation(directory), "metrics")
    if is_download(directory) and not (directory / "summary.jsonl").is_file():
        return _numbers_alone(directory)
    try:
        with laid_out(directory) as (local, cache), _source(local, cache) as source:
            return _at(directory, local, source.run("eval", local.name))
    except NoSampleListedError as error:
        return _numbers_alone(directory, error.with_hint)


def _numbers_alone(directory: Path, *problems: str) -> RunDetail:
    """Describe a downloaded run from its metrics alone, because its samples have problems."""
    from osmosis_ai.services.downloaded_runs import numbers_alone
    from osmosis_ai.viewer.local.evaluations import facts_of, read_evaluation
    from osmosis_ai.viewer.source import RunDetail

    with numbers_alone(directory) as local:
        known = read_evaluation(local, local.name)
        detail = RunDetail(
            known.entry,
            estimates=known.estimates,
            summary_numbers=known.numbers or {},
            facts=facts_of(known, local),
            problems=(*known.problems, *problems),
        )
    return _at(directory, local, detail)


def _at(directory: Path, local: Path, detail: RunDetail) -> RunDetail:
    """Return the description with the directory that the user knows instead of the converted copy."""
    facts = [(name, str(directory) if value == str(local) else value) for name, value in detail.facts]
    return replace(detail, facts=facts)


def local_log(directory: Path, *, limit: int, cursor: str | None, level: str | None) -> tuple[LogPage, int]:
    """Return log lines of at least a level, oldest first, and how many lines were searched for them.

    Raises:
        OsmosisError: the cursor is invalid.
    """
    from osmosis_ai.evaluation.run_log import read_log
    from osmosis_ai.services.log_following import page_of_level

    log = directory / "logs.txt"
    return page_of_level(
        lambda size, place: read_log(log, limit=size, cursor=place), limit=limit, cursor=cursor, level=level
    )


def follow_local_log(
    directory: Path,
    *,
    first: int,
    level: str | None,
    pause: Callable[[], None],
    tell: Callable[[str], None],
    is_running: Callable[[], bool] | None = None,
) -> Iterator[LogEntry]:
    """Yield the last lines of a run's log, then new ones until the run stops.

    Args:
        directory: the run's directory.
        first: number of lines to begin with.
        level: minimum level; None for all lines.
        pause: waits between two polls.
        tell: receives a message at the end if no line had the level.
        is_running: returns whether the run is active; by default checks the lock of an evaluation.
    """
    from osmosis_ai.evaluation import manifest
    from osmosis_ai.evaluation.run_log import cursor_at, read_log
    from osmosis_ai.files import size_of
    from osmosis_ai.services.log_following import at_level, none_of_level

    log = directory / "logs.txt"
    goes_on = is_running or partial(manifest.is_running, directory.parent, directory.name)
    cursor = cursor_at(size_of(log))
    begun, looked_through = local_log(directory, limit=first, cursor=cursor, level=level)
    yield from begun.logs
    shown = len(begun.logs)
    while True:
        # Check before reading, so that the last read includes everything that was written before the end.
        last = not goes_on()
        while True:
            page = read_log(log, limit=_PAGE, cursor=cursor, direction="newer")
            entries = [entry for entry in page.logs if at_level(entry, level)]
            yield from entries
            shown, looked_through = shown + len(entries), looked_through + len(page.logs)
            cursor = page.next_cursor or cursor
            if not page.logs:
                break
        if last:
            break
        pause()
    if level is not None and looked_through and not shown:
        tell(none_of_level(level, looked_through))


def local_item(entry: RunEntry, directory: Path | None = None) -> dict[str, Any]:
    """Return a local run's JSON, with the keys of a platform's run."""
    from osmosis_ai.api.models.base import wire_time
    from osmosis_ai.ui.run_numbers import score_json

    headline = entry.headline
    moments = {"started_at": entry.started_at, "completed_at": entry.ended_at}
    return {
        "id": entry.id,
        "name": entry.name,
        "status": entry.status,
        **{name: wire_time(moment) if moment is not None else None for name, moment in moments.items()},
        "model": entry.model,
        "dataset": entry.dataset,
        "rollout": entry.rollout,
        "config": entry.config,
        "commit": entry.commit,
        "dirty": entry.dirty,
        "avg_reward": entry.reward,
        "cost_usd": entry.cost_usd,
        "duration_s": entry.duration_s,
        "headline": score_json(headline),
        "rows": headline.rows.words if headline is not None and headline.rows is not None else None,
        **({"error": entry.error} if entry.error else {}),
        **({"output_path": str(directory)} if directory is not None else {}),
    }


def nobody_asked(error: OsmosisError) -> bool:
    """Whether the error means that no platform could be queried: no login, workspace, origin or address."""
    missing = ("AUTH_REQUIRED", "VALIDATION", "WORKSPACE_REQUIRED")
    return getattr(error, "status", None) is None and error.code in missing


def first_run_command(start: Path | None = None) -> str:
    """Return the command for a workspace's first local run."""
    from osmosis_ai.services.eval_runs.resolver import evals_directory

    try:
        configs = sorted((evals_directory(start).parents[1] / "configs" / "eval").glob("*.toml"))
    except OsmosisError:
        return "osmosis demo"
    named = [path.name for path in configs if not path.name.endswith(".decide.toml")]
    return f"osmosis eval run configs/eval/{quote(named[0])}" if named else "osmosis template list"


@contextmanager
def _source(root: Path, cache: Path) -> Iterator[LocalSource]:
    from osmosis_ai.viewer.local.source import LocalSource

    source = LocalSource(root, cache_dir=cache)
    try:
        yield source
    finally:
        source.close()
