"""The list of local runs; an entry is read again when its files have changed."""

from __future__ import annotations

import math
import os
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import lru_cache
from operator import ge, gt, itemgetter, le, lt
from pathlib import Path
from threading import Lock
from typing import Any

from osmosis_ai.evaluation.manifest import is_running
from osmosis_ai.training.runs.run_directory import TrainingDirectory
from osmosis_ai.viewer.local.run_files import read_evaluation, read_session, read_training, with_time_so_far
from osmosis_ai.viewer.local_runs import RunKind, RunPlace
from osmosis_ai.viewer.source import (
    ItemPage,
    RunEntry,
    RunQuery,
    RunSort,
    Scalar,
    decode,
    encode,
    order_of,
    refused,
)

Stamp = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _ReadEntry:
    """A run's entry and the state of the files it was read from."""

    stamp: Stamp
    entry: RunEntry


TREND_RUNS = 10
_NAME_CHARACTERS = 60
_MOST_SORTED = 16
_MOST_WATCHED = 200
_LOOK_AT_ALL_S = 5.0
_Name = tuple[RunKind, str]
_Series = tuple[str | None, ...]
_EQUAL = ("kind", "status", "model", "dataset", "rollout", "person")
_LONG_AGO = datetime.min.replace(tzinfo=timezone.utc)
_FAR_AHEAD = datetime.max.replace(tzinfo=timezone.utc)


class RunList:
    """Entries, read again when files have changed."""

    def __init__(self, *, patience_s: float | None = None) -> None:
        self._lock = Lock()
        self._patience_s = patience_s
        self._unread = 0
        self._known: dict[Path, _ReadEntry] = {}
        self._places: Sequence[RunPlace] | None = None
        self._looked = float("-inf")
        self._listed: dict[_Name, tuple[RunPlace, RunEntry]] = {}
        self._going_on: list[RunPlace] = []
        self._series: dict[_Series, list[RunEntry]] = {}
        # While nothing changes.
        self._found, self._counts = lru_cache(_MOST_SORTED)(self._sorted), lru_cache(self._count)

    def page(
        self, places: Sequence[RunPlace], query: RunQuery, *, limit: int, cursor: str | None = None
    ) -> ItemPage[RunEntry]:
        with self._lock:
            self._refresh(places)
            page = self._page(query, limit, cursor)
            # Of those that nobody looked at in this moment, what is shown has to be as it is.
            shown = [self._listed[entry.kind, entry.name][0] for entry in page.items]
            if not self._unread and any(self._still_known(place) is None for place in shown):
                self._look_at_all(places)
                page = self._page(query, limit, cursor)
            return page if not self._unread else replace(page, progress=1 - self._unread / len(places))

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
        """Return the number of runs of a kind, of archived ones and of each status."""
        mine = [(place, entry) for place, entry in self._listed.values() if kind in (None, place.kind)]
        statuses = Counter(entry.status for place, entry in mine if not place.archived)
        return {**statuses, "unfiltered": statuses.total(), "archived": len(mine) - statuses.total()}

    def _sorted(self, query: RunQuery) -> list[RunEntry]:
        listed = (entry for place, entry in self._listed.values() if query.archived or not place.archived)
        fitting = (entry for entry in listed if _fits(entry, query))
        return sorted(fitting, key=lambda entry: _place_of(query, entry), reverse=query.descending)

    def entry(self, place: RunPlace) -> RunEntry:
        line = self._still_known(place)
        entry = line.entry if line is not None else _READ[place.kind](place.path, place.name)
        return _as_it_stands(place, entry)

    def newest(self, places: Sequence[RunPlace], kind: RunKind) -> list[RunEntry]:
        """Return the runs of a kind, newest first."""
        with self._lock:
            self._refresh(places)
            return self._found(RunQuery(kind=kind))

    def in_its_series(self, places: Sequence[RunPlace], entry: RunEntry) -> tuple[RunEntry, RunEntry | None]:
        """Return an entry with its trend and previous comparable run."""
        with self._lock:
            # Beside a run's own page, a list that is not read yet is not waited for.
            self._refresh(places, patience_s=self._patience_s and 0.0)
            before = self._before(entry)
            return self._with_trend(entry), before[-1] if before else None

    def _with_trend(self, entry: RunEntry) -> RunEntry:
        return replace(entry, trend=tuple(map(_number, (*self._before(entry), entry))))

    def _before(self, entry: RunEntry) -> list[RunEntry]:
        """Return the earlier comparable runs, oldest first, at most as many as a trend has."""
        series = self._series.get(_series_of(entry), [])
        place = bisect_left(series, _started(entry), key=_started)
        return series[max(0, place - TREND_RUNS + 1) : place]

    def _refresh(self, places: Sequence[RunPlace], *, patience_s: float | None = None) -> None:
        """Refresh entries: running ones always, all if runs were added or removed and from time to time."""
        lately = places is self._places and time.monotonic() - self._looked <= _LOOK_AT_ALL_S
        if not lately or any(
            self._still_known(place) is None
            or self._listed_now(place) != self._listed[place.kind, place.name]
            for place in self._going_on
        ):
            self._look_at_all(places, patience_s)

    def _look_at_all(self, places: Sequence[RunPlace], patience_s: float | None = None) -> None:
        self._read(places, self._patience_s if patience_s is None else patience_s)
        listed = {
            (place.kind, place.name): self._listed_now(place) for place in places if place.path in self._known
        }
        if listed != self._listed:
            self._listed = listed
            current = [each for each in listed.values() if not each[0].archived]
            self._series = _in_series(entry for _, entry in current)
            self._going_on = [place for place, entry in current if _goes_on(entry)][-_MOST_WATCHED:]
            self._found.cache_clear()
            self._counts.cache_clear()
        self._places = places if not self._unread else None
        self._looked = time.monotonic()

    def _read(self, places: Sequence[RunPlace], patience_s: float | None) -> None:
        """Read changed runs, newest first, until the deadline."""
        until = time.monotonic() + (patience_s if patience_s is not None else math.inf)
        changed = [(self._stamp_of(place), place) for place in places if not self._still_known(place)]
        changed.sort(key=itemgetter(0), reverse=True)
        read: dict[Path, _ReadEntry] = {}
        for stamp, place in changed:
            if read and time.monotonic() > until:
                break
            read[place.path] = _ReadEntry(stamp, _READ[place.kind](place.path, place.name))
        there = {place.path for place in places}
        self._known = {path: line for path, line in self._known.items() if path in there} | read
        self._unread = len(changed) - len(read)

    def _still_known(self, place: RunPlace) -> _ReadEntry | None:
        """Return an entry, or None if its files have changed since."""
        line, stamp = self._known.get(place.path), self._stamp_of(place)
        is_of_now = line is not None and line.stamp[: len(stamp)] == stamp and line.entry.name == place.name
        return line if is_of_now else None

    def _stamp_of(self, place: RunPlace) -> Stamp:
        line = self._known.get(place.path)
        return _stamp(place.path, going_on=line is None or _goes_on(line.entry))

    def _listed_now(self, place: RunPlace) -> tuple[RunPlace, RunEntry]:
        return place, _as_it_stands(place, self._known[place.path].entry)


