"""What a worker finds out reaches the platform's pages: soon, whole, without secrets, and once."""

from __future__ import annotations

import json
import threading
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import delete

from osmosis_ai.api.wire.workers import LARGEST_EXCHANGE_BYTES, SentUpload, SyncReply, SyncRequest
from osmosis_ai.evaluation.record import TerminalRecord
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.platform.blobs.shards import LARGEST_FILE_BYTES
from osmosis_ai.platform.db.tables import DbJournalSegment, DbRun, DbRunFile, DbSample
from osmosis_ai.platform.log_lines import LogLine
from osmosis_ai.platform.runs.lifecycle import UploadGoneError
from osmosis_ai.platform.runs.run_files import open_run_file
from osmosis_ai.platform.runs.work import artifact_cleaning, publisher
from osmosis_ai.platform.runs.work.platform_link import PlatformUnreachableError
from osmosis_ai.platform.runs.work.publisher import ROUND_S, Publisher
from osmosis_ai.platform.runs.work.run_channel import OutgoingBlob
from osmosis_ai.platform.runs.work.sample_files import FileNews, RecordedItem, SampleFiles
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.redaction import Redactor
from osmosis_ai.viewer.live import READ_EVERY_S
from tests.evaluation.builders import record
from tests.platform.evaluations import Submits, submit_body, wait_until
from tests.platform.runs.work.claimed_runs import DeskLink, claimed

RUNS = "/api/cli/eval-runs"


class Working:
    """A worker whose publisher the test lets say something, round by round.

    Attributes:
        said: what each exchange named.
    """

    def __init__(self, api: TestClient, services: PlatformServices, patch: pytest.MonkeyPatch) -> None:
        self.api, self.services = api, services
        self.run: dict[str, Any] = Submits(RUNS, submit_body).taken(
            api, evaluation_config={"limit": 100, "n": 1, "batch_size": 4}
        )
        self.now = 0.0
        self.said: list[set[str]] = []
        saying = DeskLink.sync

        def noted(link: DeskLink, run_id: str, request: SyncRequest) -> SyncReply:
            self.said.append(request.model_fields_set - {"lease"})
            return saying(link, run_id, request)

        patch.setattr(DeskLink, "sync", noted)
        channel = claimed(services, self.run["id"])
        self.directory = RunDirectory(services.config.runs_dir / self.run["id"])
        self.directory.create()
        self.directory.events.touch()
        nothing_secret = Redactor([])
        self.publisher = Publisher(channel, services.clock, nothing_secret, monotonic=lambda: self.now)
        files = SampleFiles(self.directory, channel.store, nothing_secret, clock=lambda: self.now)
        self.publisher.follow(self.directory, files, channel.assignment.journal.generation)

    def finish(self, row: int) -> None:
        """Have an attempt end, as the engine does it."""
        conversation = json.dumps([{"role": "user", "content": f"of row {row}"}])
        (self.directory.trajectories / f"row_{row}_run_0.json").write_text(conversation)
        with self.directory.events.open("ab") as journal:
            journal.write(record(row, 0).to_line())

    def round(self) -> bool:
        """Let some time pass, and the publisher do what it does then."""
        self.now += ROUND_S
        return self.publisher._round()

    def is_seen(self, row: int) -> bool:
        """Whether a page of samples has it, with its conversation."""
        page = self.api.get(f"{RUNS}/{self.run['id']}/samples", params={"limit": 500}).json()
        if row not in [sample["row"] for sample in page["samples"]]:
            return False
        path = f"trajectories/row_{row}_run_0.json"
        (found,) = self.api.post(
            f"{RUNS}/{self.run['id']}/samples/download-urls", json={"items": [{"path": path}]}
        ).json()["items"]
        assert f"of row {row}" in self.api.get(found["url"], headers={"Authorization": ""}).text
        return True

    def seconds_until_seen(self, row: int) -> float:
        began = self.now
        while not self.is_seen(row):
            self.round()
        return self.now - began


@pytest.fixture
def working(
    api: TestClient, services: PlatformServices, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Working]:
    with monkeypatch.context() as patch:
        yield Working(api, services, patch)


def test_a_sample_is_seen_within_two_seconds_however_many_hours_its_run_has_worked(working: Working) -> None:
    waited = []
    for row in range(40):
        working.now += (0.1, 0.7, 3_600.0)[row % 3]
        working.finish(row)
        if row % 4:
            working.round()
        waited.append(working.seconds_until_seen(row))
        working.services.shard_merging.merge_due()
    assert working.now > 40_000.0
    # A page that is looked at asks for what is new once a second.
    assert max(waited) + READ_EVERY_S < 2.0


def test_a_sample_is_counted_with_its_conversation_or_not_yet_and_the_log_says_why(
    working: Working, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_: Sequence[OutgoingBlob]) -> list[SentUpload]:
        raise PlatformUnreachableError("the bucket does not answer.")

    def lines() -> list[str]:
        log = working.services.logs.page(working.run["id"], limit=50, direction="newer").logs
        return [line.message or "" for line in log if "counted later" in (line.message or "")]

    with monkeypatch.context() as patch:
        patch.setattr(working.publisher._files, "_send", away)
        working.finish(0)
        working.publisher.start()

        def has_said_why() -> bool:
            working.now += 0.5
            return bool(lines())

        wait_until(has_said_why)
        assert working.api.get(f"{RUNS}/{working.run['id']}/samples").json()["samples"] == []
    working.now += 1.0
    working.publisher.finish()
    assert working.is_seen(0)
    assert lines() == [
        "samples are counted later, once their conversations are stored: the bucket does not answer."
    ]


