"""A workspace's runs as pages show them: lists of any size, each run's line, and a run in full."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, get_args

import orjson
from sqlalchemy import ColumnElement, Select, and_, bindparam, case, func, literal, or_, select, tuple_
from sqlalchemy.orm import Session, aliased, joinedload

from osmosis_ai.api.models.eval_runs import RunOrigin
from osmosis_ai.api.models.training_runs import ValidatedRows
from osmosis_ai.config.toml_text import config_text
from osmosis_ai.evaluation.metrics import Estimates
from osmosis_ai.platform.db.keyset import KeysetOrder, KeysetPlace, moment_of, one_holds, read_page, text_of
from osmosis_ai.platform.db.tables import DbLoraModel, DbRun, DbUser, duration_ms
from osmosis_ai.platform.models import adapter_size
from osmosis_ai.platform.runs.lifecycle import COMMAND_GROUPS, OPEN, VALIDATION, RunKind
from osmosis_ai.platform.runs.requests import effective_training_config, read_training_request
from osmosis_ai.platform.runs.results import Curves, eval_config, headline_of, rows_of, values_of
from osmosis_ai.platform.runs.run_store import RunWaits
from osmosis_ai.platform.viewer.samples import SampleLists
from osmosis_ai.training.runs.curves import CurveMark, SavedAdapter, TrainingCurves, ValidationHeadline
from osmosis_ai.training.runs.metrics import TITLES
from osmosis_ai.ui.numbers import amount, date
from osmosis_ai.ui.run_numbers import execution_rows
from osmosis_ai.viewer.source import (
    ItemPage,
    RunDetail,
    RunEntry,
    RunQuery,
    Scalar,
    decode,
    encode,
    item_page,
    order_of,
    refused,
)

KINDS: tuple[RunKind, ...] = get_args(RunKind)
_ORDERS: Mapping[str, Any] = {
    "started": DbRun.created_at,
    "status": DbRun.status,
    "reward": DbRun.reward,
    "pass_rate": DbRun.pass_rate,
    "cost": DbRun.cost_usd,
    "duration": DbRun.duration_ms,
}
_NEVER_NULL = ("started", "status")
_SEARCHED = (DbRun.name, DbRun.model_path, DbRun.dataset_name, DbRun.rollout_name)
RUNS = select(DbRun).options(joinedload(DbRun.creator))
_LISTED = RUNS.where(DbRun.id.in_(bindparam("ids", expanding=True)))
_LOOKED_AT = 100
_TREND = 10
"""The most numbers of a trend, including the run's own."""


@dataclass(frozen=True)
class WorkspaceRuns:
    """The runs of a workspace, as lists show them."""

    session: Session
    workspace_id: str
    now: datetime
    waits: RunWaits

    def page(self, query: RunQuery, *, limit: int, cursor: str | None) -> ItemPage[RunEntry]:
        """Return runs, and how many there are."""
        place = _place(query, cursor) if cursor else None
        kinds = KINDS if query.kind is None else tuple(kind for kind in KINDS if kind == query.kind)
        conditions = _conditions(self.session, query)
        order = _order(query)
        keys = (DbRun.id, *((order.value,) if order.value is not None else order.ties))
        mine = select(*keys).where(DbRun.workspace_id == self.workspace_id, *conditions)
        ranges = [mine.where(DbRun.kind == kind) for kind in kinds]
        found = read_page(self.session, ranges, order, place, limit=limit + 1)
        entries = self._entries(_LISTED, {"ids": [row.id for row in found[:limit]]}) if found else {}
        page = item_page(
            found,
            place.backward if place is not None else None,
            limit=limit,
            cursor=lambda row, back: _cursor(query, row, back),
        )
        items = [entries[row.id] for row in page.items]
        return ItemPage(items, page.next, page.previous, self._counts(query, kinds, conditions))

    def _entries(self, runs: Select[Any], bound: Mapping[str, Any]) -> dict[str, RunEntry]:
        """Return the lines of some runs by their ids, each with how those before it went."""
        found = self.session.scalars(runs, bound).all()
        self.waits.read(self.session, found)
        trends = _read_trends(self.session, [run.id for run in found])
        return {run.id: self.entry(run, trends.get(run.id, ())) for run in found}

    def with_previous(self, run: DbRun) -> tuple[RunEntry, RunEntry | None]:
        """Return the line of a run and of the previous comparable run."""
        found = self._entries(_with_preceding(), {"run_id": run.id})
        own, before = found.pop(run.id), next(iter(found.values()), None)
        return own, before

    def entry(self, run: DbRun, trend: Sequence[float | None] = ()) -> RunEntry:
        """Return the line of a run."""
        return run_entry(run, self.now, trend=trend, waits=self.waits.why(run))

    def _counts(
        self, query: RunQuery, kinds: Sequence[str], conditions: Sequence[ColumnElement[bool]]
    ) -> dict[str, int]:
        fits = case((and_(*conditions), 1), else_=0) if conditions else literal(1)
        mine = select(DbRun.status, func.count(), func.sum(fits)).group_by(DbRun.status)
        mine = mine.where(DbRun.workspace_id == self.workspace_id, DbRun.kind.in_(kinds))
        counted = self.session.execute(mine).all()
        statuses = {status: count for status, count, _ in counted}
        total = sum(int(fitting) for *_, fitting in counted)
        return {**statuses, "unfiltered": sum(statuses.values()), "total": total}


