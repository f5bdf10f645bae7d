"""The list of the runs of this machine: what a line says of each, read again when its files have changed.

Invariant: a line is as old as the newest change of its run's directory or journal; a run under way is looked at each
time. Lists are made in memory, from lines that are kept.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from threading import Lock

from osmosis_ai.evaluation.run_lock import is_running
from osmosis_ai.training.runs.run_directory import TrainingDirectory
from osmosis_ai.viewer.cursors import Scalar, decode, encode, refused
from osmosis_ai.viewer.local.evaluations import read_evaluation
from osmosis_ai.viewer.local.judging_sessions import read_session
from osmosis_ai.viewer.local.places import RunPlace
from osmosis_ai.viewer.local.training_runs import read_training
from osmosis_ai.viewer.source import ItemPage, RunEntry, RunKind, RunQuery, RunSort

TREND_RUNS = 10
_NAME_CHARACTERS = 60
_Stamp = tuple[int, ...]
_EQUAL = ("kind", "status", "model", "dataset", "rollout", "person")
_LONG_AGO = datetime.min.replace(tzinfo=timezone.utc)


class RunList:
    """Lines of runs, kept while their files are as they were."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._known: dict[RunPlace, tuple[_Stamp, RunEntry]] = {}

    def page(
        self, places: Sequence[RunPlace], query: RunQuery, *, limit: int, cursor: str | None = None
    ) -> ItemPage[RunEntry]:
        """Return runs in a query's order.

        Raises:
            OsmosisError: the cursor is none of this order.
        """
        entries = self._entries(places)
        found = [entry for entry in entries if _fits(entry, query)]
        key = _SORTED_BY[query.sort]
        valued = sorted(
            (entry for entry in found if key(entry) is not None), key=lambda entry: (key(entry), entry.id)
        )
        if query.descending:
            valued.reverse()
        found = valued + sorted((entry for entry in found if key(entry) is None), key=lambda entry: entry.id)
        order = f"runs:{query.sort}:{'desc' if query.descending else 'asc'}"
        first, last = _slice(found, key, order, query.descending, limit, cursor)
        items = [self._with_trend(entry, entries) for entry in found[first:last]]
        return ItemPage(
            items,
            next=_cursor(items[-1], key, order) if items and last < len(found) else None,
            previous=_cursor(items[0], key, order, backward=True) if items and first > 0 else None,
            counts={
                "total": len(found),
                "unfiltered": sum(query.kind in (None, each.kind) for each in entries),
            },
        )

    def entry(self, place: RunPlace) -> RunEntry:
        """Return a run's line."""
        return _as_it_stands(place, _READ[place.kind](place.path, place.name))

    def newest(self, places: Sequence[RunPlace], kind: RunKind) -> list[RunEntry]:
        """Return the runs of a kind, the newest first."""
        return sorted(
            (entry for entry in self._entries(places) if entry.kind == kind), key=_started, reverse=True
        )

    def in_its_series(self, places: Sequence[RunPlace], entry: RunEntry) -> tuple[RunEntry, str | None]:
        """Return a run's line with those before it, and the name of the run before it on the same config."""
        entries = self._entries(places)
        before = [each for each in _series(entry, entries) if each.name != entry.name]
        return self._with_trend(entry, entries), before[-1].name if before else None

    def _with_trend(self, entry: RunEntry, entries: Iterable[RunEntry]) -> RunEntry:
        series = [each for each in _series(entry, entries) if each.name != entry.name][-(TREND_RUNS - 1) :]
        return replace(entry, trend=tuple(_of_trend(each) for each in (*series, entry)))

    def _entries(self, places: Sequence[RunPlace]) -> list[RunEntry]:
        with self._lock:
            known: dict[RunPlace, tuple[_Stamp, RunEntry]] = {}
            for place in places:
                if place.archived:
                    continue
                before = self._known.get(place)
                stamp = _stamp(place.path, going_on=before is None or before[1].status != "finished")
                if before is None or before[0] != stamp:
                    before = (stamp, _READ[place.kind](place.path, place.name))
                known[place] = before
            self._known = known
        return [_as_it_stands(place, entry) for place, (_, entry) in known.items()]


_READ: dict[RunKind, Callable[[Path, str], RunEntry]] = {
    "eval": lambda path, name: read_evaluation(path, name).entry,
    "training": lambda path, name: read_training(path, name).entry,
    "rubric": lambda path, name: read_session(path, name)[0],
}


