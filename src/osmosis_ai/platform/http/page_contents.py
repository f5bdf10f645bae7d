"""What pages show of a workspace, as plain tables: every page is a list of things or one of them in full."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from osmosis_ai.api.wire.base import LogEntry
from osmosis_ai.api.wire.eval_runs import RunOrigin
from osmosis_ai.evaluation.headline import Headline
from osmosis_ai.platform.datasets import DatasetRecord
from osmosis_ai.platform.db.tables import DbRepository, DbRun, DbToken
from osmosis_ai.platform.http.page_links import RUN_PAGES
from osmosis_ai.platform.models import FoundLoraModel
from osmosis_ai.platform.runs.eval_results import headline_of, rows_of
from osmosis_ai.platform.runs.lifecycle import COMMAND_GROUPS, RunKind
from osmosis_ai.platform.runs.read.merging import MergedResults, RunFamily
from osmosis_ai.platform.runs.read.run_store import FoundRun, ListedRun
from osmosis_ai.platform.runs.read.training_curves import MetricCurve, validation_of
from osmosis_ai.platform.secrets import ListedSecret

MISSING = "–"


@dataclass(frozen=True)
class Link:
    """A cell that leads to another page of the workspace."""

    text: str
    segments: tuple[str, ...]


Cell = str | Link


@dataclass(frozen=True)
class PageTable:
    """Rows under headings; ``empty`` stands in place of no rows."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    title: str = ""
    empty: str = ""


@dataclass(frozen=True)
class Described:
    """One thing in full.

    Attributes:
        title: its name.
        facts: what is known of it, as labels and values.
        tables: its numbers.
        log: the end of its log.
        problem: why it failed, when it did.
        commands: what to type for more.
    """

    title: str
    facts: Sequence[tuple[str, Cell]]
    tables: Sequence[PageTable] = ()
    log: Sequence[LogEntry] = ()
    problem: str = ""
    commands: Sequence[str] = field(default_factory=list)


def runs_table(kind: RunKind, runs: Sequence[ListedRun]) -> PageTable:
    """Return runs of one kind."""
    is_eval = kind == "eval"
    results = ("Rows", "Result, over scored samples") if is_eval else ()
    return PageTable(
        ("Name", "Status", "Rollout", "Model", "Dataset", *results, "Reward", "Submitted", "By"),
        [
            (
                Link(run.name, (RUN_PAGES[kind], run.name)),
                run.status,
                run.rollout_name,
                run.model_path,
                run.dataset_name,
                *(_eval_cells(run) if is_eval else ()),
                _reward_of(run.results),
                moment(run.created_at),
                run.creator_name or run.creator_email or MISSING,
            )
            for run in runs
        ],
        empty=f"No runs yet: {COMMAND_GROUPS[kind]} submit CONFIG",
    )


def datasets_table(records: Sequence[DatasetRecord]) -> PageTable:
    """Return datasets."""
    return PageTable(
        ("Name", "Status", "Rows", "Bytes", "Uploaded", "By"),
        [
            (
                Link(record.row.name, ("datasets", record.row.name)),
                record.row.status,
                count(record.row.row_count),
                count(record.row.file_size),
                moment(record.row.created_at),
                record.creator_name or MISSING,
            )
            for record in records
        ],
        empty="No datasets yet: osmosis dataset upload FILE",
    )


def models_table(found: Sequence[FoundLoraModel]) -> PageTable:
    """Return trained adapters."""
    return PageTable(
        ("Name", "Base model", "Run", "Step", "Reward", "Deployment"),
        [
            (
                Link(each.model.name, ("models", each.model.name)),
                each.model.base_model,
                Link(each.run_name, ("training", each.run_name)),
                count(each.model.step),
                number(each.model.reward),
                each.model.deployment_status or MISSING,
            )
            for each in found
        ],
        empty="No adapters yet: osmosis train submit CONFIG",
    )


def secrets_table(listed: Sequence[ListedSecret]) -> PageTable:
    """Return the names of secrets; nobody sees a value again."""
    return PageTable(
        ("Name", "Scope", "Changed", "By"),
        [
            (
                item.secret.name,
                "personal" if item.secret.scope == "user" else "workspace",
                moment(item.secret.updated_at),
                item.updater or item.creator or MISSING,
            )
            for item in listed
        ],
        empty="No secrets yet: osmosis secret set NAME",
    )


