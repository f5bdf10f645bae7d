"""Local runs: their files, and the list, whose entries are read again when files have changed."""

from __future__ import annotations

import hashlib
import math
import os
import shlex
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from functools import lru_cache
from operator import ge, gt, itemgetter, le, lt
from pathlib import Path, PurePath
from threading import Lock
from typing import Any, NamedTuple

from osmosis_ai.config.toml_text import config_text
from osmosis_ai.datasets.selection import RowsDrawn
from osmosis_ai.errors import OsmosisError, reason_of
from osmosis_ai.evaluation import local_results
from osmosis_ai.evaluation.attempt_files import read_environment
from osmosis_ai.evaluation.journal import replay
from osmosis_ai.evaluation.lenient_json import as_number, as_table, as_text
from osmosis_ai.evaluation.manifest import Manifest, is_running
from osmosis_ai.evaluation.metrics import RunScore
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.files import size_of
from osmosis_ai.rubric.documents import read_result
from osmosis_ai.training.runs import metrics
from osmosis_ai.training.runs.curves import RecordedTraining
from osmosis_ai.training.runs.run_directory import TrainingDirectory
from osmosis_ai.ui.numbers import parse_date
from osmosis_ai.viewer.local_runs import RunKind, RunPlace, RunPlaces
from osmosis_ai.viewer.source import (
    ItemPage,
    RunDetail,
    RunEntry,
    RunQuery,
    Scalar,
    decode,
    encode,
    order_of,
    refused,
)


def recorded_entry(kind: RunKind, name: str, manifest: Manifest, *, dataset: str | None = None) -> RunEntry:
    """Return a run's entry from its manifest, as of a run without a process."""
    inputs, provenance = manifest.inputs, manifest.provenance
    dataset = as_text(provenance.get("dataset_name")) or dataset
    rollout, dirty = as_text(as_table(inputs.get("rollout")).get("name")), provenance.get("git_dirty")
    return RunEntry(
        kind=kind,
        name=name,
        id=manifest.local_run_id,
        status="incomplete",
        started_at=parse_date(as_text(manifest.created_at) or ""),
        model=as_text(inputs.get("model_path")),
        dataset=dataset,
        rollout=rollout,
        commit=as_text(provenance.get("git_head")),
        dirty=dirty if isinstance(dirty, bool) else None,
        # Of which no config is known, they have these in common.
        config=as_text(provenance.get("config")) or " on ".join(filter(None, (rollout, dataset))) or None,
    )


def shown_facts(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(label, str(value)) for label, value in facts.items() if value is not None]


def texts_in(recorded: Any) -> list[str]:
    return [each for each in recorded if isinstance(each, str)] if isinstance(recorded, list) else []


def commit_of(entry: RunEntry) -> str | None:
    return entry.commit and f"{entry.commit}{' (dirty)' if entry.dirty else ''}"


def with_time_so_far(entry: RunEntry) -> RunEntry:
    if entry.status != "running" or entry.duration_s or entry.started_at is None:
        return entry
    return replace(
        entry, duration_s=max(0.0, (datetime.now(timezone.utc) - entry.started_at).total_seconds())
    )


class ReadRun(NamedTuple):
    """A run read from its directory; the ``detail`` of an evaluation lacks attempts and facts."""

    detail: RunDetail
    manifest: Manifest | None = None
    recorded: RecordedTraining | None = None


