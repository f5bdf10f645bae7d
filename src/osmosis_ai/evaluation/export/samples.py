"""The samples of a run directory as one stream, each with its conversation; the run's own facts beside them.

A run of this machine is read from its journal, which lacks nothing. A downloaded one has ``metrics.json``,
``summary.jsonl`` and the conversations that were downloaded with it; with its journal it lacks no more than the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import msgspec
import orjson

from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.evaluation.attempt_copies import item_name, read_regular_file
from osmosis_ai.evaluation.conversation import Message, answer_of, as_messages, read_conversation
from osmosis_ai.evaluation.journal import JournalCorruptionError, JournalReader, replay
from osmosis_ai.evaluation.local_results import LocalResults, read_local_results
from osmosis_ai.evaluation.manifest import Manifest
from osmosis_ai.evaluation.record import FIELDS, check_field
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.files import open_regular
from osmosis_ai.rollout.grader_notes import read_grader_notes

_FIELDS = frozenset(each.name for each in FIELDS)

Progress = Literal["running", "incomplete", "finished"]


@dataclass(frozen=True)
class ExportedSample:
    """One attempt on one row."""

    row_index: int
    attempt: int
    rollout_id: str
    status: str
    reward: float | None
    result: Mapping[str, Any] = field(default_factory=dict)
    label: str | None = None
    metadata: Mapping[str, Any] | None = None
    messages: list[Message] = field(default_factory=list)
    from_model_calls: bool = False

    @property
    def answer(self) -> str | None:
        """The text of the agent's last message; None of an agent that came to no end."""
        return None if self.from_model_calls else answer_of(self.messages)

    @property
    def source_row_index(self) -> int:
        """The row's position in the dataset, or among the selected rows where that is all that is known."""
        known = self.result.get("source_row_index")
        return known if isinstance(known, int) else self.row_index


@dataclass(frozen=True)
class ExportedRun:
    """A run, and what its directory knows of it."""

    directory: Path
    name: str
    run_id: str
    progress: Progress
    facts: Mapping[str, Any]
    inputs: Mapping[str, Any]
    provenance: Mapping[str, Any]
    summary: Mapping[str, Any]
    estimates: Mapping[str, Any]
    local: LocalResults | None = None

    def samples(self) -> Iterator[ExportedSample]:
        """Yield the samples by row and attempt; one is held at a time."""
        if self.local is not None:
            found = self._local_samples(self.local)
        else:
            found = (_sample(known, known["run_index"]) for known in self.listed())
        return (_with_conversation(self.directory, sample) for sample in found)

    def listed(self, *, left_out: Callable[[], None] | None = None) -> Iterator[dict[str, Any]]:
        """Yield what is known of the samples of a downloaded run, by the names of ``TerminalRecord``."""
        listing = RunDirectory(self.directory).summary
        seen: set[tuple[int, int]] = set()
        with open_regular(listing) as lines, _DownloadedJournal(self.directory) as journal:
            for number, line in enumerate(lines, 1):
                try:
                    entry = _listed(line, as_far_as_it_is_one=left_out is not None)
                    item = (entry["row_index"], entry["run_index"])
                except (ValueError, KeyError, AttributeError):
                    if left_out is not None:
                        left_out()
                        continue
                    raise OsmosisError(
                        f"{listing}: line {number} is no sample; download the run again."
                    ) from None
                if item not in seen:
                    seen.add(item)
                    yield {**entry, **journal.record(*item)}

    def _local_samples(self, local: LocalResults) -> Iterator[ExportedSample]:
        events = RunDirectory(self.directory).events
        if not events.exists():
            return
        with JournalReader(events) as journal:
            for _, run_index, offset in local.table.recorded():
                record = journal.record(offset)
                if record is not None:
                    yield _sample(msgspec.structs.asdict(record), run_index)


class _DownloadedJournal(ExitStack):
    """The journal that came with a downloaded run, if it did."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        events = RunDirectory(directory).events
        self._newest: dict[tuple[int, int], int] = {}
        if not events.is_file():
            return
        try:
            for offset, _, record in replay(events):
                self._newest[record.row_index, record.run_index] = offset
        except JournalCorruptionError as error:
            raise OsmosisError(
                f"the journal `{events}` is damaged at line {error.details['line']}.",
                hint="`osmosis eval download RUN --type journal` fetches it again",
            ) from None
        self._reader = self.enter_context(JournalReader(events))

    def record(self, row: int, run: int) -> dict[str, Any]:
        """Return what is recorded of an attempt's newest result; nothing where it is not there."""
        offset = self._newest.get((row, run))
        record = self._reader.record(offset) if offset is not None else None
        found = msgspec.structs.asdict(record) if record is not None else {}
        return {name: value for name, value in found.items() if value is not None}


