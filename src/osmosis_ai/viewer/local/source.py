"""Viewer source for the runs on this machine, which it only reads."""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import RLock
from typing import Any, BinaryIO, TypeVar, get_args

import orjson

from osmosis_ai.api.models.base import LogPage
from osmosis_ai.config.issues import nearest
from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.decisions.local_runs import read_local_samples, require_dataset_file
from osmosis_ai.decisions.run_dataset import dataset_files, expected_answer
from osmosis_ai.decisions.samples import RunSamples
from osmosis_ai.errors import NotFoundError, OsmosisError, reason_of
from osmosis_ai.evaluation import attempt_files, journal
from osmosis_ai.evaluation.local_results import LocalResults, describe_lost_results, pass_threshold_of
from osmosis_ai.evaluation.manifest import Manifest
from osmosis_ai.evaluation.results import UNKNOWN
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.evaluation.run_log import read_log
from osmosis_ai.files import open_regular, size_of
from osmosis_ai.sqlite_text import ESCAPE, HOLDS, bindable, like_pattern, teach_holds
from osmosis_ai.training.runs.curves import RecordedTraining, TrainingCurves
from osmosis_ai.training.runs.run_directory import TrainingDirectory, ValidationSamples
from osmosis_ai.viewer.local import run_files
from osmosis_ai.viewer.local_runs import RunKind, RunPlace, RunPlaces, namesakes
from osmosis_ai.viewer.source import (
    SORTED_BY,
    FailureCount,
    Histogram,
    ItemPage,
    Outcome,
    Place,
    RunDetail,
    RunEntry,
    RunQuery,
    RunState,
    SampleDetail,
    SampleEntry,
    SamplePosition,
    SampleQuery,
    known_of,
    no_sample,
    sample_page,
    sample_position,
    sliceable_columns,
    sorted_value,
    traceback_in,
    validated_record,
)
from osmosis_ai.workspace.config_files import decisions_around

CountedT = TypeVar("CountedT")

COLUMNS = (
    "item", "offset", "status", "source_row", "row_digest", "reward", "tokens", "duration_ms", "model_latency_ms",
    "cost_usd", "finish_reasons", "boundary", "category", "error", "input", "output",
)  # fmt: skip
"""``item`` is row * n + attempt."""
_EMPTY = f"""
DROP TABLE IF EXISTS samples;
DROP TABLE IF EXISTS flaky_rows;
CREATE TABLE samples (item INTEGER PRIMARY KEY, {", ".join(COLUMNS[1:])});
CREATE TABLE flaky_rows (place INTEGER PRIMARY KEY);
"""
_INDEXES = """
CREATE INDEX by_reward ON samples (reward);
CREATE INDEX by_duration ON samples (duration_ms);
CREATE INDEX by_tokens ON samples (tokens);
CREATE INDEX by_cost ON samples (cost_usd);
CREATE INDEX by_digest ON samples (row_digest);
CREATE INDEX failures ON samples (boundary, category, item) WHERE status = 'failed';
"""
"""Created when the journal has been read to its end: updating them with every line is slow."""
_MARK_FLAKY = """
INSERT INTO flaky_rows
WITH tried AS (
    SELECT item / :n AS place, coalesce(max(row_digest), item / :n) AS cluster,
        min(reward >= :threshold) AS worst, max(reward >= :threshold) AS best
    FROM samples GROUP BY item / :n
)
SELECT place FROM tried
WHERE cluster IN (SELECT cluster FROM tried GROUP BY cluster HAVING min(worst) < max(best))
"""
"""As in `statistics/variance.py`, duplicates are one row."""
_INSERT = f"INSERT OR REPLACE INTO samples VALUES ({', '.join('?' for _ in COLUMNS)})"
_BATCH = 2_000
_TAIL_BYTES = 128
_WORD, _TEXT, _ERROR = 100, 200, 300  # characters

