"""Evaluations of this machine, as people see them beside those of a platform."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, TypeVar

from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import (
    Cell,
    Column,
    DetailResult,
    ListResult,
    Row,
    Section,
    Status,
    Styled,
    Table,
    Text,
    Timestamp,
)
from osmosis_ai.errors import NotFoundError, OsmosisError, WorkspaceRequiredError
from osmosis_ai.services.downloaded_runs import fetching, is_download, is_downloaded_run
from osmosis_ai.services.eval_runs.local_runs import (
    LocalRuns,
    describe_local_run,
    first_run_command,
    local_item,
    nobody_asked,
)

if TYPE_CHECKING:
    from osmosis_ai.evaluation.comparison.run_samples import RunSlice
    from osmosis_ai.viewer.source import RunDetail, RunEntry

ResultT = TypeVar("ResultT")
_ARCHIVES_NAMED = 3

_COLUMNS = (
    "Name",
    "Status",
    "Rollout",
    "Result, over scored samples",
    Column("Reward", right=True),
    "Started",
)


def of_this_machine_first(
    run: str, *, here: Callable[[Path], ResultT], there: Callable[[str], ResultT]
) -> ResultT:
    """Return what is to be said of a run: of this machine's, else of the platform's of that name."""
    from osmosis_ai.services.eval_runs.resolver import (
        find_local_run,
        local_names,
        name_elsewhere,
        named_on_platform,
    )
    from osmosis_ai.services.eval_runs.watch import run_nowhere

    named = named_on_platform(run)
    if named is not None:
        return there(named)
    try:
        directory = find_local_run(run, downloads=True)
    except WorkspaceRequiredError:
        return there(run)
    except NotFoundError as missing:
        name = name_elsewhere(run, missing)
        try:
            return there(name)
        except OsmosisError as error:
            if not local_names() or (error.code == "VALIDATION" and _platform_can_be_asked()):
                raise
            raise run_nowhere(run, missing, error) from None
    return here(directory)


def _platform_can_be_asked() -> bool:
    """Tell whether there are an origin and a login: what went wrong is then no want of them."""
    from osmosis_ai.cli.connection import platform_context

    try:
        with platform_context():
            return True
    except OsmosisError:
        return False


def with_local_runs(local: LocalRuns, of_platform: Callable[[], ListResult]) -> ListResult:
    """Return the platform's list with the runs of this machine below it; these alone where nobody can be
    asked."""
    extra: dict[str, Any] = {
        "local_runs": [local_item(entry) for entry in local.items],
        "local_total_count": local.total,
    }
    if local.archived:
        extra["local_archived"] = list(local.archived)
    hints = list(_archive_hints(local.archived))
    if local.unreadable:
        extra["local_unreadable"] = list(local.unreadable)
        current().note(f"Left out, since you may not read them: {', '.join(local.unreadable)}")
    try:
        found = of_platform()
    except OsmosisError as error:
        here = ListResult([], title="", extra=extra, hints=hints, blocks=[_table(local, in_plain=True)])
        if not local.items:
            if nobody_asked(error):
                first = f"to begin on this machine: {first_run_command()}"
                error.hint = f"{error.hint}; {first}" if error.hint else first
            raise
        if nobody_asked(error):
            current().note(f"Only the runs of this machine: {error.message}")
            return here
        if current().mode == "json":
            error.details |= extra
        else:
            current().emit(here)
        raise
    blocks = [_table(local, in_plain=False)] if local.items else []
    return replace(
        found,
        extra={**found.extra, **extra},
        blocks=[*found.blocks, *blocks],
        hints=[*found.hints, *hints],
    )


def _archive_hints(names: Sequence[str]) -> Iterator[str]:
    """Yield where the runs are that are in no list."""
    if names:
        more = f" and {len(names) - _ARCHIVES_NAMED} more" if len(names) > _ARCHIVES_NAMED else ""
        runs = "run was" if len(names) == 1 else "runs were"
        yield f"{len(names)} {runs} put aside by --fresh: {', '.join(names[:_ARCHIVES_NAMED])}{more}"


def local_info(directory: Path, output: str | None, columns: Sequence[str]) -> DetailResult:
    """Return a run of this machine in full."""
    from osmosis_ai.cli.eval_runs import tables

    if output is not None:
        raise OsmosisError(
            f"{directory.name} is a run of this machine: its numbers are in {directory / 'metrics.json'}.",
            hint="leave out --output; or name the platform's run: platform:NAME",
        )
    detail = describe_local_run(directory)
    entry, estimates = detail.summary, detail.estimates
    slices = _slices(directory, columns)
    headline = entry.headline
    blocks = (
        []
        if estimates is None
        else tables.numbers(estimates, headline.rows if headline is not None else None)
    )
    if detail.config_written is not None:
        blocks.append(Text(detail.config_written, title="Config, as it was written"))
    blocks += [*tables.slices(slices), *([tables.headline(headline)] if headline is not None else [])]
    return DetailResult(
        data={
            "local_run": local_item(entry, directory),
            "headline": headline.to_json() if headline is not None else None,
            "metrics": {
                **detail.summary_numbers,
                "estimates": estimates.model_dump(mode="json") if estimates is not None else None,
            },
            "config": dict(detail.config_effective),
            "config_written": detail.config_written,
            "secret_names": list(detail.secret_names),
            "problems": list(detail.problems),
            "commands": list(detail.commands),
            **({"slices": [each.data() for each in slices]} if columns else {}),
        },
        title="Evaluation Run, Downloaded" if is_download(directory) else "Evaluation Run of This Machine",
        rows=list(_rows(detail)),
        sections=[Section("Facts", list(detail.facts))],
        blocks=blocks,
        hints=[
            *(f"To go on: {command}" for command in detail.commands),
            _look_at(directory),
        ],
    )


def _look_at(directory: Path) -> str:
    """Return the command that shows the run's conversations."""
    shown = quote(formats.shown_path(directory))
    if is_downloaded_run(directory):
        return f"Its conversations: osmosis eval show {shown}; as a page: osmosis view {shown} --report FILE.html"
    if is_download(directory):
        return f"Its samples: {fetching(directory, 'trajectories')}"
    return f"Look at it: osmosis view {shown}"


