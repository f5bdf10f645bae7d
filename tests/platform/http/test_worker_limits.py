"""What one worker, or one token, can ask of a platform: more than that is refused in a sentence, or comes again later."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from anyio.from_thread import BlockingPortal

from osmosis_ai.api.wire.workers import MOST_FILES, MOST_JOURNAL_LINES, MOST_LOG_LINES, MOST_WANTED, SyncReply
from osmosis_ai.platform.http.worker_limits import COME_AGAIN_S
from osmosis_ai.platform.http.worker_waits import worker_waits
from osmosis_ai.platform.services import PlatformServices
from tests.platform.conftest import ManualClock, application, assert_flat_error
from tests.platform.http.test_hostile_workers import DIGEST, FILE, LINE, UPLOAD
from tests.platform.http.test_workers import (  # noqa: F401 - fixtures of `machine`
    Later,
    Spoken,
    code,
    held,
    later,
    machine,
    member,
    member_with_code,
    rows,
    token,
)
from tests.platform.runs.desk.desk_workers import DeskWorker, journal_of, records

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
def test_an_exchange_says_so_much_and_no_more(machine: Spoken, news: dict[str, Any]) -> None:  # noqa: F811
    given = machine.claimed()
    if "journal" in news:
        assert len(orjson.dumps(news)) < 1 << 20, "it is not its size that is refused"
    reply = machine.sync(given, **news)
    assert reply.status_code == 400, reply.text
    assert "at most" in reply.json()["error"]
    assert machine.sync(given).json()["journal_bytes"] == 0


def test_what_is_said_of_other_work_items_is_refused_and_noted_on_the_run_once(
    machine: Spoken,  # noqa: F811
    services: PlatformServices,
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
        lines = orjson.dumps({**orjson.loads(said.to_line()), "run_index": attempt}).decode() + "\n"
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
    machine: Spoken,  # noqa: F811
    services: PlatformServices,
    clock: ManualClock,
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
    machine: Spoken,  # noqa: F811
    services: PlatformServices,
    later: Later,  # noqa: F811
    portal: BlockingPortal,
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


def test_a_heartbeat_that_can_not_wait_is_answered_at_once_and_told_when_to_come_again(
    machine: Spoken,  # noqa: F811
    services: PlatformServices,
    later: Later,  # noqa: F811
) -> None:
    waits = worker_waits(application(services))
    given = machine.claimed()
    waits.limits.most_waiting = 0
    reply = SyncReply.model_validate(machine.sync(given, may_wait=True).json())
    assert reply.next_s == min(COME_AGAIN_S, reply.term_s / 3)
    waits.limits.most_waiting = 1
    answer = later(machine.sync, given, may_wait=True)
    held(machine, services, 1)
    assert machine.sync(given).json()["stop"] is False
    assert SyncReply.model_validate(answer.result(300).json()).next_s < COME_AGAIN_S
