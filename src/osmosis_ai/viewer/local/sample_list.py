"""Pages of a run's samples: filters as conditions, two parts by an index each, and counts that are counted once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import orjson

from osmosis_ai.errors import NotFoundError
from osmosis_ai.sqlite_text import ESCAPE, HOLDS, bindable, like_pattern
from osmosis_ai.viewer import cursors
from osmosis_ai.viewer.cursors import SamplePosition
from osmosis_ai.viewer.local.run_index import COLUMNS, RunIndex
from osmosis_ai.viewer.shared_reads import ReadT, SharedReads
from osmosis_ai.viewer.source import FailureCount, Histogram, ItemPage, SampleEntry, SampleQuery, no_sample

_FLAKY = "item / :n IN (SELECT place FROM selected_rows WHERE flaky = 1)"
_CONDITIONS = {
    "passed": "reward >= :threshold",
    "failed": "reward < :threshold",
    "unscored": "reward IS NULL",
    "flaky": _FLAKY,
}
_TEXTS = ("input", "output", "error")
_HOLDS = f"({{0}} LIKE :pattern ESCAPE '{ESCAPE}' AND {HOLDS}({{0}}, :text))"
_MOST_COUNTED = 200
_SELECT = (
    f"SELECT {', '.join(COLUMNS)}, (SELECT flaky FROM selected_rows WHERE place = item / :n) FROM samples"
)
_FAILURES = """
SELECT boundary, category, count(*), min(item), error FROM samples WHERE status = 'failed'
GROUP BY boundary, category ORDER BY count(*) DESC, min(item)
"""
"""``error`` is of the row that has the least item (https://sqlite.org/lang_select.html#bareagg)."""


class SampleList:
    """The samples of an indexed run, as far as the index has them."""

    def __init__(self, index: RunIndex) -> None:
        self.index = index
        self._counted, self._counted_at = SharedReads(most=_MOST_COUNTED), -1

    def page(self, query: SampleQuery, *, limit: int, cursor: str | None = None) -> ItemPage[SampleEntry]:
        """Return samples, and how many there are."""
        position = cursors.sample_position(cursor, query) if cursor else None
        with self.index.lock:
            found = self.around(query, position, limit=limit + 1)
            counts = self.counts(query)

        def cursor_at(entry: SampleEntry, backward: bool) -> str:
            return cursors.sample_cursor(query, cursors.position_of(query, entry, backward=backward))

        backward = position.backward if position is not None else None
        page = cursors.item_page(found, backward, limit=limit, entry=lambda entry: entry, cursor=cursor_at)
        return replace(page, counts=counts)

    def around(self, query: SampleQuery, position: SamplePosition | None, *, limit: int) -> list[SampleEntry]:
        """Return the samples behind (or before) a place, the nearest first."""
        found: list[SampleEntry] = []
        for statement, values in _parts(query, position, n=self.index.n):
            if len(found) < limit:
                values |= {**self._values(query), "limit": limit - len(found)}
                found += map(self._entry, self.index.find(statement, values))
        return found

    def no_sample(self, run: str, row: int, attempt: int | None) -> NotFoundError:
        """Return what to say of a sample that is not there: of so many on either side three are the nearest."""
        rows, n = self.index.rows, self.index.n
        values = {"place": min(row, rows) * n + min(attempt or 0, n), "most": 3 * n}
        near: list[tuple[int, int]] = []
        for side in ("< :place ORDER BY item DESC", ">= :place ORDER BY item"):
            found = self.index.find(f"SELECT item FROM samples WHERE item {side} LIMIT :most", values)
            near += [divmod(item, n) for (item,) in found]
        return no_sample(run, row, attempt, near, rows=rows, n=n)

    def neighbours(
        self, query: SampleQuery, entry: SampleEntry
    ) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
        """Return (row, attempt) of the next and the previous sample of a query."""
        places = (cursors.position_of(query, entry, backward=backward) for backward in (False, True))
        found = (self.around(query, place, limit=1) for place in places)
        following, preceding = ((page[0].row, page[0].attempt) if page else None for page in found)
        return following, preceding

    def entry(self, item: int) -> SampleEntry | None:
        """Return a sample; None where there is none."""
        found = self.index.find(f"{_SELECT} WHERE item = :item", {"item": item, "n": self.index.n})
        return self._entry(found[0]) if found else None

    def attempts(self, row: int) -> list[SampleEntry]:
        """Return the samples of a row, by attempt."""
        return self.around(SampleQuery(row=row), None, limit=self.index.n)

    def of_digest(self, digest: str, *, limit: int) -> list[SampleEntry]:
        """Return the samples of a row that is known by what it is."""
        statement = f"{_SELECT} WHERE row_digest = :digest ORDER BY item LIMIT :limit"
        values = {"digest": digest, "limit": limit, "n": self.index.n}
        return [self._entry(line) for line in self.index.find(statement, values)]

    def since(self, offset: int, *, limit: int) -> list[tuple[int, int]]:
        """Return (row, attempt) of what stands in the journal from a byte on."""
        statement = "SELECT item FROM samples WHERE offset >= :offset ORDER BY offset LIMIT :limit"
        found = self.index.find(statement, {"offset": offset, "limit": limit})
        return [divmod(item, self.index.n) for (item,) in found]

    def counts(self, query: SampleQuery) -> Mapping[str, int]:
        """Return how many samples there are, of the query and of each outcome."""
        whole = self._once("counts", self._count_outcomes)
        asked = replace(query, sort="row", descending=False)
        return {**whole, "total": self._once(asked, lambda: self._count(query))}

    def failures(self) -> list[FailureCount]:
        """Return the kinds of failures, the most frequent first."""
        return self._once("failures", self._count_failures)

    def rewards(self) -> Histogram | None:
        """Return the scored samples by reward; None where there are none."""
        return self._once("rewards", self._count_rewards)

    def _once(self, key: Hashable, count: Callable[[], ReadT]) -> ReadT:
        """Return what was counted of this much of the journal, or count it."""
        with self.index.lock:  # which counting takes, too: who has it must not wait for another's count
            if self._counted_at != self.index.read:
                self._counted, self._counted_at = SharedReads(most=_MOST_COUNTED), self.index.read
            return self._counted.once(key, count)

    def _count_outcomes(self) -> dict[str, int]:
        values = {"threshold": self.index.threshold, "n": self.index.n}
        found = {
            name: self._number(f"SELECT count(*) FROM samples WHERE {condition}", values)
            for name, condition in _CONDITIONS.items()
        }
        recorded = self._number("SELECT count(*) FROM samples", {})
        return {**found, "unfiltered": recorded, "pending": self.index.rows * self.index.n - recorded}

    def _count(self, query: SampleQuery) -> int:
        conditions = _conditions(query)
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        return self._number(f"SELECT count(*) FROM samples{where}", self._values(query))

    def _count_failures(self) -> list[FailureCount]:
        found = self.index.find(_FAILURES, {})
        return [
            FailureCount(boundary, category, count, divmod(item, self.index.n), error)
            for boundary, category, count, item, error in found
        ]

    def _count_rewards(self) -> Histogram | None:
        import numpy as np

        statement = "SELECT reward, count(*) FROM samples WHERE reward IS NOT NULL GROUP BY reward"
        # There may be a million, of which no list is made.
        found = self.index.ask(
            lambda table: np.fromiter(chain.from_iterable(table.execute(statement)), np.float64)
        )
        return Histogram.of(found[::2], weights=found[1::2])

    def _number(self, statement: str, values: Mapping[str, Any]) -> int:
        return int(self.index.find(statement, values)[0][0])

    def _values(self, query: SampleQuery) -> dict[str, Any]:
        values: dict[str, Any] = {"n": self.index.n, "threshold": self.index.threshold}
        values |= {"category": query.category, "boundary": query.boundary, "finish": f'%"{query.finish}":%'}
        values["row"] = min(query.row or 0, self.index.rows)  # SQLite takes no number of any size
        for name, (low, high) in _ranges(query).items():
            values |= {f"{name}_low": low, f"{name}_high": high}
        text = bindable(query.text)
        return {**values, "text": text, "pattern": like_pattern(text)}

    def _entry(self, line: Sequence[Any]) -> SampleEntry:
        known = dict(zip(COLUMNS, line, strict=False))
        row, attempt = divmod(known.pop("item"), self.index.n)
        del known["offset"]
        known["finish_reasons"] = orjson.loads(known["finish_reasons"] or "null")
        reward = known["reward"]
        passed = None if reward is None else reward >= self.index.threshold
        return SampleEntry(row=row, attempt=attempt, passed=passed, flaky=line[-1] == 1, **known)


def _parts(
    query: SampleQuery, position: SamplePosition | None, *, n: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the statements whose results, one after the other, are the list from a place on."""
    column, backward = cursors.SORTED_BY[query.sort], position is not None and position.backward
    parts: list[tuple[list[str], tuple[str, ...], bool]] = [([], (), query.descending != backward)]
    if column is not None:
        valued = [f"{column} IS NOT NULL"], (column,), query.descending != backward
        unvalued = [f"{column} IS NULL"], (), backward
        parts = [unvalued, valued] if backward else [valued, unvalued]
        if position is not None:
            parts = parts[parts.index(unvalued if position.value is None else valued) :]
    values = {"after": position.row * n + position.attempt, "value": position.value} if position else {}
    for number, (condition, columns, descending) in enumerate(parts):
        begins_behind = position is not None and number == 0
        yield _statement([*_conditions(query), *condition], columns, begins_behind, descending), dict(values)


def _statement(conditions: list[str], columns: tuple[str, ...], from_position: bool, descending: bool) -> str:
    key = (*columns, "item")
    if from_position:
        place = ", ".join((*(":value" for _ in columns), ":after"))
        conditions = [*conditions, f"({', '.join(key)}) {'<' if descending else '>'} ({place})"]
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    direction = " DESC" if descending else ""
    order = ", ".join(f"{column}{direction}" for column in key)
    return f"{_SELECT}{where} ORDER BY {order} LIMIT :limit"


def _conditions(query: SampleQuery) -> list[str]:
    """Return what a sample has to fulfil."""
    conditions = []
    if query.outcome is not None:
        reward = "reward" if query.sort == "reward" else "+reward"
        conditions.append(_CONDITIONS[query.outcome].replace("reward", reward, 1))
    if query.row is not None:
        conditions.append("item >= :row * :n AND item < (:row + 1) * :n")
    if query.finish is not None:
        conditions.append("finish_reasons LIKE :finish")
    if query.category is not None:
        conditions.append("status = 'failed' AND category = :category")
    if query.boundary is not None:
        conditions.append("status = 'failed' AND boundary = :boundary")
    for name, (low, high) in _ranges(query).items():
        column = name if cursors.SORTED_BY[query.sort] == name else f"+{name}"
        conditions += [f"{column} >= :{name}_low"] if low is not None else []
        conditions += [f"{column} <= :{name}_high"] if high is not None else []
    if query.text:
        conditions.append(f"({' OR '.join(map(_HOLDS.format, _TEXTS))})")
    return conditions


def _ranges(query: SampleQuery) -> dict[str, tuple[float | None, float | None]]:
    return {name: getattr(query, name) for name in ("reward", "tokens", "duration_ms", "cost_usd")}