@lru_cache
def _last_numbers(*, is_sqlite: bool) -> Select[tuple[str, Any]]:
    """Return the statement that lists the numbers of up to ten runs up to each of ``ids``, the newest first."""
    earlier = aliased(DbRun)
    last = _comparable(DbRun, earlier, _number(earlier)).limit(_TREND).correlate(DbRun).subquery()
    listed = (func.json_group_array if is_sqlite else func.json_agg)(last.c.wanted)
    numbers = select(listed).correlate(DbRun).scalar_subquery()
    return select(DbRun.id, numbers).where(DbRun.id.in_(bindparam("ids", expanding=True)))


def _read_trends(session: Session, ids: Sequence[str]) -> dict[str, tuple[float | None, ...]]:
    """Return the trend of each run, oldest number first, in one statement."""
    is_sqlite = session.get_bind().dialect.name == "sqlite"
    found = session.execute(_last_numbers(is_sqlite=is_sqlite), {"ids": list(ids)})
    # SQLite returns JSON text, PostgreSQL a list.
    lists = ((id, orjson.loads(numbers) if is_sqlite else numbers) for id, numbers in found)
    return {id: tuple(reversed(numbers or ())) for id, numbers in lists}


@lru_cache
def _with_preceding() -> Any:
    """Return the statement of the run with ``run_id`` and the one before that it can be compared with."""
    run, earlier = aliased(DbRun), aliased(DbRun)
    before = _comparable(run, earlier, earlier.id).offset(1).limit(1).correlate(run).scalar_subquery()
    preceding = select(before).where(run.id == bindparam("run_id")).scalar_subquery()
    return RUNS.where(or_(DbRun.id == bindparam("run_id"), DbRun.id == preceding))


def _comparable(run: Any, earlier: Any, wanted: Any) -> Select[Any]:
    """Select columns of earlier runs that a run can be compared with, newest first."""
    measured = [column.label(f"measured_{place}") for place, column in enumerate(_measured(earlier))]
    near = (
        select(
            wanted.label("wanted"),
            earlier.id.label("id"),
            earlier.created_at.label("created_at"),
            and_(earlier.status == "finished", _number(earlier).is_not(None)).label("tells"),
            *measured,
        )
        .where(
            earlier.workspace_id == run.workspace_id,
            earlier.kind == run.kind,
            earlier.rollout_name == run.rollout_name,
            earlier.dataset_name == run.dataset_name,
            tuple_(earlier.created_at, earlier.id) <= tuple_(run.created_at, run.id),
        )
        .order_by(earlier.created_at.desc(), earlier.id.desc())
        .limit(_LOOKED_AT)
        .correlate(run)
        .subquery()
    )
    alike = (
        near.c[column.name].is_not_distinct_from(own)
        for column, own in zip(measured, _measured(run), strict=True)
    )
    return (
        select(near.c.wanted)
        .where(*alike, or_(near.c.tells, near.c.id == run.id))
        .order_by(near.c.created_at.desc(), near.c.id.desc())
    )


def _number(run: Any) -> ColumnElement[float | None]:
    """Return what runs of a kind are measured by."""
    return case((run.kind == "eval", run.pass_rate), else_=run.reward)


def _measured(run: Any) -> list[ColumnElement[Any]]:
    """Return what has to be the same before the numbers of two runs on one dataset can be compared."""
    return [
        run.model_path,
        run.selection["limit"].as_string(),
        func.coalesce(run.selection["chosen"].as_boolean(), False),
        func.coalesce(run.request[("evaluation_config", "pass_threshold")].as_float(), 1.0),
    ]


