"""A worker that has a token and lies: what it says is refused in a sentence, and its run can be shown and ended."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from fastapi.testclient import TestClient

from osmosis_ai.api.wire.workers import CLAIM, MOST_WANTED, UPLOAD_LIMIT, run_route
from osmosis_ai.platform.runs.desk.run_shards import MERGED_FOLDER
from osmosis_ai.platform.runs.desk.uploads import MOST_OPEN
from osmosis_ai.platform.runs.journal_segments import SEGMENTS_FOLDER
from osmosis_ai.platform.runs.stored_journal import JOURNAL_NAME
from osmosis_ai.platform.services import PlatformServices
from tests.platform.conftest import assert_flat_error
from tests.platform.http.test_workers import (  # noqa: F401 - fixtures of `machine`
    Spoken,
    code,
    machine,
    member,
    member_with_code,
    rows,
    token,
)
from tests.platform.runs.desk.desk_workers import DeskWorker, offer, records

RECORD = orjson.loads(records(1)[0].to_line())
DIGEST = "0" * 64
FILE = {"path": "a", "kind": "artifacts", "size": 3, "blob": "blob"}
UPLOAD = {"name": "new", "size": 1, "sha256": DIGEST}
LINE = {"timestamp": "2026-01-01T00:00:00Z", "message": "a"}
NUMBERS = {"duration_ms": 1.0, "summary": {}, "estimates": {}}
PROGRESS = {"completed": 1, "total": 1}
STEP = {"step": 1, "timestamp_ms": 1, "metrics": {}}
CHECKPOINT = {"step": 1, "base_model": "a", "files": {"a": "blob"}}


def _file(**changes: Any) -> dict[str, Any]:
    return {"files": [{**FILE, **changes}]}


def _piece(offset: int, length: int, size: int) -> dict[str, Any]:
    return _file(shard_offset=offset, shard_length=length, size=size)


def _line(**changes: Any) -> dict[str, Any]:
    lines = orjson.dumps({**RECORD, **changes}).decode() + "\n"
    return {"journal": {"generation": 0, "offset": 0, "lines": lines}}


SNAPSHOT = {
    **dict.fromkeys(("completed", "total", "passed", "failed", "skipped", "scored", "tokens", "finished"), 1),
    "reward_mean": 1.0,
    "cost_usd": None,
    "in_flight": None,
    "elapsed_s": 1.0,
}


LIES: dict[str, dict[str, Any]] = {
    "a file above the run": _file(path="../a"),
    "a file from the root": _file(path="/a"),
    "a file of no name": _file(path=""),
    "a file that turns its name around": _file(path="a\u202eb"),
    "a kind that no engine keeps": _file(kind="a\0"),
    "a row beyond every dataset": _file(source_row_index=1 << 62),
    "a row before the first": _file(source_row_index=-1),
    "a file of another size than its blob": _file(size=2),
    "a piece that begins and does not end": _file(shard_offset=0),
    "a piece beyond its blob": _piece(2, 2, 3),
    "a piece that unpacks to more than is read at once": _piece(0, 3, 1 << 40),
    "a blob that no engine can look for": _file(blob="a\0"),
    "an upload that no engine can look for": {"wanted": [{**UPLOAD, "name": "a\0"}]},
    "an upload into another run": {"wanted": [{**UPLOAD, "name": "../other/a"}]},
    "an upload in the place of a list of files": {"wanted": [{**UPLOAD, "name": "derived/a/manifest.gz"}]},
    "an upload in the place of a journal's part": {"wanted": [{**UPLOAD, "name": f"{SEGMENTS_FOLDER}/a"}]},
    "an upload among the platform's merged ones": {"wanted": [{**UPLOAD, "name": f"{MERGED_FOLDER}/a"}]},
    "an upload that is asked for twice": {"wanted": [UPLOAD, {**UPLOAD, "sha256": "1" * 64}]},
    "more uploads than one exchange asks for": {
        "wanted": [{**UPLOAD, "name": f"new-{number}"} for number in range(MOST_WANTED + 1)]
    },
    "a shard that is a file": _file(blob="shards/one"),
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
    "a sample beyond every dataset": _line(row_index=1 << 31),
    "a sample of a row beyond every dataset": _line(source_row_index=1 << 31),
    "a sample with more tokens than there are": _line(tokens=1 << 31),
    "a sample with a name that is too long": _line(rollout_id="a" * 500),
    "a sample with a digest that is too long": _line(row_digest="a" * 64),
    "a line that is no record": {"journal": {"generation": 0, "offset": 0, "lines": "{}\n"}},
    "a line that is not finite": {"journal": {"generation": 0, "offset": 0, "lines": '{"reward": NaN}\n'}},
    "a line of nothing": {"journal": {"generation": 0, "offset": 0, "lines": "\n"}},
}


@pytest.fixture
def liar(machine: Spoken, services: PlatformServices) -> DeskWorker:  # noqa: F811
    """The owner of a run, who has sent three bytes."""
    machine.api = TestClient(
        machine.api.app, raise_server_exceptions=False, headers=dict(machine.api.headers)
    )
    worker = DeskWorker(services, machine.claimed())
    worker.sync(sent=[worker.sends(name, b"abc") for name in ("blob", "shards/one")])
    return worker


def test_lies_are_refused_and_nothing_of_them_is_kept(
    machine: Spoken,  # noqa: F811
    liar: DeskWorker,
    services: PlatformServices,
) -> None:
    for lie, news in LIES.items():
        reply = machine.sync(liar.assignment, **news)
        assert (lie, reply.status_code) == (lie, 400), reply.text
    run = f"/api/cli/eval-runs/{liar.run_id}"
    assert machine.api.get(run).status_code == 200
    assert (liar.run.journal_bytes, liar.run.metrics, liar.samples()) == (0, None, [])
    assert list(services.blobs.unfinished_uploads()) == [], "nothing that was begun for a lie stays open"
    ended = machine.post(
        run_route(liar.run_id, "end"),
        {"lease": liar.token.get_secret_value(), "outcome": "finished"},
    )
    assert ended.json() == {"status": "finished"}


def test_words_of_a_rollout_are_kept_as_the_columns_take_them(
    machine: Spoken,  # noqa: F811
    liar: DeskWorker,
) -> None:
    news = _line(error="\0\x1b[31m", category="c" * 500, error_type="\0", parts={"\0": 1e308})
    assert machine.sync(liar.assignment, **news).status_code == 200
    (sample,) = liar.samples()
    assert (sample.error, sample.category, sample.error_type) == ("\ufffd\x1b[31m", "c" * 64, "\ufffd")


@pytest.mark.parametrize("levels", [300, 900])
def test_facts_within_facts_leave_a_log_that_can_be_read(
    machine: Spoken,  # noqa: F811
    liar: DeskWorker,
    levels: int,
) -> None:
    body = orjson.dumps(
        {
            "lease": liar.token.get_secret_value(),
            "log": {"first": 0, "lines": [{**LINE, "details": "FACTS"}]},
        }
    )
    facts = b'{"a":' * levels + b"1" + b"}" * levels
    assert machine.post(run_route(liar.run_id, "sync"), body.replace(b'"FACTS"', facts)).status_code == 200
    shown = machine.api.get(f"/api/cli/eval-runs/{liar.run_id}/logs")
    assert shown.status_code == 200
    assert shown.json()["logs"][-1]["details"] == {"truncated": "facts within facts, more than 64 levels"}


def test_last_words_are_as_long_as_a_line_of_a_log(machine: Spoken, liar: DeskWorker) -> None:  # noqa: F811
    last = {"lease": liar.token.get_secret_value(), "outcome": "failed"}
    said = {**last, "error": "e" * 400_000, "ending": "n" * 400_000}
    assert machine.post(run_route(liar.run_id, "end"), said).json() == {"status": "failed"}
    assert len(machine.api.get("/api/cli/eval-runs").content) < 100_000, "whoever lists runs reads all of it"


def test_claims_name_what_an_engine_can_look_for(machine: Spoken) -> None:  # noqa: F811
    for named in ("run_id", "pool"):
        assert_flat_error(machine.post(CLAIM, {**offer().to_wire(), named: "a\0b"}), 400, "VALIDATION_FAILED")


def _wanted(first: int, count: int, **changes: Any) -> dict[str, Any]:
    return {
        "wanted": [{**UPLOAD, "name": f"new-{number}", **changes} for number in range(first, first + count)]
    }


def _of_the_limit(liar: DeskWorker) -> list[str]:
    return [said for said in liar.messages() if "uploads open" in said or "may send" in said]


def test_who_asks_for_uploads_and_sends_none_is_stopped_and_its_run_says_so_once(
    machine: Spoken,  # noqa: F811
    liar: DeskWorker,
    services: PlatformServices,
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


def test_who_asks_again_for_a_name_has_one_upload_of_it(
    machine: Spoken,  # noqa: F811
    liar: DeskWorker,
    services: PlatformServices,
) -> None:
    for number in range(5):
        changed = _wanted(0, 1, sha256=f"{number}" * 64)
        assert machine.sync(liar.assignment, **changed).status_code == 200
    assert len(list(services.blobs.unfinished_uploads())) == 1


def test_a_run_sends_no_more_than_it_may_whatever_its_worker_asks_for(
    machine: Spoken,  # noqa: F811
    liar: DeskWorker,
    services: PlatformServices,
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
