"""What a worker finds out reaches the platform's pages: soon, whole, without secrets, and once."""

from __future__ import annotations

import json
import threading
import tracemalloc
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO, NoReturn, cast

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import delete

from osmosis_ai.api.wire.workers import (
    LARGEST_EXCHANGE_BYTES,
    SentUpload,
    SyncReply,
    SyncRequest,
    UploadGrant,
)
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.platform.blobs.shards import LARGEST_FILE_BYTES
from osmosis_ai.platform.db.tables import DbJournalSegment
from osmosis_ai.platform.runs.lifecycle import UploadGoneError
from osmosis_ai.platform.runs.work.platform_link import PlatformUnreachableError
from osmosis_ai.platform.runs.work.publisher import ROUND_S, Publisher
from osmosis_ai.platform.runs.work.run_channel import OutgoingBlob
from osmosis_ai.platform.runs.work.sample_files import SampleFiles
from tests.evaluation.builders import record
from tests.platform.evaluations import Submits, submit_body, wait_until
from tests.platform.platform_parts import DbRun, DbSample, LogLine, PlatformServices, Redactor
from tests.platform.runs.work.claimed_runs import DeskLink, claimed

RUNS = "/api/cli/eval-runs"
SECRETS = ("s3cret-value", "schlüssel-of-the-run", "123456", "true")


class Working:
    """A worker whose publisher the test lets say something, round by round.

    Attributes:
        said: what each exchange named.
    """

    def __init__(self, api: TestClient, services: PlatformServices, patch: pytest.MonkeyPatch) -> None:
        self.api, self.services = api, services
        settings = {"limit": 100, "n": 1, "batch_size": 4}
        self.id: str = Submits(RUNS, submit_body).taken(api, evaluation_config=settings)["id"]
        self.now = 0.0
        self.said: list[set[str]] = []
        saying = DeskLink.sync

        def noted(link: DeskLink, run_id: str, request: SyncRequest) -> SyncReply:
            self.said.append(request.model_fields_set - {"lease"})
            return saying(link, run_id, request)

        patch.setattr(DeskLink, "sync", noted)
        self.directory = RunDirectory(services.config.runs_dir / self.id)
        self.directory.create()
        self.directory.events.touch()
        self.begin()

    def begin(self) -> None:
        """Begin as the worker that has claimed the run now."""
        channel, redactor = claimed(self.services, self.id), Redactor(SECRETS)
        self.publisher = Publisher(channel, self.services.clock, redactor, monotonic=lambda: self.now)
        files = SampleFiles(self.directory, channel.store, redactor, clock=lambda: self.now)
        self.publisher.follow(self.directory, files, channel.assignment.journal.generation)

    def finish(
        self,
        row: int,
        content: bytes | None = None,
        *,
        artifacts: Mapping[str, bytes] | None = None,
        is_recorded: bool = True,
    ) -> None:
        """Have an attempt end, with what the engine and the rollout's server write of it."""
        done, name = record(row, 0), f"row_{row}_run_0"
        content = content or json.dumps([{"role": "user", "content": f"of row {row}"}]).encode()
        self.directory.trial(done.rollout_id).mkdir(exist_ok=True)
        for place in (self.directory.trial(done.rollout_id) / "trajectory.json", self._conversation(row)):
            place.write_bytes(content)
        for path, data in (artifacts or {}).items():
            file = self.directory.artifacts / name / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
        if is_recorded:
            with self.directory.events.open("ab") as journal:
                journal.write(done.to_line())

    def _conversation(self, row: int) -> Any:
        return self.directory.trajectories / f"row_{row}_run_0.json"

    def round(self) -> bool:
        """Let some time pass, and the publisher do what it does then."""
        self.now += ROUND_S
        return self.publisher._round()

    def rows(self) -> list[int]:
        """Return the rows of which pages show a sample."""
        page = self.api.get(f"{RUNS}/{self.id}/samples", params={"limit": 500}).json()
        return [sample["row"] for sample in page["samples"]]

    def read(self, path: str) -> bytes:
        asked = {"items": [{"path": path}]}
        (found,) = self.api.post(f"{RUNS}/{self.id}/samples/download-urls", json=asked).json()["items"]
        return bytes(self.api.get(found["url"], headers={"Authorization": ""}).content)

    def conversation(self, row: int) -> bytes:
        return self.read(f"trajectories/row_{row}_run_0.json")

    def is_seen(self, row: int) -> bool:
        """Whether a page of samples has it, with its conversation."""
        if row not in self.rows():
            return False
        assert f"of row {row}" in self.conversation(row).decode()
        return True

    def seconds_until_seen(self, row: int) -> float:
        began = self.now
        while not self.is_seen(row):
            self.round()
        return self.now - began

    def left(self) -> list[str]:
        """Return what is on the disk of samples."""
        of_samples = sorted(path.name for path in self.directory.path.rglob("row_*"))
        return of_samples + [path.name for path in self.directory.trials.iterdir()]

    def blobs(self) -> list[str]:
        keys = self.services.blobs.keys(f"runs/{self.id}")
        return [key for key in keys if "/shards/" in key or "/files/" in key]


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
    assert max(waited) + 1.0 < 2.0