def read_evaluation(
    directory: Path, name: str, *, follow: Callable[[], local_results.LocalResults] | None = None
) -> ReadRun:
    """Read an evaluation; damage becomes a problem, not an error."""
    found = RunDirectory(directory)
    try:
        manifest = Manifest.load(found.manifest)
    except OsmosisError as error:
        entry = RunEntry("eval", name, id=str(directory), status="incomplete", error=error.message)
        return ReadRun(RunDetail(entry, problems=(error.with_hint,)))
    # Check the lock first: the process that releases it has written everything before.
    running = is_running(directory.parent, directory.name)
    written = found.read_metrics() or {}
    estimates, numbers, problems = local_results.current_numbers(found, written, follow)
    if follow is None and estimates is not None and not problems:
        problems = _damage(found.events)
    facts = as_table(written.get("eval_run"))
    headline = RunScore.of(estimates, RowsDrawn.read(facts.get("rows"))) if estimates is not None else None
    pending, took_ms = headline is None or headline.pending > 0, as_number(facts.get("duration_ms"))
    reward = estimates.reward if estimates is not None else None
    entry = recorded_entry("eval", name, manifest, dataset=as_text(facts.get("dataset_name")))
    entry = replace(
        entry,
        status="running" if running else "incomplete" if pending else "finished",
        ended_at=parse_date(as_text(facts.get("completed_at")) or ""),
        measures=_measures(manifest, local_results.pass_threshold_of(found, written)),
        headline=headline,
        reward=reward.value if reward is not None else None,
        reward_low=reward.low if reward is not None else None,
        reward_high=reward.high if reward is not None else None,
        cost_usd=estimates.cost_usd.total if estimates is not None else None,
        duration_s=took_ms / 1000 if took_ms is not None else None,
        error=problems[0] if problems else None,
    )
    context = texts_in(manifest.provenance.get("missing_data"))
    problems = (*problems, *context)
    return ReadRun(RunDetail(entry, estimates, numbers or {}, problems=problems, context=context), manifest)


def _damage(events: Path) -> tuple[str, ...]:
    """Return the problem of a journal of the expected size; lists do not read large journals."""
    try:
        if 0 < size_of(events) <= local_results.MAX_LISTED_BYTES:
            deque(replay(events), maxlen=0)
    except OsmosisError as error:
        return (f"{error.with_hint} The numbers are those of the run's last session.",)
    return ()


def _measures(manifest: Manifest, threshold: float) -> str:
    """Return a digest of what runs must share to be comparable."""
    rollout, dataset = (as_table(manifest.inputs.get(name)) for name in ("rollout", "dataset"))
    rows = manifest.provenance.get("dataset_name"), dataset.get("sha256"), dataset.get("selected_source_rows")
    return hashlib.sha256(repr((rollout.get("name"), *rows, threshold)).encode()).hexdigest()[:16]


def facts_of(known: ReadRun, directory: Path) -> list[tuple[str, str]]:
    entry, manifest = known.detail.summary, known.manifest
    if manifest is None:
        return [("Directory", str(directory))]
    inputs, provenance = manifest.inputs, manifest.provenance
    dataset, rollout, timeouts = (as_table(inputs.get(name)) for name in ("dataset", "rollout", "timeouts"))
    facts = {
        "Model": entry.model,
        "Dataset": entry.dataset,
        "Dataset's SHA-256": dataset.get("sha256"),
        "Rows": dataset.get("selected_source_rows"),
        "Attempts per row": inputs.get("n"),
        "Seed": inputs.get("seed"),
        "Rollout": rollout.get("name"),
        "Entrypoint": rollout.get("entrypoint"),
        "Digest of the source": rollout.get("source_digest"),
        "Grader": manifest.grader_digest,
        "Config": provenance.get("config"),
        "Commit": commit_of(entry),
        "Branch": provenance.get("git_branch"),
        "Environment": read_environment(directory),
        "Isolation": provenance.get("isolation"),
        "Agent's time limit (s)": timeouts.get("agent_timeout_sec"),
        "Grader's time limit (s)": timeouts.get("grader_timeout_sec"),
        "Osmosis version": provenance.get("sdk_version"),
        "Run id": as_text(provenance.get("run_id")) or manifest.local_run_id,
        "Directory": str(directory),
    }
    return shown_facts(facts)


def commands_of(manifest: Manifest, entry: RunEntry, directory: Path) -> list[str]:
    config, given = manifest.provenance.get("config"), texts_in(manifest.provenance.get("options"))
    if not isinstance(config, str) or entry.status == "running":
        return []
    again = shlex.join(["osmosis", "eval", "run", config, "--name", directory.name, *given])
    failed = entry.headline is not None and (entry.headline.failed or entry.headline.skipped)
    found = [again] if entry.status == "incomplete" else []
    return [*found, *([f"{again} --retry-failed"] if failed else [])]


