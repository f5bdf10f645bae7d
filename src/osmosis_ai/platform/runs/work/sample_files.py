"""Upload sample files from a worker's disk: each once, complete and without secrets.

Conversations are packed into shards, which are sent as soon as a viewer may look. Files are deleted here once the
platform has them, so disk use stays small. Files that the download layout cannot hold (a name that is not text, a path
too long) are left out, as are links, pipes and devices.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple

from osmosis_ai.api.wire.workers import RunFilePart, SentUpload
from osmosis_ai.evaluation.attempt_files import item_name, read_diagnostics, stored_conversations
from osmosis_ai.evaluation.run_directory import TRAJECTORY_FILE, RunDirectory
from osmosis_ai.files import open_regular, remove_tree
from osmosis_ai.platform.blobs.shards import LARGEST_FILE_BYTES, MOST_BYTES, ShardPiece, ShardWriter
from osmosis_ai.platform.runs.work.artifact_cleaning import clean_artifact
from osmosis_ai.platform.runs.work.run_channel import OutgoingBlob
from osmosis_ai.redaction import Redactor, clean_json
from osmosis_ai.rollout.artifacts import PENDING_TRAJECTORY_FILE

MAX_PATH_CHARS = 1024
DIAGNOSTICS = "diagnostics"
"""The kind of a file that says why an attempt failed."""
_LOOKS_PER_ROUND = 128
_MOST_SAMPLES = 1_000
"""In a shard."""
_MOST_BESIDE = 1_000
"""Files that are blobs of their own, of the attempts of a shard."""
_MOST_TOLD = 8_192
"""Attempts of which a fuller conversation may still come, the newest."""
_PATIENCE_S = 60.0
_WRITTEN_WITHIN_S = 10.0
"""How long the engine takes at most, on a busy machine, to write the file of a stored conversation."""
_MOST_STORED_BYTES = 64 << 20
"""Of the conversations of an earlier worker in the same directory, the last ones are looked at."""
LONGEST_AGE_S = 0.5
"""Maximum age of an open shard in seconds. Live views lag by at most 2 s, of which the page may take one. The platform
merges the shards.
"""
_ARTIFACTS_AT_ONCE = 32


class _Item(NamedTuple):
    """An attempt whose files are to be stored."""

    row_index: int
    run_index: int
    rollout_id: str
    source_row: int | None
    since: float
    is_resumed: bool

    @property
    def name(self) -> str:
        return item_name(self.row_index, self.run_index)


class RecordedItem(NamedTuple):
    """What of a recorded attempt tells where its files are."""

    row_index: int
    run_index: int
    rollout_id: str
    source_row_index: int | None = None


@dataclass(frozen=True, slots=True)
class FileNews:
    """Files that were sent, and the uploads that they lie in; empty where there is nothing to tell."""

    files: Sequence[RunFilePart] = ()
    sent: Sequence[SentUpload] = ()

    def __bool__(self) -> bool:
        return bool(self.files)


@dataclass(frozen=True, slots=True)
class _SampleFile:
    """A file to be stored: where it lies, what it is called in downloads, and whose it is."""

    file: Path
    path: str
    kind: str
    source_row_index: int | None


@dataclass
class _OpenShard:
    """A shard that is being filled: its files and what was sent beside them, and whose they are."""

    writer: ShardWriter
    name: str = field(default_factory=lambda: f"shards/{secrets.token_hex(16)}")
    files: list[RunFilePart] = field(default_factory=list)
    sent: list[SentUpload] = field(default_factory=list)
    items: list[_Item] = field(default_factory=list)
    is_stored: bool = False


class SampleFiles:
    """Sends trajectories and artifacts of one run."""

    def __init__(
        self,
        directory: RunDirectory,
        store: Callable[[Sequence[OutgoingBlob]], list[SentUpload]],
        redactor: Redactor,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = directory
        self._send = store
        self._redactor = redactor
        self._clock = clock
        self._stored_at = clock()
        # Attempts whose files are not stored yet; looked at in turn.
        self._expected: dict[tuple[int, int], _Item] = {}
        self._shard: _OpenShard | None = None
        # The newest of which the platform has the files, until the engine has ended.
        self._told: dict[str, _Item] = {}
        # Rollouts whose conversation the engine has stored, and how far its file has been read.
        self._stored: set[str] = set()
        self._stored_read: int | None = None

    def expect(self, items: Iterable[RecordedItem], *, resumed: bool = False) -> None:
        """Watch out for the files of these attempts; of ``resumed`` ones, as far as earlier workers have left any here."""
        now = self._clock()
        for row, attempt, rollout_id, source_row in items:
            item = _Item(row, attempt, rollout_id, source_row, now, resumed)
            self._told.pop(item.name, None)
            if not resumed or self._has_left(item):
                self._expected[row, attempt] = item

    def _has_left(self, item: _Item) -> bool:
        return item.rollout_id in self._stored_rollouts() or any(path.exists() for path in self._places(item))

    def _stored_rollouts(self) -> set[str]:
        path = self._directory.conversations
        if self._stored_read is None:
            size = path.stat().st_size if path.exists() else 0
            self._stored_read = max(0, size - _MOST_STORED_BYTES)
        for rollout_id, _, end in stored_conversations(path, self._stored_read):
            self._stored.add(rollout_id)
            self._stored_read = end
        return self._stored

    def _places(self, item: _Item) -> tuple[Path, Path, Path]:
        directory = self._directory
        return (
            directory.trajectories / f"{item.name}.json",
            directory.artifacts / item.name,
            directory.trial(item.rollout_id),
        )

    def are_awaited(
        self, items: Iterable[RecordedItem], *, telling: bool = False, late_too: bool = True
    ) -> bool:
        """Tell whether files of these attempts are not told yet."""
        shard = self._shard
        waits = shard is not None and not (telling and shard.is_stored)
        here = {(item.row_index, item.run_index) for item in shard.items} if shard and waits else set()
        return any(
            (place := (row, attempt)) in here
            or ((item := self._expected.get(place)) is not None and (late_too or self._will_come(item)))
            for row, attempt, *_ in items
        )

    def _will_come(self, item: _Item) -> bool:
        """Return whether the engine has written the conversation's file, or will soon."""
        if self._is_complete(item):
            return True
        trial, waited_s = self._directory.trial(item.rollout_id), self._clock() - item.since
        within_s = _PATIENCE_S if item.is_resumed else _WRITTEN_WITHIN_S
        return waited_s < within_s and (
            item.rollout_id in self._stored_rollouts()
            or (trial / TRAJECTORY_FILE).exists()
            or (trial / PENDING_TRAJECTORY_FILE).exists()
        )

    def ready(self) -> FileNews:
        """Return what was sent by now; the same until :meth:`written` is called."""
        if self._shard is None or not self._shard.is_stored:
            self._collect(list(islice(self._expected, _LOOKS_PER_ROUND)), at_end=False)
        return self._news(at_end=False)

    def rest(self) -> FileNews:
        """Like :meth:`ready` after the engine has ended, for the other attempts; empty when everything is sent."""
        self._expect_anew()
        news = self._news(at_end=True) if self._is_full() else FileNews()
        while self._expected and not news:
            self._collect(list(islice(self._expected, _LOOKS_PER_ROUND)), at_end=True)
            news = self._news(at_end=True) if self._is_full() else FileNews()
        return news or self._news(at_end=True)

    def _expect_anew(self) -> None:
        """Send again the conversations that the engine copied again at its end from a more complete original, which replace earlier ones."""
        told, self._told = self._told, {}
        for file in self._directory.trajectories.glob("row_*.json") if told else ():
            if (item := told.get(file.stem)) is not None:
                self._expected.setdefault((item.row_index, item.run_index), item)

    def written(self) -> None:
        """Take note that the platform knows of them: the files on this disk have done their duty."""
        shard = self._shard
        if shard is None or not shard.is_stored:
            return
        self._shard = None
        shard.writer.close()
        for item in shard.items:
            trajectory, artifacts, trial = self._places(item)
            trajectory.unlink(missing_ok=True)
            remove_tree(artifacts)
            remove_tree(trial)
            self._stored.discard(item.rollout_id)
            self._told.pop(item.name, None)
            self._told[item.name] = item
        for name in list(islice(self._told, max(0, len(self._told) - _MOST_TOLD))):
            del self._told[name]

    def send_again(self) -> None:
        """Restart the upload of sent but unreported files that the platform does not have."""
        shard, self._shard = self._shard, None
        if shard is not None:
            shard.writer.close()
            self._expected |= {(item.row_index, item.run_index): item for item in shard.items}

    def _news(self, *, at_end: bool) -> FileNews:
        shard = self._shard
        if shard is None or not shard.items:
            return FileNews()
        if not shard.is_stored:
            if not (at_end or self._is_full() or self._is_old()):
                return FileNews()
            began = self._clock()
            if shard.writer.size:
                shard.sent += self._send([OutgoingBlob.of(shard.name, shard.writer.content())])
            shard.is_stored, self._stored_at = True, began
        if not shard.files:
            self.written()  # none of its attempts left a file
        return FileNews(shard.files, shard.sent)

    def _is_full(self) -> bool:
        shard = self._shard
        return shard is not None and (
            shard.is_stored
            or len(shard.items) >= _MOST_SAMPLES
            or len(shard.sent) >= _MOST_BESIDE
            or shard.writer.size >= MOST_BYTES
        )

    def _is_old(self) -> bool:
        return self._clock() - self._stored_at >= LONGEST_AGE_S

    def _collect(self, places: Iterable[tuple[int, int]], *, at_end: bool) -> None:
        """Store the files of the attempts that have all of theirs, or at the end what they have."""
        for place in places:
            item = self._expected.pop(place)
            if not (at_end or self._is_complete(item)):
                self._expected[place] = item
                continue
            try:
                self._store(item)
            except BaseException:
                self._expected[place] = item
                raise

    def _is_complete(self, item: _Item) -> bool:
        # The engine copies the trajectory last, and gives up on one that does not come.
        if (self._directory.trajectories / f"{item.name}.json").exists():
            return True
        pending = self._directory.trial(item.rollout_id) / PENDING_TRAJECTORY_FILE
        return self._clock() - item.since > _PATIENCE_S and not pending.exists()

    def _store(self, item: _Item) -> None:
        """Send an attempt's artifacts, as blobs of their own, and put its conversation into the open shard."""
        shard = self._shard = self._shard or _OpenShard(ShardWriter(self._directory.path))
        files, sent = len(shard.files), len(shard.sent)
        try:
            beside = list(self._artifacts_of(item))
            for start in range(0, len(beside), _ARTIFACTS_AT_ONCE):
                self._store_artifacts(beside[start : start + _ARTIFACTS_AT_ONCE], shard)
            trajectory = self._places(item)[0]
            if trajectory.exists():
                self._store_trajectory(trajectory, item, shard)
            if diagnostics := read_diagnostics(self._directory, item.rollout_id):
                self._store_diagnostics(diagnostics, item, shard)
        except BaseException:
            # It is sent again, all of it.
            del shard.files[files:], shard.sent[sent:]
            raise
        shard.items.append(item)

    def _store_diagnostics(self, content: bytes, item: _Item, shard: _OpenShard) -> None:
        path = diagnostics_path(item.row_index, item.run_index)
        found = _SampleFile(Path(), path, DIAGNOSTICS, item.source_row)
        with suppress(ValueError):  # cut off, or no JSON
            piece = shard.writer.add(clean_json(content, self._redactor))
            shard.files.append(_part(found, shard.name, piece.size, piece))

    def _store_trajectory(self, file: Path, item: _Item, shard: _OpenShard) -> None:
        try:
            content = clean_json(file.read_bytes(), self._redactor)
        except ValueError:
            return  # no JSON, or nested so deeply that nobody can tell what is in it
        found = _SampleFile(file, _trajectory_path(item.name), "trajectories", item.source_row)
        if len(content) <= LARGEST_FILE_BYTES:
            piece = shard.writer.add(content)
            shard.files.append(_part(found, shard.name, piece.size, piece))
            return
        self._store_alone([(found, BytesIO(content))], shard)

    def _store_artifacts(self, found: Sequence[_SampleFile], shard: _OpenShard) -> None:
        with ExitStack() as stack:
            clean: list[tuple[_SampleFile, BinaryIO]] = []
            for each in found:
                try:
                    raw = stack.enter_context(open_regular(each.file))
                except OSError:
                    continue  # a link, a pipe, a device, or gone
                clean.append((each, stack.enter_context(clean_artifact(raw, self._redactor))))
            self._store_alone(clean, shard)

    def _store_alone(self, found: Sequence[tuple[_SampleFile, BinaryIO]], shard: _OpenShard) -> None:
        """Send files as blobs of their own, which are called by their paths and contents."""
        blobs = [(each, _outgoing(each, content)) for each, content in found]
        if blobs:
            shard.sent += self._send([blob for _, blob in blobs])
            shard.files += [_part(each, blob.name, blob.size) for each, blob in blobs]

    def _artifacts_of(self, item: _Item) -> Iterator[_SampleFile]:
        root = self._directory.artifacts / item.name
        for folder, _, files in os.walk(root):
            for file in files:
                found = Path(folder) / file
                path = f"artifacts/{item.name}/{found.relative_to(root).as_posix()}"
                if _is_downloadable(path):
                    yield _SampleFile(found, path, "artifacts", item.source_row)


def diagnostics_path(row: int, attempt: int) -> str:
    """Return what is kept under of an attempt beside its trajectory: for pages, in no download."""
    return f"{DIAGNOSTICS}/{item_name(row, attempt)}.json"


def _trajectory_path(name: str) -> str:
    return f"trajectories/{name}.json"


def _outgoing(found: _SampleFile, content: BinaryIO) -> OutgoingBlob:
    measured = OutgoingBlob.of("", content)
    called = hashlib.sha256(f"{found.path}\0{measured.sha256}".encode()).hexdigest()
    return replace(measured, name=f"files/{called}")


def _part(found: _SampleFile, blob: str, size: int, piece: ShardPiece | None = None) -> RunFilePart:
    return RunFilePart(
        path=found.path,
        kind=found.kind,
        size=size,
        blob=blob,
        source_row_index=found.source_row_index,
        shard_offset=None if piece is None else piece.offset,
        shard_length=None if piece is None else piece.length,
    )


def _is_downloadable(path: str) -> bool:
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return len(path) <= MAX_PATH_CHARS and "\\" not in path and all(c.isprintable() for c in path)