def repositories_table(repositories: Sequence[DbRepository]) -> PageTable:
    """Return what is connected, and how the last syncs went."""
    return PageTable(
        ("Repository", "Cloned from", "Commit", "Synced", "Problem"),
        [
            (
                repository.identity,
                repository.clone_url,
                (repository.last_synced_sha or MISSING)[:12],
                moment(repository.last_synced_at),
                repository.sync_error or MISSING,
            )
            for repository in repositories
        ],
        empty="Nothing is connected yet. On the platform's machine: osmosis platform connect PATH|URL",
    )


def keys_table(tokens: Sequence[DbToken]) -> PageTable:
    """Return API keys; the keys themselves are not kept."""
    return PageTable(
        ("Name", "Made", "Works until", "Last used", "Id"),
        [
            (
                token.name or MISSING,
                moment(token.created_at),
                moment(token.expires_at) if token.expires_at else "it is revoked",
                moment(token.last_used_at),
                token.id,
            )
            for token in tokens
        ],
        empty="No keys yet.",
    )


def described_run(
    found: FoundRun,
    *,
    log: Sequence[LogEntry],
    curves: Sequence[MetricCurve] = (),
    resumable: bool = False,
    has_dataset: bool = True,
    related: Sequence[tuple[str, Cell]] = (),
) -> Described:
    """Return a run with its results, what is ``related`` to it, and the commands that tell more of it.

    What it used and is deleted by now keeps its name, without a link.
    """
    run, results = found.run, found.run.results or {}
    group, is_eval = COMMAND_GROUPS[run.kind], run.kind == "eval"
    done = run.progress or {}
    creator = (found.creator.name or found.creator.email) if found.creator is not None else MISSING
    step = (
        f"{count(results['current_step'])} of {count(results.get('total_steps'))}"
        if "current_step" in results
        else ""
    )
    facts: list[tuple[str, Cell]] = [
        ("Status", run.status),
        (
            "Progress",
            f"{count(done.get('completed'))} of {count(done.get('total'))} samples" if done else step,
        ),
        *(_eval_facts(run) if is_eval else ()),
        ("Reward", _reward_of(results)),
        *related,
        *_validation_facts(curves),
        ("Model", run.model_path),
        (
            "Dataset",
            Link(run.dataset_name, ("datasets", run.dataset_name)) if has_dataset else run.dataset_name,
        ),
        ("Rollout", run.rollout_name),
        ("Branch", run.branch or ""),
        ("Commit", (run.commit_sha or "")[:12]),
        ("Seed", str(run.seed) if run.imported is None else ""),
        ("Submitted", f"{moment(run.created_at)} by {creator}"),
        ("Started", moment(run.started_at)),
        ("Ended", moment(run.completed_at)),
    ]
    tables = [table for table in (_estimates(run), _curves(curves)) if table is not None]
    commands = [f"{group} info {run.name}", f"{group} logs {run.name}"]
    if is_eval:
        commands.append(f"{group} download {run.name}")
    if resumable:
        commands.append(f"{group} resume {run.name}")
    return Described(
        run.name,
        [fact for fact in facts if fact[1] not in ("", MISSING)],
        tables,
        log,
        run.error or "",
        commands,
    )


def retry_facts(run: DbRun, family: RunFamily, merged: MergedResults) -> Iterator[tuple[str, Cell]]:
    """Yield what a run is a retry of, or its retries, and what they have come to together."""
    if run.retry_of_id is not None:
        name = run.retry_of_name or run.retry_of_id
        there = family.original.id == run.retry_of_id
        yield "Retry of", Link(name, ("evals", name)) if there else f"{name}, which was deleted"
    else:
        for retry in family.retries:
            yield "Retry", Link(retry.name, ("evals", retry.name))
    if family.retries:
        headline = Headline.of(merged.estimates)
        yield f"Together: pass rate ({headline.rule})", headline.rate_words
        yield "Together: scored", headline.scored_words
        yield "Together: failed", headline.failed_words
        for warning in headline.warnings:
            yield "Together: warning", warning


def described_dataset(record: DatasetRecord, *, log: Sequence[LogEntry]) -> Described:
    """Return a dataset with its first rows."""
    row = record.row
    facts: list[tuple[str, Cell]] = [
        ("Status", row.status),
        ("Format", row.extension),
        ("Rows", count(row.row_count)),
        ("Bytes", count(row.file_size)),
        ("SHA-256", row.sha256 or MISSING),
        ("Uploaded", f"{moment(row.created_at)} by {record.creator_name or MISSING}"),
    ]
    rows = [each for each in row.preview or [] if isinstance(each, Mapping)]
    columns = list(dict.fromkeys(str(key) for each in rows for key in each))
    preview = PageTable(
        columns, [[shortened(each.get(key)) for key in columns] for each in rows], "First rows"
    )
    commands = [f"osmosis dataset download {row.name}"]
    return Described(row.name, facts, [preview] if rows else [], log, row.error or "", commands)