_FLAKY = "item / :n IN flaky_rows"
_CONDITIONS = {
    "passed": "reward >= :threshold",
    "below": "reward < :threshold",
    "failed": "reward IS NULL AND status = 'failed'",
    "unscored": "reward IS NULL",
    "flaky": _FLAKY,
}
_TEXTS = ("input", "output", "error")
_HOLDS = f"({{0}} LIKE :pattern ESCAPE '{ESCAPE}' AND {HOLDS}({{0}}, :text))"
_MOST_COUNTED = 200
_SELECT = f"SELECT {', '.join(COLUMNS)}, {_FLAKY} FROM samples"
_FAILURES = """
SELECT boundary, category, count(*), min(item), error FROM samples WHERE status = 'failed'
GROUP BY boundary, category ORDER BY count(*) DESC, min(item)
"""
"""``error`` is from the line with the least item (https://sqlite.org/lang_select.html#bareagg)."""
_REWARDS = "SELECT reward, count(*) FROM samples WHERE reward IS NOT NULL GROUP BY reward"


class AttemptIndex:
    """The attempts of a run in a private table; thread-safe."""

    def __init__(self, directory: Path) -> None:
        self.directory = RunDirectory(directory)
        self.lock = RLock()
        self.damage: str | None = None
        self.rows, self.n, self.threshold, self._identity = self._read_identity()
        # SQLite keeps it in memory while it is small, else in a file that vanishes with the connection.
        self._table = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        teach_holds(self._table)
        self._table.executescript("PRAGMA journal_mode = MEMORY; PRAGMA cache_size = -65536")
        self._unreadable: tuple[int, int] | None = None
        self._counted: dict[Hashable, Any] = {}
        self._forget()

    def _forget(self) -> None:
        self._table.executescript(_EMPTY)
        self.read, self._tail, self._is_indexed = 0, b"", False
        self._counted.clear()

    def close(self) -> None:
        self._table.close()

    def is_of_this_run(self) -> bool:
        with suppress(OsmosisError):
            return self._read_identity()[-1] == self._identity
        return False

    def refresh(self, *, patience_s: float | None = None) -> float | None:
        """Read new lines; return the share read if the time was not enough."""
        deadline = math.inf if patience_s is None else time.monotonic() + patience_s
        with self.lock:
            try:
                return self._read_on(deadline)
            except (OSError, sqlite3.Error) as error:
                self.damage = f"`{self.directory.events}` cannot be read ({reason_of(error)})."
                return None

    def find(self, statement: str, values: Mapping[str, Any]) -> list[Any]:
        with self.lock:
            return self._table.execute(statement, values).fetchall()

    def record(self, row: int, attempt: int) -> TerminalRecord | None:
        found = self.find("SELECT offset FROM samples WHERE item = :item", {"item": row * self.n + attempt})
        if not found:
            return None
        # The run may be deleted or archived at this moment.
        with suppress(ValueError, OSError), journal.JournalReader(self.directory.events) as lines:
            return lines.record(found[0][0])
        return None

    def _read_identity(self) -> tuple[int, int, float, str]:
        manifest = Manifest.load(self.directory.manifest)
        rows, n = manifest.planned(self.directory.manifest)
        threshold = pass_threshold_of(self.directory)
        return rows, n, threshold, f"{manifest.local_run_id} {rows} {n} {threshold!r}"

    def _read_on(self, deadline: float) -> float | None:
        size, changed = file_state(self.directory.events)
        if (size, changed) == self._unreadable:
            return None  # A damaged journal is read again only when it has changed.
        self._unreadable = self.damage = None
        if self.read > size or self._bytes_before(self.read) != self._tail:
            self._forget()
        if self.read == size and self._is_indexed:
            return None
        # A run that has not begun, or whose journal is gone, has no attempts.
        if size and not self._take_lines(size, deadline):
            return self.read / size
        if not self._is_indexed:
            self._table.executescript(_INDEXES)
            self._is_indexed = True
        self._unreadable = (size, changed) if self.read < size else None
        return None

    def _take_lines(self, size: int, deadline: float) -> bool:
        """Insert the journal's lines up to a damaged one; return whether there was time for all."""
        lines, end = list[tuple[Any, ...]](), self.read
        try:
            for entry in journal.replay(self.directory.events, end):
                lines.append(self._values(entry))
                end = entry.end
                if len(lines) >= _BATCH:
                    self._write(lines, end)
                    lines = []
                    if time.monotonic() > deadline and end < size:
                        return False
        except journal.JournalCorruptionError as error:
            self.damage = f"{error.with_hint} Only results before this line are shown."
        if lines:
            self._write(lines, end)
        return True

    def _values(self, entry: journal.Entry) -> tuple[Any, ...]:
        record = entry.record
        if record.row_index >= self.rows or record.run_index >= self.n:
            raise journal.not_part_of_run(record.row_index, record.run_index, self.directory.events)
        return (
            record.row_index * self.n + record.run_index,
            entry.offset,
            record.status,
            record.source_row_index,
            record.row_digest,
            record.reward if record.status == "success" else None,
            record.total_tokens,
            float(record.duration_ms),
            record.model_latency_ms,
            record.cost_usd,
            orjson.dumps(record.finish_reasons).decode() if record.finish_reasons else None,
            # The text is untrusted and can be long; cells of the table are short.
            _cut(record.boundary, _WORD),
            _cut(record.category or record.error_type, _WORD),
            _cut(record.error, _ERROR),
            _cut(record.input, _TEXT),
            _cut(record.output, _TEXT),
        )

    def _bytes_before(self, end: int) -> bytes:
        """Return the bytes before ``end``, whose checksum identifies the journal."""
        if end == 0:
            return b""
        with open_regular(self.directory.events) as journal:
            journal.seek(max(0, end - _TAIL_BYTES))
            return journal.read(min(end, _TAIL_BYTES))

    def _write(self, lines: list[tuple[Any, ...]], end: int) -> None:
        with self._table as table:
            table.execute("BEGIN")
            table.executemany(_INSERT, lines)
        self.read, self._tail = end, self._bytes_before(end)
        self._counted.clear()

    def _mark_flaky(self) -> None:
        self.find("DELETE FROM flaky_rows", {})
        if self.n > 1:
            self.find(_MARK_FLAKY, {"n": self.n, "threshold": self.threshold})

    def page(self, query: SampleQuery, *, limit: int, cursor: str | None = None) -> ItemPage[SampleEntry]:
        position = sample_position(cursor, query) if cursor else None
        with self.lock:
            counts = self.counts(query)
            # Without the total, a search with few matches would read every attempt again.
            found = self.around(query, position, limit=min(limit + 1, counts["total"]))
            return replace(sample_page(query, position, found, limit=limit), counts=counts)

    def around(self, query: SampleQuery, position: SamplePosition | None, *, limit: int) -> list[SampleEntry]:
        """Return the attempts after (or before) a position, nearest first."""
        conditions, values = self._filter(query)
        column, backward = SORTED_BY[query.sort], position is not None and position.backward
        # Attempts without a value form a separate list after the others.
        parts: list[tuple[list[str], tuple[str, ...], bool]] = [([], (), query.descending != backward)]
        if column is not None:
            valued = [f"{column} IS NOT NULL"], (column,), query.descending != backward
            unvalued = [f"{column} IS NULL"], (), backward
            parts = [unvalued, valued] if backward else [valued, unvalued]
            if position is not None:
                parts = parts[parts.index(unvalued if position.value is None else valued) :]
        if position is not None:
            values |= {"after": position.row * self.n + position.attempt, "value": position.value}
        found: list[SampleEntry] = []
        for number, (condition, columns, descending) in enumerate(parts):
            where, key = [*conditions, *condition], (*columns, "item")
            if position is not None and number == 0:
                place = ", ".join((*(":value" for _ in columns), ":after"))
                where.append(f"({', '.join(key)}) {'<' if descending else '>'} ({place})")
            order = ", ".join(f"{name}{' DESC' if descending else ''}" for name in key)
            if len(found) < limit:
                statement = f"{_SELECT}{_where(where)} ORDER BY {order} LIMIT :limit"
                found += self._entries(statement, {**values, "limit": limit - len(found)})
        return found

    def no_sample(self, run: str, row: int, attempt: int | None) -> NotFoundError:
        rows, n = self.rows, self.n
        values = {"place": min(row, rows) * n + min(attempt or 0, n), "most": 3 * n}
        near: list[Place] = []
        for side in ("< :place ORDER BY item DESC", ">= :place ORDER BY item"):
            found = self.find(f"SELECT item FROM samples WHERE item {side} LIMIT :most", values)
            near += [divmod(item, n) for (item,) in found]
        return no_sample(run, row, attempt, near, rows=rows, n=n)

    def neighbours(self, query: SampleQuery, entry: SampleEntry) -> tuple[Place | None, Place | None]:
        here = SamplePosition(sorted_value(query, entry), entry.row, entry.attempt)
        found = (self.around(query, place, limit=1) for place in (here, here._replace(backward=True)))
        following, preceding = ((page[0].row, page[0].attempt) if page else None for page in found)
        return following, preceding

    def attempts(self, row: int) -> list[SampleEntry]:
        return self.around(SampleQuery(row=row), None, limit=self.n) if row < self.rows else []

    def of_digest(self, digest: str, *, limit: int) -> list[SampleEntry]:
        statement = f"{_SELECT} WHERE row_digest = :digest ORDER BY item LIMIT :limit"
        return self._entries(statement, {"digest": digest, "limit": limit, "n": self.n})

    def counts(self, query: SampleQuery) -> Mapping[str, int]:
        whole = self._once("counts", self._count_outcomes)
        asked = replace(query, sort="row", descending=False)
        return {**whole, "total": self._once(asked, lambda: self._count(query))}

    def _once(self, key: Hashable, count: Callable[[], CountedT]) -> CountedT:
        with self.lock:
            if key not in self._counted:
                if len(self._counted) >= _MOST_COUNTED:
                    self._counted.clear()
                self._counted[key] = count()
            found: CountedT = self._counted[key]
            return found

    def _count_outcomes(self) -> dict[str, int]:
        self._once("flaky", self._mark_flaky)
        found = {outcome: self._count(SampleQuery(outcome=outcome)) for outcome in get_args(Outcome)}
        recorded = self._count(SampleQuery())
        return {**found, "unfiltered": recorded, "pending": self.rows * self.n - recorded}

    def _count(self, query: SampleQuery) -> int:
        conditions, values = self._filter(query)
        return int(self.find(f"SELECT count(*) FROM samples{_where(conditions)}", values)[0][0])

    def failures(self) -> list[FailureCount]:
        found = self._once("failures", lambda: self.find(_FAILURES, {}))
        return [
            FailureCount(boundary, category, count, divmod(item, self.n), error)
            for boundary, category, count, item, error in found
        ]

    def rewards(self) -> Histogram | None:
        import numpy as np

        found = self._once("rewards", lambda: self.find(_REWARDS, {}))
        table = np.array(found, np.float64).reshape(-1, 2)
        return Histogram.of(table[:, 0], weights=table[:, 1])

    def _filter(self, query: SampleQuery) -> tuple[list[str], dict[str, Any]]:
        text = bindable(query.text)
        conditions, values = list[str](), {"n": self.n, "threshold": self.threshold, "text": text}
        if query.outcome is not None:
            reward = "reward" if query.sort == "reward" else "+reward"
            conditions.append(_CONDITIONS[query.outcome].replace("reward", reward, 1))
        if query.row is not None:
            conditions.append("item >= :row * :n AND item < (:row + 1) * :n")
            values["row"] = min(query.row, self.rows)  # larger numbers may not fit into SQLite's integers
        if query.finish is not None:
            conditions.append("finish_reasons LIKE :finish")
            values["finish"] = f'%"{query.finish}":%'
        for name, wanted in (("category", query.category), ("boundary", query.boundary)):
            if wanted is not None:
                conditions.append(f"status = 'failed' AND {name} IS :{name}")
                values[name] = None if wanted == UNKNOWN else wanted
        for name in ("reward", "tokens", "duration_ms", "cost_usd"):
            column = name if SORTED_BY[query.sort] == name else f"+{name}"
            for sign, end, bound in zip((">=", "<="), ("low", "high"), getattr(query, name), strict=True):
                if bound is not None:
                    conditions.append(f"{column} {sign} :{name}_{end}")
                    values[f"{name}_{end}"] = bound
        if query.text:
            conditions.append(f"({' OR '.join(map(_HOLDS.format, _TEXTS))})")
            values["pattern"] = like_pattern(text)
        return conditions, values

    def _entries(self, statement: str, values: Mapping[str, Any]) -> list[SampleEntry]:
        self._once("flaky", self._mark_flaky)
        return [self._entry(line) for line in self.find(statement, values)]

    def _entry(self, line: Sequence[Any]) -> SampleEntry:
        known = dict(zip(COLUMNS, line, strict=False))
        row, attempt = divmod(known.pop("item"), self.n)
        del known["offset"]
        known["finish_reasons"] = orjson.loads(known["finish_reasons"] or "null")
        reward = known["reward"]
        passed = None if reward is None else reward >= self.threshold
        return SampleEntry(row=row, attempt=attempt, passed=passed, flaky=line[-1] == 1, **known)


