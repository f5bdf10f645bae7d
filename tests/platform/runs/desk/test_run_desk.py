"""Workers at the desk: what they are handed, and what is taken of what they say."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from typing import Any, NoReturn

import pytest
from fastapi.testclient import TestClient

from osmosis_ai.api.wire.workers import LogPart, WorkerLogLine
from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.platform.db.engine import DatabaseBusyError
from osmosis_ai.platform.db.tables import DbJournalSegment, DbRun, DbRunFile
from osmosis_ai.platform.log_lines import storable
from osmosis_ai.platform.logs import LogStore
from osmosis_ai.platform.runs.desk import journal_folding
from osmosis_ai.platform.runs.desk.claims import Claims, ClaimScope
from osmosis_ai.platform.runs.desk.journal_intake import JournalDivergedError
from osmosis_ai.platform.runs.desk.unfit_machines import UnfitMachines
from osmosis_ai.platform.runs.desk.watching import Idler
from osmosis_ai.platform.runs.journal_segments import run_records
from osmosis_ai.platform.runs.leases import Leases
from osmosis_ai.platform.runs.lifecycle import JournalOffsetError, LeaseLostError
from osmosis_ai.platform.runs.run_files import open_run_file
from osmosis_ai.platform.runs.stored_journal import stored_records
from osmosis_ai.platform.services import PlatformServices
from tests.platform.conftest import ManualClock, World
from tests.platform.evaluations import Code
from tests.platform.runs.desk.desk_workers import ANY, DeskWorker, offer, records
from tests.platform.runs.desk.submits import has_expired, submitted


def test_a_worker_is_handed_all_that_its_run_needs(worker: DeskWorker, code: Code) -> None:
    given = worker.assignment
    assert given.source is not None
    packed = worker.blob(given.source.url)
    assert (len(packed), hashlib.sha256(packed).hexdigest()) == (given.source.size, given.source.sha256)
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        members = archive.getmembers()
    assert "rollouts/multiply/main.py" in [member.name for member in members]
    assert {(member.mtime, member.uid, member.uname) for member in members} == {(0, 0, "")}
    rows = worker.blob(given.dataset.url)
    assert hashlib.sha256(rows).hexdigest() == given.dataset.sha256
    assert given.run.request["experiment_config"]["rollout"] == "multiply"
    assert (given.lease.attempt, given.lease.term_s) == (1, 30.0)
    assert (given.journal.bytes, given.journal.segments, given.secrets) == (0, [], {})


def test_a_commit_is_packed_once_and_the_same_bytes_each_time(
    api: TestClient, services: PlatformServices, worker: DeskWorker
) -> None:
    first = worker.assignment.source
    packed = list(services.blobs.keys("sources"))
    submitted(api)
    again = DeskWorker.claims(services).assignment.source
    assert len(packed) == 1 and list(services.blobs.keys("sources")) == packed
    services.blobs.delete_below("sources")
    submitted(api)
    anew = DeskWorker.claims(services).assignment.source
    assert first is not None and again is not None and anew is not None
    assert first.sha256 == again.sha256 == anew.sha256


def test_a_claim_made_again_gets_the_same_answer_until_its_worker_has_begun(
    api: TestClient, services: PlatformServices
) -> None:
    submitted(api, secrets={"required": ["API_KEY"], "provided": {"API_KEY": "sk-one-two-three"}})
    asked = offer()
    first, again = (services.desk.claim(asked, ANY) for _ in range(2))
    assert first is not None and again is not None
    assert again.lease == first.lease
    assert again.secrets["API_KEY"].get_secret_value() == "sk-one-two-three"
    worker = DeskWorker(services, first)
    said = [message for message in worker.messages() if "API_KEY" in message]
    assert said == ["handed the worker of attempt 1 these secrets: API_KEY"]
    assert "sk-one-two-three" not in str(said)
    worker.sync()
    with pytest.raises(ConflictError, match="has been answered"):
        services.desk.claim(asked, ANY)


def _fails(*_asked: object) -> NoReturn:
    raise DatabaseBusyError("the database is busy.")


def test_secrets_are_handed_to_nobody_of_whom_the_runs_log_does_not_say_it(
    api: TestClient, services: PlatformServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted(api, secrets={"required": ["API_KEY"], "provided": {"API_KEY": "sk-one-two-three"}})
    asked = offer(machine="basement")
    with monkeypatch.context() as broken:
        broken.setattr(LogStore, "_rows", _fails)
        with pytest.raises(DatabaseBusyError):
            services.desk.claim(asked, ANY)
    given = [services.desk.claim(asked, ANY) for _ in range(2)]
    assert given[0] is not None and given[0].secrets
    logged = services.logs.page(given[0].run.id).logs
    [line] = [line for line in logged if "API_KEY" in line.message]
    assert (line.message, line.details) == (
        "handed the worker of attempt 1 these secrets: API_KEY",
        {"machine": "basement"},
    )


def test_runs_of_a_pool_are_for_its_workers_alone(api: TestClient, services: PlatformServices) -> None:
    submitted(api, advanced_config={"execution": {"pool": "gpu", "gpus": 2}})
    assert services.desk.claim(offer(), ANY) is None
    pool = ClaimScope(pool="gpu")
    assert services.desk.claim(offer(gpus=1), pool) is None, "it has not what the run asks for"
    assert services.desk.claim(offer(gpus=2), ClaimScope(pool="gpu", workspaces=frozenset({"wsp_x"}))) is None
    assert DeskWorker.claims(services, pool, gpus=2).run.status == "running"


def test_a_look_asks_the_database_the_same_whatever_the_machines_that_wait_have(
    api: TestClient, services: PlatformServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted(api, advanced_config={"execution": {"pool": "gpu", "cpus": 3}})
    asked: list[Any] = []
    waiting = Claims.waiting

    def counted(claims: Claims, *question: Any) -> Any:
        asked.append(question)
        return waiting(claims, *question)

    monkeypatch.setattr(Claims, "waiting", counted)
    pool = ClaimScope(pool="gpu")
    small, large, other = (Idler(offer(cpus=cpus), pool) for cpus in (2, 3, 4))
    assert services.desk.watch.served([small, large, other]) == [large], "there is one run"
    assert len(asked) == 1
    asked.clear()
    services.desk.watch.served([Idler(offer(run_id=f"run_{number}"), pool) for number in range(200)])
    assert len(asked) == 32


def test_the_workspace_with_the_fewest_at_work_goes_first(
    api: TestClient, services: PlatformServices, clock: ManualClock, world: World
) -> None:
    for _ in range(3):
        clock.advance(1)
        submitted(api)
    ivo = world.member("ivo", workspace="moss")
    with services.db.transaction() as session:
        last = session.query(DbRun).order_by(DbRun.created_at.desc()).first()
        assert last is not None
        last.workspace_id = ivo.workspace.id
    leases = Leases(services.db, clock)
    claims = Claims(services.db, leases, UnfitMachines(services.db, clock))
    order = []
    for _ in range(3):
        taken = claims.take(offer(), ANY)
        assert taken is not None
        order.append(taken[0].run_id)
    assert order[1] == last.id, "the newest, but nobody works for its workspace"


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


def test_a_part_above_what_is_stored_is_told_where_that_ends(worker: DeskWorker) -> None:
    worker.write(records(2))
    half = len(worker.journal) // 2
    with pytest.raises(JournalOffsetError) as refused:
        worker.sync(journal=worker.part(half))
    assert refused.value.stored == 0
    assert worker.samples() == []


def test_other_bytes_below_what_is_stored_are_refused_where_they_begin(worker: DeskWorker) -> None:
    worker.write(records(2))
    worker.sync(journal=worker.part())
    changed = worker.journal.replace(b'"reward":1.0', b'"reward":0.5', 1)
    with pytest.raises(JournalDivergedError) as refused:
        worker.sync(journal=worker.part(lines=changed.decode()))
    assert refused.value.details["offset"] == worker.journal.index(b"1.0")
    assert [each.reward for each in worker.samples()] == [1.0, 1.0]


@pytest.mark.parametrize("lines", ['{"row_index": 0}\n', '{"row_index": 0', "no record\n"])
def test_a_line_that_is_no_record_leaves_nothing(worker: DeskWorker, lines: str) -> None:
    with pytest.raises(OsmosisError):
        worker.sync(journal=worker.part(lines=lines), facts={"environment": "x"})
    assert (worker.run.journal_bytes, worker.run.environment) == (0, None)


def test_a_line_of_the_log_is_kept_once(worker: DeskWorker) -> None:
    worker.say("one", "two", first=0)
    worker.say("one", "two", "three", first=0)
    worker.say("two", first=1)
    assert [message for message in worker.messages() if message in ("one", "two", "three")] == [
        "one",
        "two",
        "three",
    ]


def test_a_worker_goes_on_where_an_older_state_of_the_database_has_less_of_its_log(
    worker: DeskWorker,
) -> None:
    worker.say("one", "two", first=0)
    with worker.services.db.transaction() as session:
        session.get_one(DbRun, worker.run_id).log_lines = 1  # what was restored was taken before the second
    lines = worker.write(records(2))
    said = LogPart(first=2, lines=[WorkerLogLine(timestamp=worker.services.clock.now(), message="three")])
    for _ in range(2):
        reply = worker.sync(journal=worker.part(), log=said)
        assert (reply.journal_bytes, reply.log_lines) == (len(lines), 3)
    assert worker.messages().count("three") == 1
    with pytest.raises(OsmosisError, match="no line of this number"):
        worker.say("four", first=(1 << 53) - 1)


def test_a_file_is_there_before_the_row_that_names_it(worker: DeskWorker) -> None:
    file = {"path": "artifacts/a.txt", "kind": "artifacts", "size": 5, "blob": "files/abc"}
    with pytest.raises(ConflictError, match="files/abc"):
        worker.sync(files=[file])
    grant = worker.wants("files/abc", b"hello")
    assert worker.wants("files/abc", b"hello").id == grant.id
    with pytest.raises(ConflictError, match="files/abc"):
        worker.sync(files=[file])
    sent = worker.puts(grant, b"hello")
    for _ in range(2):
        worker.sync(sent=[sent], files=[file])
    worker.sync(files=[{**file, "path": "artifacts/b.txt"}])
    with worker.services.db.session() as session:
        row = session.get_one(DbRunFile, (worker.run_id, "artifacts/b.txt"))
    with worker.services.blobs.open(row.blob_key) as blob:
        assert blob.read() == b"hello"
    assert worker.wants("files/abc", b"hello").url == "", "the platform has it"


def test_of_two_files_of_one_name_the_later_one_counts(worker: DeskWorker) -> None:
    file = {"path": "trajectories/row_0_run_0.json", "kind": "trajectories"}
    for name, content in (("files/a", b"first"), ("files/b", b"and a fuller one")):
        sent = worker.sends(name, content)
        worker.sync(sent=[sent], files=[{**file, "size": len(content), "blob": name}])
    with worker.services.db.session() as session:
        row = session.get_one(DbRunFile, (worker.run_id, file["path"]))
    with open_run_file(worker.services.blobs, row) as content_now:
        assert content_now.read() == b"and a fuller one"


def test_whoever_downloads_a_file_is_told_what_its_bytes_must_be(api: TestClient, worker: DeskWorker) -> None:
    whole = {"path": "artifacts/row_0_run_0/a.txt", "kind": "artifacts", "size": 5, "blob": "files/abc"}
    piece = {**whole, "path": "artifacts/row_0_run_0/b.txt", "blob": "shards/1", "shard_offset": 0}
    sent = [worker.sends("files/abc", b"hello"), worker.sends("shards/1", b"packed")]
    worker.sync(sent=sent, files=[whole, {**piece, "shard_length": 6}])
    listed = api.get(f"/api/cli/eval-runs/{worker.run_id}/samples/manifest?types=artifacts").json()["files"]
    assert listed == [
        {"path": whole["path"], "size": 5, "sha256": hashlib.sha256(b"hello").hexdigest()},
        {"path": piece["path"], "size": 5},  # has a checksum of its own
    ]


def test_bytes_that_are_not_those_announced_are_forgotten(worker: DeskWorker) -> None:
    sent = worker.puts(worker.wants("files/abc", b"hello"), b"jello")
    with pytest.raises(OsmosisError, match="not those that were announced"):
        worker.sync(sent=[sent])
    with pytest.raises(ConflictError):
        worker.sync(sent=[sent])
    worker.sync(sent=[worker.sends("files/abc", b"hello")])


@pytest.mark.parametrize("name", ["../x", "events.jsonl.gz", "journal/0", "a//b", "/etc/passwd"])
def test_a_blob_has_a_name_of_its_own(worker: DeskWorker, name: str) -> None:
    with pytest.raises(OsmosisError):
        worker.wants(name, b"x")


def test_names_that_a_database_would_refuse_are_kept_without_what_it_refuses(worker: DeskWorker) -> None:
    worker.write(records(1, parts={"a\0b": 1.0}))
    worker.sync(journal=worker.part())
    (sample,) = worker.samples()
    assert sample.parts == {storable("a\0b"): 1.0} and "\0" not in str(list(sample.parts))


def test_the_next_worker_is_handed_the_journal_and_the_one_before_writes_no_more(
    worker: DeskWorker, clock: ManualClock
) -> None:
    worker.write(records(3))
    worker.sync(journal=worker.part())
    worker.write(records(1, first=3))  # never sent
    has_expired(clock)
    successor = DeskWorker.claims(worker.services)
    journal = successor.assignment.journal
    assert (successor.assignment.lease.attempt, successor.run_id) == (2, worker.run_id)
    stored = b"".join(gzip.decompress(successor.blob(segment.url)) for segment in journal.segments)
    assert stored == worker.journal[: journal.bytes] and journal.bytes < len(worker.journal)
    assert [segment.sha256 for segment in journal.segments] == [hashlib.sha256(stored).hexdigest()]
    for late in (lambda: worker.sync(journal=worker.part()), worker.ends, worker.releases):
        with pytest.raises(LeaseLostError):
            late()
    successor.journal = stored
    successor.write(records(1, first=3, reward=0.5))
    successor.sync(journal=successor.part(journal.bytes, resumed=journal.bytes))
    assert [each.reward for each in successor.samples()] == [1.0, 1.0, 1.0, 0.5]


def test_rows_are_folded_into_blobs_while_the_run_goes_on(
    worker: DeskWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_folding, "FOLD_BYTES", 100_000)
    sent = 0
    for start in range(0, 600, 100):
        worker.write(records(100, first=start, notes="x" * 200))
        worker.sync(journal=worker.part(sent))
        sent = len(worker.journal)
    with worker.services.db.session() as session:
        segments = session.query(DbJournalSegment).order_by(DbJournalSegment.seq).all()
    assert segments[0].blob_key is not None and segments[-1].content is not None
    ends = [segment.offset + segment.length for segment in segments]
    assert [segment.offset for segment in segments] == [0, *ends[:-1]]
    # From the middle of a folded one on.
    middle = worker.journal.index(b"\n", segments[0].length // 2) + 1
    assert worker.sync(journal=worker.part(middle)).journal_bytes == sent
    assert len(list(run_records(worker.services.db, worker.services.blobs, worker.run_id))) == 600
    worker.ends()
    key = worker.run.journal_blob
    assert key is not None and len(list(stored_records(worker.services.blobs, key))) == 600