def read_training(path: Path, name: str) -> ReadRun:
    directory = TrainingDirectory(path)
    try:
        manifest = Manifest.load(directory.manifest)
    except OsmosisError as error:
        entry = RunEntry("training", name, id=str(path), status="incomplete", error=error.message)
        detail = RunDetail(entry, problems=(error.message,), facts=[("Directory", str(path))])
        return ReadRun(detail)
    running = directory.is_running()
    recorded = RecordedTraining.read(directory)
    reward, total = recorded.newest(metrics.VALIDATION_REWARD), recorded.total_steps
    of_validation = reward is not None
    finished = bool(recorded.records) and (total is None or recorded.last_step >= total)
    ended = None if running else recorded.ended_at
    entry = recorded_entry("training", name, manifest)
    entry = replace(
        entry,
        status="running" if running else "finished" if finished else "incomplete",
        ended_at=ended,
        reward=reward if of_validation else recorded.newest(metrics.TRAINING_REWARD),
        reward_low=recorded.newest(metrics.VALIDATION_REWARD_LOW) if of_validation else None,
        reward_high=recorded.newest(metrics.VALIDATION_REWARD_HIGH) if of_validation else None,
        duration_s=(ended - entry.started_at).total_seconds() if ended and entry.started_at else None,
        error=recorded.problems[0] if recorded.problems else None,
    )
    facts = {
        "Steps": f"{recorded.last_step} of {total}" if total is not None else recorded.last_step,
        "Model": entry.model,
        "Dataset": entry.dataset,
        "Rollout": entry.rollout,
        "Config": as_text(manifest.provenance.get("config")),
        "Commit": commit_of(entry),
        "Environment": read_environment(path),
        "Isolation": as_text(manifest.provenance.get("isolation")),
        "Device": recorded.planned("device"),
        **as_table(recorded.planned("adapter")),
        "Run id": manifest.local_run_id,
        "Directory": str(path),
    }
    written = manifest.provenance.get("config")
    detail = RunDetail(
        entry,
        facts=shown_facts(facts),
        config_written=config_text(written) if isinstance(written, dict) else None,
        config_effective=manifest.inputs,
        secret_names=texts_in(manifest.inputs.get("secret_names")),
        problems=recorded.problems,
    )
    return ReadRun(detail, manifest, recorded)


def read_session(path: Path, name: str) -> tuple[RunEntry, Mapping[str, Any], str | None]:
    """Return a session's list entry, its document (empty if unreadable), and the read error."""
    try:
        document = read_result(path)
    except (OSError, ValueError, RecursionError) as error:
        problem = f"`{path}` is not a readable result of a judging session ({reason_of(error)})."
        return RunEntry("rubric", name, id=str(path), status="incomplete", error=problem), {}, problem
    return session_entry(document, name, str(path)), document, None


def session_entry(document: Mapping[str, Any], name: str, id: str) -> RunEntry:
    usage, statistics = as_table(document.get("usage")), as_table(document.get("overall_statistics"))
    counts = as_table(document.get("counts"))
    scored = counts.get("scored") or statistics.get("success_count")
    made = parse_date(as_text(document.get("generated_at")) or "")
    return RunEntry(
        kind="rubric",
        name=name,
        id=id,
        status="finished" if document.get("complete", True) else "incomplete",
        started_at=made,
        ended_at=made,
        model=as_text(document.get("model")),
        dataset=as_text(document.get("data_path")) and PurePath(str(document["data_path"])).name,
        config=as_text(document.get("rubric_id")),
        headline=_calls(counts),
        reward=as_number(statistics.get("average")) if scored else None,
        cost_usd=as_number(usage.get("cost_usd")),
        duration_s=as_number(usage.get("elapsed_s")),
    )


