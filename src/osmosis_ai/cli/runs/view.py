"""Commands about platform runs of either kind: list, show, follow, stop and delete them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from osmosis_ai.api.models.base import LogEntry
from osmosis_ai.api.models.runs import SubmittedRun
from osmosis_ai.cli.connection import list_result, platform_context
from osmosis_ai.cli.logs import page_result, require_no_cursor, stream_result
from osmosis_ai.cli.options import NOUNS
from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.progress import Progress
from osmosis_ai.cli.output.results import (
    Block,
    Column,
    DetailResult,
    ListResult,
    OperationResult,
    Section,
    StreamResult,
)
from osmosis_ai.evaluation.hooks import ProgressSnapshot
from osmosis_ai.services.listing import Listing
from osmosis_ai.services.runs.lifecycle import (
    DescribedRun,
    RunKind,
    RunNews,
    delete_run,
    find_deletable_run,
    follow_run_log,
    log_page,
    stop_run,
    watch_run,
)
from osmosis_ai.ui.run_numbers import execution_rows

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.services.context import PlatformContext


POLL_S = 1.0

Look = TypeVar("Look")
DescribedT = TypeVar("DescribedT", bound=DescribedRun)


@dataclass(frozen=True, slots=True)
class RunStanding:
    name: str
    status: str
    completed: int | None
    total: int | None
    unit: str
    note: str = ""
    below: tuple[str, ...] = ()
    waits: str = ""
    waits_for: object = None
    is_retried: bool = False

    @property
    def counts(self) -> bool:
        """Whether there is anything to draw a bar of."""
        return self.completed is not None and bool(self.total) and self.status not in _WAITING

    @property
    def said(self) -> str:
        told = _SAID.get(self.status, "")
        if self.is_retried and self.status in _WAITING:
            told = "Waiting for the retry to start"
        return f"{told}: {self.waits}" if told and self.waits else told

    @property
    def saying(self) -> tuple[str, object]:
        """A value that changes only when a log needs another line."""
        told = _SAID.get(self.status, "")
        return told, self.waits_for if told else None


_WAITING = ("pending", "queued")
_SAID = {
    **dict.fromkeys(_WAITING, "Waiting for the run to start"),
    "running": "The run is being prepared",
}


def show_progress(looks: Iterable[Look], standing: Callable[[Look], RunStanding], *, again: str) -> None:
    """Show a run until it ends: a spinner while it waits, then a bar."""
    output = current()
    bar: Progress | None = None
    said: object = ""
    waited: object = None
    try:
        with ExitStack() as shown, ExitStack() as waiting:
            for seen in looks:
                now = standing(seen)
                if bar is None and now.counts:
                    waiting.close()
                    bar = shown.enter_context(output.progress(now.name, total=now.total, unit=now.unit))
                if bar is not None and now.completed is not None:
                    bar.update(
                        now.completed, note=now.note, total=now.total, below=now.below, waits=now.waits
                    )
                    # A bar shows it by itself; a log has a line of the bar once in a while.
                    if now.waits and now.waits_for != waited and not output.animated:
                        output.note(f"Run status: {now.waits}")
                    waited = now.waits_for
                elif bar is None and said != (saying := now.said if output.animated else now.saying):
                    said, waited = saying, now.waits_for
                    waiting.close()
                    if now.said and output.animated:
                        waiting.enter_context(output.status(now.said))
                    elif now.said:
                        output.note(now.said)
    except KeyboardInterrupt:
        output.note(f"The run continues; follow it again with: {again}")
        raise


def pause() -> None:
    time.sleep(POLL_S)


def evaluation_note(snapshot: ProgressSnapshot) -> str:
    parts = []
    if snapshot.scored:
        passed, scored = formats.count(snapshot.passed), formats.count(snapshot.scored)
        parts.append(f"{passed} of {scored} scored attempts pass")
        parts.append(f"mean reward {snapshot.reward_mean:.3f}")
    parts += formats.spent(snapshot)
    if snapshot.in_flight is not None:
        parts.append(f"{snapshot.in_flight} in flight")
    return " · ".join(parts)


def local_logs(
    directory: Path,
    older: str,
    *,
    limit: int,
    cursor: str | None,
    follow: bool,
    level: str | None,
    is_running: Callable[[], bool] | None = None,
) -> ListResult | StreamResult:
    """Return the log of a local run; ``older`` is the command that continues with older lines."""
    from osmosis_ai.services.eval_runs.local_runs import follow_local_log, local_log

    if follow:
        require_no_cursor(cursor)
        tell = current().note
        return stream_result(
            follow_local_log(
                directory, first=limit, level=level, pause=pause, tell=tell, is_running=is_running
            )
        )
    page, looked_through = local_log(directory, limit=limit, cursor=cursor, level=level)
    older += f" --level {level}" if level else ""
    extra = {"output_path": str(directory)}
    return page_result(page, older=older, extra=extra, level=level, looked_through=looked_through)


SCOPES = {
    "workspace": "workspace",
    "user": "personal",
    "user_override": "personal, overrides workspace",
    "run": "this run only",
}
"""Display names of the sources of secrets."""


@dataclass(frozen=True)
class RunView(Generic[DescribedT]):
    """The commands of runs of one kind; the fields are what differs between kinds.

    ``details`` returns what `info` shows, and ``headline`` what is shown after a run was followed; ``hints`` receives
    whether it was.
    """

    kind: RunKind
    columns: Sequence[Column]
    fetch: Callable[[PlatformClient, int, bool], Listing[Any]]
    item: Callable[[Any], Mapping[str, Any]]
    describe: Callable[[PlatformClient, str], DescribedT]
    look: Callable[[PlatformClient, str], Callable[[], DescribedT]]
    standing: Callable[[DescribedT], RunStanding]
    save: Callable[[PlatformContext, DescribedT, str | None], tuple[Path | None, str | None]]
    settings: Callable[[Mapping[str, Any]], Iterable[str]]
    details: Callable[[DescribedT], DetailResult]
    headline: Callable[[DescribedT], Iterable[Block]]
    hints: Callable[[DescribedT, bool], Iterable[str]]

    def list_runs(self, *, limit: int, everything: bool) -> ListResult:
        with platform_context() as context, current().status(f"Fetching {NOUNS[self.kind]} runs"):
            listing = self.fetch(context.client, limit, everything)
            columns = (
                Column("Name", value=lambda item: item["name"] or "(unnamed)", keep=True),
                Column("Status", "status", keep=True),
                *self.columns,
                Column("Submitted", "created_at"),
                Column("Submitted by", "creator_name", in_rich=False),
                # Few runs have a reason on some days.
                *([Column("Waits", "waits")] if any(run.waits for run in listing.items) else ()),
            )
            return list_result(listing, item=self.item, columns=columns, extra=context.resource())

    def info(
        self,
        name: str,
        output: str | None,
        *,
        also: Callable[[DescribedT], Mapping[str, Any]] = lambda _: {},
    ) -> DetailResult:
        """Show a run; its metrics go to a file for people, or if ``output`` is given."""
        with platform_context() as context:
            with current().status(f"Fetching {NOUNS[self.kind]} run"):
                described = self.describe(context.client, name)
                path, problem = None, None
                if described.metrics is not None and (output is not None or current().mode == "rich"):
                    path, problem = self.save(context, described, output)
            if problem is not None:
                current().warn(problem)
            saved = {"output_path": str(path) if path else None, "save_warning": problem, **also(described)}
            shown = self.details(described)
            data = {**described.data(), **saved, **context.resource()}
            return replace(shown, data=data, hints=[*shown.hints, *([f"Metrics: {path}"] if path else [])])

    def logs(
        self, name: str, *, limit: int, cursor: str | None, follow: bool, level: str | None
    ) -> ListResult | StreamResult:
        """Return a page of a run's log, or follow it."""
        if follow:
            require_no_cursor(cursor)
            return stream_result(self._lines(name, limit, level))
        with platform_context() as context, current().status("Fetching logs"):
            page, looked_through = log_page(
                context.client, self.kind, name, limit=limit, cursor=cursor, level=level
            )
            older = f"osmosis {self.kind} logs {name}" + (f" --level {level}" if level else "")
            extra = context.resource()
            return page_result(page, older=older, extra=extra, level=level, looked_through=looked_through)

    def stop(self, name: str, *, yes: bool) -> OperationResult:
        """Ask, and stop a run; one that has ended by itself is left unchanged."""
        output, noun = current(), NOUNS[self.kind]
        with platform_context() as context:
            output.confirm(f'Stop {noun} run "{name}"?', yes=yes, default=False, summary={"Run": name})
            with output.status(f"Stopping {noun} run"):
                ended, is_stopping = stop_run(context.client, self.kind, name)
            run = f'{noun.title()} run "{name}"'
            later = f"{run} is stopping; `osmosis {self.kind} info {name}` shows when it has stopped."
            return OperationResult(
                operation=f"{self.kind}.stop",
                status="noop" if ended else "success",
                # Scripts get the hosted platform's word.
                message=f"{run} had ended before: {ended}." if ended else f"{run} stopped.",
                shown=later if is_stopping else None,
                resource={"name": name, **context.resource()},
            )

    def delete(self, name: str, *, yes: bool) -> OperationResult:
        """Ask, and delete a run that has ended."""
        output, noun = current(), NOUNS[self.kind]
        with platform_context() as context:
            with output.status("Looking it up"):
                run, adapters = find_deletable_run(context.client, self.kind, name)
            shown = run.name or run.id
            saved = "1 adapter" if adapters == 1 else f"{adapters} adapters"
            what = f'{noun} run "{shown}"' + (f" with the {saved} that it has made" if adapters else "")
            summary = {"Run": shown, "Status": run.status}
            summary |= {"Adapters": str(adapters)} if adapters else {}
            output.confirm(f"Delete {what}? This cannot be undone.", yes=yes, summary=summary)
            with output.status(f"Deleting {shown}"):
                delete_run(context.client, self.kind, run)
            return OperationResult(
                operation=f"{self.kind}.delete",
                message=f'{noun.title()} run "{shown}" deleted.',
                resource={"id": run.id, "name": shown, **context.resource()},
            )

    def watch(self, name: str) -> OperationResult:
        with platform_context() as context:
            described = self._follow(context.client, name)
            own = {"id": described.run.id, "name": described.run.name}
            return self._ended(described, "watch", {**own, **described.outcome(), **context.resource()})

    def submitted(
        self, client: PlatformClient, run: SubmittedRun, result: OperationResult, *, watch: bool
    ) -> OperationResult:
        """Return the result of a submit; if asked, after following the run to its end."""
        if not watch:
            return result
        current().note(result.message or "")
        described = self._follow(client, run.id, called=run.name)
        verb = result.operation.removeprefix(f"{self.kind}.")
        resource = {**(result.resource or {}), **described.outcome()}
        return self._ended(described, verb, resource, result.next_steps_structured)

    def _follow(self, client: PlatformClient, name: str, *, called: str | None = None) -> DescribedT:
        with closing(RunNews(client, self.kind, name, pause=pause)) as news:
            looks = watch_run(self.look(client, name), pause=news, tell=current().note)
            show_progress(looks, self.standing, again=f"osmosis {self.kind} watch {quote(called or name)}")
        return self.describe(client, name)

    def _ended(
        self,
        described: DescribedT,
        verb: str,
        resource: Mapping[str, Any],
        next_steps_structured: Sequence[Mapping[str, Any]] = (),
    ) -> OperationResult:
        run = described.run
        said = f"{NOUNS[self.kind].title()} run {run.status}: {described.name}"
        return OperationResult(
            operation=f"{self.kind}.{verb}",
            status="success" if run.status == "finished" else "partial",
            message=f"{said}. {run.error[:1].upper()}{run.error[1:]}" if run.error else said,
            resource=resource,
            blocks=list(self.headline(described)),
            next_steps=list(self.hints(described, True)),
            next_steps_structured=next_steps_structured,
        )

    def _lines(self, name: str, first: int, level: str | None) -> Iterator[LogEntry]:
        with platform_context() as context:
            news = RunNews(context.client, self.kind, name, pause=pause)
            with closing(news):
                yield from follow_run_log(
                    context.client, self.kind, name, first=first, pause=news, tell=current().note, level=level
                )

    def configuration(self, described: DescribedT) -> Iterator[Section]:
        detail = described.detail
        scopes = (detail.resolved_secret_scopes or {}).items()
        known: Sequence[tuple[str, str | None]] = (
            ("Entrypoint", detail.entrypoint),
            ("Config", ", ".join(self.settings(detail.config or {}))),
            ("Branch", detail.branch),
            ("Commit", detail.commit_sha and detail.commit_sha[:7]),
            *execution_rows((detail.request or {}).get("advanced_config")),
            ("Environment", detail.environment),
            # A run that has not started waits for it.
            ("Isolation", None if described.waiting and detail.waits else detail.isolation),
            ("Secrets", ", ".join(f"{name} ({SCOPES.get(it, it)})" for name, it in sorted(scopes))),
            (
                "Environment Variables",
                ", ".join(f"{name}={value}" for name, value in sorted((detail.env_config or {}).items())),
            ),
        )
        rows = [(label, value) for label, value in known if value]
        if rows:
            yield Section("Configuration", rows)