def _as_it_stands(place: RunPlace, entry: RunEntry) -> RunEntry:
    """Return a line with the status of now: a process takes up a run, or ends, before any file changes."""
    if entry.status not in ("running", "incomplete") or place.kind == "rubric":
        return entry
    if place.kind == "training":
        running = TrainingDirectory(place.path).is_running()
    else:
        running = is_running(place.path.parent, place.path.name)
    if not running and entry.status == "incomplete":
        return entry
    return replace(entry, status="running" if running else "incomplete")


def _stamp(path: Path, *, going_on: bool) -> _Stamp:
    """Return what changes when a run does; files that are replaced change their directory's time."""
    try:
        directory = os.stat(path)  # noqa: PTH116 - there may be ten thousand
    except OSError:
        return ()
    stamp: _Stamp = (directory.st_mtime_ns, directory.st_ino, directory.st_size)
    if not going_on:
        return stamp
    for journal in ("events.jsonl", "metrics.jsonl"):
        with suppress(OSError):
            written = os.stat(f"{path}/{journal}")  # noqa: PTH116
            stamp += (written.st_size, written.st_mtime_ns)
    return stamp


def _fits(entry: RunEntry, query: RunQuery) -> bool:
    wanted = {name: value for name in _EQUAL if (value := getattr(query, name)) is not None}
    if any(getattr(entry, name) != value for name, value in wanted.items()):
        return False
    if query.commit is not None and not (entry.commit or "").startswith(query.commit):
        return False
    started = entry.started_at or _LONG_AGO
    if (query.since is not None and started < query.since) or (
        query.until is not None and started > query.until
    ):
        return False
    return query.text.lower() in entry.name.lower() or query.text.lower() in (entry.config or "").lower()


def _series(entry: RunEntry, entries: Iterable[RunEntry]) -> list[RunEntry]:
    """Return the runs of a config that began no later than one of them, the oldest first."""
    started = _started(entry)
    found = [
        each
        for each in entries
        if each.kind == entry.kind and each.config == entry.config and _started(each) <= started
    ]
    return sorted(found, key=_started)


def _started(entry: RunEntry) -> tuple[datetime, str]:
    return entry.started_at or _LONG_AGO, entry.id


def _of_trend(entry: RunEntry) -> float | None:
    if entry.kind != "eval":
        return entry.reward
    return entry.headline.pass_rate if entry.headline is not None else None


_SORTED_BY: dict[RunSort, Callable[[RunEntry], Scalar]] = {
    "started": lambda entry: entry.started_at.timestamp() if entry.started_at is not None else None,
    "name": lambda entry: entry.name[:_NAME_CHARACTERS],
    "status": lambda entry: entry.status,
    "reward": lambda entry: entry.reward,
    "pass_rate": lambda entry: entry.headline.pass_rate if entry.headline is not None else None,
    "cost": lambda entry: entry.cost_usd,
    "duration": lambda entry: entry.duration_s,
}


def _slice(
    found: Sequence[RunEntry],
    key: Callable[[RunEntry], Scalar],
    order: str,
    descending: bool,
    limit: int,
    cursor: str | None,
) -> tuple[int, int]:
    """Return where in a sorted list a page begins and ends."""
    if cursor is None:
        return 0, limit
    (value, run_id), backward = decode(cursor, order, parts=2)
    if not isinstance(run_id, str):
        raise refused(cursor)

    def behind(entry: RunEntry) -> bool:
        """Tell whether a run stands behind the cursor's place, or at it when one goes back."""
        own = key(entry)
        if (own is None) != (value is None):
            return own is None
        if own is not None and own != value:
            return (own > value) != descending  # type: ignore[operator]
        if entry.id == run_id:
            return backward
        return (entry.id > run_id) != (descending and value is not None)

    try:
        place = next((place for place, entry in enumerate(found) if behind(entry)), len(found))
    except TypeError:
        raise refused(cursor) from None
    return (max(0, place - limit), place) if backward else (place, place + limit)


def _cursor(entry: RunEntry, key: Callable[[RunEntry], Scalar], order: str, *, backward: bool = False) -> str:
    return encode(order, [key(entry), entry.id], backward=backward)