@pytest.mark.parametrize(
    ("files", "exchange_bytes"), [(100, 34_000), pytest.param(1500, 512 * 1024, marks=pytest.mark.nightly)]
)
def test_very_many_files_are_told_in_exchanges_that_take_them(
    working: Working, monkeypatch: pytest.MonkeyPatch, files: int, exchange_bytes: int
) -> None:
    monkeypatch.setattr(publisher, "_FILES_BYTES", exchange_bytes)
    working.now = 10.0
    working.finish(0)
    long = "x" * 200
    for number in range(files):
        file = working.directory.artifacts / "row_0_run_0" / long / long / f"{number}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{number}")
    working.round()
    assert working.is_seen(0)
    told = [said for said in working.said if "wanted" not in said]
    assert len(told) > 1 and "journal" in told[-1]
    assert not list(working.directory.artifacts.rglob("*.txt"))


@pytest.mark.parametrize("is_the_end", [False, True])
def test_an_upload_that_the_platform_has_lost_is_sent_again(working: Working, is_the_end: bool) -> None:
    working.now = 10.0
    working.finish(0)
    file = working.directory.artifacts / "row_0_run_0" / "a.txt"
    file.parent.mkdir(parents=True)
    file.write_text("an artifact")
    losing = working.publisher._channel.sync

    def lost(**news: Any) -> SyncReply:
        if news.get("sent"):
            working.publisher._channel.sync = losing  # type: ignore[method-assign]
            for upload, _ in working.services.blobs.unfinished_uploads():
                working.services.blobs.abort_upload(upload)
        return losing(**news)

    working.publisher._channel.sync = lost  # type: ignore[method-assign]
    if is_the_end:
        working.publisher.finish()
        assert working.is_seen(0)
    else:
        with pytest.raises(UploadGoneError):
            working.round()
        assert working.seconds_until_seen(0) < 2.0
    with working.services.db.session() as session:
        kept = session.get_one(DbRunFile, (working.run["id"], "artifacts/row_0_run_0/a.txt"))
    with working.services.blobs.open(kept.blob_key) as blob:
        assert blob.read() == b"an artifact"


def test_a_journal_of_which_the_platform_has_less_at_the_end_is_sent_from_there_on(working: Working) -> None:
    working.finish(0)
    working.publisher.finish()
    working.finish(1)
    with working.services.db.transaction() as session:
        # A database that was restored.
        run = session.get_one(DbRun, working.run["id"])
        run.journal_bytes = 0
        session.execute(delete(DbJournalSegment).where(DbJournalSegment.run_id == run.id))
        session.execute(delete(DbSample).where(DbSample.run_id == run.id))
    working.publisher.finish()
    page = working.api.get(f"{RUNS}/{working.run['id']}/samples").json()
    assert [sample["row"] for sample in page["samples"]] == [0, 1]


def test_a_run_that_has_sent_all_that_it_may_goes_on_without_files_and_says_so(
    working: Working, monkeypatch: pytest.MonkeyPatch
) -> None:
    working.now = 10.0
    working.finish(0)
    working.round()
    monkeypatch.setattr(working.services.desk._uploads, "most_bytes", 1)
    working.finish(1)
    for _ in range(10):
        working.round()
    page = working.api.get(f"{RUNS}/{working.run['id']}/samples").json()
    assert [sample["row"] for sample in page["samples"]] == [0, 1]
    log = working.services.logs.page(working.run["id"], limit=50, direction="newer").logs
    assert len([line for line in log if "may send" in (line.message or "")]) == 1
    working.publisher.finish()


def test_a_burst_of_log_lines_in_any_script_goes_in_exchanges_that_take_them(
    working: Working, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    saying = DeskLink.sync

    def measured(link: DeskLink, run_id: str, request: SyncRequest) -> SyncReply:
        sizes.append(len(request.model_dump_json(by_alias=True, exclude_unset=True).encode()))
        return saying(link, run_id, request)

    monkeypatch.setattr(DeskLink, "sync", measured)
    working.now = 10.0
    for row in range(100):
        with working.directory.events.open("ab") as journal:
            journal.write(record(row, 0, error='"\\"' * 1000).to_line())
    for number in range(400):
        working.publisher.log(LogLine(f"{number} " + "\u82b1" * 2000 + "\x01" * 500))
    working.publisher.flush()
    assert max(sizes) < LARGEST_EXCHANGE_BYTES and sum(sizes) > 2 * LARGEST_EXCHANGE_BYTES
    page = working.services.logs.page(working.run["id"], limit=500, direction="newer")
    assert len([line for line in page.logs if "\u82b1" in (line.message or "")]) == 400


def test_a_round_that_fails_for_no_known_reason_is_followed_by_the_next(
    working: Working, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rounds, troubles, went_on = working.publisher._round, [RuntimeError("odd")] * 2, threading.Event()

    def round_() -> bool:
        if troubles:
            raise troubles.pop()
        went_on.set()
        return rounds()

    monkeypatch.setattr(working.publisher, "_round", round_)
    working.publisher.start()
    try:
        thread = working.publisher._thread
        while not went_on.wait(0.05):
            assert thread is not None and thread.is_alive(), "nothing of the run is seen until its end"
    finally:
        working.publisher.finish()
    assert capsys.readouterr().err.count("RuntimeError: odd") == 1


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
