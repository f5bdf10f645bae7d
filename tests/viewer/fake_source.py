"""A ``RunSource`` in memory."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from difflib import get_close_matches
from typing import Any, BinaryIO, TypeVar

from osmosis_ai.api.models.base import LogEntry, LogPage
from osmosis_ai.decisions.samples import RunSamples
from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.evaluation.attempt_files import StoredArtifact, StoredConversation
from osmosis_ai.training.runs.curves import TrainingCurves
from osmosis_ai.training.runs.run_directory import ValidationSamples
from osmosis_ai.viewer.local_runs import RunKind
from osmosis_ai.viewer.source import (
    ItemPage,
    RunDetail,
    RunEntry,
    RunQuery,
    RunState,
    SampleDetail,
    SampleEntry,
    SampleQuery,
)

ItemT = TypeVar("ItemT")
NOON = datetime(2026, 5, 4, 12, tzinfo=timezone.utc)


def a_run(name: str, kind: RunKind = "eval", **known: Any) -> RunEntry:
    """Return a run that finished an hour after it began."""
    return replace(
        RunEntry(
            kind, name, f"id-{name}", "finished", NOON, NOON + timedelta(hours=1), "openai/gpt-5-mini", "rows"
        ),
        **known,
    )


def a_sample(row: int, attempt: int = 0, **known: Any) -> SampleEntry:
    """Return a sample that passed."""
    return replace(SampleEntry(row, attempt, "success", True, reward=1.0, row_digest=f"{row:064x}"), **known)


@dataclass
class FakeSource:
    """Has the runs, samples and conversations that a test gives it.

    Filters runs by kind and text, samples by outcome and category; keeps the order.
    """

    entries: list[RunEntry] = field(default_factory=list)
    details: dict[str, RunDetail] = field(default_factory=dict)
    listed: dict[str, list[SampleEntry]] = field(default_factory=dict)
    conversations: Mapping[tuple[str, int, int], bytes] = field(default_factory=dict)
    files: Mapping[tuple[str, int, int], Mapping[str, bytes]] = field(default_factory=dict)
    lines: Sequence[LogEntry] = ()
    validations: Mapping[str, ValidationSamples] = field(default_factory=dict)
    curves_of: Mapping[str, TrainingCurves] = field(default_factory=dict)
    samples_of: Mapping[str, RunSamples] = field(default_factory=dict)
    record: Mapping[str, Any] = field(default_factory=dict)
    """What the journal has of every sample."""
    traceback: str | None = None
    """The traceback of every failed sample."""

    def runs(self, query: RunQuery, *, limit: int, cursor: str | None = None) -> ItemPage[RunEntry]:
        of_kind = [run for run in self.entries if query.kind in (None, run.kind)]
        kept = [run for run in of_kind if query.text in run.name]
        return _piece(kept, limit, cursor, unfiltered=len(of_kind))

    def run(self, kind: RunKind, name: str) -> RunDetail:
        entry = next((run for run in self.entries if (run.kind, run.name) == (kind, name)), None)
        if entry is None:
            names = [run.name for run in self.entries if run.kind == kind]
            raise NotFoundError(
                f"there is no run {name!r} here.",
                details={"nearest": get_close_matches(name, names, n=5, cutoff=0)},
            )
        return self.details.get(name) or RunDetail(entry)

    def samples(
        self, run: str, query: SampleQuery, *, limit: int, cursor: str | None = None
    ) -> ItemPage[SampleEntry]:
        self.run("eval", run)
        everything = self.listed.get(run, [])
        kept = [sample for sample in everything if _is_wanted(sample, query)]
        counts = {
            word: sum(_outcome(each) == word for each in everything)
            for word in ("passed", "failed", "unscored")
        }
        return _piece(kept, limit, cursor, unfiltered=len(everything), **counts)

    def sample(self, run: str, row: int, attempt: int, query: SampleQuery) -> SampleDetail:
        self.run("eval", run)
        samples = self.listed.get(run, [])
        at = {(sample.row, sample.attempt): sample for sample in samples}
        if (row, attempt) not in at:
            raise NotFoundError(f"run {run!r} has no attempt {attempt} on row {row}.")
        inside = [(each.row, each.attempt) for each in samples if _is_wanted(each, query)]
        place = inside.index((row, attempt)) if (row, attempt) in inside else -1
        return SampleDetail(
            at[row, attempt],
            next=inside[place + 1] if 0 <= place < len(inside) - 1 else None,
            previous=inside[place - 1] if place > 0 else None,
            attempts=[each for each in samples if each.row == row],
            record=dict(self.record),
            traceback=self.traceback if at[row, attempt].error else None,
        )

    def conversation(
        self, run: str, row: int, attempt: int, *, max_bytes: int, kind: RunKind = "eval"
    ) -> StoredConversation:
        content = self.conversations.get((run, row, attempt))
        if content is None:
            return StoredConversation(None, missing="No conversation was recorded.")
        if len(content) > max_bytes:
            return StoredConversation(None, len(content), open=lambda: io.BytesIO(content))
        return StoredConversation(content, len(content))

    def read_conversations(
        self, run: str, samples: Sequence[SampleEntry], *, max_bytes: int
    ) -> Iterator[StoredConversation]:
        """Yield the trajectories of samples."""
        return (self.conversation(run, each.row, each.attempt, max_bytes=max_bytes) for each in samples)

    def artifacts(self, run: str, row: int, attempt: int) -> Sequence[StoredArtifact]:
        found = self.files.get((run, row, attempt), {})
        return [StoredArtifact(path, len(content)) for path, content in found.items()]

    def open_artifact(self, run: str, row: int, attempt: int, path: str) -> BinaryIO:
        found = self.files.get((run, row, attempt), {})
        if path not in found:
            raise NotFoundError(f"there is no file {path!r}.")
        return io.BytesIO(found[path])

    def elsewhere(self, row_digest: str, *, limit: int) -> Sequence[tuple[RunEntry, SampleEntry]]:
        found = [
            (run, sample)
            for run in self.entries
            for sample in self.listed.get(run.name, [])
            if sample.row_digest == row_digest
        ]
        return found[:limit]

    def log(self, kind: RunKind, run: str, *, limit: int, cursor: str | None = None) -> LogPage:
        self.run(kind, run)
        end = len(self.lines) if cursor is None else int(cursor)
        begin = max(end - limit, 0)
        return LogPage(logs=list(self.lines[begin:end]), next_cursor=str(begin) if begin else None)

    def curves(self, run: str) -> TrainingCurves:
        self.run("training", run)
        return self.curves_of.get(run, TrainingCurves())

    def validation(self, run: str) -> ValidationSamples | None:
        self.run("training", run)
        return self.validations.get(run)

    def state(self, kind: RunKind, run: str) -> RunState:
        status = self.run(kind, run).summary.status
        return RunState(f"{status}.{len(self.listed.get(run, []))}", status)

    def kinds(self, names: Sequence[str]) -> Mapping[str, Collection[RunKind]]:
        return {name: [run.kind for run in self.entries if run.name == name] for name in names}

    def run_samples(self, runs: Sequence[str]) -> Sequence[RunSamples]:
        for run in runs:
            self.run("eval", run)
        return [self.samples_of[run] for run in runs]

    def compared_training(self, runs: Sequence[str]) -> Sequence[tuple[RunDetail, TrainingCurves]]:
        return [(self.run("training", run), self.curves(run)) for run in runs]

    def samples_of_row(self, digest: str, runs: Sequence[str], *, limit: int) -> list[list[SampleEntry]]:
        return [
            [each for each in self.listed.get(run, []) if each.row_digest == digest][:limit] for run in runs
        ]


def _outcome(sample: SampleEntry) -> str:
    return "failed" if sample.passed is None else "passed" if sample.passed else "below"


def _is_wanted(sample: SampleEntry, query: SampleQuery) -> bool:
    outcomes = (None, _outcome(sample), *(["unscored"] if sample.passed is None else []))
    return query.outcome in outcomes and query.category in (None, sample.category)


def _piece(items: Sequence[ItemT], limit: int, cursor: str | None, **counts: int) -> ItemPage[ItemT]:
    if cursor is not None and not cursor.isdigit():
        raise OsmosisError("this cursor is not of this list.")
    begin = int(cursor or 0)
    end = begin + limit
    return ItemPage(
        items[begin:end],
        next=str(end) if end < len(items) else None,
        previous=str(max(begin - limit, 0)) if begin else None,
        counts={"total": len(items), **counts},
    )