def run_entry(
    run: DbRun, now: datetime, *, trend: Sequence[float | None] = (), waits: str | None = None
) -> RunEntry:
    """Return the line of a run."""
    estimates = Estimates.read((run.metrics or {}).get("estimates")) if run.kind == "eval" else None
    reward = estimates.reward if estimates is not None else None
    imported = run.imported or {}
    return RunEntry(
        run.kind,
        run.name,
        run.id,
        run.status,
        started_at=run.started_at or run.created_at,
        ended_at=run.completed_at,
        model=run.model_path,
        dataset=run.dataset_name,
        rollout=run.rollout_name,
        person=run.creator.display_name if run.creator is not None else None,
        commit=run.commit_sha or imported.get("git_head"),
        dirty=imported.get("git_dirty"),
        config=f"{run.rollout_name} on {run.dataset_name}",
        headline=headline_of(run) if run.kind == "eval" else None,
        reward=reward.value if reward is not None else run.reward,
        reward_low=reward.low if reward is not None else None,
        reward_high=reward.high if reward is not None else None,
        cost_usd=run.cost_usd,
        duration_s=took_ms / 1000 if (took_ms := duration_ms(run, now)) is not None else None,
        trend=trend,
        error=run.error,
        waits=waits,
        stopping=run.status in OPEN and run.stop_requested_at is not None,
    )


def _order(query: RunQuery) -> KeysetOrder:
    if query.sort == "name":
        return KeysetOrder(None, (DbRun.name,), query.descending)
    return KeysetOrder(
        _ORDERS[query.sort], (DbRun.id,), query.descending, nullable=query.sort not in _NEVER_NULL
    )


def _conditions(session: Session, query: RunQuery) -> list[ColumnElement[bool]]:
    equal = {
        DbRun.status: query.status,
        DbRun.model_path: query.model,
        DbRun.dataset_name: query.dataset,
        DbRun.rollout_name: query.rollout,
    }
    found: list[ColumnElement[bool]] = [column == value for column, value in equal.items() if value]
    if query.person:
        people = select(DbUser.id).where(or_(DbUser.name == query.person, DbUser.email == query.person))
        found.append(DbRun.creator_id.in_(people))
    if query.since is not None:
        found.append(DbRun.created_at >= query.since)
    if query.until is not None:
        found.append(DbRun.created_at <= query.until)
    if query.text:
        found.append(one_holds(session, _SEARCHED, query.text))
    if query.commit:
        found.append(DbRun.commit_sha.startswith(query.commit, autoescape=True))
    return found


def _cursor(query: RunQuery, row: Any, backward: bool) -> str:
    if query.sort == "name":
        return encode(order_of(query), [row.name], backward=backward)
    value = getattr(row, _ORDERS[query.sort].key)
    key = value.isoformat() if isinstance(value, datetime) else value
    return encode(order_of(query), [key, row.id], backward=backward)


def _place(query: RunQuery, cursor: str) -> KeysetPlace:
    if query.sort == "name":
        (name,), backward = decode(cursor, order_of(query), parts=1)
        return KeysetPlace(None, (text_of(name, cursor),), backward)
    (value, id), backward = decode(cursor, order_of(query), parts=2)
    return KeysetPlace(_value(query, value, cursor), (text_of(id, cursor),), backward)


def _value(query: RunQuery, value: Scalar, cursor: str) -> datetime | str | float | None:
    if query.sort == "started":
        return moment_of(value, cursor)
    if query.sort in _NEVER_NULL:
        return text_of(value, cursor)
    if isinstance(value, str):
        raise refused(cursor)
    return None if value is None else float(value)


# -- a run in full -----------------------------------------------------------------------------------


def eval_detail(entry: RunEntry, previous: RunEntry | None, samples: SampleLists) -> RunDetail:
    """Return an evaluation in full."""
    run, metrics = samples.run, samples.run.metrics or {}
    return RunDetail(
        entry,
        estimates=Estimates.read(metrics.get("estimates")),
        summary_numbers=metrics.get("summary") or {},
        config_written=_submitted(run),
        config_effective=_sections(run),
        facts=_known(("Waits", entry.waits), *_eval_facts(run)),
        secret_names=_secret_names(run),
        failures=samples.failures(),
        rewards=samples.rewards(),
        previous=previous,
        commands=[*_commands(run), f"{COMMAND_GROUPS[run.kind]} download {run.name}"],
    )


