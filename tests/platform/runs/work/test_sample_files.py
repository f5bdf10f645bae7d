"""What becomes of a sample's files on their way to the platform's blobs."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from osmosis_ai.api.wire.workers import SentUpload
from osmosis_ai.evaluation.record import TerminalRecord
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.platform.blobs.shards import LARGEST_FILE_BYTES
from osmosis_ai.platform.runs.run_files import open_run_file
from osmosis_ai.platform.runs.work import artifact_cleaning, sample_files
from osmosis_ai.platform.runs.work.run_channel import OutgoingBlob
from osmosis_ai.platform.runs.work.sample_files import FileNews, RecordedItem, SampleFiles
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.redaction import Redactor
from tests.evaluation.builders import record


def storing_in(services: PlatformServices) -> Callable[[Sequence[OutgoingBlob]], list[SentUpload]]:
    """Return what sends blobs of the run ``run_1``."""

    def store(blobs: Sequence[OutgoingBlob]) -> list[SentUpload]:
        sent = []
        for blob in blobs:
            blob.content.seek(0)
            info = services.blobs.put(f"runs/run_1/{blob.name}", blob.content)
            assert (info.size, info.sha256) == (blob.size, blob.sha256)
            sent.append(SentUpload(name=blob.name, id=blob.name, etag="", size=blob.size, sha256=blob.sha256))
        return sent

    return store


def item_of(done: TerminalRecord) -> RecordedItem:
    return RecordedItem(done.row_index, done.run_index, done.rollout_id, done.source_row_index)


@pytest.mark.parametrize(
    ("name", "content", "stored"),
    [
        ("n.json", b'{"n": 123456, "pin": "123456"}', b'{"n": 123456, "pin": "[REDACTED]"}'),
        ("same.json", b'{ "n":123456, "x": NaN }\n', b'{ "n":123456, "x": NaN }\n'),
        ("n.jsonl", b'{"n": 123456}\n{"a": "123456"}\n', b'{"n": 123456}\n{"a": "[REDACTED]"}\n'),
        ("pretty.json", b'{\n  "n": 123456,\n  "ok": true\n}', b'{\n  "n": 123456,\n  "ok": true\n}'),
        ("note.txt", b"{said} 123456 true\n\xff", b"{said} [REDACTED] true\n\xff"),
    ],
)
def test_no_value_of_a_secret_makes_an_artifact_of_json_unreadable(
    services: PlatformServices, tmp_path: Path, name: str, content: bytes, stored: bytes
) -> None:
    directory = RunDirectory(tmp_path / "run")
    artifact = directory.artifacts / "row_0_run_0" / name
    artifact.parent.mkdir(parents=True)
    artifact.write_bytes(content)
    files = SampleFiles(directory, storing_in(services), Redactor(["123456", "true"]))
    files.expect([item_of(record())])
    (row,) = files.rest().files
    with services.blobs.open(f"runs/run_1/{row.blob}") as blob:
        kept = blob.read()
    assert kept == stored
    assert row.size == len(stored)
    if name.endswith(".json"):
        assert json.loads(kept)


def test_a_line_without_end_is_blanked_piece_by_piece_and_never_in_memory(
    services: PlatformServices, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifact_cleaning, "_LARGEST_DOCUMENT_BYTES", 1 << 18)
    monkeypatch.setattr(artifact_cleaning, "_PIECE_BYTES", 1 << 16)
    directory, key = RunDirectory(tmp_path / "run"), "schlüssel-of-the-run"
    artifact = directory.artifacts / "row_0_run_0" / "trace.txt"
    artifact.parent.mkdir(parents=True)
    # One across the end of what is read first, one across each kind of border, cut within a letter, too; and one in the next line.
    places = [(1 << 18) - 4, (1 << 18) + (1 << 16) - 5, (1 << 20) - 1, 10 << 20, (32 << 20) - 7]
    with artifact.open("wb") as line:
        for place in places:
            line.write(b"x" * (place - line.tell()) + key.encode())
        line.write(b"\xff\n" + key.encode() + b"\n")
    files = SampleFiles(directory, storing_in(services), Redactor([key]))
    files.expect([item_of(record())])
    tracemalloc.start()
    try:
        (row,) = files.rest().files
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    with services.blobs.open(f"runs/run_1/{row.blob}") as blob:
        kept = blob.read()
    assert kept == artifact.read_bytes().replace(key.encode(), b"[REDACTED]")
    assert kept.count(b"[REDACTED]") == len(places) + 1
    assert most < 8 << 20, "of 32 MiB"


class Worker:
    """What a worker of a run has on its disk, and what it has told the database so far."""

    def __init__(self, services: PlatformServices, path: Path) -> None:
        self.services = services
        self.directory = RunDirectory(path)
        self.directory.create()
        self.rows: dict[str, dict[str, Any]] = {}
        self.now = 0.0
        self.files = self.begin()

    def begin(self) -> SampleFiles:
        """Begin as a worker that follows another."""
        self.files = SampleFiles(
            self.directory,
            storing_in(self.services),
            Redactor(["s3cret-value"]),
            clock=lambda: self.now,
        )
        return self.files

    def finish(self, row: int, content: bytes | None = b'{"n": 1}', **artifacts: bytes) -> RecordedItem:
        """Have an attempt end, with what the engine and the rollout's server write of it."""
        done = record(row)
        name, trial = f"row_{row}_run_0", self.directory.trial(done.rollout_id)
        trial.mkdir()
        if content is not None:
            (trial / "trajectory.json").write_bytes(content)
            (self.directory.trajectories / f"{name}.json").write_bytes(content)
        for file, data in artifacts.items():
            (self.directory.artifacts / name).mkdir(exist_ok=True)
            (self.directory.artifacts / name / file).write_bytes(data)
        return item_of(done)

    def tell(self, news: FileNews) -> None:
        told = {each.name for each in news.sent}
        for part in news.files:
            assert part.blob in told
            row = part.model_dump() | {"blob_key": f"runs/run_1/{part.blob}"}
            self.rows[part.path] = row
        if news:
            self.files.written()

    def tell_rest(self) -> None:
        while rows := self.files.rest():
            self.tell(rows)

    def read(self, path: str) -> bytes:
        with open_run_file(self.services.blobs, SimpleNamespace(**self.rows[path])) as file:
            return file.read()

    def left(self) -> list[str]:
        return sorted(p.name for p in self.directory.path.rglob("row_*")) + [
            p.name for p in self.directory.trials.iterdir()
        ]


