"""The protocol of a source of runs: a directory of this machine, or a platform."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from heapq import nsmallest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Generic, Literal, NamedTuple, Protocol, TypeVar

import msgspec
import orjson

from osmosis_ai.api.models.base import LogPage
from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.datasets.readers import METADATA_COLUMN, iter_records
from osmosis_ai.datasets.rows import as_object
from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.evaluation.attempt_files import StoredArtifact, StoredConversation
from osmosis_ai.evaluation.lenient_json import as_table, as_text
from osmosis_ai.evaluation.metrics import Estimates, RunScore
from osmosis_ai.llm.replies import FLAGGED_NAMES, FlaggedFinish
from osmosis_ai.training.runs.run_directory import ValidationSamples
from osmosis_ai.viewer.local_runs import RunKind

if TYPE_CHECKING:
    from osmosis_ai.config.decisions import Decisions
    from osmosis_ai.decisions.samples import RunSamples
    from osmosis_ai.statistics.estimates import Floats
    from osmosis_ai.training.runs.curves import TrainingCurves


ItemT = TypeVar("ItemT")
Place = tuple[int, int]
_MOST_COLUMNS = 50
_WHOLE_TEXTS = ("system_prompt", "user_prompt", "messages", "ground_truth", METADATA_COLUMN)

RunSort = Literal["started", "name", "status", "reward", "pass_rate", "cost", "duration"]
SampleSort = Literal["row", "reward", "duration", "tokens", "cost"]
GOING_ON = ("pending", "running")
Outcome = Literal["passed", "below", "failed", "unscored", "flaky"]
"""``below``: scored below the threshold; ``failed``: ended with an error, so no score; ``unscored``: failed or skipped;
``flaky``: on a row with mixed outcomes. Only counts include attempts without a result, as ``pending``."""


@dataclass(frozen=True, slots=True)
class ItemPage(Generic[ItemT]):
    items: Sequence[ItemT]
    next: str | None = None
    previous: str | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    progress: float | None = None
    problems: Sequence[str] = ()


def pieces(piece_at: Callable[[str | None], ItemPage[ItemT]]) -> Iterator[ItemPage[ItemT]]:
    cursor: str | None = None
    while True:
        piece = piece_at(cursor)
        yield piece
        if piece.next is None:
            return
        cursor = piece.next


@dataclass(frozen=True, slots=True)
class RunQuery:
    """A query for runs; None and empty fields match all."""

    kind: RunKind | None = None
    status: str | None = None
    model: str | None = None
    dataset: str | None = None
    rollout: str | None = None
    person: str | None = None
    commit: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    text: str = ""
    archived: bool = False
    sort: RunSort = "started"
    descending: bool = True


@dataclass(frozen=True, slots=True)
class RunEntry:
    kind: RunKind
    name: str
    id: str
    status: str
    started_at: datetime | None = None
    ended_at: datetime | None = None
    model: str | None = None
    dataset: str | None = None
    rollout: str | None = None
    person: str | None = None
    commit: str | None = None
    dirty: bool | None = None
    config: str | None = None
    measures: str | None = None
    headline: RunScore | None = None
    reward: float | None = None
    reward_low: float | None = None
    reward_high: float | None = None
    cost_usd: float | None = None
    duration_s: float | None = None
    trend: Sequence[float | None] = ()
    error: str | None = None
    waits: str | None = None
    stopping: bool = False

    @property
    def pass_rate(self) -> float | None:
        return self.headline.pass_rate if self.headline is not None else None

    @property
    def goes_on(self) -> bool:
        return self.status in GOING_ON


@dataclass(frozen=True, slots=True)
class FailureCount:
    """Failures with one source and code; ``example`` is the first (row, attempt), with its ``error``."""

    boundary: str | None
    category: str | None
    count: int
    example: Place
    error: str | None = None


class Histogram(NamedTuple):
    """Histogram of rewards: ``counts[i]`` are in ``edges[i] <= reward < edges[i + 1]``, the last bin is closed."""

    edges: Sequence[float]
    counts: Sequence[int]

    @classmethod
    def of(cls, rewards: Floats, weights: Floats | None = None) -> Histogram | None:
        """Return the rewards in twenty bins; None without any, or if bins are too narrow."""
        import numpy as np

        from osmosis_ai.ui.charts import even_edges

        if not rewards.size:
            return None
        low, high = float(rewards.min()), float(rewards.max())
        if low == high:
            low, high = min(low, 0.0), max(high, 1.0)
        edges = even_edges(low, high) if math.isfinite(high - low) else np.zeros(2)
        if not (np.diff(edges) > 0).all():
            return None  # so near each other that no number lies between
        counts, _ = np.histogram(rewards, bins=edges, weights=weights)
        return cls(edges.tolist(), [int(count) for count in counts])


@dataclass(frozen=True, slots=True)
class RunDetail:
    summary: RunEntry
    estimates: Estimates | None = None
    summary_numbers: Mapping[str, Any] = field(default_factory=dict)
    config_written: str | None = None
    config_effective: Mapping[str, Any] = field(default_factory=dict)
    facts: Sequence[tuple[str, str]] = ()
    secret_names: Sequence[str] = ()
    failures: Sequence[FailureCount] = ()
    rewards: Histogram | None = None
    previous: RunEntry | None = None
    namesakes: Sequence[str] = ()
    problems: Sequence[str] = ()
    context: Sequence[str] = ()
    commands: Sequence[str] = ()
    decided: Decisions | None = None
    columns: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class SampleQuery:
    """A query for attempts; ranges are inclusive, ``text`` is searched for in previews and errors.

    The ``boundary`` of failures without one is ``unknown``; only uploaded runs have them.
    """

    outcome: Outcome | None = None
    row: int | None = None
    category: str | None = None
    boundary: str | None = None
    finish: FlaggedFinish | None = None
    reward: tuple[float | None, float | None] = (None, None)
    tokens: tuple[float | None, float | None] = (None, None)
    duration_ms: tuple[float | None, float | None] = (None, None)
    cost_usd: tuple[float | None, float | None] = (None, None)
    text: str = ""
    sort: SampleSort = "row"
    descending: bool = False


@dataclass(frozen=True, slots=True)
class SampleEntry:
    """An attempt in a table; previews (``input``, ``output``) are None if not recorded."""

    row: int
    attempt: int
    status: str
    passed: bool | None = None
    source_row: int | None = None
    row_digest: str | None = None
    reward: float | None = None
    tokens: int | None = None
    duration_ms: float | None = None
    model_latency_ms: float | None = None
    cost_usd: float | None = None
    boundary: str | None = None
    category: str | None = None
    error: str | None = None
    input: str | None = None
    output: str | None = None
    finish_reasons: Mapping[str, int] | None = None
    flaky: bool = False

    @property
    def flagged_finishes(self) -> Sequence[str]:
        return [name for reason, name in FLAGGED_NAMES.items() if reason in (self.finish_reasons or ())]

    @property
    def outcome(self) -> str:
        if self.passed is None:
            return self.status if self.status in ("failed", "skipped") else "unscored"
        return "passed" if self.passed else "below threshold"


@dataclass(frozen=True, slots=True)
class SampleDetail:
    summary: SampleEntry
    record: Mapping[str, Any] = field(default_factory=dict)
    ground_truth: Any = None
    traceback: str | None = None
    next: Place | None = None
    previous: Place | None = None
    attempts: Sequence[SampleEntry] = ()


class RunState(NamedTuple):
    """The state of a run; its ``cursor`` changes with anything its pages show."""

    cursor: str
    status: str
    headline: RunScore | None = None

    @property
    def ended(self) -> bool:
        """Whether the run has ended; a killed one may be resumed."""
        return self.status not in (*GOING_ON, "incomplete")


class RunSource(Protocol):
    def runs(self, query: RunQuery, *, limit: int, cursor: str | None = None) -> ItemPage[RunEntry]:
        """Return runs; ``counts`` has ``total`` and ``unfiltered`` if they are cheap."""

    def run(self, kind: RunKind, name: str) -> RunDetail: ...

    def samples(
        self, run: str, query: SampleQuery, *, limit: int, cursor: str | None = None
    ) -> ItemPage[SampleEntry]:
        """Return attempts; ``counts`` has each :data:`Outcome`, ``total`` and ``unfiltered``."""

    def sample(self, run: str, row: int, attempt: int, query: SampleQuery) -> SampleDetail: ...

    def conversation(
        self, run: str, row: int, attempt: int, *, max_bytes: int, kind: RunKind = "eval"
    ) -> StoredConversation:
        """Return the trajectory of an attempt; for training, of one in the newest validation."""

    def read_conversations(
        self, run: str, samples: Sequence[SampleEntry], *, max_bytes: int
    ) -> Iterator[StoredConversation]:
        """Yield the trajectories of these attempts, one in memory at a time."""

    def artifacts(self, run: str, row: int, attempt: int) -> Sequence[StoredArtifact]: ...

    def open_artifact(self, run: str, row: int, attempt: int, path: str) -> BinaryIO:
        """Open one of :meth:`artifacts`; the caller closes it."""

    def elsewhere(self, row_digest: str, *, limit: int) -> Sequence[tuple[RunEntry, SampleEntry]]:
        """Return attempts at the same row in other runs, newest run first."""

    def log(self, kind: RunKind, run: str, *, limit: int, cursor: str | None = None) -> LogPage:
        """Return lines of a run's log, oldest first: its end, or those before a cursor."""

    def curves(self, run: str) -> TrainingCurves: ...

    def validation(self, run: str) -> ValidationSamples | None: ...

    def state(self, kind: RunKind, run: str) -> RunState:
        """Return the state of a run; cheap enough for once a second."""

    def kinds(self, names: Sequence[str]) -> Mapping[str, Collection[RunKind]]: ...

    def run_samples(self, runs: Sequence[str]) -> Sequence[RunSamples]: ...

    def compared_training(self, runs: Sequence[str]) -> Sequence[tuple[RunDetail, TrainingCurves]]: ...

    def samples_of_row(self, digest: str, runs: Sequence[str], *, limit: int) -> list[list[SampleEntry]]: ...