def _cut(text: str | None, most: int) -> str | None:
    return (text or "")[:most] or None


def file_state(path: Path) -> tuple[int, int]:
    """Return a file's size and modification time in nanoseconds; zeros if it is missing."""
    try:
        known = path.stat()
    except OSError:
        return 0, 0
    return known.st_size, known.st_mtime_ns


def _where(conditions: Sequence[str]) -> str:
    return f" WHERE {' AND '.join(conditions)}" if conditions else ""


_MOST_OPEN = 8
_ELSEWHERE_S = 1.0
_MOST_COMPARED = 1_000

_PARTLY_READ = "{share:.0%} of the results are read so far: failures and rewards are counted over these, the numbers over all."

OpenedT = TypeVar("OpenedT")


class _OpenRuns(dict[Path, OpenedT]):
    def of(self, path: Path, make: Callable[[Path], OpenedT], fits: Callable[[OpenedT], bool]) -> OpenedT:
        found = self.pop(path, None)
        self[path] = found if found is not None and fits(found) else make(path)
        if len(self) > _MOST_OPEN:
            del self[next(iter(self))]
        return self[path]


def _columns(path: Path) -> Sequence[str]:
    """Return the columns by which a run's results can be divided; none if its dataset is unavailable."""
    with suppress(OsmosisError, OSError, ValueError):
        for file in dataset_files(path, path):
            return sliceable_columns(file)
    return ()