def _goes_on(entry: RunEntry) -> bool:
    """Whether a run may change without a change of its directory, because its journal grows."""
    return entry.status != "finished"


_READ: dict[RunKind, Callable[[Path, str], RunEntry]] = {
    "eval": lambda path, name: read_evaluation(path, name).entry,
    "training": lambda path, name: read_training(path, name).entry,
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


def _stamp(path: Path, *, going_on: bool) -> Stamp:
    """Return the state of a run's files; replaced files change their directory's time."""
    try:
        directory = os.stat(path)  # noqa: PTH116 - there may be ten thousand
    except OSError:
        return ()
    stamp: Stamp = (directory.st_mtime_ns, directory.st_ino, directory.st_size)
    if not going_on:
        return stamp
    for journal in ("events.jsonl", "metrics.jsonl"):
        with suppress(OSError):
            written = os.stat(f"{path}/{journal}")  # noqa: PTH116
            stamp += (written.st_size, written.st_mtime_ns)
    return stamp


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
    """Return comparable runs by what they share, oldest first."""
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


_SORTED_BY: dict[RunSort, Callable[[RunEntry], Scalar]] = {
    "started": lambda entry: entry.started_at.timestamp() if entry.started_at is not None else None,
    "name": lambda entry: entry.name[:_NAME_CHARACTERS],
    "status": lambda entry: entry.status,
    "reward": lambda entry: entry.reward,
    "pass_rate": lambda entry: entry.pass_rate,
    "cost": lambda entry: entry.cost_usd,
    "duration": lambda entry: entry.duration_s,
}


def _place_of(query: RunQuery, entry: RunEntry) -> Any:
    """Return the sort key; runs without a value come last in both directions."""
    return _place(query, _SORTED_BY[query.sort](entry), entry.id)


def _place(query: RunQuery, value: Scalar, run_id: str) -> Any:
    return (value is None) != query.descending, value is not None and value, run_id


def _slice(found: Sequence[RunEntry], query: RunQuery, limit: int, cursor: str | None) -> tuple[int, int]:
    if cursor is None:
        return 0, limit
    (value, run_id), backward = decode(cursor, order_of(query), parts=2)
    if not isinstance(run_id, str):
        raise refused(cursor)
    here = _place(query, value, run_id)
    # The run of the cursor itself is the last one before the page behind it.
    is_before = (gt if backward else ge) if query.descending else (lt if backward else le)
    try:
        place = sum(is_before(_place_of(query, entry), here) for entry in found)
    except TypeError:
        raise refused(cursor) from None
    return (max(0, place - limit), place) if backward else (place, place + limit)


def _cursor(query: RunQuery, entry: RunEntry, *, backward: bool = False) -> str:
    return encode(order_of(query), [_SORTED_BY[query.sort](entry), entry.id], backward=backward)