def read_run(directory: Path, *, without_metrics: bool = False) -> ExportedRun:
    """Read what a run directory knows of its run."""
    found = RunDirectory(directory)
    if found.manifest.is_file():
        return _local_run(found)
    metrics = found.read_metrics()
    if without_metrics and not found.metrics.exists():
        metrics = {}
    if metrics is None or not found.summary.is_file():
        raise NotFoundError(
            f"there is no run in {directory}.",
            hint="`osmosis eval download RUN` fetches one of a platform, metrics and trajectories",
        )
    facts = _object(metrics.get("eval_run"))
    return ExportedRun(
        directory=directory,
        name=str(facts.get("name") or directory.name),
        run_id=str(facts.get("id") or directory.name),
        progress="finished" if facts.get("status") == "finished" else "incomplete",
        facts=facts,
        inputs={},
        provenance={},
        summary=_object(metrics.get("summary")),
        estimates=_object(metrics.get("estimates")),
    )


def _local_run(found: RunDirectory) -> ExportedRun:
    manifest = Manifest.load(found.manifest)
    local = read_local_results(found.path)
    facts = _object((found.read_metrics() or {}).get("eval_run"))
    known = {
        "model_name": manifest.inputs.get("model_path"),
        "rollout_name": _object(manifest.inputs.get("rollout")).get("name"),
        "started_at": manifest.created_at,
    }
    return ExportedRun(
        directory=found.path,
        name=found.path.name,
        run_id=manifest.local_run_id,
        progress=local.status,
        facts={**known, **facts},
        inputs=manifest.inputs,
        provenance=manifest.provenance,
        summary=local.metrics.summary,
        estimates=local.metrics.estimates.model_dump(mode="json"),
        local=local,
    )


def _listed(line: bytes, *, as_far_as_it_is_one: bool) -> dict[str, Any]:
    """Return what a line of ``summary.jsonl`` knows of a sample."""
    known = {
        name: value for name, value in orjson.loads(line).items() if name in _FIELDS and value is not None
    }
    if as_far_as_it_is_one:
        known = {name: value for name, value in known.items() if _fits(name, value)}
        known.setdefault("rollout_id", item_name(known["row_index"], known["run_index"]))
    for name, value in known.items():
        check_field(name, value)
    return {**known, **{name: known[name] for name in ("row_index", "run_index", "rollout_id", "status")}}


def _fits(name: str, value: Any) -> bool:
    try:
        check_field(name, value)
    except ValueError:
        return False
    return True


def _sample(entry: Mapping[str, Any], run_index: int) -> ExportedSample:
    reward = entry.get("reward")
    return ExportedSample(
        row_index=int(entry["row_index"]),
        attempt=run_index + 1,
        rollout_id=str(entry["rollout_id"]),
        status=str(entry["status"]),
        reward=float(reward) if isinstance(reward, (int, float)) else None,
        result=entry,
    )


def _with_conversation(directory: Path, sample: ExportedSample) -> ExportedSample:
    """Add what the sample's trajectory holds, where there is one that can be read."""
    name = f"{item_name(sample.row_index, sample.attempt - 1)}.json"
    try:
        content = read_regular_file(RunDirectory(directory).trajectories / name)
    except (OSError, ValueError):
        content = None
    conversation = read_conversation(content or b"")
    asked = _object(conversation.told.get("request_extra_fields"))
    result = {**sample.result}
    if result.get("source_row_index") is None and isinstance(asked.get("source_row_index"), int):
        result["source_row_index"] = asked["source_row_index"]
    if result.get("notes") is None and result.get("parts") is None:  # a platform lists neither
        graded = read_grader_notes(_object(conversation.told.get("sample_extra_fields")))
        result |= {"notes": graded.notes, "parts": dict(graded.parts) or None}
    return replace(
        sample,
        result=result,
        label=conversation.label,
        metadata=conversation.metadata,
        messages=as_messages(conversation),
        from_model_calls=conversation.from_model_calls,
    )


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
