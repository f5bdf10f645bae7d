"""What a worker reports reaches the platform: whole, once, without secrets, and through outages."""

from __future__ import annotations

import json
import threading
import tracemalloc
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import SecretStr
from starlette.responses import JSONResponse, Response

from osmosis_ai.api.connections import Waits
from osmosis_ai.api.http_errors import PlatformError
from osmosis_ai.api.models.workers import LARGEST_EXCHANGE_BYTES, Assignment, SyncReply, SyncRequest
from osmosis_ai.evaluation.attempt_files import conversation_line
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.platform.clock import Clock, SystemClock
from osmosis_ai.platform.log_lines import LogLine
from osmosis_ai.platform.worker import reporter
from osmosis_ai.platform.worker.client import (
    CredentialRefusedError,
    PlatformUnreachableError,
    StoreAwayError,
    WorkerClient,
)
from osmosis_ai.platform.worker.reporter import Event, Reporter
from osmosis_ai.redaction import Redactor
from tests.evaluation.builders import record
from tests.platform.conftest import ManualClock, World
from tests.platform.evaluations import wait_until
from tests.platform.fake_worker import EVALS, FakeWorker, downloaded, file_url
from tests.platform.worker.fake_platform import OFFSET_AT_7, FakePlatform, assignment, refusal

SECRETS = ("s3cret-value", "schlüssel-of-the-run", "123456", "true")


class Reporting:
    """A reporter, and the directory of the engine that it follows.

    Attributes:
        exchanges: the size of each exchange, with what it had.
    """

    def __init__(self, client: WorkerClient, assigned: Assignment, path: Path, clock: Clock) -> None:
        self.client, self.assigned, self.clock = client, assigned, clock
        self.directory = RunDirectory(path / "run")
        self.directory.create()
        self.exchanges: list[tuple[int, SyncRequest]] = []
        self.events: list[Event] = []
        self.heard = threading.Condition()
        self._sync, client.sync = client.sync, self._noted  # type: ignore[method-assign]
        assigned = assigned.model_copy(update={"secrets": {each: SecretStr(each) for each in SECRETS}})
        self.reporter = Reporter(self.client, assigned, self.clock, self._happened)
        self.reporter.follow(self.directory)

    def _happened(self, event: Event) -> None:
        if event != "round":
            with self.heard:
                self.events.append(event)
                self.heard.notify_all()

    def await_events(self, *names: str) -> None:
        with self.heard:
            assert self.heard.wait_for(lambda: len(self.events) >= len(names), 60), self.events
            assert self.events == list(names)

    def _noted(self, shard_id: str, lease: Any, request: SyncRequest, **options: Any) -> SyncReply:
        self.exchanges.append((len(request.model_dump_json(by_alias=True, exclude_unset=True)), request))
        return self._sync(shard_id, lease, request, **options)

    def finish(
        self, row: int, conversation: Any = None, artifacts: Mapping[str, bytes] | None = None, **fields: Any
    ) -> None:
        """Let an attempt end, with what the engine and the rollout's server write."""
        done = record(row, 0, **fields)
        self.converse(row, {"of": row} if conversation is None else conversation)
        for name, content in (artifacts or {}).items():
            file = self.directory.trial(done.rollout_id) / "artifacts" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        with self.directory.events.open("ab") as journal:
            journal.write(done.to_line())

    def converse(self, row: int, conversation: Any) -> None:
        with self.directory.conversations.open("ab") as stored:
            stored.write(conversation_line(record(row).rollout_id, conversation))


class Run(Reporting):
    """A run of 100 rows on the real platform."""

    def __init__(self, api: TestClient, world: World, client: WorkerClient, path: Path) -> None:
        self.api, self.world = api, world
        settings = {"limit": 100, "n": 1, "batch_size": 4}
        self.id: str = EVALS.taken(api, evaluation_config=settings)["id"]
        self.worker = FakeWorker.claims(world)
        super().__init__(client, self.worker.assignment, path, world.services.clock)

    def read(self, path: str) -> bytes | None:
        return downloaded(self.api, self.id, path) if file_url(self.api, self.id, path) else None

    def conversation(self, row: int) -> Any:
        content = self.read(f"trajectories/row_{row}_run_0.json")
        return None if content is None else json.loads(content)

    @property
    def rows(self) -> list[int]:
        return [sample.row_index for sample in self.worker.samples()]


@pytest.fixture
def run(api: TestClient, world: World, real: WorkerClient, tmp_path: Path) -> Run:
    return Run(api, world, real, tmp_path)


