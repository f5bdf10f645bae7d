"""The verbs that evaluations, training runs and benchmark runs share: list, show, follow, submit, stop, delete, download."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import typer

from osmosis_ai.api.models.base import LogEntry, LogPage, Page
from osmosis_ai.api.models.runs import Run, SubmittedRun
from osmosis_ai.cli.connection import list_result, platform_context, platform_when_needed
from osmosis_ai.cli.options import NOUNS
from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.progress import Progress
from osmosis_ai.cli.output.results import (
    Block,
    Cell,
    Column,
    DetailResult,
    ListResult,
    OperationResult,
    Row,
    Section,
    StreamResult,
    Styled,
    Table,
    Text,
    Timestamp,
    Tone,
)
from osmosis_ai.config.checks import EVAL, TRAINING
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.hooks import ProgressSnapshot
from osmosis_ai.evaluation.run_log import with_attempt
from osmosis_ai.llm.replies import FlaggedFinish
from osmosis_ai.services.eval_runs.local_runs import follow_local_log, local_log
from osmosis_ai.services.eval_runs.show import WantedSamples
from osmosis_ai.services.log_following import none_of_level
from osmosis_ai.services.runs import submit as submits
from osmosis_ai.services.runs.download import (
    ASK_FROM_BYTES,
    DownloadOutcome,
    FileLayout,
    parse_types,
    plan_download,
    run_download,
)
from osmosis_ai.services.runs.lifecycle import (
    DescribedRun,
    RunKind,
    delete_run,
    find_deletable_run,
    follow_run_log,
    log_page,
    stop_run,
    watch_run,
)
from osmosis_ai.services.runs.secrets import SecretSource
from osmosis_ai.ui.numbers import amount
from osmosis_ai.ui.run_numbers import execution_rows
from osmosis_ai.ui.text import told_without_sequences
from osmosis_ai.viewer.source import Outcome
from osmosis_ai.workspace.config_files import TrainingConfig, require_config_file
from osmosis_ai.workspace.secrets_file import read_secrets_file

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
    warnings: tuple[str, ...] = ()
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
_SAID = {**dict.fromkeys(_WAITING, "Waiting for the run to start"), "running": "The run is being prepared"}


def show_progress(looks: Iterable[Look], standing: Callable[[Look], RunStanding], *, again: str) -> None:
    """Show a run until it ends: a spinner while it waits, then a bar. ``again`` tells how to return to it."""
    output = current()
    bar: Progress | None = None
    said: object = ""
    waited: object = None
    warned: set[str] = set()
    try:
        with ExitStack() as shown, ExitStack() as waiting:
            for seen in looks:
                now = standing(seen)
                for warning in now.warnings:
                    if warning not in warned:
                        output.warn(warning)
                warned.update(now.warnings)
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
        output.warn(f"The run continues. {again}", code="RUN_CONTINUES")
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


# -- logs ------------------------------------------------------------------------------------

_TONES: dict[str, Tone] = {
    **dict.fromkeys(("error", "critical"), "bad"),
    **dict.fromkeys(("warning", "warn"), "warn"),
    "debug": "dim",
}


def require_no_cursor(cursor: str | None) -> None:
    if cursor is not None:
        raise OsmosisError("--follow and --cursor are mutually exclusive.")


def page_result(
    page: LogPage, *, older: str, extra: Mapping[str, Any], level: str | None = None, looked_through: int = 0
) -> ListResult:
    """Return a page of a log; ``older`` is the command that continues with older lines."""
    older += f" --level {level}" if level else ""
    result = ListResult(
        items=[entry.model_dump() for entry in page.logs],
        columns=_LOG_COLUMNS,
        as_table=False,
        has_more=page.next_cursor is not None,
        more=f"Older lines: {older} --cursor {page.next_cursor}",
        extra={**extra, "next_cursor": page.next_cursor},
    )
    if level is None or not looked_through:
        return result
    return replace(result, none=none_of_level(level, looked_through))


def stream_result(entries: Iterable[LogEntry]) -> StreamResult:
    """Return a log that is shown line by line as it grows."""
    return StreamResult(items=(entry.model_dump() for entry in entries), columns=_LOG_COLUMNS)


def _message(item: Mapping[str, Any]) -> str | None:
    """Return the message of a line with its attempt; terminal sequences are removed and counted."""
    text: str | None = item["message"]
    return told_without_sequences(with_attempt(text, item["details"])) if text else text


def _level(item: Mapping[str, Any]) -> Cell:
    level: str | None = item["level"]
    tone = _TONES.get((level or "").lower())
    return Styled(level or "", tone) if tone else level


_LOG_COLUMNS = (
    Column("Time", value=lambda item: Timestamp(item["timestamp"], seconds=True)),
    Column("Level", value=_level),
    Column("Phase", "step"),
    Column("Message", value=_message),
)


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
    if follow:
        require_no_cursor(cursor)
        tell = current().note
        return stream_result(
            follow_local_log(
                directory, first=limit, level=level, pause=pause, tell=tell, is_running=is_running
            )
        )
    page, looked_through = local_log(directory, limit=limit, cursor=cursor, level=level)
    extra = {"output_path": str(directory)}
    return page_result(page, older=older, extra=extra, level=level, looked_through=looked_through)


# -- runs of the platform --------------------------------------------------------------------

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
    fetch: Callable[[PlatformClient, int, bool], Page[Any]]
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
        self, name: str, output: str | None, *, also: Callable[[DescribedT], Mapping[str, Any]] = lambda _: {}
    ) -> DetailResult:
        """Show a run; its metrics go to a file for people, or if ``output`` is given."""
        with platform_context(name) as context:
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
        with platform_context(name) as context, current().status("Fetching logs"):
            page, looked_through = log_page(
                context.client, self.kind, name, limit=limit, cursor=cursor, level=level
            )
            older, extra = f"osmosis {self.kind} logs {name}", context.resource()
            return page_result(page, older=older, extra=extra, level=level, looked_through=looked_through)

    def stop(self, name: str, *, yes: bool) -> OperationResult:
        """Ask, and stop a run; one that has ended by itself is left unchanged."""
        output, noun = current(), NOUNS[self.kind]
        with platform_context(name) as context:
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
        with platform_context(name) as context:
            with output.status("Looking it up"):
                run, adapters = find_deletable_run(context.client, self.kind, name)
            shown = run.name or run.id
            saved = "1 adapter" if adapters == 1 else f"{adapters} adapters"
            what = f'{noun} run "{shown}"' + (f" with its {saved}" if adapters else "")
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
        with platform_context(name) as context:
            described = self._follow(context.client, name)
            own = {"id": described.run.id, "name": described.run.name}
            return self._ended(described, "watch", {**own, **described.outcome(), **context.resource()})

    def submit(
        self, config: Path, *, check: bool, watch: bool, secrets_file: str | None, yes: bool
    ) -> OperationResult:
        kind, noun, output = self.kind, NOUNS[self.kind], current()
        if check and watch:
            raise OsmosisError("--check and --watch are mutually exclusive.")
        require_config_file(config, EVAL if kind == "eval" else TRAINING)
        with platform_context() as context:
            values = read_secrets_file(secrets_file) if secrets_file else {}
            with ExitStack() as shown:

                def tell(message: str) -> None:
                    shown.close()
                    shown.enter_context(output.status(message))

                submission = submits.prepare_submission(
                    context, kind, config, secret_values=values, tell=tell
                )
            experiment = submission.config.experiment
            model = submission.model
            facts: list[tuple[str, str | None]] = [
                ("Rollout", experiment.rollout),
                ("Entrypoint", experiment.entrypoint),
                ("Model", experiment.model_path if model is None else model.title),
                *(model.plan.facts() if model is not None and model.plan is not None else ()),
                ("Dataset", experiment.dataset),
                ("Rows", submission.rows_drawn),
                ("Method", submission.method),
                ("Branch", experiment.branch),
                ("Commit", experiment.commit_sha),
                *execution_rows(submission.config.advanced),
            ]
            rows = {label: value for label, value in facts if value}
            plan = SubmitPlan(
                noun, rows, submission.config.env, submission.secrets, submission.notes, submission.warnings
            )
            plan.show()
            if check:
                return _check(context, submission)
            plan.confirm(yes=yes)
            run = self._post(context.client, submission.body)
            resource = {
                **run_again_fields(run),
                "model_name": experiment.model_path,
                "dataset_name": experiment.dataset,
                **context.resource(),
                "config": submission.described(),
            }
            message = f"{noun.title()} run submitted: {run.name}"
            result = self._submitted("submit", run, message, resource, url=run.platform_url)
            return self.submitted(context.client, run, result, watch=watch)

    def resubmit(self, name: str, *, watch: bool, secrets_file: str | None, yes: bool) -> OperationResult:
        output, kind, noun = current(), self.kind, NOUNS[self.kind]
        with platform_context(name) as context:
            values = read_secrets_file(secrets_file) if secrets_file else {}
            with output.status("Checking for changes"):
                prepared = submits.prepare_resubmit(context, kind, name, values)
            rows = [
                (
                    change.label,
                    change.before or "not recorded",
                    Styled(change.now or "known to the platform only", "warn")
                    if change.changed
                    else change.now,
                )
                for change in prepared.changes
            ]
            output.show(Table(("", "Then", "Now"), rows, title=f"{prepared.name}, again"))
            show_warnings((), prepared.warnings)
            if yes:
                _warn_elsewhere(prepared.warnings)
            output.confirm(
                f'Submit {noun} run "{prepared.name}" again?',
                yes=yes,
                default=True,
                summary={change.label: change.words for change in prepared.changes},
                warnings=prepared.warnings,
            )
            made = self._post(context.client, prepared.body)
            resource = {
                **run_again_fields(made),
                "resubmit_of": {"id": prepared.run.id, "name": prepared.name},
                "changes": [asdict(change) for change in prepared.changes],
                **context.resource(),
            }
            message = f"{noun.title()} run submitted: {made.name}, with the config of {prepared.name}"
            result = self._submitted("resubmit", made, message, resource, url=None)
            return self.submitted(context.client, made, result, watch=watch)

    def _post(self, client: PlatformClient, body: submits.Body) -> SubmittedRun:
        output, noun = current(), NOUNS[self.kind]
        try:
            with output.status(f"Submitting {noun} run"):
                return submits.post_run(client, self.kind, body)
        except KeyboardInterrupt:
            output.warn(f"The {noun} run may have been submitted: osmosis {self.kind} list shows it.")
            raise

    def _submitted(
        self, verb: str, run: SubmittedRun, message: str, resource: Mapping[str, Any], *, url: str | None
    ) -> OperationResult:
        name = quote(run.name or run.id)
        info = ("show its progress and results", f"osmosis {self.kind} info {name}")
        steps = [("follow the run", f"osmosis {self.kind} watch {name}")]
        steps.append(("open in a browser", url) if url else info)
        return OperationResult(
            operation=f"{self.kind}.{verb}",
            message=message,
            resource=resource,
            next_steps=formats.next_block(steps),
            next_steps_structured=next_steps_structured(self.kind, run.name, url),
        )

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
        looks = watch_run(self.look(client, name), pause=pause, tell=current().note)
        shown = quote(called or name)
        again = f"Follow it: osmosis {self.kind} watch {shown}; stop it: osmosis {self.kind} stop {shown}"
        show_progress(looks, self.standing, again=again)
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
        with platform_context(name) as context:
            yield from follow_run_log(
                context.client, self.kind, name, first=first, pause=pause, tell=current().note, level=level
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


# -- submit ----------------------------------------------------------------------------------

_SOURCES = {
    "run": "Run",
    "user_override": "Personal (overrides workspace)",
    "user": "Personal",
    "workspace": "Workspace",
    "unknown": "–",
}


@dataclass(frozen=True)
class SubmitPlan:
    """A submission, as it is shown and confirmed."""

    noun: str
    facts: Mapping[str, str]
    env: Mapping[str, str]
    secrets: Mapping[str, SecretSource]
    notes: Sequence[str]
    warnings: Sequence[str]

    def show(self) -> None:
        rows: list[Row] = list(self.facts.items())
        if self.env:
            rows.append(
                ("Environment", ", ".join(f"{name}={value}" for name, value in sorted(self.env.items())))
            )
        if self.secrets:
            named = (f"{name} ({_SOURCES[source].lower()})" for name, source in self.secrets.items())
            rows.append(("Secrets", ", ".join(named)))
        current().show(Section(f"{self.noun.title()} run", rows))
        show_warnings(self.notes, self.warnings)

    def confirm(self, *, yes: bool) -> None:
        if yes:
            _warn_elsewhere(self.warnings)
        current().confirm(
            f"Submit this {self.noun} run?",
            yes=yes,
            default=True,
            summary={
                **self.facts,
                **{f"env.{name}": value for name, value in sorted(self.env.items())},
                **{f"secret.{name}": _SOURCES[source] for name, source in self.secrets.items()},
            },
            notes=self.notes,
            warnings=self.warnings,
        )


def show_warnings(notes: Sequence[str], warnings: Sequence[str]) -> None:
    lines = [*notes, *(f"⚠ {warning}" for warning in warnings)]
    if lines:
        current().show(Text("\n".join(lines), tone="warn" if warnings else None))


def _warn_elsewhere(warnings: Sequence[str]) -> None:
    """Warn where :func:`show_warnings` shows nothing."""
    if current().mode != "rich":
        for warning in warnings:
            current().warn(warning)


def _check(context: PlatformContext, submission: submits.PreparedSubmit) -> OperationResult:
    submits.require_import(submission)
    with current().status("Checking the dataset"):
        dataset = submits.check_dataset(context, submission)
    _warn_elsewhere(submission.warnings)
    kind, path = submission.kind, submission.config.path
    shown = path.relative_to(context.workspace.root).as_posix()
    unchecked = [each for each in submission.unchecked if each != "dataset"]
    checked = [each for each in submits.CHECKS if each not in unchecked]
    resource = {**submission.resource(), "checked": checked, "unchecked": unchecked}
    message, submit = f"{path.name} can be submitted.", "submit it"
    if unchecked:
        message = f"No problems found in {path.name}, but some checks were not possible."
    names = {"Checked": checked, "Not checked": unchecked}
    lists = [
        f"{label}: {', '.join(submits.CHECKS[each] for each in some)}"
        for label, some in names.items()
        if some
    ]
    config = submission.config
    if isinstance(config, TrainingConfig) and not config.doubts and "limits" not in unchecked:
        from osmosis_ai.services.training_estimate import check_own_machine, planned_steps

        if dataset.row_count and config.settings.method == "rl":
            steps = planned_steps(dataset.row_count, config.settings)
            resource["steps"] = steps
            other = config.settings.validation_dataset
            validated = f"validated on {other}" if other else f"{steps['held_out_rows']:,} held out"
            lists.append(
                f"Steps: {steps['total']:,}, each with up to {steps['attempts_per_step']:,} attempts "
                f"({steps['training_rows']:,} training rows, {validated})"
            )
            if config.settings.vllm_servers > 1:
                lists.append(f"Sampling engine: {config.settings.vllm_servers} vLLM servers")
        model = submission.model
        if config.settings.backend == "tinker" or (model is not None and model.is_known):
            can_train, reason = check_own_machine(config.settings, model)
            resource["this_machine"] = {"can_train": can_train, "reason": reason}
            lists.append(f"This machine: {reason}")
            if not can_train:
                message = f"{path.name} is valid, but this machine cannot train it."
                submit = "submit it for a worker on another machine"
    return OperationResult(
        operation=f"{kind}.check",
        message=message,
        resource={**resource, "dataset": dataset.printed(), **context.resource()},
        next_steps=[*lists, *formats.next_block([(submit, f"osmosis {kind} submit {shown}")])],
        next_steps_structured=[{"action": f"{kind}_submit", "config": shown}],
    )


def next_steps_structured(group: str, name: str | None, platform_url: str | None) -> list[Mapping[str, Any]]:
    steps: list[Mapping[str, Any]] = [{"action": f"{group}_info", "name": name}, {"action": f"{group}_list"}]
    return [*steps, {"action": "open_url", "url": platform_url}] if platform_url else steps


def run_again_fields(run: SubmittedRun) -> dict[str, Any]:
    """Return the first fields of a submitted run in JSON."""
    known = run.model_dump(mode="json", include={"id", "name", "status", "created_at"})
    return {**known, "url": run.platform_url} if run.platform_url else known


# -- downloads -------------------------------------------------------------------------------

_SHOWN_FAILURES = 20


def download_run(
    run: str,
    layout: FileLayout,
    find: Callable[[PlatformClient], Run],
    *,
    operation: str,
    types: str,
    rows: str | None = None,
    output: Path | None,
    overwrite: bool,
    yes: bool,
) -> OperationResult:
    """Download the files of a run, asking before a large download."""
    asked = parse_types(types, layout)
    with platform_context(run) as context:
        outcome = fetch_files(
            context,
            lambda client: (find(client), asked),
            layout=layout,
            rows=rows,
            output=output,
            overwrite=overwrite,
            yes=yes,
        )
        return _downloaded(outcome, operation, context.resource())


def fetch_files(
    context: PlatformContext,
    find: Callable[[PlatformClient], tuple[Run, Sequence[str]]],
    *,
    yes: bool,
    **options: Any,
) -> DownloadOutcome:
    """Download the files of the types that ``find`` returns with a run; ``options`` are those of ``plan_download``."""
    out = current()
    with out.status("Fetching the list of files"):
        run, types = find(context.client)
        plan = plan_download(context.client, run, types=types, workspace=context.workspace, **options)
    if plan.pending_bytes > ASK_FROM_BYTES:
        count, size = formats.count(len(plan.pending)), formats.size(plan.pending_bytes)
        out.confirm(
            f"Download {count} files, {size}?",
            yes=yes,
            default=False,
            summary={"Files": count, "Download size": size, "Destination": str(plan.directory)},
        )
    with out.progress("Downloading", total=plan.pending_bytes, unit="bytes") as shown:
        return run_download(context.client, plan, progress=shown.update)


def _downloaded(outcome: DownloadOutcome, operation: str, extra: Mapping[str, Any]) -> OperationResult:
    plan, failures = outcome.plan, outcome.failures
    parts = [f"{amount(len(outcome.fetched), 'file')} to {formats.shown_path(plan.directory)}"]
    if plan.skipped:
        were = "was" if len(plan.skipped) == 1 else "were"
        parts.append(f"{formats.count(len(plan.skipped))} {were} there already")
    if failures:
        parts.append(f"{formats.count(len(failures))} failed")
    steps = [f"Failed: {failed.path} — {failed.error}" for failed in failures[:_SHOWN_FAILURES]]
    if len(failures) > _SHOWN_FAILURES:
        steps.append(f"and {formats.count(len(failures) - _SHOWN_FAILURES)} more")
    if plan.types_without_rows:
        steps.append(f"The run has no {' or '.join(plan.types_without_rows)} of rows {plan.rows}.")
    if failures:
        steps.append("Run the same command again to fetch what is missing.")
    elif plan.run.status == "running":
        steps.append("The run is still running: run the same command again when it has ended.")
    return OperationResult(
        operation=operation,
        status="partial" if failures else "success",
        message=f"Downloaded {', '.join(parts)}.",
        resource={**outcome.resource(), **extra},
        next_steps=steps,
    )


# -- conversations ---------------------------------------------------------------------------


def wanted_samples(
    row: int | None,
    attempt: int | None,
    search: str,
    limit: int,
    *,
    finish: FlaggedFinish | None = None,
    **asked: bool,
) -> WantedSamples:
    """Return the filter of a command; ``asked`` has the option of each outcome."""
    names: tuple[Outcome, ...] = ("passed", "below", "failed", "unscored", "flaky")
    chosen = [name for name in names if asked.get(name)]
    if len(chosen) > 1:
        raise typer.BadParameter(f"{' and '.join(f'--{name}' for name in chosen)} are mutually exclusive.")
    return WantedSamples(row, attempt, chosen[0] if chosen else None, finish, search.strip(), limit)


@contextmanager
def reading_conversations() -> Iterator[Callable[[], PlatformClient]]:
    with platform_when_needed() as client, current().status("Reading conversations"):
        yield client