def sliceable_columns(path: Path) -> list[str]:
    """Return the dataset's columns and metadata keys, without prompts and answers."""
    _, record = next(iter_records(path), (0, {}))
    metadata = as_object(record.get(METADATA_COLUMN)) or {}
    return [name for name in (*record, *metadata) if name not in _WHOLE_TEXTS][:_MOST_COLUMNS]


def nearest_samples(places: Iterable[Place], row: int, attempt: int | None = None) -> list[Place]:
    return nsmallest(
        3, set(places), key=lambda place: (abs(place[0] - row), abs(place[1] - (attempt or 0)), place)
    )


def no_sample(
    run: str, row: int, attempt: int | None, near: Iterable[Place], *, rows: int = 0, n: int = 0, of: str = ""
) -> NotFoundError:
    asked = f"row {row}" if attempt is None else f"row {row}, attempt {attempt}"
    numbers = f"rows are numbered 0 to {rows - 1}" + (f", attempts 0 to {n - 1}" if n else "")
    without = "; this one has no result" if row < rows and (attempt or 0) < n else ""
    samples = ["{}.{}".format(*place) for place in nearest_samples(near, row, attempt)]
    return NotFoundError(
        f"{of or f'the run `{run[:100]}`'} has no attempt of {asked}.",
        hint=numbers + without if rows else "which rows it has is not known",
        details={"run": run, "samples": samples},
    )


