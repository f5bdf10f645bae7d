"""The worker protocol over HTTP: who is let in, what is refused before it is read, and what waits for its reply."""

from __future__ import annotations

import asyncio
import gzip
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import httpx
import orjson
import pytest
from anyio.from_thread import BlockingPortal
from fastapi.testclient import TestClient

from osmosis_ai.api.wire.workers import (
    CLAIM,
    JOURNAL_OFFSET,
    LARGEST_EXCHANGE_BYTES,
    LEASE_LOST,
    Assignment,
    SyncReply,
    run_route,
)
from osmosis_ai.platform.blobs.store import BlobStoreBusy
from osmosis_ai.platform.http.worker_waits import WorkerWaits, worker_waits
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.platform.viewer.source import PlatformSource
from osmosis_ai.viewer.source import RunQuery
from tests.platform.conftest import ManualClock, application, assert_flat_error
from tests.platform.evaluations import Submits, submit_body
from tests.platform.runs.conftest import code, rows  # noqa: F401 - fixtures of `member`
from tests.platform.runs.conftest import member as member_with_code  # noqa: F401
from tests.platform.runs.desk.desk_workers import journal_of, offer, records

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
        run_route(given.run.id, "end"),
        {"lease": given.lease.token.get_secret_value(), "outcome": "finished"},
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
def test_the_next_exchange_about_a_run_ends_the_wait_of_the_one_before(
    machine: Spoken, services: PlatformServices, later: Later
) -> None:
    given = machine.claimed()
    answer = later(machine.sync, given, may_wait=True)
    held(machine, services)
    asked = services.desk.sync
    with pytest.MonkeyPatch.context() as patch:
        heard: list[str] = []
        patch.setattr(
            services.desk, "sync", lambda run_id, said: [heard.append(run_id), asked(run_id, said)][1]
        )
        assert machine.sync(given).json()["stop"] is False
        assert answer.result(300).json()["stop"] is False
    assert len(heard) == 1, "the lease is kept once for both"


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
def test_a_run_is_not_given_to_a_worker_that_left_while_it_waited(
    machine: Spoken, services: PlatformServices, portal: BlockingPortal
) -> None:
    taken = machine.claimed()
    said = [{"type": "http.request", "body": orjson.dumps(offer(wait_s=25).to_wire()), "more_body": False}]
    has_left = asyncio.Event()
    replied: list[Any] = []

    async def receive() -> Any:
        if said:
            return said.pop()
        await has_left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        replied.append(message)

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": CLAIM, "raw_path": CLAIM.encode(), "query_string": b"", "root_path": "",
        "headers": [(b"host", b"testserver"), (b"authorization", machine.headers["Authorization"].encode())],
        "client": ("127.0.0.1", 5000), "server": ("testserver", 80),
    }  # fmt: skip
    answer = portal.start_task_soon(application(services), scope, receive, send)
    held(machine, services)
    portal.call(has_left.set)
    SUBMITS.taken(machine.api, advanced_config=GPU)
    answer.result(300)
    assert replied[0]["status"] == 204
    assert machine.claimed().run.id != taken.run.id, "it is there for the next worker at once"


def waits_of(machine: Spoken, services: PlatformServices, given: Assignment) -> tuple[Any, Any, str]:
    """Return what the one run waits for, as the list and its detail say, and how far whoever looks at its page has heard."""
    [row] = machine.api.get("/api/cli/eval-runs").json()["eval_runs"]
    detail = machine.api.get(f"/api/cli/eval-runs/{given.run.id}").json()
    source = PlatformSource(services, given.run.workspace_id, services.sample_counts)
    assert row["status"] == detail["eval_run"]["status"] == "running", "the hosted words stay"
    [entry] = source.runs(RunQuery(), limit=10).items
    assert entry.waits == row.get("waits")
    return row.get("waits"), detail.get("waits"), source.changes("eval", given.run.name).cursor


def test_a_run_that_was_put_aside_says_what_it_waits_for(machine: Spoken, services: PlatformServices) -> None:
    given = machine.claimed()

    def told() -> tuple[Any, Any, str]:
        return waits_of(machine, services, given)

    at_work = told()
    assert at_work[:2] == (None, None)
    released = machine.post(
        run_route(given.run.id, "release"), {"lease": given.lease.token.get_secret_value()}
    )
    assert released.status_code == 200
    put_aside = told()
    assert (
        put_aside[0]
        == put_aside[1]
        == "its worker has let it go: it waits for another one of the pool 'gpu'."
    )
    assert put_aside[2] != at_work[2], "who looks at its page is told"
    machine.claimed()
    assert told()[:2] == (None, None)