def _calls(counts: Mapping[str, Any]) -> RunScore | None:
    known = [as_number(counts.get(name)) for name in ("calls", "scored", "failed", "unscored", "pending")]
    if None in known:
        return None
    calls, scored, failed, unscored, pending = (int(each or 0) for each in known)
    return RunScore(planned=calls, scored=scored, failed=failed + unscored, pending=pending)


def session_detail(
    entry: RunEntry, document: Mapping[str, Any], problem: str | None, **known: str | None
) -> RunDetail:
    """Return a judging session's details: ``summary_numbers`` is its document, ``known`` adds facts."""
    records, models = document.get("records"), document.get("models")
    inputs = as_table(document.get("inputs"))
    facts = {
        "Rubric": document.get("rubric_id"),
        "Rubric from": document.get("rubric_source"),
        "Judges": ", ".join(map(str, models)) if isinstance(models, list) else entry.model,
        "Data": document.get("data_path"),
        "Data, SHA-256": inputs.get("data"),
        "Records": len(records) if isinstance(records, list) else None,
        "Calls per record and judge": document.get("number"),
        "Seed": document.get("seed"),
        **known,
    }
    return RunDetail(
        entry,
        summary_numbers=document,
        config_written=as_text(document.get("rubric")) or as_text(inputs.get("rubric")),
        facts=shown_facts(facts),
        problems=[problem] if problem is not None else [],
    )


TREND_RUNS = 10
_NAME_CHARACTERS = 60
_MOST_SORTED = 16
_LOOK_AT_ALL_S = 5.0
_Name = tuple[RunKind, str]
_Stamp = tuple[int, ...]
_Series = tuple[str | None, ...]
_EQUAL = ("kind", "status", "model", "dataset", "rollout", "person")
_LONG_AGO = datetime.min.replace(tzinfo=timezone.utc)
_FAR_AHEAD = datetime.max.replace(tzinfo=timezone.utc)