class LocalSource:
    def __init__(self, root: Path, *, cache_dir: Path, patience_s: float | None = None) -> None:
        self._patience_s = patience_s
        self._places = RunPlaces(root, results=cache_dir / "eval_result")
        self._list = run_files.RunList(self._places, patience_s=patience_s)
        self._lock = RLock()
        self._indexes = _OpenRuns[AttemptIndex]()
        self._followed = _OpenRuns[LocalResults]()

    def close(self) -> None:
        with self._lock:
            for samples in self._indexes.values():
                samples.close()
            self._indexes.clear()

    def runs(self, query: RunQuery, *, limit: int, cursor: str | None = None) -> ItemPage[RunEntry]:
        return self._list.page(query, limit=limit, cursor=cursor)

    def run(self, kind: RunKind, name: str) -> RunDetail:
        place = self._place(kind, name)
        if kind == "eval":
            detail = self._evaluation_detail(place)
        elif kind == "training":
            detail = run_files.read_training(place.path, name).detail
        else:
            detail = run_files.session_detail(*run_files.read_session(place.path, name), File=str(place.path))
        entry, previous = self._list.in_its_series(run_files.with_time_so_far(detail.summary))
        beside = namesakes(place, self._places.all())
        return replace(detail, summary=entry, previous=previous, namesakes=beside)

    def samples(
        self, run: str, query: SampleQuery, *, limit: int, cursor: str | None = None
    ) -> ItemPage[SampleEntry]:
        samples, progress = self._samples(self._place("eval", run))
        page, directory = samples.page(query, limit=limit, cursor=cursor), samples.directory
        lost = describe_lost_results(directory, directory.read_metrics() or {})
        problems = [*([lost] if lost else []), *([samples.damage] if samples.damage else [])]
        return replace(page, progress=progress, problems=problems)

    def sample(self, run: str, row: int, attempt: int, query: SampleQuery) -> SampleDetail:
        samples, entry = self._sample(run, row, attempt)
        record = samples.record(row, attempt)
        diagnostics = attempt_files.read_diagnostics(samples.directory, record.rollout_id) if record else b""
        following, previous = samples.neighbours(query, entry)
        return SampleDetail(
            summary=entry,
            record=known_of(record) if record is not None else {},
            ground_truth=expected_answer(samples.directory.path, entry.source_row, entry.row_digest),
            traceback=traceback_in(diagnostics),
            next=following,
            previous=previous,
            attempts=samples.attempts(row),
        )

    def conversation(
        self, run: str, row: int, attempt: int, *, max_bytes: int, kind: RunKind = "eval"
    ) -> attempt_files.StoredConversation:
        return self._attempt(run, row, attempt, kind).conversation(max_bytes=max_bytes)

    def read_conversations(
        self, run: str, samples: Sequence[SampleEntry], *, max_bytes: int
    ) -> Iterator[attempt_files.StoredConversation]:
        return (self.conversation(run, each.row, each.attempt, max_bytes=max_bytes) for each in samples)

    def artifacts(self, run: str, row: int, attempt: int) -> Sequence[attempt_files.StoredArtifact]:
        return self._attempt(run, row, attempt).artifacts()

    def open_artifact(self, run: str, row: int, attempt: int, path: str) -> BinaryIO:
        return self._attempt(run, row, attempt).open_artifact(path)

    def elsewhere(self, row_digest: str, *, limit: int) -> Sequence[tuple[RunEntry, SampleEntry]]:
        found: list[tuple[RunEntry, SampleEntry]] = []
        deadline = time.monotonic() + _ELSEWHERE_S
        for entry in self._list.newest("eval"):
            if len(found) >= limit or time.monotonic() > deadline:
                break
            with suppress(OsmosisError):
                samples, _ = self._samples(self._place("eval", entry.name))
                found += [(entry, sample) for sample in samples.of_digest(row_digest, limit=limit)]
        return found[:limit]

    def log(self, kind: RunKind, run: str, *, limit: int, cursor: str | None = None) -> LogPage:
        return read_log(RunDirectory(self._place(kind, run).path).log, limit=limit, cursor=cursor)

    def curves(self, run: str) -> TrainingCurves:
        return RecordedTraining.read(TrainingDirectory(self._place("training", run).path)).curves()

    def validation(self, run: str) -> ValidationSamples | None:
        return TrainingDirectory(self._place("training", run).path).read_validation()

    def state(self, kind: RunKind, run: str) -> RunState:
        place = self._place(kind, run)
        log = size_of(RunDirectory(place.path).log) if kind != "rubric" else 0
        if kind != "eval":
            entry = self._list.entry(place)
            size, changed = file_state(place.path / "metrics.jsonl" if kind == "training" else place.path)
            return RunState(f"{entry.status}.{size}.{changed}.{log}", entry.status)
        known = self._evaluation(place)
        read = self._samples(place)[0].read if known.manifest is not None else 0
        entry = known.detail.summary
        return RunState(f"{entry.status}.{read}.{log}", entry.status, entry.headline)

    def no_sample(self, run: str, row: int, attempt: int | None) -> NotFoundError:
        samples, _ = self._samples(self._place("eval", run))
        return samples.no_sample(run, row, attempt)

    def require_samples(self, run: str) -> None:
        samples, _ = self._samples(self._place("eval", run))
        if samples.damage is not None and not samples.read:
            raise OsmosisError(samples.damage)

    def kinds(self, names: Sequence[str]) -> Mapping[str, Collection[RunKind]]:
        kinds: Sequence[RunKind] = get_args(RunKind)
        return {name: [kind for kind in kinds if self._places.named(kind, name)] for name in names}

    def run_samples(self, runs: Sequence[str]) -> Sequence[RunSamples]:
        found: list[RunSamples] = []
        for run in runs:
            directory = self._place("eval", run).path
            samples = read_local_samples(directory)
            decided, _ = decisions_around(samples.inputs.config, directory)
            reward_range = decided.reward_range if decided is not None else None
            opened = partial(require_dataset_file, samples, directory)
            found.append(replace(samples, name=run, reward_range=reward_range, open_dataset=opened))
        return found

    def compared_training(self, runs: Sequence[str]) -> Sequence[tuple[RunDetail, TrainingCurves]]:
        return [(self.run("training", run), self.curves(run)) for run in runs]

    def samples_of_row(self, digest: str, runs: Sequence[str], *, limit: int) -> list[list[SampleEntry]]:
        opened = [self._samples(self._place("eval", run))[0] for run in runs]
        return [samples.of_digest(digest, limit=limit) for samples in opened]

    def _place(self, kind: RunKind, name: str) -> RunPlace:
        place = self._places.named(kind, name)
        if place is not None:
            return place
        names = [place.name for place in self._places.all() if place.kind == kind]
        near = nearest(name[:255], names[:_MOST_COMPARED], most=3, cutoff=0)
        raise NotFoundError(f"there is no run `{name[:100]}`.", details={"nearest": near})

    def _evaluation_detail(self, place: RunPlace) -> RunDetail:
        known = self._evaluation(place)
        detail = replace(known.detail, facts=run_files.facts_of(known, place.path))
        if known.manifest is None:
            return detail
        samples, progress = self._samples(place)
        decided, refused = decisions_around(detail.summary.config, place.path)
        damage = samples.damage if detail.summary.error is None else None
        problems = [*detail.problems, *([damage] if damage is not None else []), *refused]
        if progress is not None:
            problems.append(_PARTLY_READ.format(share=progress))
        return replace(
            detail,
            config_written=attempt_files.read_config(samples.directory),
            config_effective=known.manifest.inputs,
            secret_names=run_files.texts_in(known.manifest.inputs.get("secret_names")),
            failures=samples.failures(),
            rewards=samples.rewards(),
            problems=problems,
            commands=run_files.commands_of(known.manifest, detail.summary, place.path),
            decided=decided,
            columns=_columns(place.path),
        )

    def _evaluation(self, place: RunPlace) -> run_files.ReadRun:
        follow = partial(self._followed.of, place.path, LocalResults, LocalResults.is_current)
        with self._lock:
            return run_files.read_evaluation(place.path, place.name, follow=follow)

    def _samples(self, place: RunPlace) -> tuple[AttemptIndex, float | None]:
        with self._lock:
            samples = self._indexes.of(place.path, AttemptIndex, AttemptIndex.is_of_this_run)
        return samples, samples.refresh(patience_s=self._patience_s)

    def _sample(self, run: str, row: int, attempt: int) -> tuple[AttemptIndex, SampleEntry]:
        samples, _ = self._samples(self._place("eval", run))
        entry = next((each for each in samples.attempts(row) if each.attempt == attempt), None)
        if entry is None:
            raise samples.no_sample(run, row, attempt)
        return samples, entry

    def _attempt(
        self, run: str, row: int, attempt: int, kind: RunKind = "eval"
    ) -> attempt_files.AttemptFiles:
        if kind == "training":
            rollout_id = validated_record(self.validation(run), run, row, attempt).rollout_id
            directory = RunDirectory(self._place(kind, run).path)
            return attempt_files.AttemptFiles(directory, rollout_id, row, attempt)
        samples, _ = self._sample(run, row, attempt)
        record = samples.record(row, attempt)
        rollout_id = record.rollout_id if record is not None else "-"
        return attempt_files.AttemptFiles(samples.directory, rollout_id, row, attempt)