def test_a_run_that_waits_for_the_store_says_so(
    machine: Spoken, services: PlatformServices, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = machine.claimed()
    said = {"lease": given.lease.token.get_secret_value(), "setback": "refused.", "store_away": True}
    assert machine.post(run_route(given.run.id, "release"), said).status_code == 200
    waits = "it waits for the store, and its log says why."
    assert waits_of(machine, services, given)[:2] == (waits, waits)
    clock.advance(61)
    again = machine.claimed()
    assert waits_of(machine, services, given)[:2] == (None, None)
    said = {"lease": again.lease.token.get_secret_value()}
    assert machine.post(run_route(given.run.id, "release"), said).status_code == 200
    let_go = waits_of(machine, services, given)

    def refuse(*_: object) -> None:
        raise BlobStoreBusy("the bucket cannot be reached.")

    monkeypatch.setattr(services.sources, "find", refuse)
    assert machine.claim().status_code == 503
    put_off = waits_of(machine, services, given)
    assert put_off[:2] == (waits, waits) and put_off[2] != let_go[2], "who looks at its page is told"


def test_a_run_whose_worker_is_silent_says_so_and_when_another_one_may_take_it(
    machine: Spoken, services: PlatformServices, clock: ManualClock
) -> None:
    given = machine.claimed()
    heard: list[str] = []

    def since() -> Any:
        return machine.api.get(f"/api/cli/eval-runs/{given.run.id}").json().get("silent_since")

    def told_after(seconds: float) -> str | None:
        clock.advance(seconds)
        listed, shown, cursor = waits_of(machine, services, given)
        assert listed == shown
        heard.append(cursor)
        return listed

    assert told_after(10) is None, "a worker is heard three times in a lease"
    assert since() is None
    another = "another one of the pool 'gpu'"
    assert told_after(6) == f"its worker has not been heard for 15 s; in 15 s {another} may take it."
    last_heard = since()
    assert datetime.fromisoformat(last_heard.replace("Z", "+00:00")) == clock.now() - timedelta(seconds=16)
    assert told_after(10) == f"its worker has not been heard for 25 s; in 4 s {another} may take it."
    assert told_after(4) == f"its worker has not been heard for 30 s: it waits for {another}."
    assert told_after(600) == f"its worker has not been heard for 10 min: it waits for {another}."
    assert since() == last_heard, "one silence is one, however long it is told to be"
    assert len(set(heard)) == len(heard), "who looks at its page is told"
    assert machine.sync(given).status_code == 200
    assert told_after(0) is None, "it was slow, and nobody has taken the run"
    assert since() is None


def test_a_run_whose_worker_s_token_was_revoked_says_that_nobody_may_take_it(
    machine: Spoken, services: PlatformServices, clock: ManualClock
) -> None:
    given = machine.claimed()
    [known] = services.worker_access.tokens()
    services.worker_access.revoke_token(known.id)
    clock.advance(31)
    why = (
        "no worker token is good for the pool 'gpu' and this workspace: whoever runs the platform makes one with "
        "`osmosis platform worker-token create --pool gpu`."
    )
    assert waits_of(machine, services, given)[:2] == (why, why)
    detail = machine.api.get(f"/api/cli/eval-runs/{given.run.id}").json()
    assert "silent_since" not in detail, "that it is silent is not what is told"


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
def test_a_worker_with_nothing_new_hears_that_its_token_was_revoked(
    machine: Spoken, services: PlatformServices, later: Later
) -> None:
    given = machine.claimed()
    answer = later(machine.sync, given, may_wait=True)
    held(machine, services)
    [known] = services.worker_access.tokens()
    services.worker_access.revoke_token(known.id)
    assert_flat_error(answer.result(300), 401, "TOKEN_REVOKED")


@pytest.mark.usefixtures("patient")
def test_a_worker_with_nothing_new_hears_that_its_ticket_was_withdrawn(
    api: TestClient, services: PlatformServices, later: Later
) -> None:
    SUBMITS.taken(api)
    [run] = api.get("/api/cli/eval-runs").json()["eval_runs"]
    worker = Spoken(api, services.worker_access.issue_ticket(run["id"]))
    given = worker.claimed()
    answer = later(worker.sync, given, may_wait=True)
    held(worker, services)
    services.worker_access.withdraw(run["id"])
    assert_flat_error(answer.result(300), 401, "TICKET_VOID")


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