@pytest.fixture
def worker(services: PlatformServices, tmp_path: Path) -> Worker:
    return Worker(services, tmp_path / "run")


def test_conversations_of_many_attempts_share_a_blob_and_are_read_one_by_one(worker: Worker) -> None:
    contents = {row: json.dumps({"row": row, "key": "s3cret-value"}).encode() for row in range(50)}
    worker.files.expect(worker.finish(row, content) for row, content in contents.items())
    worker.tell_rest()
    assert len(worker.rows) == 50 and len({row["blob_key"] for row in worker.rows.values()}) == 1
    for row in contents:
        path = f"trajectories/row_{row}_run_0.json"
        assert json.loads(worker.read(path)) == {"row": row, "key": "[REDACTED]"}
        assert worker.rows[path]["size"] == len(worker.read(path))
    assert worker.left() == []


def test_a_shard_is_stored_when_it_is_old_enough_for_somebody_to_look(worker: Worker) -> None:
    worker.now = 100.0
    worker.files.expect([worker.finish(0)])
    worker.tell(worker.files.ready())
    assert len(worker.rows) == 1
    worker.now = 100.25
    worker.files.expect([worker.finish(1)])
    assert not worker.files.ready()
    worker.now = 100.5
    worker.tell(worker.files.ready())
    assert len(worker.rows) == 2


def test_however_long_a_worker_has_worked_its_shards_wait_for_half_a_second(worker: Worker) -> None:
    def seen_after(waited_s: float, row: int) -> bool:
        worker.files.expect([worker.finish(row)])
        worker.now += waited_s
        worker.tell(worker.files.ready())
        return f"trajectories/row_{row}_run_0.json" in worker.rows

    assert all(seen_after(0.5, row) for row in range(700))
    worker.now += 36_000.0
    assert seen_after(0.0, 700)
    assert not seen_after(0.4, 701)
    assert seen_after(0.1, 702)
    assert (
        worker.rows["trajectories/row_701_run_0.json"]["blob_key"]
        == worker.rows["trajectories/row_702_run_0.json"]["blob_key"]
    )


def test_rows_that_the_database_did_not_take_are_given_again_and_nothing_is_deleted_before(
    worker: Worker,
) -> None:
    worker.files.expect([worker.finish(0)])
    worker.now = 1.0
    first = worker.files.ready()
    worker.files.expect([worker.finish(1)])
    assert worker.files.ready() == first and len(first.files) == 1
    assert "row_0_run_0.json" in worker.left()
    worker.tell(first)
    worker.tell_rest()
    assert len(worker.rows) == 2 and worker.left() == []