def described_model(found: FoundLoraModel) -> Described:
    """Return a trained adapter."""
    model = found.model
    facts: list[tuple[str, Cell]] = [
        ("Base model", model.base_model),
        ("Training run", Link(found.run_name, ("training", found.run_name))),
        ("Step", count(model.step)),
        ("Reward", number(model.reward)),
        ("Saved", moment(model.created_at)),
        ("Deployment", model.deployment_status or "never deployed"),
        ("Called", found.inference_name),
    ]
    return Described(model.name, facts, commands=[f"osmosis model info {model.name}"])


def moment(when: datetime | None) -> str:
    """Return a moment as people read it."""
    return MISSING if when is None else f"{when:%Y-%m-%d %H:%M} UTC"


def count(value: int | None) -> str:
    """Return a whole number as people read it."""
    return MISSING if value is None else f"{value:,}"


def number(value: float | None) -> str:
    """Return a measured number as people read it."""
    return MISSING if value is None else f"{value:.4g}"


def shortened(value: Any) -> str:
    """Return a cell of a dataset in a line."""
    text = MISSING if value is None else str(value)
    return text if len(text) <= 200 else f"{text[:199]}…"


def _reward_of(results: Mapping[str, Any] | None) -> str:
    known = results or {}
    stats = known.get("reward_stats") or {}
    return number(known.get("reward", stats.get("mean")))


def _eval_cells(run: ListedRun) -> Iterator[Cell]:
    """Yield what a list says of an evaluation: its rows, and its result with what that leaves out."""
    headline, rows = headline_of(run), rows_of(run)
    yield rows.words if rows is not None else MISSING
    result = headline.brief if headline is not None else MISSING
    yield result if run.imported is None else f"imported; {result}"


def _eval_facts(run: DbRun) -> Iterator[tuple[str, Cell]]:
    """Yield the same of one evaluation, with what should stand beside it."""
    headline, rows = headline_of(run), rows_of(run)
    if run.imported is not None:
        yield "Imported", RunOrigin.model_validate(run.imported).words
    if rows is not None:
        yield "Rows", rows.words
    if headline is None:
        return
    yield f"Pass rate ({headline.rule})", headline.rate_words
    yield "Scored", headline.scored_words
    yield "Failed", headline.failed_words
    for warning in headline.warnings:
        yield "Warning", warning


def _validation_facts(curves: Sequence[MetricCurve]) -> Iterator[tuple[str, Cell]]:
    """Yield what a training run's newest validation came to, with what should stand beside it."""
    found = validation_of(curves)
    if found is not None:
        yield from found.facts()


def _estimates(run: DbRun) -> PageTable | None:
    """Return the numbers over scored samples, each with its interval and what it stands on."""
    estimates = (run.metrics or {}).get("estimates")
    if not estimates:
        return None
    named = [("Reward", estimates.get("reward")), ("Pass rate", estimates.get("pass_rate"))]
    named += [(f"pass@{k}", estimate) for k, estimate in (estimates.get("pass_at_k") or {}).items()]
    all_of_k = (estimates.get("pass_hat_k") or {}).items()
    named += [(f"pass^{k}", estimate) for k, estimate in all_of_k if int(k) > 1]
    rows = [
        (name, number(each["value"]), _interval(each), count(each["n"]), count(each["clusters"]))
        for name, each in named
        if each is not None
    ]
    return PageTable(("", "Value", "95 % interval", "Samples", "Rows"), rows, "Results") if rows else None


def _interval(estimate: Mapping[str, Any]) -> str:
    if estimate.get("low") is None or estimate.get("high") is None:
        return f"none: {estimate['reason']}" if estimate.get("reason") else MISSING
    return f"{number(estimate['low'])} to {number(estimate['high'])}"


def _curves(curves: Sequence[MetricCurve]) -> PageTable | None:
    rows = [
        (
            curve.title,
            *(number(value) for value in (curve.initial, curve.latest, curve.lowest, curve.highest)),
        )
        for curve in curves
    ]
    return PageTable(("", "First", "Latest", "Least", "Most"), rows, "Metrics") if rows else None