class RunList:
    def __init__(self, places: RunPlaces, *, patience_s: float | None = None) -> None:
        self._lock = Lock()
        self._patience_s = patience_s
        self._run_places = places
        self._places: Sequence[RunPlace] = ()
        self._looked = float("-inf")
        self._unread = 0
        # The state of a run's files when they were read, and its entry.
        self._known: dict[Path, tuple[_Stamp, RunEntry]] = {}
        self._listed: dict[_Name, tuple[RunPlace, RunEntry]] = {}
        self._series: dict[_Series, list[RunEntry]] = {}
        # These caches are cleared when the list changes.
        self._found, self._counts = lru_cache(_MOST_SORTED)(self._sorted), lru_cache(self._count)

    def page(self, query: RunQuery, *, limit: int, cursor: str | None = None) -> ItemPage[RunEntry]:
        with self._lock:
            self._refresh(self._patience_s)
            page = self._page(query, limit, cursor)
            # Runs that are shown are current; the others may be a few seconds old.
            if not self._unread and any(map(self._has_changed, page.items)):
                self._look_at_all(self._patience_s)
                page = self._page(query, limit, cursor)
            return page if not self._unread else replace(page, progress=1 - self._unread / len(self._places))

    def _page(self, query: RunQuery, limit: int, cursor: str | None) -> ItemPage[RunEntry]:
        found = self._found(query)
        first, last = _slice(found, query, limit, cursor)
        items = [self._with_trend(entry) for entry in found[first:last]]
        return ItemPage(
            items,
            next=_cursor(query, items[-1]) if items and last < len(found) else None,
            previous=_cursor(query, items[0], backward=True) if items and first > 0 else None,
            counts={**self._counts(query.kind), "total": len(found)},
        )

    def _count(self, kind: RunKind | None) -> Mapping[str, int]:
        mine = [(place, entry) for place, entry in self._listed.values() if kind in (None, place.kind)]
        statuses = Counter(entry.status for place, entry in mine if not place.archived)
        return {**statuses, "unfiltered": statuses.total(), "archived": len(mine) - statuses.total()}

    def _sorted(self, query: RunQuery) -> list[RunEntry]:
        listed = (entry for place, entry in self._listed.values() if query.archived or not place.archived)
        fitting = (entry for entry in listed if _fits(entry, query))
        return sorted(fitting, key=lambda entry: _place_of(query, entry), reverse=query.descending)

    def entry(self, place: RunPlace) -> RunEntry:
        return _as_it_stands(place, self._still_known(place) or _READ[place.kind](place.path, place.name))

    def newest(self, kind: RunKind) -> list[RunEntry]:
        with self._lock:
            self._refresh(self._patience_s)
            return self._found(RunQuery(kind=kind))

    def in_its_series(self, entry: RunEntry) -> tuple[RunEntry, RunEntry | None]:
        with self._lock:
            # A run's page does not wait until the list has been read.
            self._refresh(self._patience_s and 0.0)
            before = self._before(entry)
            return self._with_trend(entry), before[-1] if before else None

    def _with_trend(self, entry: RunEntry) -> RunEntry:
        return replace(entry, trend=tuple(map(_number, (*self._before(entry), entry))))

    def _before(self, entry: RunEntry) -> list[RunEntry]:
        """Return the earlier comparable runs, oldest first, at most as many as a trend has."""
        series = self._series.get(_series_of(entry), [])
        place = bisect_left(series, _started(entry), key=_started)
        return series[max(0, place - TREND_RUNS + 1) : place]

    def _refresh(self, patience_s: float | None) -> None:
        is_late = time.monotonic() - self._looked > _LOOK_AT_ALL_S
        if self._unread or is_late or self._run_places.all() is not self._places:
            self._look_at_all(patience_s)

    def _look_at_all(self, patience_s: float | None) -> None:
        self._places = places = self._run_places.all()
        self._read(places, patience_s)
        listed = {
            (place.kind, place.name): self._listed_now(place) for place in places if place.path in self._known
        }
        if listed != self._listed:
            self._listed = listed
            self._series = _in_series(entry for place, entry in listed.values() if not place.archived)
            self._found.cache_clear()
            self._counts.cache_clear()
        self._looked = time.monotonic()

    def _read(self, places: Sequence[RunPlace], patience_s: float | None) -> None:
        until = time.monotonic() + (patience_s if patience_s is not None else math.inf)
        changed = [(self._stamp_of(place), place) for place in places if not self._still_known(place)]
        changed.sort(key=itemgetter(0), reverse=True)
        read: dict[Path, tuple[_Stamp, RunEntry]] = {}
        for stamp, place in changed:
            if read and time.monotonic() > until:
                break
            read[place.path] = stamp, _READ[place.kind](place.path, place.name)
        there = {place.path for place in places}
        self._known = {path: known for path, known in self._known.items() if path in there} | read
        self._unread = len(changed) - len(read)

    def _still_known(self, place: RunPlace) -> RunEntry | None:
        known, entry = self._known.get(place.path, ((), None))
        stamp = self._stamp_of(place)
        return (
            entry if entry is not None and known[: len(stamp)] == stamp and entry.name == place.name else None
        )

    def _stamp_of(self, place: RunPlace) -> _Stamp:
        """Return the state of a run's files; replacing a file changes the modification time of its directory."""
        path, (_, entry) = place.path, self._known.get(place.path, ((), None))
        try:
            directory = os.stat(path)  # noqa: PTH116 - there may be ten thousand
        except OSError:
            return ()
        stamp: _Stamp = (directory.st_mtime_ns, directory.st_ino, directory.st_size)
        # The journal of an unfinished run grows without changing the directory's modification time.
        if entry is None or entry.status != "finished":
            for journal in ("events.jsonl", "metrics.jsonl"):
                with suppress(OSError):
                    written = os.stat(f"{path}/{journal}")  # noqa: PTH116
                    stamp += (written.st_size, written.st_mtime_ns)
        return stamp

    def _listed_now(self, place: RunPlace) -> tuple[RunPlace, RunEntry]:
        return place, _as_it_stands(place, self._known[place.path][1])

    def _has_changed(self, entry: RunEntry) -> bool:
        listed = self._listed[entry.kind, entry.name]
        return self._still_known(listed[0]) is None or self._listed_now(listed[0]) != listed