@pytest.fixture
def fake(
    worker_client: WorkerClient, platform: FakePlatform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Reporting]:
    """A reporter of the fake platform, in real time; a lease lasts 0.3 s."""
    monkeypatch.setattr(reporter, "_WAITS", Waits((0.01,)))
    platform.sync = {"stop": False, "term_s": 0.3, "next_poll_s": 0.02}
    assigned = assignment(lease={"token": "osml_lease-canary", "attempt": 1, "term_s": 0.3}, next_poll_s=0.02)
    made = Reporting(worker_client, assigned, tmp_path, SystemClock())
    yield made
    platform.answer = lambda _: None
    made.reporter.close()


# -- to the real platform ------------------------------------------------------------------------------


def test_an_attempt_arrives_with_its_files_and_without_secrets(run: Run, clock: ManualClock) -> None:
    run.finish(
        0, {"said": "it is s3cret-value"}, {"a/n.json": b'{"n": 123456, "pin": "123456"}', "b.txt": b"1"}
    )
    run.finish(1, {"said": "x" * 100_000 + "".join(map(str, range(40_000)))})
    run.finish(2, {"said": "a" * (6 << 20)})
    for row, diagnostics in ((0, '{"traceback": "s3cret-value"}'), (1, '{"cut": "')):
        trial = run.directory.trial(record(row).rollout_id)
        trial.mkdir(exist_ok=True)
        (trial / "diagnostics.json").write_text(diagnostics)
    run.reporter.log(LogLine("it is s3cret-value", details={"pin": "123456", "odd": "\0"}))
    run.reporter.know(environment="on s3cret-value", worked_s=1.5)
    run.reporter.flush()
    assert run.rows == [0, 1, 2]
    assert run.worker.stored_journal() == run.directory.events.read_bytes()
    assert run.conversation(0) == {"said": "it is [REDACTED]"}
    assert run.conversation(2) == {"said": "a" * (6 << 20)}, "it is small only when it is packed"
    assert run.read("artifacts/row_0_run_0/a/n.json") == b'{"n": 123456, "pin": "[REDACTED]"}'
    assert run.read("artifacts/row_0_run_0/b.txt") == b"1"
    assert json.loads(run.read("diagnostics/row_0_run_0.json") or b"") == {"traceback": "[REDACTED]"}
    assert run.read("diagnostics/row_1_run_0.json") is None, "it is incomplete"
    assert "it is [REDACTED]" in run.worker.messages()
    assert run.worker.run.environment == "on [REDACTED]"
    assert not any("s3cret-value" in request.model_dump_json() for _, request in run.exchanges)
    clock.advance(10)
    run.finish(3)
    run.reporter.flush()
    assert [path.name for path in run.directory.trials.iterdir()] == []
    assert list(run.directory.artifacts.iterdir()) == []


def test_conversations_are_sent_again_when_they_change(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporter, "_MOST_LINES_AT_ONCE", 3)
    for row in range(20):
        run.finish(row)
    run.reporter.flush()
    run.exchanges.clear()
    for row in range(0, 20, 2):
        run.converse(row, {"version": 2})
    run.reporter.flush()
    assert [run.conversation(row) for row in range(4)] == [
        {"version": 2},
        {"of": 1},
        {"version": 2},
        {"of": 3},
    ]
    assert all(request.journal is None for _, request in run.exchanges)
    run.finish(20)
    monkeypatch.setattr(run.world.services.queue.uploads, "most_bytes", 1)
    run.converse(0, {"said": "".join(map(str, range(50_000)))})
    run.reporter.flush()
    assert run.rows[-1] == 20, "a conversation that cannot be stored stops nothing"


def test_exchanges_stay_below_the_limits(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporter, "_MOST_EXCHANGE_FILES", 10)
    monkeypatch.setattr(reporter, "_MOST_ARTIFACTS_AT_ONCE", 8)
    run.finish(0, artifacts={f"{'x' * 100}/{number}.txt": b"1" for number in range(25)})
    # Quotes and backslashes grow twice: in the record, and in the exchange.
    for row in range(1, 100):
        run.finish(row, error='"\\"' * 12_000)
    for number in range(300):
        run.reporter.log(LogLine(f"{number} " + "\u82b1" * 2000 + "\x01" * 500))
    run.reporter.flush()
    assert run.rows == list(range(100))
    sizes = [size for size, _ in run.exchanges]
    assert max(sizes) < LARGEST_EXCHANGE_BYTES < sum(sizes) / 2
    with_files = [request for _, request in run.exchanges if request.files or request.sent]
    assert max(max(len(each.files), len(each.sent)) for each in with_files if each.journal is None) <= 10
    assert run.read(f"artifacts/row_0_run_0/{'x' * 100}/24.txt") == b"1"
    assert len([line for line in run.worker.messages() if "\u82b1" in line]) == 300