def traceback_in(content: bytes) -> str | None:
    try:
        return as_text(as_table(orjson.loads(content)).get("traceback")) or None
    except ValueError:
        return None


_LARGEST = 2**31 - 1
Scalar = str | int | float | None

SORTED_BY: Mapping[str, str | None] = {
    "row": None,
    "reward": "reward",
    "duration": "duration_ms",
    "tokens": "tokens",
    "cost": "cost_usd",
}
"""Field of each sort; None for the order of rows."""


class SamplePosition(NamedTuple):
    value: float | None
    row: int
    attempt: int
    backward: bool = False


def item_page(
    found: Sequence[ItemT], backward: bool | None, *, limit: int, cursor: Callable[[ItemT, bool], str]
) -> ItemPage[ItemT]:
    """Return a page of ``found``, which has one item more if there is another page."""
    items, more = list(found[:limit]), len(found) > limit
    if backward:
        items.reverse()
    if not items:
        return ItemPage(())
    follows, precedes = (True, more) if backward else (more, backward is not None)
    return ItemPage(
        items,
        next=cursor(items[-1], False) if follows else None,
        previous=cursor(items[0], True) if precedes else None,
    )


def page_from(found: Sequence[ItemT], start: int, size: int) -> ItemPage[ItemT]:
    """Return a page of a whole list, whose cursors are places."""
    end = start + size
    return ItemPage(
        found[start:end],
        next=str(end) if end < len(found) else None,
        previous=str(max(start - size, 0)) if start else None,
    )