_READ: dict[RunKind, Callable[[Path, str], RunEntry]] = {
    "eval": lambda path, name: read_evaluation(path, name).detail.summary,
    "training": lambda path, name: read_training(path, name).detail.summary,
    "rubric": lambda path, name: read_session(path, name)[0],
}


def _as_it_stands(place: RunPlace, entry: RunEntry) -> RunEntry:
    """Return an entry with the current status: a process may start or end before any file changes."""
    if entry.status not in ("running", "incomplete") or place.kind == "rubric":
        return entry
    if place.kind == "training":
        running = TrainingDirectory(place.path).is_running()
    else:
        running = is_running(place.path.parent, place.path.name)
    status = "running" if running else "incomplete"
    return with_time_so_far(replace(entry, status=status) if status != entry.status else entry)


def _fits(entry: RunEntry, query: RunQuery) -> bool:
    if any(getattr(query, name) not in (None, getattr(entry, name)) for name in _EQUAL):
        return False
    if query.commit is not None and not (entry.commit or "").startswith(query.commit):
        return False
    started = entry.started_at or _LONG_AGO
    if not (query.since or _LONG_AGO) <= started <= (query.until or _FAR_AHEAD):
        return False
    searched = (entry.name, entry.config, entry.model, entry.dataset, entry.rollout)
    return any(query.text.casefold() in (each or "").casefold() for each in searched)


def _in_series(entries: Iterable[RunEntry]) -> dict[_Series, list[RunEntry]]:
    series: dict[_Series, list[RunEntry]] = {}
    for entry in sorted(entries, key=_started):
        if entry.status == "finished" and _number(entry) is not None:
            series.setdefault(_series_of(entry), []).append(entry)
    return series


def _number(entry: RunEntry) -> float | None:
    return entry.pass_rate if entry.kind == "eval" else entry.reward


def _series_of(entry: RunEntry) -> _Series:
    return entry.kind, entry.config, entry.model, entry.measures


def _started(entry: RunEntry) -> tuple[datetime, str]:
    return entry.started_at or _LONG_AGO, entry.id


def _sorted_value(query: RunQuery, entry: RunEntry) -> Scalar:
    if query.sort == "started":
        return entry.started_at.timestamp() if entry.started_at is not None else None
    if query.sort == "name":
        return entry.name[:_NAME_CHARACTERS]
    value: Scalar = getattr(entry, {"cost": "cost_usd", "duration": "duration_s"}.get(query.sort, query.sort))
    return value


def _place_of(query: RunQuery, entry: RunEntry) -> Any:
    return _place(query, _sorted_value(query, entry), entry.id)


def _place(query: RunQuery, value: Scalar, run_id: str) -> Any:
    """Return the sort key; runs without a value come last in both directions."""
    return (value is None) != query.descending, value is not None and value, run_id


def _slice(found: Sequence[RunEntry], query: RunQuery, limit: int, cursor: str | None) -> tuple[int, int]:
    if cursor is None:
        return 0, limit
    (value, run_id), backward = decode(cursor, order_of(query), parts=2)
    if not isinstance(run_id, str):
        raise refused(cursor)
    here = _place(query, value, run_id)
    # The next page starts after the cursor's own run.
    is_before = (gt if backward else ge) if query.descending else (lt if backward else le)
    try:
        place = sum(is_before(_place_of(query, entry), here) for entry in found)
    except TypeError:
        raise refused(cursor) from None
    return (max(0, place - limit), place) if backward else (place, place + limit)


def _cursor(query: RunQuery, entry: RunEntry, *, backward: bool = False) -> str:
    return encode(order_of(query), [_sorted_value(query, entry), entry.id], backward=backward)
