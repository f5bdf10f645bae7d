"""The worker protocol over HTTP: who is let in, what is refused before it is read, and what waits for its reply."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import msgspec
import orjson
import pytest
from anyio.from_thread import BlockingPortal
from fastapi.testclient import TestClient

from osmosis_ai.api.wire.workers import (
    CLAIM,
    JOURNAL_OFFSET,
    LARGEST_EXCHANGE_BYTES,
    LEASE_LOST,
    MOST_FILES,
    MOST_JOURNAL_LINES,
    MOST_LOG_LINES,
    MOST_WANTED,
    UPLOAD_LIMIT,
    Assignment,
    SyncReply,
    run_route,
)
from osmosis_ai.platform import known_workers
from osmosis_ai.platform.http.worker_limits import COME_AGAIN_S
from osmosis_ai.platform.http.worker_waits import WorkerWaits, worker_waits
from osmosis_ai.platform.runs import own_machine
from osmosis_ai.platform.runs.desk.run_shards import MERGED_FOLDER
from osmosis_ai.platform.runs.desk.uploads import MOST_OPEN
from osmosis_ai.platform.runs.fitting import Machine
from osmosis_ai.platform.runs.journal_segments import SEGMENTS_FOLDER
from osmosis_ai.platform.runs.stored_journal import JOURNAL_NAME
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.sandbox import SandboxCapability
from tests.evaluation.recorded_runs import with_crc
from tests.platform.conftest import ManualClock, Member, application, assert_flat_error
from tests.platform.evaluations import Submits, submit_body, wait_until
from tests.platform.runs.conftest import code, rows  # noqa: F401 - fixtures of `member`
from tests.platform.runs.conftest import member as member_with_code  # noqa: F401
from tests.platform.runs.desk.desk_workers import DeskWorker, journal_of, offer, records
from tests.sandbox.test_gpus import make_gpus

SUBMITS = Submits("/api/cli/eval-runs", submit_body)
GPU = {"execution": {"pool": "gpu"}}


@pytest.fixture
def member(member_with_code: Any) -> Any:  # noqa: F811
    return member_with_code


@pytest.fixture
def token(services: PlatformServices) -> str:
    return services.worker_access.create_token("gpu")[1]


class Spoken:
    """What a machine of the pool `gpu` says."""

    def __init__(self, api: TestClient, token: str) -> None:
        self.api = api
        self.headers = {"Authorization": f"Bearer {token}"}

    def post(self, route: str, body: Any, **headers: str) -> httpx.Response:
        content = body if isinstance(body, bytes) else orjson.dumps(body)
        return self.api.post(route, content=content, headers={**self.headers, **headers})

    def claim(self, **said: Any) -> httpx.Response:
        return self.post(CLAIM, offer(**said).to_wire())

    def claimed(self, **said: Any) -> Assignment:
        reply = self.claim(**said)
        assert reply.status_code == 200, reply.text
        return Assignment.model_validate(reply.json())

    def sync(self, given: Assignment, **news: Any) -> httpx.Response:
        lease = given.lease.token.get_secret_value()
        return self.post(run_route(given.run.id, "sync"), {"lease": lease, **news})


@pytest.fixture
def machine(api: TestClient, token: str) -> Spoken:
    SUBMITS.taken(api, advanced_config=GPU)
    return Spoken(api, token)


def test_a_run_is_claimed_heard_of_and_ended(machine: Spoken, services: PlatformServices) -> None:
    given = machine.claimed()
    assert given.source is not None
    # The URL is the permission; no credential goes there.
    assert machine.api.get(given.source.url, headers={"Authorization": ""}).status_code == 200
    lines = journal_of(records(2)).decode()
    packed = gzip.compress(
        orjson.dumps(
            {
                "lease": given.lease.token.get_secret_value(),
                "journal": {"generation": 0, "offset": 0, "lines": lines},
            }
        )
    )
    route = run_route(given.run.id, "sync")
    reply = SyncReply.model_validate(machine.post(route, packed, **{"Content-Encoding": "gzip"}).json())
    assert (reply.journal_bytes, reply.stop) == (len(lines), False)
    ended = machine.post(
        run_route(given.run.id, "end"), {"lease": given.lease.token.get_secret_value(), "outcome": "finished"}
    )
    assert ended.json() == {"status": "finished"}
    assert_flat_error(machine.sync(given), 409, LEASE_LOST)
    assert machine.claim().status_code == 204


def test_a_part_of_a_journal_is_told_where_it_belongs(machine: Spoken) -> None:
    given = machine.claimed()
    part = {"generation": 0, "offset": 7, "lines": journal_of(records(1)).decode()}
    body = assert_flat_error(machine.sync(given, journal=part), 409, JOURNAL_OFFSET)
    assert body["details"] == {"bytes": 0}


@pytest.mark.parametrize(
    ("bearer", "status"),
    [("osm-wk-none", 401), ("of a user", 403), ("of another pool", 403), ("revoked", 401)],
)
def test_nobody_else_says_anything_of_a_run(
    machine: Spoken, services: PlatformServices, bearer: str, status: int
) -> None:
    given = machine.claimed()
    if bearer == "of a user":
        bearer = machine.api.headers["Authorization"].removeprefix("Bearer ")
    elif bearer == "of another pool":
        bearer = services.worker_access.create_token("cpu")[1]
    elif bearer == "revoked":
        bearer = machine.headers["Authorization"].removeprefix("Bearer ")
        for known in services.worker_access.tokens():
            services.worker_access.revoke_token(known.id)
    reply = Spoken(machine.api, bearer).sync(given)
    assert reply.status_code == status, reply.text
    assert given.lease.token.get_secret_value() not in reply.text


def test_a_bomb_is_refused_before_it_is_unpacked(machine: Spoken) -> None:
    given = machine.claimed()
    bomb = gzip.compress(b" " * (64 * LARGEST_EXCHANGE_BYTES))
    assert len(bomb) < LARGEST_EXCHANGE_BYTES
    route = run_route(given.run.id, "sync")
    assert_flat_error(machine.post(route, bomb, **{"Content-Encoding": "gzip"}), 413, "BODY_TOO_LARGE")
    assert_flat_error(machine.post(route, b" " * (LARGEST_EXCHANGE_BYTES + 1)), 413, "BODY_TOO_LARGE")


@pytest.mark.parametrize(
    ("body", "encoding", "status", "code_"),
    [
        (b"no gzip", "gzip", 400, "INVALID_BODY"),
        (gzip.compress(b"{}", mtime=0)[:-9], "gzip", 400, "INVALID_BODY"),
        (b"{}", "br", 415, "ENCODING_UNKNOWN"),
        (b'{"lease": NaN}', "identity", 400, "INVALID_JSON"),
        (b'{"lease": 1}', "identity", 400, "VALIDATION_FAILED"),
        (b"[]", "identity", 400, "VALIDATION_FAILED"),
    ],
)
def test_what_is_no_exchange_is_refused(
    machine: Spoken, body: bytes, encoding: str, status: int, code_: str
) -> None:
    given = machine.claimed()
    route = run_route(given.run.id, "sync")
    assert_flat_error(machine.post(route, body, **{"Content-Encoding": encoding}), status, code_)


def test_a_worker_of_another_protocol_is_told_which_one_is_spoken(machine: Spoken) -> None:
    body = assert_flat_error(machine.post("/api/workers/v2/claim", offer().to_wire()), 426, "WORKER_PROTOCOL")
    assert "version 1" in body["error"] and "install osmosis-ai" in body["error"]


@pytest.fixture
def later() -> Any:
    """Something said in another thread, whose answer may wait."""
    with ThreadPoolExecutor(4) as threads:
        yield threads.submit


@pytest.fixture
def patient(services: PlatformServices, monkeypatch: pytest.MonkeyPatch) -> None:
    """Claims and exchanges wait until something happens, not until their time is up."""
    wait = WorkerWaits.for_run
    monkeypatch.setattr(
        WorkerWaits, "for_run", lambda waits, idler, _, token: wait(waits, idler, 600.0, token)
    )
    services.desk.leases.term = timedelta(hours=1)  # An exchange waits for a third of it.


Later = Callable[..., "Future[httpx.Response]"]


def held(machine: Spoken, services: PlatformServices, count: int = 1) -> None:
    """Wait until so many wait for their reply."""
    waits = worker_waits(application(services))
    for _ in range(30_000):
        if len(waits._held) + len(waits._idle) == count:
            return
        threading.Event().wait(0.01)
    raise AssertionError("nobody waits")


@pytest.mark.usefixtures("patient")
def test_a_stop_is_told_at_once_to_a_worker_that_waits(
    machine: Spoken, services: PlatformServices, later: Later
) -> None:
    given = machine.claimed()
    answer = later(machine.sync, given, may_wait=True)
    held(machine, services)
    services.eval_runs.stop(given.run.workspace_id, given.run.id, by="mara")
    assert answer.result(300).json()["stop"] is True


@pytest.mark.usefixtures("patient")
def test_a_worker_that_waits_learns_that_its_run_is_another_ones(
    machine: Spoken, services: PlatformServices, later: Later
) -> None:
    given = machine.claimed()
    answer = later(machine.sync, given, may_wait=True)
    held(machine, services)
    services.desk.leases.release(given.run.id, given.lease.token.get_secret_value())
    assert_flat_error(answer.result(300), 409, LEASE_LOST)


@pytest.mark.usefixtures("patient")
def test_a_claim_waits_for_a_run(machine: Spoken, services: PlatformServices, later: Later) -> None:
    machine.claimed()
    answers = [later(machine.claim, wait_s=25) for _ in range(2)]
    held(machine, services, 2)
    SUBMITS.taken(machine.api, advanced_config=GPU)
    SUBMITS.taken(machine.api, advanced_config=GPU)
    runs = {Assignment.model_validate(answer.result(300).json()).run.id for answer in answers}
    assert len(runs) == 2


@pytest.mark.usefixtures("patient")
def test_a_claim_that_waits_hears_that_its_token_was_revoked(
    machine: Spoken, services: PlatformServices, later: Later
) -> None:
    machine.claimed()
    answer = later(machine.claim, wait_s=25)
    held(machine, services)
    [known] = services.worker_access.tokens()
    services.worker_access.revoke_token(known.id)
    assert_flat_error(answer.result(300), 401, "TOKEN_REVOKED")


@pytest.mark.usefixtures("patient")
def test_a_server_that_stops_lets_nobody_wait(
    machine: Spoken, services: PlatformServices, later: Later, portal: BlockingPortal
) -> None:
    given = machine.claimed()
    answers = [later(machine.claim, wait_s=25), later(machine.sync, given, may_wait=True)]
    held(machine, services, 2)
    waits = worker_waits(application(services))
    portal.call(waits.close)
    assert [answer.result(300).status_code for answer in answers] == [204, 200]


RECORD = orjson.loads(records(1)[0].to_line())
DIGEST = "0" * 64
FILE = {"path": "a", "kind": "artifacts", "size": 3, "blob": "blob"}
UPLOAD = {"name": "new", "size": 1, "sha256": DIGEST}
LINE = {"timestamp": "2026-01-01T00:00:00Z", "message": "a"}
NUMBERS = {"duration_ms": 1.0, "summary": {}, "estimates": {}}
PROGRESS = {"completed": 1, "total": 1}
STEP = {"step": 1, "timestamp_ms": 1, "metrics": {}}
CHECKPOINT = {"step": 1, "base_model": "a", "files": {"a": "blob"}}


def _stored_file(**changes: Any) -> dict[str, Any]:
    return {"files": [{**FILE, **changes}]}


def _shard_piece(offset: int, length: int, size: int) -> dict[str, Any]:
    return _stored_file(shard_offset=offset, shard_length=length, size=size)


def _journal_line(**changes: Any) -> dict[str, Any]:
    lines = with_crc(orjson.dumps({**RECORD, **changes}) + b"\n").decode()
    return {"journal": {"generation": 0, "offset": 0, "lines": lines}}


SNAPSHOT = {
    **dict.fromkeys(("completed", "total", "passed", "failed", "skipped", "scored", "tokens", "finished"), 1),
    "reward_mean": 1.0,
    "cost_usd": None,
    "in_flight": None,
    "elapsed_s": 1.0,
}


LIES: dict[str, dict[str, Any]] = {
    "a file above the run": _stored_file(path="../a"),
    "a file from the root": _stored_file(path="/a"),
    "a file of no name": _stored_file(path=""),
    "a file that turns its name around": _stored_file(path="a\u202eb"),
    "a kind that no engine keeps": _stored_file(kind="a\0"),
    "a row beyond every dataset": _stored_file(source_row_index=1 << 62),
    "a row before the first": _stored_file(source_row_index=-1),
    "a file of another size than its blob": _stored_file(size=2),
    "a piece that begins and does not end": _stored_file(shard_offset=0),
    "a piece beyond its blob": _shard_piece(2, 2, 3),
    "a piece that unpacks to more than is read at once": _shard_piece(0, 3, 1 << 40),
    "a blob that no engine can look for": _stored_file(blob="a\0"),
    "an upload that no engine can look for": {"wanted": [{**UPLOAD, "name": "a\0"}]},
    "an upload into another run": {"wanted": [{**UPLOAD, "name": "../other/a"}]},
    "an upload in the place of a list of files": {"wanted": [{**UPLOAD, "name": "derived/a/manifest.gz"}]},
    "an upload in the place of a journal's part": {"wanted": [{**UPLOAD, "name": f"{SEGMENTS_FOLDER}/a"}]},
    "an upload among the platform's merged ones": {"wanted": [{**UPLOAD, "name": f"{MERGED_FOLDER}/a"}]},
    "an upload that is asked for twice": {"wanted": [UPLOAD, {**UPLOAD, "sha256": "1" * 64}]},
    "more uploads than one exchange asks for": {
        "wanted": [{**UPLOAD, "name": f"new-{number}"} for number in range(MOST_WANTED + 1)]
    },
    "a shard that is a file": _stored_file(blob="shards/one"),
    "an upload of more than any number": {"wanted": [{**UPLOAD, "size": 1 << 60}]},
    "something sent that no engine can look for": {
        "sent": [{**UPLOAD, "name": "a\0", "id": "a", "etag": ""}]
    },
    "a moment before all calendars": {
        "log": {"first": 0, "lines": [{**LINE, "timestamp": "0001-01-01T00:00:00+14:00"}]}
    },
    "a moment after all calendars": {
        "log": {"first": 0, "lines": [{**LINE, "timestamp": "9999-12-31T23:59:59-14:00"}]}
    },
    "a digest that no engine keeps": {"grader_digest": "a\0"},
    "a digest that is none": {"grader_digest": "a" * 65},
    "a fact that is the platform's": {"facts": {"lease_token": "a"}},
    "numbers that are none": {"metrics": {"a": [1]}},
    "numbers without a summary": {"metrics": NUMBERS},
    "progress that is none": {"progress": PROGRESS},
    "progress of more digits than whoever lists runs can read": {
        "progress": {**SNAPSHOT, "completed": "9" * 4000}
    },
    "progress that no list of runs could show any more": {"progress": {**SNAPSHOT, "reward_mean": "nan"}},
    "an upload in the place of the journal": {"wanted": [{**UPLOAD, "name": f"{JOURNAL_NAME}/a"}]},
    "an upload in the place of all shards": {"wanted": [{**UPLOAD, "name": "shards"}]},
    "training of an evaluation": {"training": {"steps": [STEP]}},
    "a metric that no engine keeps": {"training": {"steps": [{**STEP, "metrics": {"a\0": 1.0}}]}},
    "a model that no engine keeps": {"training": {"checkpoints": [{**CHECKPOINT, "base_model": "\0"}]}},
    "a sample beyond every dataset": _journal_line(row_index=1 << 31),
    "a sample of a row beyond every dataset": _journal_line(source_row_index=1 << 31),
    "a sample with more tokens than there are": _journal_line(tokens=1 << 31),
    "a sample with a name that is too long": _journal_line(rollout_id="a" * 500),
    "a sample with a digest that is too long": _journal_line(row_digest="a" * 64),
    "a line that is no record": {"journal": {"generation": 0, "offset": 0, "lines": "{}\n"}},
    "a line that is not finite": {"journal": {"generation": 0, "offset": 0, "lines": '{"reward": NaN}\n'}},
    "a line of nothing": {"journal": {"generation": 0, "offset": 0, "lines": "\n"}},
}


@pytest.fixture
def liar(machine: Spoken, services: PlatformServices) -> DeskWorker:
    """The owner of a run, who has sent three bytes."""
    machine.api = TestClient(
        machine.api.app, raise_server_exceptions=False, headers=dict(machine.api.headers)
    )
    worker = DeskWorker(services, machine.claimed())
    worker.sync(sent=[worker.sends(name, b"abc") for name in ("blob", "shards/one")])
    return worker


def test_lies_are_refused_and_nothing_of_them_is_kept(
    machine: Spoken, liar: DeskWorker, services: PlatformServices
) -> None:
    for lie, news in LIES.items():
        reply = machine.sync(liar.assignment, **news)
        assert (lie, reply.status_code) == (lie, 400), reply.text
    run = f"/api/cli/eval-runs/{liar.run_id}"
    assert machine.api.get(run).status_code == 200
    assert (liar.run.journal_bytes, liar.run.metrics, liar.samples()) == (0, None, [])
    assert list(services.blobs.unfinished_uploads()) == [], "nothing that was begun for a lie stays open"
    ended = machine.post(
        run_route(liar.run_id, "end"), {"lease": liar.token.get_secret_value(), "outcome": "finished"}
    )
    assert ended.json() == {"status": "finished"}


def test_words_of_a_rollout_are_kept_as_the_columns_take_them(machine: Spoken, liar: DeskWorker) -> None:
    news = _journal_line(error="\0\x1b[31m", category="c" * 500, error_type="\0", parts={"\0": 1e308})
    assert machine.sync(liar.assignment, **news).status_code == 200
    (sample,) = liar.samples()
    assert (sample.error, sample.category, sample.error_type) == ("\ufffd\x1b[31m", "c" * 64, "\ufffd")


@pytest.mark.parametrize("levels", [300, 900])
def test_facts_within_facts_leave_a_log_that_can_be_read(
    machine: Spoken, liar: DeskWorker, levels: int
) -> None:
    body = orjson.dumps(
        {"lease": liar.token.get_secret_value(), "log": {"first": 0, "lines": [{**LINE, "details": "FACTS"}]}}
    )
    facts = b'{"a":' * levels + b"1" + b"}" * levels
    assert machine.post(run_route(liar.run_id, "sync"), body.replace(b'"FACTS"', facts)).status_code == 200
    shown = machine.api.get(f"/api/cli/eval-runs/{liar.run_id}/logs")
    assert shown.status_code == 200
    assert shown.json()["logs"][-1]["details"] == {"truncated": "facts within facts, more than 64 levels"}


def _wanted(first: int, count: int, **changes: Any) -> dict[str, Any]:
    return {
        "wanted": [{**UPLOAD, "name": f"new-{number}", **changes} for number in range(first, first + count)]
    }


def _of_the_limit(liar: DeskWorker) -> list[str]:
    return [said for said in liar.messages() if "uploads open" in said or "may send" in said]


def test_who_asks_for_uploads_and_sends_none_is_stopped_and_its_run_says_so_once(
    machine: Spoken, liar: DeskWorker, services: PlatformServices
) -> None:
    for first in range(0, MOST_OPEN, MOST_WANTED):
        assert machine.sync(liar.assignment, **_wanted(first, MOST_WANTED)).status_code == 200
    assert machine.sync(liar.assignment, **_wanted(0, 5)).status_code == 200, "these are open already"
    for _ in range(3):
        refused = machine.sync(liar.assignment, **_wanted(MOST_OPEN, 1))
        body = assert_flat_error(refused, 409, UPLOAD_LIMIT)
        assert body["details"] == {"uploads": MOST_OPEN}
    assert len(list(services.blobs.unfinished_uploads())) == MOST_OPEN
    assert len(_of_the_limit(liar)) == 1
    sent = liar.puts(liar.wants("new-0", b"\0"), b"\0")
    liar.sync(sent=[sent])
    assert machine.sync(liar.assignment, **_wanted(MOST_OPEN, 1)).status_code == 200, "as others are sent"
    liar.ends()
    assert list(services.blobs.unfinished_uploads()) == []


def test_a_run_sends_no_more_than_it_may_whatever_its_worker_asks_for(
    machine: Spoken, liar: DeskWorker, services: PlatformServices
) -> None:
    most = services.config.run_upload_bytes
    assert most == 10**12
    assert machine.sync(liar.assignment, **_wanted(0, 1, size=most - 100)).status_code == 200
    for number in range(1, 4):
        refused = machine.sync(liar.assignment, **_wanted(number, 1, size=101))
        body = assert_flat_error(refused, 409, UPLOAD_LIMIT)
        assert "may send 1000 GB" in body["error"] and "OSMOSIS_RUN_UPLOAD_GB" in body["error"]
    assert len(_of_the_limit(liar)) == 1
    assert machine.sync(liar.assignment, **_wanted(1, 1, size=20)).status_code == 200
    # One name after the other, and none of them sent: what was let send counts.
    assert machine.sync(liar.assignment, **_wanted(1, 1, size=70)).status_code == 200
    assert_flat_error(machine.sync(liar.assignment, **_wanted(1, 1, size=30)), 409, UPLOAD_LIMIT)
    liar.ends()
    assert liar.run.status == "finished"


SHORT = '{"duration_ms":0,"rollout_id":"a","row_index":0,"run_index":0,"status":"skipped"}\n'


@pytest.mark.parametrize(
    "news",
    [
        {"log": {"first": 0, "lines": [LINE] * (MOST_LOG_LINES + 1)}},
        {"files": [FILE] * (MOST_FILES + 1)},
        {"sent": [{**UPLOAD, "id": "a", "etag": ""}] * (MOST_FILES + 1)},
        {"wanted": [{"name": "a", "size": 1, "sha256": DIGEST}] * (MOST_WANTED + 1)},
        {"renew": ["source"] * 17},
        {"journal": {"generation": 0, "offset": 0, "lines": SHORT * (MOST_JOURNAL_LINES + 1)}},
    ],
    ids=["log lines", "files", "sent", "wanted", "renew", "journal lines"],
)
def test_an_exchange_says_so_much_and_no_more(machine: Spoken, news: dict[str, Any]) -> None:
    given = machine.claimed()
    if "journal" in news:
        assert len(orjson.dumps(news)) < 1 << 20, "it is not its size that is refused"
    reply = machine.sync(given, **news)
    assert reply.status_code == 400, reply.text
    assert "at most" in reply.json()["error"]
    assert machine.sync(given).json()["journal_bytes"] == 0


def test_what_is_said_of_other_work_items_is_refused_and_noted_on_the_run_once(
    machine: Spoken, services: PlatformServices
) -> None:
    worker = DeskWorker(services, machine.claimed())  # 3 rows, 2 attempts on each
    for lie, sentence in (
        ({"row": 3}, "it has 3 rows, and no row 3"),
        ({"attempt": 2}, "it makes 2 attempts on a row, and no attempt 2"),
        ({"row": 2, "source_row_index": 200}, "its dataset has 200 rows, and no row 200"),
    ):
        row = lie.pop("row", 0)
        attempt = lie.pop("attempt", 0)
        (said,) = records(1, first=row, **lie)
        lines = msgspec.structs.replace(said, run_index=attempt).to_line().decode()
        part = {"generation": 0, "offset": 0, "lines": lines}
        assert (
            sentence
            in assert_flat_error(machine.sync(worker.assignment, journal=part), 409, "CONFLICT")["error"]
        )
    assert (worker.run.journal_bytes, worker.samples()) == (0, [])
    assert len([line for line in worker.messages() if "was refused: it has 3 rows" in line]) == 1
    honest = {"generation": 0, "offset": 0, "lines": journal_of(records(3)).decode()}
    assert machine.sync(worker.assignment, journal=honest).status_code == 200
    assert len(worker.samples()) == 3


def test_a_token_that_claims_too_often_is_told_when_to_come_again(
    machine: Spoken, services: PlatformServices, clock: ManualClock
) -> None:
    limits = worker_waits(application(services)).limits
    limits.claims_at_once, limits.claims_per_s = 3, 0.5
    clock.advance(3600)
    given = machine.claimed()
    assert [machine.claim().status_code for _ in range(2)] == [204, 204]
    refused = machine.claim()
    assert_flat_error(refused, 429, "TOO_MANY_CLAIMS")
    assert refused.headers["Retry-After"] == "2"
    assert machine.sync(given).status_code == 200, "who has a run is heard"
    other = Spoken(machine.api, services.worker_access.create_token("gpu")[1])
    assert other.claim().status_code == 204
    clock.advance(2)
    assert machine.claim().status_code == 204


def test_so_many_claims_of_a_token_wait_and_the_next_is_told_to_come_again(
    machine: Spoken, services: PlatformServices, later: Later, portal: BlockingPortal
) -> None:
    waits = worker_waits(application(services))
    waits.limits.most_of_token = 1
    machine.claimed()
    answer = later(machine.claim, wait_s=25)
    held(machine, services, 1)
    refused = machine.claim(wait_s=25)
    assert_flat_error(refused, 429, "TOO_MANY_CLAIMS")
    assert refused.headers["Retry-After"] == str(int(COME_AGAIN_S))
    assert machine.claim().status_code == 204, "who does not wait is answered"
    portal.call(waits.close)
    assert answer.result(300).status_code == 204
    assert waits.limits.may_wait(), "who waits no more is not counted"


PROBLEM = "the kernel allows no user namespaces; sysctl -w user.max_user_namespaces=15000"


@pytest.fixture
def box(api: TestClient, token: str) -> Spoken:
    return Spoken(api, token)


def submitted(api: TestClient, **asks: Any) -> str:
    advanced = {"execution": {"pool": "gpu", **asks}}
    name: str = SUBMITS.taken(api, advanced_config=advanced)["name"]
    return name


def waits(api: TestClient, name: str) -> str | None:
    found: str | None = api.get(f"/api/cli/eval-runs/{name}").json().get("waits")
    return found


def issues(api: TestClient, **changes: Any) -> list[dict[str, Any]]:
    """Return what is wrong with a submit."""
    found: list[dict[str, Any]] = SUBMITS.refused(api, 400, "INVALID_CONFIG", **changes)["issues"]
    return found


def test_a_run_goes_to_a_worker_that_has_all_of_its_labels(api: TestClient, box: Spoken) -> None:
    name = submitted(api, labels=["a100", "zone=eu"])
    assert box.claim(labels=["a100"]).status_code == 204
    assert box.claim().status_code == 204
    assert box.claimed(labels=["zone=eu", "nvme", "a100"]).run.name == name


@pytest.mark.parametrize(
    ("asks", "has", "lacks"),
    [
        ({"cpus": 8}, {"cpus": 4}, "8 cpus (has 4)"),
        ({"gpus": 1}, {}, "1 gpus (has 0)"),
        ({"memory_gb": 64}, {"memory_gb": 16}, "64 GiB of memory (has 16)"),
        ({"isolation": "required"}, {"sandbox": False, "sandbox_problem": PROBLEM}, f"a sandbox ({PROBLEM})"),
        ({"network": "none"}, {"sandbox": False, "sandbox_problem": PROBLEM}, f"a sandbox ({PROBLEM})"),
    ],
)
def test_a_run_that_asks_for_more_than_a_worker_has_waits_and_says_why(
    api: TestClient, box: Spoken, asks: dict[str, Any], has: dict[str, Any], lacks: str
) -> None:
    name = submitted(api, **asks)
    assert box.claim(machine="box-1", **has).status_code == 204
    assert waits(api, name) == (
        f"no known worker of the pool 'gpu' has all that this run asks for: box-1 lacks {lacks}."
    )
    enough = {"cpus": 8, "gpus": 1, "memory_gb": 64, "sandbox": True}
    assert box.claimed(machine="box-2", **enough).run.name == name
    assert waits(api, name) is None


def test_a_token_that_is_another_machine_with_each_claim_is_known_for_so_many(
    api: TestClient, box: Spoken, services: PlatformServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, plain = services.worker_access.create_token("gpu")
    honest = Spoken(api, plain)

    def known() -> set[str]:
        return {row.machine for row, *_ in services.worker_access.known.all()}

    def claim(spoken: Spoken, name: str) -> bool:
        """Claim, and return whether the machine was noted: a claim does not wait for a busy database to note it."""
        assert spoken.claim(machine=name).status_code == 204
        return name in known()

    wait_until(lambda: claim(honest, "honest"))
    monkeypatch.setattr(known_workers, "_MOST_OF_TOKEN", 3)
    for number in range(6):
        box.claim(machine=f"box-{number}")
    assert len(known()) == 4 and "honest" in known()


def test_who_may_not_ask_can_not_leave(api: TestClient, box: Spoken, services: PlatformServices) -> None:
    box.claim(machine="box-1")
    for bearer in ("nobody", "osmosis_ticket_of-nobody", services.worker_access.create_token("other")[1]):
        Spoken(api, bearer).post(CLAIM, offer(machine="box-1", leaves=True).to_wire())
    assert Spoken(api, "nobody").post(CLAIM, offer(leaves=True).to_wire()).status_code == 401
    assert [row.machine for row, *_ in services.worker_access.known.all()] == ["box-1"]


def test_runs_for_a_machine_that_there_is_not_hold_up_none_of_their_workspace(
    api: TestClient, box: Spoken, services: PlatformServices, clock: ManualClock
) -> None:
    for _ in range(30):
        SUBMITS.taken(api, advanced_config={"execution": {"pool": "gpu", "labels": ["h200"]}})
        clock.advance(1)
    name = submitted(api)
    assert box.claimed(labels=["a100"]).run.name == name


def test_labels_are_checked_when_a_run_is_submitted(api: TestClient) -> None:
    asks = {"execution": {"labels": ["a100", "two words"]}}
    assert {issue["key"] for issue in issues(api, advanced_config=asks)} == {"advanced.execution.labels"}
    alone = issues(api, advanced_config={"execution": {"labels": ["a100"]}})
    assert alone[0]["message"] == "chooses among the workers of a pool: name it with `pool`"
    near = issues(api, advanced_config={"execution": {"label": ["a100"], "pool": "gpu"}})
    assert near[0]["key_correction"] == "advanced.execution.labels"


@pytest.mark.parametrize(("key", "value"), [("isolation", "required"), ("network", "none")])
def test_what_the_platforms_own_machine_can_not_hold_back_is_refused_at_submit(
    api: TestClient, monkeypatch: pytest.MonkeyPatch, key: str, value: str
) -> None:
    found = SandboxCapability(problem="the kernel allows no user namespaces", remedy="sysctl -w x=1")
    monkeypatch.setattr("osmosis_ai.platform.isolation.check_sandbox", lambda home: found)
    (issue,) = issues(api, advanced_config={"execution": {key: value}})
    assert issue["key"] == f"advanced.execution.{key}"
    assert issue["message"] == (
        "needs a sandbox, and the platform's machine can make none: the kernel allows no user namespaces; sysctl -w x=1, or "
        "name a pool whose workers can"
    )
    served = submit_body()["experiment_config"] | {"entrypoint": "server://nobody"}
    (issue,) = issues(api, experiment_config=served, advanced_config={"execution": {key: value}})
    assert issue["key"] == "experiment.entrypoint", "an agent that is served elsewhere is in nobody's sandbox"
    SUBMITS.taken(api, advanced_config={"execution": {key: value, "pool": "gpu"}})


def test_what_the_platforms_own_machine_does_not_have_is_refused_at_submit_and_goes_to_a_pool(
    api: TestClient, monkeypatch: pytest.MonkeyPatch, member: Member
) -> None:
    monkeypatch.setattr(own_machine, "own_machine", lambda: Machine(gpus=1, memory_gb=16))
    asks = {"gpus": 2, "memory_gb": 64}
    [issue] = issues(api, advanced_config={"execution": asks})
    assert issue["key"] == "advanced.execution.gpus"
    assert "the platform's own machine has" in issue["message"]
    assert "2 gpus (has 1), 64 GiB of memory (has 16); name a pool" in issue["message"]
    SUBMITS.taken(api, advanced_config={"execution": {"gpus": 1, "memory_gb": 16}})
    SUBMITS.taken(api, advanced_config={"execution": {**asks, "pool": "gpu"}})


def test_the_machine_counts_the_gpus_that_it_may_use_and_none_of_a_driver_it_does_not_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    root = make_gpus(tmp_path)
    assert own_machine.own_machine(root).gpus == 2
    assert (own_machine.own_machine(root).memory_gb or 0) > 0.1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert own_machine.own_machine(root).gpus == 1
    (root / "dev" / "kfd").touch()
    assert own_machine.own_machine(root).gpus is None


@pytest.mark.parametrize(
    ("files", "membership", "gb"),
    [
        ({"user/job/memory.max": "max\n", "user/memory.max": f"{64 << 20}\n"}, "0::/user/job\n", 0.1),
        # In a container the path is the host's, and what is granted stands at the root.
        ({"memory.max": f"{200 << 20}\n"}, "0::/docker/abc\n", 0.2),
        ({"memory/job/memory.limit_in_bytes": f"{100 << 20}\n"}, "4:cpu:/\n7:memory:/job\n", 0.1),
        ({"memory/memory.limit_in_bytes": f"{9223372036854771712}\n"}, "7:memory:/\n", None),
        ({"memory.max": f"{1 << 60}\n"}, "0::/\n", None),
        ({"memory.max": "what\n"}, "0::/\nnonsense\n", None),
    ],
)
def test_the_machine_has_the_memory_that_its_control_groups_grant(
    tmp_path: Path, files: dict[str, str], membership: str, gb: float | None
) -> None:
    bare = own_machine.own_machine(tmp_path).memory_gb
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(membership)
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert bare is not None and bare > 0.3, "all that it has"
    assert own_machine.own_machine(tmp_path).memory_gb == (gb if gb is not None else bare)
