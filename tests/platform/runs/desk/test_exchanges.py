"""What a worker says of its run is taken once, whole, and from its owner alone."""

from __future__ import annotations

import gzip
import hashlib

import orjson
import pytest
from fastapi.testclient import TestClient

from tests.evaluation.recorded_runs import with_crc
from tests.platform.conftest import ManualClock, Member
from tests.platform.platform_parts import DbRun, PlatformServices
from tests.platform.runs.desk.desk_workers import RUNS, DeskWorker, Refused, has_expired, records, submitted
from tests.platform.viewer.runs_world import add_file, add_run, add_samples

TRAJECTORY = "trajectories/row_0_run_0.json"


def downloaded(api: TestClient, run_id: str, path: str) -> bytes:
    """Fetch a file of a run as a client does."""
    asked = {"items": [{"path": path}]}
    (found,) = api.post(f"{RUNS}/{run_id}/samples/download-urls", json=asked).json()["items"]
    return bytes(api.get(found["url"], headers={"Authorization": ""}).content)


def kept_rows(api: TestClient, run_id: str) -> list[int]:
    """Return the rows in the journal that stays with a run."""
    return [orjson.loads(line)["row_index"] for line in downloaded(api, run_id, "events.jsonl").splitlines()]


def test_lines_become_samples_once_however_often_they_are_sent(worker: DeskWorker) -> None:
    worker.write(records(3))
    half = len(worker.journal) // 3
    assert worker.sync(journal=worker.part(end=half)).journal_bytes == half
    # The answer was lost, and more has come since.
    assert worker.sync(journal=worker.part()).journal_bytes == len(worker.journal)
    assert worker.sync(journal=worker.part(half)).journal_bytes == len(worker.journal)
    samples = worker.samples()
    assert [(each.row_index, each.position) for each in samples] == [
        (row, half * (row + 1)) for row in range(3)
    ]
    assert not any(each.resumed for each in samples)


