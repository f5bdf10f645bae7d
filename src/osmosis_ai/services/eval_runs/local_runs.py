"""List, describe and watch evaluations of this machine, and read their logs.

The numbers come from the same source as those of `osmosis view`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any, Literal

from osmosis_ai.api.models.base import LogEntry, LogPage, wire_time
from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.datasets.selection import RowsDrawn
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.hooks import ProgressSnapshot
from osmosis_ai.evaluation.local_results import LocalResults
from osmosis_ai.evaluation.metrics import Estimates, RunScore
from osmosis_ai.evaluation.run_log import cursor_at, read_log
from osmosis_ai.files import cache_dir, size_of
from osmosis_ai.services.downloaded_runs import (
    NoSampleListedError,
    is_download,
    laid_out,
    numbers_alone,
    require_types,
)
from osmosis_ai.services.eval_runs.resolver import (
    archived_names,
    evals_directory,
    evaluation,
    unreadable_names,
)
from osmosis_ai.services.listing import require_one_size
from osmosis_ai.services.log_following import at_level, none_of_level, page_of_level
from osmosis_ai.ui.run_numbers import score_json
from osmosis_ai.viewer.source import RunDetail, RunEntry, RunQuery

_PAGE = 200


@dataclass(frozen=True)
class LocalRuns:
    """The newest evaluations of this machine, and the names of archived runs and of unreadable directories."""

    items: Sequence[RunEntry]
    total: int
    archived: Sequence[str] = ()
    unreadable: Sequence[str] = ()


def list_local_runs(*, limit: int, everything: bool) -> LocalRuns:
    """List the workspace's evaluations on this machine, newest first; empty outside a workspace."""
    from osmosis_ai.viewer.local.source import LocalSource

    require_one_size(limit=limit, everything=everything)
    try:
        directory = evals_directory()
    except OsmosisError:
        return LocalRuns((), 0)
    with closing(LocalSource(directory, cache_dir=cache_dir())) as source:
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
    from osmosis_ai.viewer.local.source import LocalSource

    require_types(evaluation(directory), "metrics")
    if is_download(directory) and not (directory / "summary.jsonl").is_file():
        return _numbers_alone(directory)
    try:
        with laid_out(directory) as (local, cache), closing(LocalSource(local, cache_dir=cache)) as source:
            return _at(directory, local, source.run("eval", local.name))
    except NoSampleListedError as error:
        return _numbers_alone(directory, error.with_hint)


def _numbers_alone(directory: Path, *problems: str) -> RunDetail:
    """Describe a downloaded run from its metrics alone, because its samples have problems."""
    from osmosis_ai.viewer.local.run_files import facts_of, read_evaluation

    with numbers_alone(directory) as local:
        known = read_evaluation(local, local.name)
        problems = (*known.detail.problems, *problems)
        detail = replace(known.detail, facts=facts_of(known, local), problems=problems)
    return _at(directory, local, detail)


def _at(directory: Path, local: Path, detail: RunDetail) -> RunDetail:
    """Return the description with the directory that the user knows instead of the converted copy."""
    facts = [(name, str(directory) if value == str(local) else value) for name, value in detail.facts]
    return replace(detail, facts=facts)


def local_log(directory: Path, *, limit: int, cursor: str | None, level: str | None) -> tuple[LogPage, int]:
    """Return log lines of at least a level, oldest first, and how many lines were searched for them."""
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
    """Yield the last lines of a run's log, then new ones until the run stops."""
    from osmosis_ai.evaluation import manifest

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
    headline = entry.headline
    moments = {"started_at": entry.started_at, "completed_at": entry.ended_at}
    same = [
        "id",
        "name",
        "status",
        "model",
        "dataset",
        "rollout",
        "config",
        "commit",
        "dirty",
        "cost_usd",
        "duration_s",
    ]
    return {
        **{name: getattr(entry, name) for name in same},
        **{name: wire_time(moment) if moment is not None else None for name, moment in moments.items()},
        "avg_reward": entry.reward,
        "headline": score_json(headline),
        "rows": headline.rows.words if headline is not None and headline.rows is not None else None,
        **({"error": entry.error} if entry.error else {}),
        **({"output_path": str(directory)} if directory is not None else {}),
    }


def is_without_platform(error: OsmosisError) -> bool:
    """Whether the error means that no platform could be queried: no login, workspace, origin or address."""
    missing = ("AUTH_REQUIRED", "VALIDATION", "WORKSPACE_REQUIRED")
    return getattr(error, "status", None) is None and error.code in missing


def first_run_command() -> str:
    try:
        configs = sorted((evals_directory().parents[1] / "configs" / "eval").glob("*.toml"))
    except OsmosisError:
        return "osmosis demo"
    named = [path.name for path in configs if not path.name.endswith(".decide.toml")]
    return f"osmosis eval run configs/eval/{quote(named[0])}" if named else "osmosis template list"


@dataclass(frozen=True)
class WatchedRun:
    """A snapshot of a run directory, with its last written ``metrics.json``.

    The status is ``incomplete`` if no process works on the run and attempts are pending.
    """

    run_name: str
    run_dir: Path
    local_run_id: str
    status: Literal["running", "finished", "incomplete"]
    progress: ProgressSnapshot
    metrics: dict[str, Any] | None

    @property
    def ended(self) -> bool:
        return self.status != "running"

    @property
    def estimates(self) -> Estimates | None:
        return Estimates.read((self.metrics or {}).get("estimates"))

    @property
    def rows(self) -> RowsDrawn | None:
        return RowsDrawn.read((self.metrics or {}).get("eval_run", {}).get("rows"))

    @property
    def headline(self) -> RunScore | None:
        estimates = self.estimates
        return None if estimates is None else RunScore.of(estimates, self.rows)


class RunWatcher:
    """Polls a run's directory, reading each byte of the journal once."""

    def __init__(self, run_dir: Path) -> None:
        self._results = LocalResults(run_dir)
        self._tokens = 0
        self._cost_usd: float | None = None
        self._finished = 0
        self._results.advance(self._count)
        self._finished = 0  # count from here on
        self._started = time.monotonic()

    def look(self) -> WatchedRun:
        results = self._results
        results.advance(self._count)
        return WatchedRun(
            run_name=results.name,
            run_dir=results.directory.path,
            local_run_id=results.manifest.local_run_id,
            status=results.status,
            progress=ProgressSnapshot.of(
                results.table,
                results.pass_threshold,
                tokens=self._tokens,
                cost_usd=self._cost_usd,
                in_flight=None,
                elapsed_s=time.monotonic() - self._started,
                finished=self._finished,
            ),
            metrics=results.directory.read_metrics(),
        )

    def _count(self, record: TerminalRecord) -> None:
        self._finished += 1
        self._tokens += record.tokens or 0
        if record.cost_usd is not None:
            self._cost_usd = (self._cost_usd or 0.0) + record.cost_usd
