"""When what a worker finds out is seen: on the platform's pages within two seconds, however old its run is, and by how many exchanges."""

from __future__ import annotations

import itertools
import json
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import delete

from osmosis_ai.api.wire.workers import LARGEST_EXCHANGE_BYTES, SentUpload, SyncReply, SyncRequest
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.evaluation.run_state import ProgressSnapshot
from osmosis_ai.platform.blobs.store import BlobStoreBusy
from osmosis_ai.platform.db.tables import DbJournalSegment, DbRun, DbRunFile, DbSample
from osmosis_ai.platform.log_lines import LogLine, bounded
from osmosis_ai.platform.runs.desk.uploads import RunUploads
from osmosis_ai.platform.runs.lifecycle import UploadGoneError
from osmosis_ai.platform.runs.work import publisher
from osmosis_ai.platform.runs.work.platform_link import PlatformUnreachableError
from osmosis_ai.platform.runs.work.publisher import ROUND_S, Publisher
from osmosis_ai.platform.runs.work.run_channel import OutgoingBlob
from osmosis_ai.platform.runs.work.sample_files import SampleFiles
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


def test_a_sample_takes_two_exchanges_its_conversation_and_its_line_in_one(working: Working) -> None:
    working.now = 10.0
    working.finish(0)
    working.publisher.log(LogLine("a line of the log"))
    working.round()
    assert working.said == [{"wanted"}, {"sent", "files", "journal", "log"}]
    assert working.is_seen(0)


def test_uploads_that_can_not_be_taken_keep_nobody_from_being_heard_of(
    working: Working, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_: RunUploads, run_id: str, sent: Sequence[SentUpload]) -> None:
        if sent:
            raise BlobStoreBusy("the bucket answered 503; it is asked again later.")

    working.now = 10.0
    working.finish(0)
    working.publisher.log(LogLine("a line of the log"))
    with monkeypatch.context() as patch:
        patch.setattr(RunUploads, "complete", away)
        with pytest.raises(OsmosisError):
            working.round()
    page = working.services.logs.page(working.run["id"], limit=50, direction="newer")
    assert "a line of the log" in [line.message for line in page.logs]
    assert working.seconds_until_seen(0) < 2.0


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


def test_of_very_many_artifacts_few_are_open_at_a_time(working: Working) -> None:
    working.now = 10.0
    working.finish(0)
    for number in range(400):
        file = working.directory.artifacts / "row_0_run_0" / f"{number}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{number}")
    most = 0
    saying = working.publisher._channel.sync

    def counted(**news: Any) -> SyncReply:
        nonlocal most
        reply = saying(**news)
        most = max(most, len(list(working.services.blobs.unfinished_uploads())))
        return reply

    working.publisher._channel.sync = counted  # type: ignore[method-assign]
    working.round()
    assert working.is_seen(0)
    assert 0 < most <= 128


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


def test_lines_that_are_logged_while_others_are_told_are_told_next(
    working: Working, monkeypatch: pytest.MonkeyPatch
) -> None:
    def logged_meanwhile(text: str) -> str:
        monkeypatch.setattr(publisher, "bounded", bounded)
        working.publisher.log(LogLine("third"))
        return bounded(text)

    for message in ("first", "second"):
        working.publisher.log(LogLine(message))
    monkeypatch.setattr(publisher, "bounded", logged_meanwhile)
    while working.round():
        pass
    working.now += 60
    working.round()
    lines = working.api.get(f"{RUNS}/{working.run['id']}/logs").json()["logs"]
    assert [line["message"] for line in lines if line["message"] in ("first", "second", "third")] == [
        "first",
        "second",
        "third",
    ]


@pytest.mark.parametrize("place", range(12))
def test_what_is_handed_over_while_others_words_are_told_is_told_next(working: Working, place: int) -> None:
    """Another thread may come in between any two lines."""
    known = ProgressSnapshot(1, 3, 1, 0, 0, 1, 1.0, 7, None, 2, 0.5, 1)
    lines = itertools.count()

    def come_in_between(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code is not Publisher._note_told.__code__:
            return None
        if event == "line" and next(lines) == place:
            working.publisher.know(environment="the next one")
            working.publisher.progress(replace(known, completed=2))
        return come_in_between

    working.publisher.know(environment="the first one")
    working.publisher.progress(known)
    before = sys.gettrace()
    sys.settrace(come_in_between)
    try:
        working.round()
    finally:
        sys.settrace(before)
    working.publisher.know(isolation="none")
    working.now += 60
    working.round()
    with working.services.db.session() as session:
        run = session.get_one(DbRun, working.run["id"])
    happened = next(lines) > place
    assert (run.environment, run.isolation) == ("the next one" if happened else "the first one", "none")
    assert run.progress == {"completed": 2 if happened else 1, "total": 3}


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


def test_that_time_passes_is_no_news(working: Working) -> None:
    known = ProgressSnapshot(1, 3, 1, 0, 0, 1, 1.0, 7, None, 2, 0.5, 1)
    for later in (
        known,
        replace(known, elapsed_s=0.9, in_flight=1),
        replace(known, completed=2, elapsed_s=1.0),
    ):
        working.publisher.progress(later)
        working.round()
        working.now += 10.0
    assert working.said == [{"progress"}, {"progress"}]