def test_a_part_above_what_is_stored_is_answered_with_where_that_ends(worker: DeskWorker) -> None:
    worker.write(records(2))
    with pytest.raises(Refused, match="JOURNAL_OFFSET") as refused:
        worker.sync(journal=worker.part(len(worker.journal) // 2))
    assert refused.value.body["details"] == {"bytes": 0}
    assert worker.samples() == []


def test_other_bytes_below_what_is_stored_are_refused_where_they_begin(worker: DeskWorker) -> None:
    worker.records(2)
    first, rest = worker.journal.split(b"\n", 1)
    body = first[: first.rindex(b',"crc":')].replace(b'"reward":1.0', b'"reward":0.5')
    changed = with_crc(body + b"}\n") + rest
    with pytest.raises(Refused, match="JOURNAL_DIVERGED") as refused:
        worker.sync(journal=worker.part(lines=changed.decode()))
    assert refused.value.body["details"]["offset"] == worker.journal.index(b"1.0")
    assert [each.reward for each in worker.samples()] == [1.0, 1.0]


@pytest.mark.parametrize("lines", ['{"row_index": 0}\n', '{"row_index": 0', "no record\n"])
def test_a_line_that_is_no_record_leaves_nothing(worker: DeskWorker, lines: str) -> None:
    with pytest.raises(Refused):
        worker.sync(journal=worker.part(lines=lines), facts={"environment": "x"})
    assert (worker.run.journal_bytes, worker.run.environment) == (0, None)


@pytest.mark.usefixtures("small_pieces")
def test_a_large_journal_stays_whole(api: TestClient, worker: DeskWorker) -> None:
    for _ in range(30):
        worker.records(20)
    assert list(worker.services.blobs.keys(f"runs/{worker.run_id}/journal")), "some of it is in the store"
    middle = worker.journal.index(b"\n", len(worker.journal) * 9 // 10) + 1
    assert worker.sync(journal=worker.part(middle)).journal_bytes == len(worker.journal), "said again"
    worker.releases()
    successor = DeskWorker.claims(worker.services)
    segments = successor.assignment.journal.segments
    assert b"".join(gzip.decompress(successor.blob(each.url)) for each in segments) == worker.journal
    successor.ends()
    assert kept_rows(api, worker.run_id) == list(range(600))


def test_another_file_of_its_own(api: TestClient, worker: DeskWorker, clock: ManualClock) -> None:
    worker.records(3)
    for generation in (1, 2):
        has_expired(clock)
        stored, former = worker.journal, worker
        worker = DeskWorker.claims(worker.services)
        worker.journal, worker.generation = stored, generation
        worker.records(1)
        with pytest.raises(Refused, match="JOURNAL_OFFSET"):
            worker.sync(journal=worker.part(generation=generation - 1))
        with pytest.raises(Refused, match="LEASE_LOST"):
            former.sync(journal=former.part())
    worker.ends()
    assert kept_rows(api, worker.run_id) == list(range(5))
    assert [each.row_index for each in worker.samples()] == list(range(5))


def test_a_line_of_the_log_is_kept_once(worker: DeskWorker) -> None:
    worker.say("one", "two", first=0)
    worker.say("one", "two", "three", first=0)
    worker.say("two", first=1)
    said = ("one", "two", "three")
    assert [message for message in worker.messages() if message in said] == list(said)


def test_a_log_continues_after_a_restored_database(worker: DeskWorker) -> None:
    worker.say("one", "two", first=0)
    with worker.services.db.transaction() as session:
        session.get_one(DbRun, worker.run_id).log_lines = 1  # what was restored was taken before the second
    lines = worker.write(records(2))
    said = {"first": 2, "lines": [{"timestamp": worker.services.clock.now(), "message": "three"}]}
    for _ in range(2):
        reply = worker.sync(journal=worker.part(), log=said)
        assert (reply.journal_bytes, reply.log_lines) == (len(lines), 3)
    assert worker.messages().count("three") == 1
    with pytest.raises(Refused, match="no line of this number"):
        worker.say("four", first=(1 << 53) - 1)


def test_a_file_is_there_before_the_row_that_names_it(api: TestClient, worker: DeskWorker) -> None:
    file = {"path": "artifacts/a.txt", "kind": "artifacts", "size": 5, "blob": "files/abc"}
    with pytest.raises(Refused, match="files/abc"):
        worker.sync(files=[file])
    grant = worker.wants("files/abc", b"hello")
    assert worker.wants("files/abc", b"hello").id == grant.id
    with pytest.raises(Refused, match="files/abc"):
        worker.sync(files=[file])
    sent = worker.puts(grant, b"hello")
    for _ in range(2):
        worker.sync(sent=[sent], files=[file])
    worker.sync(files=[{**file, "path": "artifacts/b.txt"}])
    assert downloaded(api, worker.run_id, "artifacts/b.txt") == b"hello"
    assert worker.wants("files/abc", b"hello").url == "", "the platform has it"


def test_of_two_files_of_one_name_the_later_one_counts(api: TestClient, worker: DeskWorker) -> None:
    file = {"path": TRAJECTORY, "kind": "trajectories"}
    for name, content in (("files/a", b"first"), ("files/b", b"and a fuller one")):
        sent = worker.sends(name, content)
        worker.sync(sent=[sent], files=[{**file, "size": len(content), "blob": name}])
    assert downloaded(api, worker.run_id, TRAJECTORY) == b"and a fuller one"


def test_a_manifest_has_the_checksum_of_a_whole_file(api: TestClient, worker: DeskWorker) -> None:
    whole = {"path": "artifacts/row_0_run_0/a.txt", "kind": "artifacts", "size": 5, "blob": "files/abc"}
    piece = {**whole, "path": "artifacts/row_0_run_0/b.txt", "blob": "shards/1", "shard_offset": 0}
    sent = [worker.sends("files/abc", b"hello"), worker.sends("shards/1", b"packed")]
    worker.sync(sent=sent, files=[whole, {**piece, "shard_length": 6}])
    listed = api.get(f"{RUNS}/{worker.run_id}/samples/manifest?types=artifacts").json()["files"]
    assert listed == [
        {"path": whole["path"], "size": 5, "sha256": hashlib.sha256(b"hello").hexdigest()},
        {"path": piece["path"], "size": 5},  # has a checksum of its own
    ]


def test_bytes_that_are_not_those_announced_are_forgotten(worker: DeskWorker) -> None:
    sent = worker.puts(worker.wants("files/abc", b"hello"), b"jello")
    with pytest.raises(Refused, match="not those that were announced"):
        worker.sync(sent=[sent])
    with pytest.raises(Refused, match="UPLOAD_GONE"):
        worker.sync(sent=[sent])
    worker.sync(sent=[worker.sends("files/abc", b"hello")])


def test_an_upload_is_of_one_run(api: TestClient, worker: DeskWorker, services: PlatformServices) -> None:
    submitted(api)
    other = DeskWorker.claims(services)
    assert worker.run_id != other.run_id
    sent = worker.puts(worker.wants("files/a", b"mine"), b"mine")
    with pytest.raises(Refused, match="UPLOAD_GONE"):
        other.sync(sent=[sent])
    assert other.wants("files/a", b"mine").id != sent.id
    with pytest.raises(Refused, match="UPLOAD_GONE"):
        other.sync(sent=[sent])
    worker.sync(sent=[sent])
    stored = [key for key in services.blobs.keys("runs") if key.endswith("files/a")]
    assert stored == [f"runs/{worker.run_id}/files/a"]


def test_no_reply_has_a_signed_url(api: TestClient, services: PlatformServices, member: Member) -> None:
    run = add_run(services, member, "first")
    add_samples(services, run, [{"row": 0, "attempt": 0, "reward": 1.0, "error_type": None}])
    add_file(services, run, TRAJECTORY, b"{}")
    for path in ("/first", "", "/first/metrics", "/first/samples", "/first/logs"):
        reply = api.get(f"{RUNS}{path}")
        assert reply.status_code == 200
        assert "/blobs/" not in reply.text and "X-Amz-" not in reply.text, path