@pytest.mark.parametrize("loses_reply", [True, False])
def test_an_exchange_that_failed_is_repeated_without_doubles(run: Run, loses_reply: bool) -> None:
    run.finish(0)
    run.reporter.log(LogLine("once"))
    sync = run._sync

    def lost(*args: Any, **options: Any) -> SyncReply:
        run._sync = sync
        if loses_reply:
            sync(*args, **options)
        raise PlatformUnreachableError("away.")

    run._sync = lost
    run.reporter.flush()
    run.finish(1)
    run.reporter.flush()
    assert run.rows == [0, 1] and run.worker.messages().count("once") == 1
    assert run.worker.stored_journal() == run.directory.events.read_bytes()


def test_an_upload_that_the_platform_has_lost_is_sent_again(run: Run) -> None:
    run.finish(0, artifacts={"a.txt": b"an artifact"})
    sync = run._sync

    def lost(shard_id: str, lease: Any, request: SyncRequest, **options: Any) -> SyncReply:
        if request.sent:
            run._sync = sync
            for upload, _ in run.world.services.blobs.unfinished_uploads():
                run.world.services.blobs.abort_upload(upload)
        return sync(shard_id, lease, request, **options)

    run._sync = lost
    run.reporter.flush()
    assert run.rows == [0] and run.read("artifacts/row_0_run_0/a.txt") == b"an artifact"
    run.finish(1)
    newer = {"said": "".join(map(hex, range(50_000)))}
    run.converse(0, newer)
    run._sync = lost
    run.reporter.flush()
    assert run.rows == [0, 1] and run.conversation(0) == newer


def test_a_run_at_its_upload_limit_continues_without_files(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run.world.services.queue.uploads, "most_bytes", 1)
    for row in (0, 1):
        run.finish(row, artifacts={"a.txt": b"an artifact"})
    run.reporter.flush()
    assert run.rows == [0, 1] and run.read("artifacts/row_0_run_0/a.txt") is None
    assert len([line for line in run.worker.messages() if "may upload at most" in line]) == 1


def test_hostile_artifacts_are_left_out_and_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "artifacts").mkdir()
    (tmp_path / "outside" / "artifacts" / "stolen").write_text("of the platform")
    run.finish(0, artifacts={"a.txt": b"1"})
    folder = run.directory.trial(record(0).rollout_id) / "artifacts"
    (folder / "link").symlink_to(tmp_path / "outside" / "artifacts" / "stolen")
    run.directory.trial(record(1).rollout_id).symlink_to(tmp_path / "outside")
    run.finish(1)
    run.reporter.flush()
    assert run.rows == [0, 1]
    assert run.read("artifacts/row_0_run_0/a.txt") == b"1"
    assert run.read("artifacts/row_0_run_0/link") is run.read("artifacts/row_1_run_0/stolen") is None
    assert any("artifacts left out: link (a symbolic link)" in line for line in run.worker.messages())


def test_damage_ends_what_is_reported(run: Run) -> None:
    for row in range(3):
        run.finish(row)
    first, second, third = run.directory.events.read_bytes().splitlines(keepends=True)
    run.directory.events.write_bytes(first + second.replace(b":", b"!", 1) + third)
    run.reporter.flush()
    assert run.worker.stored_journal() == first
    assert run.reporter.damage is not None and "line 2" in run.reporter.damage.message


# -- through outages, to the fake platform ---------------------------------------------------------------


def test_the_offset_that_the_platform_names_counts(fake: Reporting, platform: FakePlatform) -> None:
    for row in range(3):
        fake.finish(row)
    fake.reporter.flush()
    journal = fake.directory.events.read_bytes()
    first = len(journal.splitlines(keepends=True)[0])
    fake.finish(3)
    body = {**OFFSET_AT_7, "details": {"bytes": first}}
    platform.replies = [JSONResponse(body, status_code=409)]
    fake.reporter.flush()
    part = platform.asked[-1].body["journal"]
    assert part["offset"] == first
    assert part["lines"].encode() == fake.directory.events.read_bytes()[first:]


