"""What earlier releases did not keep of a sample is read from its stored conversation: tokens, cost, times, previews, notes.

A run is read once, when it has ended or was uploaded (``DbRun.samples_filled_at``); what is filled stays as it is, and of
what is lost the columns stay NULL: not recorded. It happens in a thread of its own that works half of the time at most,
and who is killed half-way goes on with the samples that are left.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import and_, or_, select, update

from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.conversation import (
    LARGEST_CONVERSATION_BYTES,
    Conversation,
    as_messages,
    read_conversation,
)
from osmosis_ai.evaluation.previews import previews_of
from osmosis_ai.evaluation.spec import keeps_previews
from osmosis_ai.evaluation.trajectory_export import item_name
from osmosis_ai.llm.finish_reasons import canonical
from osmosis_ai.platform.blobs.store import BlobError, BlobStore, BlobStoreError, BlobStoreSilent
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbRun, DbRunFile, DbSample
from osmosis_ai.platform.log_lines import storable
from osmosis_ai.platform.runs.lifecycle import OPEN
from osmosis_ai.platform.runs.read.merging import measure_samples
from osmosis_ai.platform.runs.run_files import PLACE, StoredPlace, open_run_file
from osmosis_ai.redaction import Redactor
from osmosis_ai.rollout.grader_notes import read_grader_notes

logger = logging.getLogger(__name__)

EVERY_S = 60.0
_TOLD_EVERY = 100
_BATCH = 100
_MOST_TOKENS = 2**31 - 1
_WAITING = and_(DbRun.kind == "eval", DbRun.samples_filled_at.is_(None), DbRun.status.not_in(OPEN))
_NOTHING_TO_BLANK = Redactor()
_FILLED = (
    *("tokens", "prompt_tokens", "completion_tokens", "model_calls", "model_latency_ms", "cost_usd"),
    *("input", "output", "notes", "parts", "finish_reasons"),
)


@dataclass(frozen=True, slots=True)
class _ModelCall:
    prompt_tokens: int | None
    completion_tokens: int | None
    cost_usd: float | None
    duration_ms: float | None
    finish_reason: str | None


class SampleFilling:
    """Fills samples in the background.

    Args:
        db, blobs, clock: the platform's.

    Attributes:
        left: runs that are still to be read, as far as is known.
    """

    def __init__(self, db: Database, blobs: BlobStore, clock: Clock) -> None:
        self._db = db
        self._blobs = blobs
        self._clock = clock
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self.left = 0
        self._read: tuple[str, float] = ("", 0.0)

    def share_read(self, run: DbRun) -> float | None:
        """Return which share of a run's samples was looked at so far; None where there is nothing left to be read."""
        if run.samples_filled_at is not None or run.status in OPEN:
            return None
        reading, share = self._read
        return share if reading == run.id else 0.0

    def start(self) -> None:
        """Begin."""
        self._stopping.clear()
        self._thread = threading.Thread(target=self._work, name="osmosis-sample-filling", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End; the batch under way is waited for."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def fill(self) -> None:
        """Fill the samples of all runs that wait for it, the newest run first.

        Raises:
            OSError, OsmosisError: the database or the blobs could not be used, or the files of one run, behind all the
                others; what is filled is kept.
        """
        with self._db.session() as session:
            newest_first = select(DbRun.id).where(_WAITING).order_by(DbRun.created_at.desc(), DbRun.id)
            waiting = list(session.scalars(newest_first))
        self.left = len(waiting)
        if self.left > 1:
            logger.info("reading the conversations of %d runs for what was not recorded", self.left)
        failure: Exception | None = None
        for run_id in waiting:
            try:
                if not self._fill_run(run_id):
                    return
            except BlobStoreSilent:
                raise
            except (OSError, BlobError) as error:
                failure = error  # what is wrong with one run's files is no matter of the others
                continue
            self.left -= 1
            if self.left and self.left % _TOLD_EVERY == 0:
                logger.info("%d runs are left", self.left)
        if failure is not None:
            raise failure
        if len(waiting) > 1:
            logger.info("the conversations of %d runs have been read", len(waiting))

    def _work(self) -> None:
        while not self._stopping.is_set():
            try:
                self.fill()
            except (OsmosisError, OSError) as error:
                # A full disk or a busy database is met again, or not, in a minute.
                logger.warning("samples of earlier runs could not be filled now: %s", error)
            except Exception:
                # The edge of this thread.
                logger.warning("samples of earlier runs could not be filled now", exc_info=True)
            self._stopping.wait(EVERY_S)

    def _fill_run(self, run_id: str) -> bool:
        """Read what a run has; False when the platform ends meanwhile."""
        with self._db.session() as session:
            run = session.get(DbRun, run_id)
        if run is None:
            return True
        previews = keeps_previews(run.request.get("advanced_config"))
        place, rows = (-1, -1), int((run.results or {}).get("sampled_rows") or 0)
        self._read = (run_id, 0.0)
        while batch := self._lacking(run_id, place, previews=previews):
            began = time.monotonic()
            self._fill_batch(run_id, batch, previews=previews)
            place = (batch[-1].row_index, batch[-1].run_index)
            self._read = (run_id, min((place[0] + 1) / max(rows, 1), 1.0))
            if self._stopping.wait(time.monotonic() - began):
                return False
        filled: dict[str, Any] = {"samples_filled_at": self._clock.now()}
        if run.imported and run.metrics:
            # The index of an upload says nothing of finish reasons, calls and cost.
            estimates = measure_samples(self._db, run).estimates
            filled["metrics"] = {**run.metrics, "estimates": estimates.model_dump(mode="json")}
        with self._db.transaction() as session:
            session.execute(update(DbRun).where(DbRun.id == run_id).values(**filled))
        return True

    def _lacking(self, run_id: str, place: tuple[int, int], *, previews: bool) -> Sequence[Any]:
        """Return the next samples behind ``place`` that lack something a conversation may tell."""
        unsaid = and_(DbSample.input.is_(None), DbSample.output.is_(None))
        uncounted = DbSample.model_calls.is_(None)
        row, attempt = place
        behind = or_(DbSample.row_index > row, and_(DbSample.row_index == row, DbSample.run_index > attempt))
        keys = (DbSample.row_index, DbSample.run_index)
        columns = [getattr(DbSample, name) for name in _FILLED]
        asked = (
            select(*keys, *columns)
            .where(DbSample.run_id == run_id, behind, or_(uncounted, unsaid) if previews else uncounted)
            .order_by(*keys)
            .limit(_BATCH)
        )
        with self._db.session() as session:
            return session.execute(asked).all()

    def _fill_batch(self, run_id: str, batch: Sequence[Any], *, previews: bool) -> None:
        paths = {f"trajectories/{item_name(each.row_index, each.run_index)}.json": each for each in batch}
        asked = select(DbRunFile.path, *PLACE).where(DbRunFile.run_id == run_id, DbRunFile.path.in_(paths))
        with self._db.session() as session:
            stored = session.execute(asked).all()
        changes = []
        for file in stored:
            sample, told = paths[file.path], _told(self._conversation(file), previews=previews)
            known = {name: told[name] for name in _FILLED if getattr(sample, name) is None and name in told}
            if known:
                changes.append((sample.row_index, sample.run_index, known))
        with self._db.transaction() as session:
            for row, attempt, known in changes:
                of_sample = (
                    DbSample.run_id == run_id,
                    DbSample.row_index == row,
                    DbSample.run_index == attempt,
                )
                session.execute(update(DbSample).where(*of_sample).values(**known))

    def _conversation(self, file: StoredPlace) -> Conversation:
        try:
            with open_run_file(self._blobs, file) as stream:
                return read_conversation(stream.read(LARGEST_CONVERSATION_BYTES + 1))
        except BlobStoreError:
            # Read when the store can be used again.
            raise
        except BlobError:
            return Conversation()


def _told(conversation: Conversation, *, previews: bool) -> dict[str, Any]:
    """Return what a conversation says of its sample, by column; what it does not say is left out."""
    told: dict[str, Any] = {}
    if calls := list(_model_calls(conversation)):
        prompt, completion = (
            sum(each or 0 for each in tokens)
            for tokens in (
                (call.prompt_tokens for call in calls),
                (call.completion_tokens for call in calls),
            )
        )
        if prompt + completion <= _MOST_TOKENS:
            told = {"prompt_tokens": prompt, "completion_tokens": completion, "tokens": prompt + completion}
        told["model_calls"] = len(calls)
        if finishes := Counter(call.finish_reason for call in calls if call.finish_reason is not None):
            told["finish_reasons"] = dict(finishes)
        told |= _total("cost_usd", [call.cost_usd for call in calls])
        told |= _total("model_latency_ms", [call.duration_ms for call in calls])
    extra = conversation.told.get("sample_extra_fields")
    noted = read_grader_notes(extra if isinstance(extra, Mapping) else {})
    texts = {"notes": noted.notes}
    # What an agent heard last before it broke is not its output; the record of such a sample names none, either.
    if previews and not conversation.from_model_calls:
        shown = previews_of(as_messages(conversation), _NOTHING_TO_BLANK)
        texts |= {"input": shown.input, "output": shown.output}
    told |= {name: storable(text) for name, text in texts.items() if text}
    return told | ({"parts": dict(noted.parts)} if noted.parts else {})


def _total(name: str, values: Sequence[float | None]) -> dict[str, float]:
    """Return the sum by its name; nothing as soon as one of the values is not known, as in a record."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    return {name: math.fsum(known)} if len(known) == len(values) else {}


def _model_calls(conversation: Conversation) -> Iterator[_ModelCall]:
    """Yield the model calls: those of the steps, or, where they fit no steps, as the controller reported them."""
    unmatched = conversation.told.get("unmatched_llm_call_metrics")
    if isinstance(unmatched, list) and unmatched:
        for call in unmatched:
            if isinstance(call, Mapping):
                extra = call.get("extra")
                known = extra if isinstance(extra, Mapping) else {}
                took, finish = known.get("latency_ms"), canonical(known.get("finish_reason"))
                tokens = (_count(call.get("prompt_tokens")), _count(call.get("completion_tokens")))
                yield _ModelCall(*tokens, _number(call.get("cost_usd")), _number(took), finish)
        return
    for step in conversation.steps:
        if step.prompt_tokens is not None or step.completion_tokens is not None:
            yield _ModelCall(
                step.prompt_tokens,
                step.completion_tokens,
                step.cost_usd,
                step.duration_ms,
                step.finish_reason,
            )


def _count(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
