"""The samples of runs: pages and counts of one run's, and all of some runs for comparisons."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Float,
    LargeBinary,
    Select,
    String,
    and_,
    case,
    cast,
    func,
    literal,
    select,
)
from sqlalchemy.orm import Session

from osmosis_ai.api.models.eval_runs import RunOrigin
from osmosis_ai.config.sections import EvaluationSettings
from osmosis_ai.decisions.samples import SAMPLE_FIELDS, ComparedInputs, RunSamples, SampleCollector
from osmosis_ai.errors import ConflictError
from osmosis_ai.evaluation.results import UNKNOWN
from osmosis_ai.platform.db.keyset import (
    KeysetOrder,
    KeysetPlace,
    one_holds,
    read_page,
    read_pages,
    reversed_place,
)
from osmosis_ai.platform.db.tables import DbRun, DbSample
from osmosis_ai.platform.runs.lifecycle import OPEN
from osmosis_ai.platform.runs.requests import evaluation_settings
from osmosis_ai.platform.shared_reads import SharedReads
from osmosis_ai.viewer.source import (
    SAME_FIELDS,
    FailureCount,
    Histogram,
    ItemPage,
    SampleEntry,
    SampleQuery,
    sample_entry,
    sample_page,
    sample_position,
    sorted_value,
)

CountedT = TypeVar("CountedT")

_PLACE: tuple[Any, ...] = (DbSample.row_index, DbSample.run_index)
_VALUES: Mapping[str, Any] = {
    "row": None,
    "reward": DbSample.reward,
    "duration": DbSample.duration_ms,
    "tokens": DbSample.tokens,
    "cost": DbSample.cost_usd,
}
SAMPLE_COLUMNS = (
    *_PLACE,
    *(getattr(DbSample, name) for name in ("run_id", "source_row_index", "error_type", *SAME_FIELDS)),
)
"""The columns that :func:`sample_entry` reads."""
_BY_REWARD = ("passed", "below")
_RANGES = ("reward", "tokens", "duration_ms", "cost_usd")
_category = func.coalesce(DbSample.category, DbSample.error_type)
_SCORED = and_(DbSample.status == "success", DbSample.reward.is_not(None))
_TEXTS = (DbSample.input, DbSample.output, DbSample.error)
_FEW_ROWS = 100
_MARK = b"\1"


@dataclass(frozen=True, slots=True)
class _FlakyRows:
    """The rows of a run that pass in some attempts."""

    samples: int
    marks: bytes
    few: tuple[int, ...] | None

    @classmethod
    def of(cls, found: Sequence[Any]) -> _FlakyRows:
        """Return them from (row, how many samples it has)."""
        rows = [row for row, _ in found]
        marks = bytearray(max(rows, default=-1) + 1)
        for row in rows:
            marks[row] = 1
        few = tuple(rows) if len(rows) <= _FEW_ROWS else None
        return cls(sum(samples for _, samples in found), bytes(marks), few)

    def has(self, row: int) -> bool:
        """Return whether a row is one of them."""
        return row < len(self.marks) and bool(self.marks[row])


@dataclass(frozen=True)
class SampleLists:
    """The samples of a run."""

    session: Session
    run: DbRun
    counts: SharedReads

    @cached_property
    def _settings(self) -> EvaluationSettings:
        return evaluation_settings(self.run.request)

    @property
    def version(self) -> tuple[object, ...]:
        """Cached counts of the samples are valid while this value is the same."""
        run = self.run
        return run.id, run.status, run.revision, run.accepted

    def page(self, query: SampleQuery, *, limit: int, cursor: str | None) -> ItemPage[SampleEntry]:
        """Return samples, and how many there are."""
        position = sample_position(cursor, query) if cursor else None
        place = None
        if position is not None:
            place = KeysetPlace(position.value, (position.row, position.attempt), position.backward)
        found = read_page(self.session, [self._rows(query)], self._order(query), place, limit=limit + 1)
        flaky = self._flaky()
        entries = [self._entry(row, flaky.has(row.row_index)) for row in found]
        return replace(sample_page(query, position, entries, limit=limit), counts=self.count(query))

    def attempts(self, row: int) -> list[SampleEntry]:
        """Return the samples of a row, by attempt."""
        asked = SampleQuery(row=row)
        found = read_page(self.session, [self._rows(asked)], self._order(asked), None, limit=self._settings.n)
        is_flaky = self._are_mixed(found)
        return [self._entry(each, is_flaky) for each in found]

    def near(self, row: int, attempt: int) -> list[tuple[int, int]]:
        """Return (row, attempt) of so many samples on either side of a place that the three nearest are among them."""
        place, rows = KeysetPlace(None, (row, attempt)), self._all(select(*_PLACE))
        places, limit = [place, reversed_place(place)], 3 * self._settings.n
        order = self._order(SampleQuery())
        found = read_pages(self.session, [rows], order, places, limit=limit, is_last=True)
        return [(each.row_index, each.run_index) for side in found for each in side]

    def neighbours(
        self, query: SampleQuery, entry: SampleEntry
    ) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
        """Return (row, attempt) of the next and the previous sample of a query."""
        place = KeysetPlace(sorted_value(query, entry), (entry.row, entry.attempt))
        order = self._order(query)
        if query == SampleQuery(sort=query.sort, descending=query.descending):
            # The next one of all samples is found by the index whatever a database expects.
            order = replace(order, few=True)
        places = [place, reversed_place(place)]
        found = read_pages(self.session, [self._rows(query)], order, places, limit=1, is_last=True)
        following, preceding = [(page[0].row_index, page[0].run_index) if page else None for page in found]
        return following, preceding

    def count(self, query: SampleQuery) -> Mapping[str, int]:
        """Return how many samples there are, of the query and of each outcome."""
        asked = replace(query, sort="row", descending=False)
        whole = self._once("outcomes", self._count_outcomes)
        if asked == SampleQuery():
            return {**whole, "total": whole["unfiltered"]}
        mine = self._all(select(func.count()).select_from(DbSample))
        total = self._once(asked, lambda: self.session.scalar(mine.where(*self._conditions(query))) or 0)
        return {**whole, "total": total}

    def failures(self) -> list[FailureCount]:
        """Return the kinds of failures, the most frequent first."""
        return self._once("failures", self._count_failures)

    def rewards(self) -> Histogram | None:
        """Return the scored samples by reward; None where there are none."""
        return self._once("rewards", self._count_rewards)

    def _once(self, what: Hashable, count: Callable[[], CountedT]) -> CountedT:
        return self.counts.once((self.version, what), count)

    def _order(self, query: SampleQuery) -> KeysetOrder:
        value = _VALUES[query.sort]
        few = query.row is not None or (query.outcome == "flaky" and self._flaky().few is not None)
        have_value = query.sort == "duration" or (query.sort == "reward" and query.outcome in _BY_REWARD)
        if value is not None and getattr(query, value.key) != (None, None):
            have_value = True
        return KeysetOrder(value, _PLACE, query.descending, nullable=not have_value, few=few)

    def _rows(self, query: SampleQuery) -> Select[Any]:
        """Return the statement of a query's samples."""
        return self._all(select(*SAMPLE_COLUMNS)).where(*self._conditions(query, walked=_VALUES[query.sort]))

    def _all(self, statement: Select[Any]) -> Select[Any]:
        """Return a statement over all samples of the run."""
        return statement.where(DbSample.run_id == self.run.id)

    def _conditions(self, query: SampleQuery, walked: Any = None) -> list[ColumnElement[bool]]:
        """Return which samples a query means."""
        columns = {name: getattr(DbSample, name) for name in _RANGES}
        # SQLite would read a range of the compared value's index and sort, where another index is walked.
        values = {name: column if column is walked else column + 0 for name, column in columns.items()}
        passes = values["reward"] >= self._settings.pass_threshold
        by_outcome: dict[str | None, list[ColumnElement[bool]]] = {
            None: [],
            "passed": [_SCORED, passes],
            "below": [_SCORED, ~passes],
            "failed": [~_SCORED, DbSample.status == "failed"],
            "unscored": [~_SCORED],
        }
        found = [self._in_flaky_rows()] if query.outcome == "flaky" else by_outcome[query.outcome]
        if query.row is not None:
            found.append(DbSample.row_index == literal(query.row, BigInteger()))
        if query.finish is not None:
            found.append(cast(DbSample.finish_reasons, String).contains(f'"{query.finish}"', autoescape=True))
        if query.category is not None:
            found += [DbSample.status == "failed", _category == query.category]
        if query.boundary is not None:
            source = None if query.boundary == UNKNOWN else query.boundary
            found += [DbSample.status == "failed", DbSample.boundary == source]
        for name, value in values.items():
            low, high = getattr(query, name)
            found += [value >= literal(low, Float())] if low is not None else []
            found += [value <= literal(high, Float())] if high is not None else []
        if query.text:
            found.append(one_holds(self.session, _TEXTS, query.text))
        return found

    def _flaky_rows(self) -> Select[Any]:
        """Select the rows with mixed results and their sample counts. Copies of a row count as one, as in
        ``statistics/variance.py``.
        """
        passed = case((_SCORED, case((DbSample.reward >= self._settings.pass_threshold, 1), else_=0)))
        of_row: tuple[Any, ...] = (
            DbSample.row_index,
            func.coalesce(func.max(DbSample.row_digest), cast(DbSample.row_index, String)).label("cluster"),
            func.min(passed).label("least"),
            func.max(passed).label("most"),
            func.count().label("samples"),
        )
        rows = self._all(select(*of_row)).group_by(DbSample.row_index).cte()
        mixed = (
            select(rows.c.cluster)
            .group_by(rows.c.cluster)
            .having(func.min(rows.c.least) < func.max(rows.c.most))
        )
        return select(rows.c.row_index, rows.c.samples).where(rows.c.cluster.in_(mixed))

    def _in_flaky_rows(self) -> ColumnElement[bool]:
        """Return the condition that a sample is of a row that passes now and then; no database sorts for it."""
        flaky = self._flaky()
        if flaky.few is not None:
            return DbSample.row_index.in_(flaky.few)
        # To look a row up takes as long however many there are, in either database; behind the last it finds nothing.
        marked = func.substr(literal(flaky.marks, LargeBinary()), DbSample.row_index + 1, 1)
        return marked == literal(_MARK, LargeBinary())

    def _flaky(self) -> _FlakyRows:
        """Return the flaky rows, worked out once for as long as there is no new sample."""
        if self._settings.n < 2:
            return _FlakyRows.of(())
        return self._once("flaky", lambda: _FlakyRows.of(self.session.execute(self._flaky_rows()).all()))

    def _are_mixed(self, attempts: Sequence[Any]) -> bool:
        """Return whether a row passes now and then, looking at its attempts and those of its copies alone."""
        if self._settings.n < 2 or not attempts:
            return False
        threshold = self._settings.pass_threshold
        digest = max((each.row_digest for each in attempts if each.row_digest is not None), default=None)
        seen = {sample_entry(row, threshold).passed for row in attempts}
        if digest is not None:
            copies = self._all(select(DbSample.reward >= threshold).distinct())
            seen |= set(self.session.scalars(copies.where(DbSample.row_digest == digest, _SCORED)))
        return {True, False} <= seen

    def _count_outcomes(self) -> dict[str, int]:
        passed = and_(_SCORED, DbSample.reward >= self._settings.pass_threshold)
        counted = self._all(
            select(
                func.count(),
                func.coalesce(func.sum(case((passed, 1), else_=0)), 0),
                func.coalesce(func.sum(case((_SCORED, 1), else_=0)), 0),
                func.coalesce(func.sum(case((DbSample.status == "failed", 1), else_=0)), 0),
            ).select_from(DbSample)
        )
        recorded, passing, scored, failed = self.session.execute(counted).one()
        return {
            "unfiltered": recorded,
            "passed": int(passing),
            "below": int(scored - passing),
            "failed": int(failed),
            "unscored": int(recorded - scored),
            "pending": max(sampled_rows(self.run) * self._settings.n - recorded, 0),
            "flaky": self._flaky().samples,
        }

    def _count_failures(self) -> list[FailureCount]:
        """Return the kinds with the first of each; the samples are read once, and each first one by its key."""
        n = self._settings.n
        first = func.min(DbSample.row_index * n + DbSample.run_index).label("first")
        counted: tuple[Any, ...] = (
            DbSample.boundary,
            _category.label("category"),
            func.count().label("count"),
            first,
        )
        failed = self._all(select(*counted)).where(DbSample.status == "failed")
        kinds = failed.group_by(DbSample.boundary, _category).subquery()
        shown: tuple[Any, ...] = (*kinds.c, DbSample.error)
        at_first = (DbSample.row_index == kinds.c.first // n, DbSample.run_index == kinds.c.first % n)
        found = self.session.execute(
            self._all(select(*shown).join_from(kinds, DbSample, and_(*at_first))).order_by(
                kinds.c.count.desc(), kinds.c.first
            )
        )
        return [
            FailureCount(row.boundary, row.category, row[2], divmod(row.first, n), row.error) for row in found
        ]

    def _count_rewards(self) -> Histogram | None:
        """Return the histogram; rewards are few or many, but each is read once, in the order of its index."""
        counted: tuple[Any, ...] = (DbSample.reward, func.count())
        found = self.session.execute(
            self._all(select(*counted)).where(_SCORED).group_by(DbSample.reward)
        ).all()
        table = np.array([tuple(row) for row in found], dtype=np.float64).reshape(-1, 2)
        return Histogram.of(table[:, 0], table[:, 1])

    def _entry(self, row: Any, is_flaky: bool) -> SampleEntry:
        return replace(sample_entry(row, self._settings.pass_threshold), flaky=is_flaky)


def sampled_rows(run: DbRun) -> int:
    """Return how many rows of the dataset an evaluation uses."""
    return int((run.results or {}).get("sampled_rows") or 0)


# -- comparisons -------------------------------------------------------------------------------------

_BATCH = 5000
_COMPARED = (
    "status",
    "reward",
    "cost_usd",
    "tokens",
    "duration_ms",
    "model_latency_ms",
    "row_digest",
    "source_row_index",
)
_COMPARED_COLUMNS = (
    DbSample.row_index.label("row"),
    DbSample.run_index.label("attempt"),
    *(getattr(DbSample, name) for name in (*_COMPARED, "run_id")),
)


def compared_runs(session: Session, runs: Sequence[DbRun]) -> list[RunSamples]:
    """Return evaluations, in one statement however many they are."""
    collectors: dict[str, SampleCollector] = {}
    for run in runs:
        rows, n = sampled_rows(run), evaluation_settings(run.request).n
        if not rows:
            raise ConflictError(f"the run {run.name} is {run.status}: it has no row yet.")
        collectors[run.id] = SampleCollector(_without_samples(run), rows=rows, n=n, source="the platform")
    samples = select(*_COMPARED_COLUMNS).where(DbSample.run_id.in_(collectors))
    for sample in session.execute(samples.execution_options(yield_per=_BATCH)):
        collectors[sample.run_id].add(sample)
    return [collectors[run.id].run() for run in runs]


def samples_of_row(
    session: Session, runs: Sequence[DbRun], row_digest: str, *, limit: int
) -> list[list[SampleEntry]]:
    """Return each evaluation's samples of a row, in one statement for at most ``limit`` of them."""
    rows = session.execute(
        select(*SAMPLE_COLUMNS)
        .where(DbSample.row_digest == row_digest, DbSample.run_id.in_({run.id for run in runs}))
        .order_by(DbSample.row_index, DbSample.run_index)
        .limit(limit)
    ).all()
    thresholds = {run.id: evaluation_settings(run.request).pass_threshold for run in runs}
    return [[sample_entry(row, thresholds[run.id]) for row in rows if row.run_id == run.id] for run in runs]


def _without_samples(run: DbRun) -> RunSamples:
    imported, settings = run.imported or {}, evaluation_settings(run.request)
    limits = settings.agent_workflow_timeout_s, settings.grader_timeout_s
    return RunSamples(
        name=run.name,
        run_id=imported.get("local_run_id") or run.id,
        place="platform",
        location=run.name,
        status=run.status,
        inputs=ComparedInputs(
            model=run.model_path,
            dataset_name=run.dataset_name,
            dataset_sha256=(run.selection or {}).get("sha256"),
            rollout=run.rollout_name,
            entrypoint=(run.request.get("experiment_config") or {}).get("entrypoint"),
            grader_digest=run.grader_digest,
            commit=run.commit_sha or imported.get("git_head"),
            dirty=imported.get("git_dirty") if run.imported is not None else False,
            n=settings.n,
            seed=run.seed if run.imported is None else None,
            pass_threshold=settings.pass_threshold,
            env=dict(run.request.get("env_config") or {}) if run.imported is None else None,
            time_limits_s=limits if run.imported is None else None,
        ),
        row_keys=(),
        keyed_by="row_digest",
        source_rows=np.zeros(0, dtype=np.int64),
        samples=np.zeros(0, dtype=np.dtype(SAMPLE_FIELDS)),
        planned=sampled_rows(run) * settings.n,
        unfinished=_unfinished(run),
        imported=RunOrigin.model_validate(imported).words if run.imported is not None else None,
        revision=run.revision,
    )


def _unfinished(run: DbRun) -> str | None:
    """Return why a run proves nothing yet; None when it does."""
    if run.status == "finished":
        return None
    if run.status in OPEN:
        return f"the run {run.name} is {run.status}: not all of its attempts are available yet."
    said = f" ({run.error.rstrip('.')})" if run.error else ""
    return f"the run is {run.status}, not finished{said}: a part of a run proves nothing."