def test_an_outage_is_outlasted_at_the_end_but_not_forever(
    fake: Reporting, platform: FakePlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.finish(0)
    platform.replies = [refusal(503), refusal(500), refusal(503, store_away=True)]
    fake.reporter.flush()
    assert len(platform.calls("sync")) == 4
    monkeypatch.setattr(reporter, "_PATIENCE_S", 0.0)
    fake.finish(1)
    for more, error in (({}, PlatformUnreachableError), ({"store_away": True}, StoreAwayError)):
        platform.answer = lambda _, more=more: refusal(503, **more)  # type: ignore[misc]
        with pytest.raises(error):
            fake.reporter.flush()
    platform.answer = lambda _: None
    fake.reporter.flush()
    assert record(1).rollout_id in platform.asked[-1].body["journal"]["lines"]


def test_silence_for_a_lease_is_noticed_each_time(fake: Reporting, platform: FakePlatform) -> None:
    fake.reporter.start()
    for times in (1, 2):
        platform.answer = lambda _: refusal(503)
        fake.await_events(*["cut_off"] * times)
        assert fake.reporter.has_expired()
        platform.answer = lambda _: None
        wait_until(lambda: not fake.reporter.has_expired())
    assert fake.events == ["cut_off"] * 2


def test_the_first_record_is_reported_at_once(fake: Reporting, platform: FakePlatform) -> None:
    platform.sync |= {"term_s": 36_000, "next_poll_s": 3600}
    fake.reporter.start()
    wait_until(lambda: platform.asked)
    fake.finish(0)
    fake.reporter.recorded()
    wait_until(lambda: any(asked.body.get("journal") for asked in platform.asked), within_s=60)


@pytest.mark.parametrize(
    ("reply", "event", "error"),
    [
        (refusal(409, "LEASE_LOST"), "lost", None),
        (refusal(401, "TOKEN_REVOKED"), "refused", CredentialRefusedError),
        (refusal(409, "JOURNAL_DIVERGED"), "stop", PlatformError),
        (refusal(400, "VALIDATION"), "stop", PlatformError),
    ],
)
def test_a_refusal_for_good_is_noticed_once(
    fake: Reporting, platform: FakePlatform, reply: Response, event: str, error: type[Exception] | None
) -> None:
    platform.answer = lambda asked: reply if event != "stop" or asked.body.get("journal") else None
    fake.finish(0)
    fake.reporter.start()
    fake.await_events(event)
    if event == "stop":
        asked = len(platform.asked)
        wait_until(lambda: len(platform.asked) > asked + 4)
        assert not fake.reporter.has_expired(), "the lease is kept while the work ends"
    if error is not None:
        with pytest.raises(error):
            fake.reporter.flush()
    assert fake.events == [event]


# -- artifacts -------------------------------------------------------------------------------------------

CLEANED = {
    b'{"n": 123456, "pin": "123456"}': b'{"n": 123456, "pin": "[REDACTED]"}',
    b'{ "n":123456, "x": NaN }\n': b'{ "n":123456, "x": NaN }\n',
    b'{"n": 123456}\n{"a": "123456"}\n': b'{"n": 123456}\n{"a": "[REDACTED]"}\n',
    b'{\n  "n": 123456,\n  "ok": true\n}': b'{\n  "n": 123456,\n  "ok": true\n}',
    b"{said} 123456 true\n\xff": b"{said} [REDACTED] true\n\xff",
}


@pytest.mark.parametrize("content", CLEANED, ids=range(len(CLEANED)))
def test_secrets_are_removed_from_artifacts_and_json_stays_json(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "artifact"
    file.write_bytes(content)
    with file.open("rb") as raw, reporter.clean_artifact(raw, Redactor(SECRETS)) as clean:
        assert clean.read() == CLEANED[content]


def test_a_huge_line_is_cleaned_in_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporter, "_LARGEST_DOCUMENT_BYTES", 1 << 16)
    monkeypatch.setattr(reporter, "_PIECE_BYTES", 1 << 14)
    key, content = SECRETS[1].encode(), bytearray()
    # Across the end of what is read first, across each kind of border, and cut within a letter.
    for place in ((1 << 16) - 4, (1 << 16) + (1 << 14) - 5, (1 << 18) - 1, 2 << 20, (8 << 20) - 7):
        content += b"x" * (place - len(content)) + key
    content += b"\xff\n" + key + b"\n"
    file = tmp_path / "trace.txt"
    file.write_bytes(content)
    tracemalloc.start()
    try:
        with file.open("rb") as raw, reporter.clean_artifact(raw, Redactor(SECRETS)) as clean:
            _, most = tracemalloc.get_traced_memory()
            assert clean.read() == bytes(content).replace(key, b"[REDACTED]")
    finally:
        tracemalloc.stop()
    assert most < 4 << 20, "of 8 MiB"