def _slices(directory: Path, columns: Sequence[str]) -> Sequence[RunSlice]:
    if not columns:
        return ()
    from osmosis_ai.services.eval_runs.resolver import tells_no_rows

    if is_download(directory):
        raise tells_no_rows(directory)
    from osmosis_ai.cli.connection import platform_when_needed
    from osmosis_ai.evaluation.comparison.run_samples import run_slices
    from osmosis_ai.services.eval_runs.resolver import read_run_directory

    with platform_when_needed() as client:
        return run_slices(read_run_directory(directory, client=client), columns)


def _rows(detail: RunDetail) -> Iterator[Row]:
    entry = detail.summary
    yield "Name", entry.name
    yield "Status", Status(entry.status)
    for problem in detail.problems:
        yield "Problem", Styled(problem, "bad")
    if entry.started_at is not None:
        yield "Started", Timestamp(entry.started_at.isoformat())
    if entry.duration_s is not None:
        yield "Duration", formats.duration(entry.duration_s)
    if detail.previous is not None:
        yield "Run Before", detail.previous.name


def _table(local: LocalRuns, *, in_plain: bool) -> Table:
    more = f", {len(local.items)} of {local.total}" if local.total > len(local.items) else ""
    return Table(
        _COLUMNS,
        [_cells(entry) for entry in local.items],
        title=f"Runs of this machine{more}",
        in_plain=in_plain,
    )


def _cells(entry: RunEntry) -> Sequence[Cell]:
    headline = entry.headline
    result = headline.brief if headline is not None else Styled(entry.error, "bad") if entry.error else None
    return (
        entry.name,
        Status(entry.status),
        entry.rollout,
        result,
        f"{entry.reward:.3f}" if entry.reward is not None else None,
        Timestamp(entry.started_at.isoformat()) if entry.started_at is not None else None,
    )