def training_detail(
    entry: RunEntry,
    previous: RunEntry | None,
    run: DbRun,
    curves: Curves,
    adapter: Mapping[str, str],
    *,
    resumable: bool,
) -> RunDetail:
    """Return a training run in full, but for its curves."""
    return RunDetail(
        entry,
        summary_numbers=run.results or {},
        config_written=_submitted(run),
        config_effective=effective_training_config(read_training_request(run.request)),
        facts=_known(("Waits", entry.waits), *_training_facts(run, curves), *adapter.items()),
        secret_names=_secret_names(run),
        previous=previous,
        commands=[*_commands(run), *([f"{COMMAND_GROUPS[run.kind]} resume {run.name}"] if resumable else [])],
    )


def compared_training(run: DbRun, curves: Curves, now: datetime) -> tuple[RunDetail, TrainingCurves]:
    """Return what a comparison reads of a training run: its settings and curves."""
    settings = effective_training_config(read_training_request(run.request))
    return RunDetail(run_entry(run, now), config_effective=settings), viewed_training(run, curves, ())


def viewed_training(
    run: DbRun, curves: Curves, models: Sequence[DbLoraModel], happened: Sequence[CurveMark] = ()
) -> TrainingCurves:
    """Return the curves of a run, its checkpoints and its newest validation."""
    return TrainingCurves.of(
        values_of(curves),
        {key: TITLES.get(key, key) for key in curves},
        happened,
        [saved_adapter(model) for model in models],
        ValidatedRows(**run.metrics[VALIDATION]) if run.metrics and VALIDATION in run.metrics else None,
    )


def _known(*facts: tuple[str, str | None]) -> list[tuple[str, str]]:
    return [(label, value) for label, value in facts if value]


def _eval_facts(run: DbRun) -> Iterator[tuple[str, str]]:
    rows = rows_of(run)
    if run.imported is not None:
        yield "Imported", RunOrigin.model_validate(run.imported).words
    if run.revision:
        yield "Retried", f"{amount(run.revision, 'time')}, last {date(run.retried_at)}"
    yield "Rows", rows.words if rows is not None else ""
    yield from _common_facts(run)
    yield "Grader", run.grader_digest or ""


def _training_facts(run: DbRun, curves: Curves) -> Iterator[tuple[str, str]]:
    results = run.results or {}
    if "current_step" in results:
        yield "Step", f"{results['current_step']:,} of {results.get('total_steps') or 0:,}"
    validation = ValidationHeadline.of(values_of(curves))
    if validation is not None:
        yield from validation.facts()
    yield from _common_facts(run)
    yield "Stop reason", str(results.get("ending") or "")


def _common_facts(run: DbRun) -> Iterator[tuple[str, str]]:
    done = run.progress or {}
    if done:
        yield "Progress", f"{done.get('completed') or 0:,} of {done.get('total') or 0:,} attempts"
    yield "Entrypoint", str((run.request.get("experiment_config") or {}).get("entrypoint") or "")
    yield "Branch", run.branch or ""
    yield "Seed", str(run.seed) if run.imported is None else ""
    yield "Environment", run.environment or ""
    yield "Isolation", run.isolation or ""
    yield "Dataset, SHA-256", str((run.selection or {}).get("sha256") or "")
    yield "Submitted", date(run.created_at) if run.imported is None else ""
    yield from execution_rows(run.request.get("advanced_config"))
    yield "Platform", run.platform_version or ""


def _submitted(run: DbRun) -> str | None:
    """Return the submitted config; an imported run has none."""
    return config_text(run.request) if run.imported is None else None


def _sections(run: DbRun) -> Mapping[str, Any]:
    """Return the sections of an evaluation's config, with defaults."""
    found = {
        "experiment": run.request.get("experiment_config"),
        "evaluation": eval_config(run),
        "env": run.request.get("env_config"),
        "advanced": run.request.get("advanced_config"),
    }
    return {name: section for name, section in found.items() if section}


def _secret_names(run: DbRun) -> list[str]:
    required = (run.request.get("secrets") or {}).get("required") or ()
    return sorted({*(run.secret_scopes or {}), *map(str, required)})


def _commands(run: DbRun) -> list[str]:
    group = COMMAND_GROUPS[run.kind]
    return [f"{group} info {run.name}", f"{group} logs {run.name}"]


def saved_adapter(model: DbLoraModel) -> SavedAdapter:
    """Return an adapter as pages show it."""
    reward = model.validation_reward
    return SavedAdapter(model.name, model.step, reward, adapter_size(model), model.deployment_status)