def sample_page(
    query: SampleQuery, position: SamplePosition | None, found: Sequence[SampleEntry], *, limit: int
) -> ItemPage[SampleEntry]:
    backward = position.backward if position is not None else None
    return item_page(found, backward, limit=limit, cursor=partial(sample_cursor, query))


class _Cursor(msgspec.Struct, array_like=True):
    order: str
    backward: bool
    key: list[str | Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | float | None]


_CURSORS = msgspec.json.Decoder(_Cursor)


def encode(order: str, key: Sequence[Scalar], *, backward: bool = False) -> str:
    """Return an opaque cursor of letters, digits, ``-`` and ``_``."""
    text = json.dumps([order, backward, list(key)], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode(cursor: str, order: str, *, parts: int) -> tuple[list[Scalar], bool]:
    try:
        found = _CURSORS.decode(base64.b64decode(cursor + "=" * (-len(cursor) % 4), b"-_", validate=True))
    except ValueError:
        raise refused(cursor) from None
    if found.order != order or len(found.key) != parts:
        raise refused(cursor)
    return list(found.key), found.backward


def order_of(query: RunQuery | SampleQuery) -> str:
    listed = "runs" if isinstance(query, RunQuery) else "samples"
    return f"{listed}:{query.sort}:{'desc' if query.descending else 'asc'}"


def sorted_value(query: SampleQuery, entry: SampleEntry) -> float | None:
    return getattr(entry, SORTED_BY[query.sort] or "", None)


def sample_cursor(query: SampleQuery, entry: SampleEntry, backward: bool = False) -> str:
    key = (sorted_value(query, entry), entry.row, entry.attempt)
    return encode(order_of(query), key, backward=backward)


def sample_position(cursor: str, query: SampleQuery) -> SamplePosition:
    (value, row, attempt), backward = decode(cursor, order_of(query), parts=3)
    are_places = all(isinstance(part, int) and 0 <= part <= _LARGEST for part in (row, attempt))
    if isinstance(value, str) or not are_places:
        raise refused(cursor)
    return SamplePosition(None if value is None else float(value), int(row or 0), int(attempt or 0), backward)


def refused(cursor: str) -> OsmosisError:
    return OsmosisError(
        "the cursor is of another list or order.",
        details={"cursor": cursor[:80]},
        hint="begin at the list's first page",
    )


SAME_FIELDS = (
    *("status", "row_digest", "reward", "tokens", "duration_ms", "model_latency_ms", "cost_usd"),
    *("boundary", "category", "error", "input", "output", "finish_reasons"),
)


def validated_record(samples: ValidationSamples | None, run: str, row: int, attempt: int) -> TerminalRecord:
    kept = {(each.row_index, each.run_index): each for each in samples.records} if samples is not None else {}
    if (row, attempt) in kept:
        return kept[row, attempt]
    missing = no_sample(run, row, attempt, kept, of=f"the newest validation of the run `{run[:100]}`")
    missing.hint = "its page lists those that are kept"
    raise missing


def known_of(record: TerminalRecord) -> dict[str, Any]:
    return {name: value for name, value in msgspec.structs.asdict(record).items() if value is not None}


def sample_entry(record: Any, pass_threshold: float) -> SampleEntry:
    """Return the attempt of a record, or of a row that has its names."""
    known = {name: getattr(record, name) for name in SAME_FIELDS}
    known["reward"] = reward = record.reward if record.status == "success" else None
    known["category"] = record.category or record.error_type
    passed = None if reward is None else reward >= pass_threshold
    return SampleEntry(
        record.row_index, record.run_index, passed=passed, source_row=record.source_row_index, **known
    )


def validated_sample(samples: ValidationSamples | None, run: str, row: int, attempt: int) -> SampleDetail:
    """Return a validated attempt with its neighbours by reward."""
    record = validated_record(samples, run, row, attempt)
    assert samples is not None
    entries = [sample_entry(each, samples.pass_threshold) for each in samples.records]
    place = next(at for at, each in enumerate(samples.records) if each is record)
    around = [None, *((each.row, each.attempt) for each in entries), None]
    return SampleDetail(
        entries[place],
        known_of(record),
        next=around[place + 2],
        previous=around[place],
        attempts=[each for each in entries if each.row == row],
    )
