"""A sync is accepted once, whole, and from the owner alone; a refused one changes nothing."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import orjson
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from osmosis_ai.api.models.workers import MOST_FILES, MOST_JOURNAL_LINES, MOST_LOG_LINES, MOST_WANTED
from osmosis_ai.platform.db.tables import Base
from osmosis_ai.platform.runs.journals import read_journal
from tests.evaluation.builders import record
from tests.evaluation.recorded_runs import with_crc
from tests.platform.conftest import World
from tests.platform.fake_worker import EVALS, FakeWorker, Refused, downloaded, journal_of, raising, records

TRAJECTORY = "trajectories/row_0_run_0.json"


def stored(world: World) -> dict[str, Any]:
    """Return every row that a sync may write, and all blobs."""
    skipped = {"known_workers", "worker_tokens"}
    found: dict[str, Any] = {}
    with world.services.db.session() as session:
        for table in Base.metadata.sorted_tables:
            if table.name not in skipped:
                found[table.name] = sorted(map(repr, session.execute(select(table)).all()))
    return {
        **found,
        "blobs": world.stored("runs"),
        "open": len(list(world.services.blobs.unfinished_uploads())),
    }


def refused(worker: FakeWorker, body: dict[str, Any]) -> Refused:
    """Send what the platform must refuse; nothing may have changed."""
    before = stored(worker.world)
    with pytest.raises(Refused) as caught:
        worker.call("sync", body)
    assert stored(worker.world) == before
    return caught.value


# -- the journal -----------------------------------------------------------------------------------


def lines_of(*written: Any) -> str:
    return journal_of(written).decode()


def changed_line(**changes: Any) -> str:
    body = {**orjson.loads(record(3, 0).to_line()), **changes}
    body.pop("crc", None)
    return with_crc(orjson.dumps(body) + b"\n").decode()


FIRST = lines_of(*records(2))
"""What the shard has stored when a part below is sent."""
END, BAD = len(FIRST), "400 VALIDATION"
BAD_LINES: dict[str, str] = {
    "an empty line": "\n",
    "no record": "no record\n",
    "no checksum": '{"row_index":0,"run_index":0}\n',
    "another checksum": lines_of(record(2)).replace(":7,", ":8,"),
    "not a number": changed_line(reward="much"),
    "an unknown status": changed_line(status="well"),
    "too many tokens": changed_line(tokens=1 << 31),
    "a long name": changed_line(rollout_id="a" * 500),
    "a name that is a path": changed_line(rollout_id="../a"),
    "a long digest": changed_line(row_digest="a" * 65),
    "a row beyond any": changed_line(row_index=1 << 31),
    "a dataset row beyond any": changed_line(source_row_index=1 << 31),
    # These would spoil the sums of a run.
    **{
        f"a {name} out of range": lines_of(record(2, **{name: value}))
        for name, value in (
            *(("model_latency_ms", 1.7e308), ("model_latency_ms", -1.0), ("cost_usd", 1.7e308)),
            *(("judge_cost_usd", -0.1), ("reward", -1e200), ("parts", {"format": 1e308})),
            *(("finish_reasons", {"stop": -1}), ("finish_reasons", {"stop": 1 << 31})),
        )
    },
    "the reward of a failure": lines_of(record(2, status="failed")),
}
CHANGED = FIRST.index("1.0")
BAD_PARTS: dict[str, tuple[int, str, str, int | None]] = {
    **{name: (END, lines, BAD, END) for name, lines in BAD_LINES.items()},
    "a good line before a bad one": (END, (good := lines_of(record(2))) + "{}\n", BAD, END + len(good)),
    "a gap": (END + 1, good, "409 JOURNAL_OFFSET", None),
    "an offset beyond any": ((1 << 53) - 1, good, "409 JOURNAL_OFFSET", None),
    "other bytes": (0, FIRST.replace("1.0", "0.5", 1), BAD, 0),
    "other records": (0, lines_of(record(0, reward=0.5), record(1)), "409 JOURNAL_DIVERGED", CHANGED),
    "another record, then new ones": (
        0,
        lines_of(record(0, reward=0.5), *records(3, first=1)),
        "409 JOURNAL_DIVERGED",
        CHANGED,
    ),
    "the middle of a line": (3, FIRST[3:] + good, BAD, 3),
    "a negative offset": (-1, FIRST, "400 VALIDATION_FAILED", None),
    "no newline": (END, good[:-1], BAD, None),
    "half a line": (END, lines_of(record(2), record(3))[:-9], BAD, None),
    "too many lines": (END, "\n" * (MOST_JOURNAL_LINES + 1), BAD, None),
}


def test_a_bad_part_of_a_journal_is_refused_whole(worker: FakeWorker) -> None:
    worker.records(2)
    more = {"log": {"first": 0, "lines": [LINE]}, "environment": "changed", "worked_s": 99.0}
    for name, (offset, lines, expected, place) in BAD_PARTS.items():
        error = refused(worker, {"journal": {"offset": offset, "lines": lines}, **more})
        details = error.body.get("details") or error.body
        assert (name, str(error).partition(":")[0], details.get("offset")) == (name, expected, place)
        if "JOURNAL_OFFSET" in expected:
            assert details == {"bytes": END}
    worker.records(1)
    assert len(worker.samples()) == 3, "the worker can continue"


def test_records_of_attempts_that_are_not_of_the_shard_are_refused_and_logged_once(
    api: TestClient, world: World
) -> None:
    EVALS.taken(api, advanced_config={"execution": {"pool": "gpu", "workers": 2}})
    worker, other = (FakeWorker.claims(world, "gpu") for _ in range(2))  # 3 rows, 2 attempts per row
    for foreign, sentence in (
        (record(3), "the run has 3 rows, and no row 3"),
        (record(0, 2), "the run has 2 attempts per row, and no attempt 2"),
        (record(2, source_row_index=200), "the dataset has only 200 rows"),
        (record(1), "row 1, attempt 0 is part of another shard, or has a score"),
    ):
        lines = lines_of(record(0), foreign)
        with pytest.raises(Refused, match=f"409 CONFLICT: .*{sentence}"):
            worker.call("sync", {"journal": {"offset": 0, "lines": lines}, "environment": "changed"})
    assert (worker.shard.journal_bytes, worker.samples(), worker.run.environment) == (0, [], None)
    assert len([message for message in worker.messages() if "does not belong" in message]) == 1
    with pytest.raises(Refused, match=r"409 CONFLICT: a record or file does not belong .* row 1, attempt 0"):
        worker.sync(files=[worker.conversation(0), worker.conversation(1)])
    worker.records(2)
    other.records(1)
    other.sync(files=[other.conversation(1)])
    assert [each.row_index for each in worker.samples()] == [0, 1, 2]


# -- log lines and facts ---------------------------------------------------------------------------

LINE = {"timestamp": "2026-01-01T00:00:00Z", "message": "a"}


def test_texts_are_stored_as_the_columns_take_them(api: TestClient, worker: FakeWorker) -> None:
    line = record(0, error="\0\x1b[31m", category="c" * 500, error_type="\0", parts={"\0": 1e99})
    deep: dict[str, Any] = {}
    for _ in range(300):
        deep = {"a": deep}
    body = {
        "journal": {"offset": 0, "lines": lines_of(line)},
        "environment": "e\0" * 5000,
        "log": {"first": 0, "lines": [{**LINE, "message": "m" * 100_000, "details": deep}]},
        "limited_by": {"most": "provider", "more": "x" * 1_000_000},
    }
    worker.call("sync", body)
    (sample,) = worker.samples()
    assert (sample.error, sample.category, sample.error_type) == ("\ufffd\x1b[31m", "c" * 64, "\ufffd")
    assert len(worker.run.environment or "") == 4096 and "\0" not in (worker.run.environment or "")
    assert len(repr(worker.shard.limited_by)) < 100_000, "lists read the row of each shard"
    shown = api.get(f"{EVALS.route}/{worker.run_id}/logs").json()["logs"][-1]
    assert shown["details"] == {"truncated": "facts within facts, more than 64 levels"}
    assert len(shown["message"]) < 20_000
    worker.call("sync", {"limited_by": deep})
    worker.finishes()
    assert worker.run.status == "finished"


# -- files -----------------------------------------------------------------------------------------

FILE = {"path": "artifacts/row_0_run_0/a", "kind": "artifacts", "size": 3, "blob": "files/known"}
UPLOAD = {"name": "files/new", "size": 1, "sha256": "0" * 64}


def a_file(**changes: Any) -> dict[str, Any]:
    return {"files": [{**FILE, **changes}]}


def inline(content: bytes = b"abc", **changes: Any) -> dict[str, Any]:
    return packed(zlib.compress(content), **{"size": len(content), **changes})


def packed(content: bytes, **changes: Any) -> dict[str, Any]:
    return a_file(**{"blob": None, "content": base64.b64encode(content).decode(), **changes})


NOT_OF_AN_ATTEMPT = (
    *(
        "metrics.json",
        "events.jsonl",
        "artifacts/row_0_run_0",
        "artifacts/row_0/a",
        "trajectories/row_0_run_0.txt",
    ),
    *(
        "artifacts/row_-1_run_0/a",
        "artifacts/row_0_run_0.json",
        "artifacts/row_00_run_0/a",
        f"artifacts/row_{10**12}_run_0/a",
    ),
)
REFUSED: dict[str, dict[str, Any]] = {
    **{
        f"a path like {path!r}": a_file(path=path)
        for path in ("../a", "/a", "", "a/../../b", "a//b", "a/.", "a\\b", "a\u202eb", "a\0", "a" * 1025)
    },
    "an inline file outside": inline(path="../a"),
    "a kind that cannot be stored": a_file(kind="a\0"),
    "a row beyond any": a_file(source_row_index=1 << 62),
    "a row before the first": a_file(source_row_index=-1),
    "another size than that of its blob": a_file(size=2),
    "a range": a_file(offset=0, length=3),
    "a range without an end": a_file(offset=0),
    "an inline file that unpacks to more than fits in memory": inline(size=1 << 40),
    "an inline file that is too large": inline(b"".join(b"%x" % (n * n) for n in range(30_000)), size=9),
    "an inline file that is not Base64": a_file(blob=None, content="%"),
    "an inline file that is not compressed": packed(b"abc"),
    "an inline file of another size": inline(size=2),
    "an inline file that is cut off": packed(zlib.compress(b"abc")[:-1]),
    "an inline file with more behind it": packed(zlib.compress(b"abc") + b"a"),
    "an inline file that unpacks to more than its size": inline(b" " * (16 << 20), size=3),
    **{f"the file {path!r}": a_file(path=path) for path in NOT_OF_AN_ATTEMPT},
    "a file of another kind": a_file(kind="diagnostics"),
    "an inline file with a blob": inline(blob="files/known"),
    "an inline file with a range": inline(offset=0, length=1),
    "a file without content": a_file(blob=None),
    "a blob that was not uploaded": a_file(blob="files/unknown"),
    "a blob of another shard": a_file(blob="files/shd_0/known"),
    "a blob named by its key": a_file(blob="../other/files/known"),
    "a blob that cannot be stored": a_file(blob="a\0"),
    "a good file and a bad one": {"files": [FILE, {**FILE, "path": "../a"}]},
    **{
        f"an upload named {name!r}": {"wanted": [{**UPLOAD, "name": name}]}
        for name in (
            *("a\0", "", ".", "../other/a", "/a", "a/../b", "a//b", "files/a b", "a" * 161),
            *("derived/a/manifest.gz", "packs/a", "files", "checkpoints", "files/shd_0/a", "files/a/b"),
        )
    },
    "an upload larger than any": {"wanted": [{**UPLOAD, "size": 1 << 60}]},
    "an upload without a digest": {"wanted": [{**UPLOAD, "sha256": "a"}]},
    "other bytes under a stored name": {"wanted": [{**UPLOAD, "name": "files/known"}]},
    "an upload that did not begin": {"sent": [{"name": "files/known", "id": "other", "etag": "a"}]},
    "a sent upload that cannot be stored": {"sent": [{"name": "a\0", "id": "a", "etag": ""}]},
    "an upload twice": {"wanted": [UPLOAD, UPLOAD]},
    "a good upload and a bad one": {"wanted": [UPLOAD, {**UPLOAD, "name": "../a"}]},
    "an upload with a bad file": {"wanted": [UPLOAD], **a_file(path="../a")},
    "a time before all calendars": {
        "log": {"first": 0, "lines": [{**LINE, "timestamp": "0001-01-01T00:00:00+14:00"}]}
    },
    "a time after all calendars": {
        "log": {"first": 0, "lines": [{**LINE, "timestamp": "9999-12-31T23:59:59-14:00"}]}
    },
    "a log line beyond any": {"log": {"first": 1 << 53, "lines": [LINE]}},
    "a digest that cannot be stored": {"grader_digest": "a\0"},
    "a digest that is too long": {"grader_digest": "a" * 65},
    "a time worked that is not finite": {"worked_s": 1e308},
    "a negative time worked": {"worked_s": -1.0},
    "training of an evaluation": {"training": {"steps": [{"step": 1, "timestamp_ms": 1, "metrics": {}}]}},
    "too many log lines": {"log": {"first": 0, "lines": [LINE] * (MOST_LOG_LINES + 1)}},
    "too many files": {"files": [FILE] * (MOST_FILES + 1)},
    "too many sent uploads": {"sent": [{"name": "a", "id": "a", "etag": ""}] * (MOST_FILES + 1)},
    "too many wanted uploads": {"wanted": [{**UPLOAD, "name": f"files/{n}"} for n in range(MOST_WANTED + 1)]},
}


def test_what_no_honest_worker_sends_is_refused_and_changes_nothing(worker: FakeWorker) -> None:
    worker.sync(sent=[worker.uploads("files/known", b"abc")])
    for name, body in REFUSED.items():
        error = refused(worker, body)
        assert (name, error.status) in ((name, 400), (name, 409)), error
    assert worker.sync(**a_file()).stop is False
    worker.finishes()
    assert worker.run.status == "finished"


def test_the_newest_file_of_a_path_counts_wherever_its_bytes_are(api: TestClient, worker: FakeWorker) -> None:
    for content, is_inline in (
        (b"first", True),
        (b"second one", False),
        (b"the third one", True),
        (b"4", True),
    ):
        if is_inline:
            worker.sync(files=[worker.conversation(0, content=content)])
        else:
            described = {"path": TRAJECTORY, "kind": "trajectories", "size": len(content), "blob": "files/a"}
            worker.sync(sent=[worker.uploads("files/a", content)], files=[described])
        assert downloaded(api, worker.run_id, TRAJECTORY) == content
    worker.finishes()
    assert downloaded(api, worker.run_id, TRAJECTORY) == b"4"


# -- bodies ----------------------------------------------------------------------------------------


def test_a_sync_with_everything_is_all_or_nothing(
    worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything: dict[str, Any] = {
        "journal": {"offset": 0, "lines": FIRST},
        "files": [worker.conversation(0)],
        "log": {"first": 0, "lines": [LINE]},
        "environment": "x",
        "worked_s": 3.0,
        "wanted": [UPLOAD],
    }

    before = stored(worker.world)
    with monkeypatch.context() as patch:
        patch.setattr("osmosis_ai.platform.queue.queue.wire.SyncReply", raising(MemoryError()))
        with pytest.raises((Refused, MemoryError)):
            worker.sync(**everything)
    assert stored(worker.world) == before
    reply = worker.sync(**everything)
    assert (reply.journal_bytes, reply.log_lines, len(reply.uploads)) == (len(FIRST), 1, 1)


def test_a_slow_reader_of_a_journal_holds_no_connection(world: World, worker: FakeWorker) -> None:
    for each in records(3):
        worker.write([each])
        worker.sync(journal=worker.part())
    readers = [read_journal(world.services.db, worker.shard_id) for _ in range(100)]
    assert {next(reader) for reader in readers}, "more than the database has connections"
    assert worker.sync().journal_bytes == len(worker.journal)
    assert b"".join(read_journal(world.services.db, worker.shard_id)) == worker.journal