def test_a_sample_counts_with_its_conversation(working: Working, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(_: Sequence[OutgoingBlob]) -> list[SentUpload]:
        raise PlatformUnreachableError("the bucket does not answer.")

    def lines() -> list[str]:
        log = working.services.logs.page(working.id, limit=50, direction="newer").logs
        return [line.message or "" for line in log if "counted later" in (line.message or "")]

    with monkeypatch.context() as patch:
        patch.setattr(working.publisher._files, "_send", away)
        working.finish(0)
        working.publisher.start()

        def has_said_why() -> bool:
            working.now += 0.5
            return bool(lines())

        wait_until(has_said_why)
        assert working.rows() == []
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
    monkeypatch.setattr("osmosis_ai.platform.runs.work.publisher._FILES_BYTES", exchange_bytes)
    working.now = 10.0
    folder = f"{'x' * 200}/{'x' * 200}"
    working.finish(0, artifacts={f"{folder}/{number}.txt": b"1" for number in range(files)})
    working.round()
    assert working.is_seen(0)
    told = [said for said in working.said if "wanted" not in said]
    assert len(told) > 1 and "journal" in told[-1]
    assert not list(working.directory.artifacts.rglob("*.txt"))


@pytest.mark.parametrize("is_the_end", [False, True])
def test_an_upload_that_the_platform_has_lost_is_sent_again(working: Working, is_the_end: bool) -> None:
    working.now = 10.0
    working.finish(0, artifacts={"a.txt": b"an artifact"})
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
    assert working.read("artifacts/row_0_run_0/a.txt") == b"an artifact"


def test_a_journal_of_which_the_platform_has_less_at_the_end_is_sent_from_there_on(working: Working) -> None:
    working.finish(0)
    working.publisher.finish()
    working.finish(1)
    with working.services.db.transaction() as session:
        # A database that was restored.
        run = session.get_one(DbRun, working.id)
        run.journal_bytes = 0
        session.execute(delete(DbJournalSegment).where(DbJournalSegment.run_id == run.id))
        session.execute(delete(DbSample).where(DbSample.run_id == run.id))
    working.publisher.finish()
    assert working.rows() == [0, 1]


def test_a_run_at_its_upload_limit(working: Working, monkeypatch: pytest.MonkeyPatch) -> None:
    working.now = 10.0
    working.finish(0)
    working.round()
    monkeypatch.setattr(working.services.desk._uploads, "most_bytes", 1)
    working.finish(1)
    for _ in range(10):
        working.round()
    assert working.rows() == [0, 1]
    log = working.services.logs.page(working.id, limit=50, direction="newer").logs
    assert len([line for line in log if "may send" in (line.message or "")]) == 1
    working.publisher.finish()


def test_a_burst_of_log_lines(working: Working, monkeypatch: pytest.MonkeyPatch) -> None:
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
    page = working.services.logs.page(working.id, limit=500, direction="newer")
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


# -- files of samples --------------------------------------------------------------------------------

ARTIFACTS = {
    "n.json": (b'{"n": 123456, "pin": "123456"}', b'{"n": 123456, "pin": "[REDACTED]"}'),
    "same.json": (b'{ "n":123456, "x": NaN }\n', b'{ "n":123456, "x": NaN }\n'),
    "n.jsonl": (b'{"n": 123456}\n{"a": "123456"}\n', b'{"n": 123456}\n{"a": "[REDACTED]"}\n'),
    "pretty.json": (b'{\n  "n": 123456,\n  "ok": true\n}', b'{\n  "n": 123456,\n  "ok": true\n}'),
    "note.txt": (b"{said} 123456 true\n\xff", b"{said} [REDACTED] true\n\xff"),
}


def test_secrets_are_blanked_in_artifacts_and_make_no_json_of_them_unreadable(working: Working) -> None:
    working.finish(0, artifacts={name: content for name, (content, _) in ARTIFACTS.items()})
    working.publisher.finish()
    for name, (_, expected) in ARTIFACTS.items():
        assert working.read(f"artifacts/row_0_run_0/{name}") == expected, name


def test_a_huge_line_is_redacted_in_pieces(working: Working, monkeypatch: pytest.MonkeyPatch) -> None:
    cleaning = "osmosis_ai.platform.runs.work.artifact_cleaning"
    monkeypatch.setattr(f"{cleaning}._LARGEST_DOCUMENT_BYTES", 1 << 18)
    monkeypatch.setattr(f"{cleaning}._PIECE_BYTES", 1 << 16)
    key, store = SECRETS[1].encode(), cast(Any, working.services.blobs)

    def send_in_pieces(_: DeskLink, grant: UploadGrant, content: BinaryIO, size: int) -> str:
        allowed = store.signer.part(grant.url.removeprefix("/blobs/"))
        content.seek(0)
        with store.receive_part(allowed) as incoming:
            while piece := content.read(1 << 16):
                incoming.write(piece)
            return str(store.keep_part(allowed, incoming).etag)

    # One across the end of what is read first, one across each kind of border, cut within a letter, too; and one in the next line.
    places = [(1 << 18) - 4, (1 << 18) + (1 << 16) - 5, (1 << 20) - 1, 10 << 20, (32 << 20) - 7]
    content = bytearray()
    for place in places:
        content += b"x" * (place - len(content)) + key
    content += b"\xff\n" + key + b"\n"
    working.finish(0, artifacts={"trace.txt": bytes(content)})
    monkeypatch.setattr(DeskLink, "send", send_in_pieces)
    tracemalloc.start()
    try:
        working.publisher.finish()
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 8 << 20, "of 32 MiB"
    kept = working.read("artifacts/row_0_run_0/trace.txt")
    assert kept == bytes(content).replace(key, b"[REDACTED]")
    assert kept.count(b"[REDACTED]") == len(places) + 1


def test_conversations_of_many_attempts_share_a_blob_and_are_read_one_by_one(working: Working) -> None:
    for row in range(50):
        working.finish(row, json.dumps({"row": row, "key": "s3cret-value"}).encode())
    working.publisher.finish()
    assert len(working.blobs()) == 1
    for row in range(50):
        assert json.loads(working.conversation(row)) == {"row": row, "key": "[REDACTED]"}
    assert working.left() == []


def test_the_next_worker_sends_what_was_lost(working: Working, monkeypatch: pytest.MonkeyPatch) -> None:
    working.finish(0)
    working.now = 10.0
    working.round()
    before = working.blobs()
    assert working.is_seen(0)

    sync = working.publisher._channel.sync

    def lost(**news: Any) -> SyncReply:
        """Lose what names the files, which have arrived."""
        if news.get("files"):
            raise PlatformUnreachableError("away.")
        return sync(**news)

    working.finish(1)
    with monkeypatch.context() as patch:
        patch.setattr(working.publisher._channel, "sync", lost)
        working.now += 1.0
        with pytest.raises(PlatformUnreachableError):
            working.round()
    assert "row_1_run_0.json" in working.left()
    working.publisher._channel.release()
    working.begin()
    working.publisher.finish()
    assert working.is_seen(0) and working.is_seen(1)
    assert set(before) < set(working.blobs()) and len(working.blobs()) == len(before) + 1
    assert working.left() == []


def test_a_later_copy_of_a_conversation_counts(working: Working) -> None:
    for row in (0, 1):
        working.finish(row)
    working.now = 10.0
    working.round()
    assert working.is_seen(0) and working.left() == []
    other = working.conversation(1)
    working.finish(0, b'{"n": 2}', is_recorded=False)
    working.publisher.finish()
    assert working.conversation(0) == b'{"n": 2}'
    assert working.conversation(1) == other and working.left() == []


def test_a_large_conversation_is_a_blob_of_its_own(working: Working) -> None:
    large = json.dumps({"text": "x" * LARGEST_FILE_BYTES}).encode()
    working.finish(0, large)
    working.finish(1)
    working.publisher.finish()
    assert working.conversation(0) == large and working.is_seen(1)
    assert len(working.blobs()) == 2


def test_why_an_attempt_failed_is_kept_without_secrets(working: Working) -> None:
    for row, diagnostics in ((0, '{"traceback": "s3cret-value"}'), (1, '{"traceback": "s3cr')):
        working.finish(row)
        (working.directory.trial(record(row).rollout_id) / "diagnostics.json").write_text(diagnostics)
    working.publisher.finish()
    assert json.loads(working.read("diagnostics/row_0_run_0.json")) == {"traceback": "[REDACTED]"}
    asked = {"items": [{"path": "diagnostics/row_1_run_0.json"}]}
    reply = working.api.post(f"{RUNS}/{working.id}/samples/download-urls", json=asked)
    assert reply.json()["items"] == [], "it is damaged"


def test_a_refused_shard_is_sent_again(working: Working, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> NoReturn:
        raise OSError(28, "No space left on device")

    working.finish(0)
    working.now = 10.0
    with monkeypatch.context() as patched:
        patched.setattr(DeskLink, "send", full)
        with pytest.raises(OSError, match="No space"):
            working.round()
    assert working.seconds_until_seen(0) < 2.0