def test_a_worker_that_follows_a_killed_one_stores_only_what_is_not_known(worker: Worker) -> None:
    worker.files.expect([worker.finish(0)])
    worker.tell_rest()
    done = worker.finish(1)
    worker.files.expect([done])
    worker.files.rest()  # stored, and killed before the database knew
    worker.begin().expect([item_of(record(0)), done], resumed=True)
    before = dict(worker.rows)
    worker.tell_rest()
    assert worker.rows["trajectories/row_0_run_0.json"] == before["trajectories/row_0_run_0.json"]
    assert worker.read("trajectories/row_1_run_0.json") == b'{"n": 1}'


def test_attempts_without_files_are_many_and_hold_up_nobody(worker: Worker) -> None:
    worker.files.expect(worker.finish(row, None) for row in range(1500))
    worker.files.expect([worker.finish(1500, a=b"1")])
    worker.now = 61.0  # more than the engine waits for a trajectory
    for _ in range(20):
        worker.tell(worker.files.ready())
        worker.now += 10.0
    assert set(worker.rows) == {"trajectories/row_1500_run_0.json", "artifacts/row_1500_run_0/a"}
    assert worker.left() == []


def test_at_the_end_attempts_without_files_hide_none_that_have_some(worker: Worker) -> None:
    worker.files.expect(worker.finish(row, None) for row in range(1100))
    worker.files.expect([worker.finish(1100)])
    worker.tell_rest()
    assert list(worker.rows) == ["trajectories/row_1100_run_0.json"]


def test_a_conversation_that_is_copied_anew_at_the_end_takes_the_place_of_the_one_that_was_told(
    worker: Worker,
) -> None:
    slow = worker.finish(0)
    worker.files.expect([slow, worker.finish(1)])
    worker.now = 1.0
    worker.tell(worker.files.ready())
    assert worker.read("trajectories/row_0_run_0.json") == b'{"n": 1}' and worker.left() == []
    before = dict(worker.rows)
    worker.finish(0, b'{"n": 2}')
    worker.tell_rest()
    assert worker.read("trajectories/row_0_run_0.json") == b'{"n": 2}'
    assert worker.rows.pop("trajectories/row_0_run_0.json") != before.pop("trajectories/row_0_run_0.json")
    assert worker.rows == before and worker.left() == []
    assert not worker.files.rest()


def test_of_no_more_than_the_newest_a_fuller_conversation_is_looked_for(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample_files, "_MOST_TOLD", 1)
    worker.files.expect([worker.finish(0), worker.finish(1)])
    worker.now = 1.0
    worker.tell(worker.files.ready())
    worker.finish(0, b'{"n": 2}')
    worker.finish(1, b'{"n": 2}')
    worker.tell_rest()
    assert worker.read("trajectories/row_0_run_0.json") == b'{"n": 1}'
    assert worker.read("trajectories/row_1_run_0.json") == b'{"n": 2}'


def test_a_large_conversation_is_a_blob_of_its_own(worker: Worker) -> None:
    large = json.dumps({"text": "x" * LARGEST_FILE_BYTES}).encode()
    worker.files.expect([worker.finish(0, large), worker.finish(1)])
    worker.tell_rest()
    assert worker.read("trajectories/row_0_run_0.json") == large
    assert worker.rows["trajectories/row_0_run_0.json"]["shard_offset"] is None
    assert worker.read("trajectories/row_1_run_0.json") == b'{"n": 1}'


def test_why_an_attempt_failed_is_kept_without_secrets(worker: Worker) -> None:
    failed = worker.finish(0, None)
    (worker.directory.trial(failed.rollout_id) / "diagnostics.json").write_text(
        '{"traceback": "s3cret-value"}'
    )
    damaged = worker.finish(1, None)
    (worker.directory.trial(damaged.rollout_id) / "diagnostics.json").write_text('{"traceback": "s3cr')
    worker.files.expect([failed, damaged])
    worker.tell_rest()
    assert json.loads(worker.read("diagnostics/row_0_run_0.json")) == {"traceback": "[REDACTED]"}
    assert list(worker.rows) == ["diagnostics/row_0_run_0.json"]


def test_a_store_that_refuses_a_shard_gets_it_again(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    worker.files.expect([worker.finish(0)])

    def full(key: str, stream: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(worker.services.blobs, "put", full)
        with pytest.raises(OSError, match="No space"):
            worker.files.rest()
    worker.tell_rest()
    assert worker.read("trajectories/row_0_run_0.json") == b'{"n": 1}'
