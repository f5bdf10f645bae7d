"""Local runs in the viewer: lists, indexes, damaged and incomplete runs."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from osmosis_ai.datasets import file_digest, iter_rows, row_digest
from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.evaluation.journal import load_results
from osmosis_ai.evaluation.local_results import read_local_results
from osmosis_ai.evaluation.manifest import run_lock
from osmosis_ai.evaluation.run_directory import MOST_OF_A_CONFIG, RunDirectory
from osmosis_ai.evaluation.run_log import read_log
from osmosis_ai.services.eval_runs.local_runs import RunWatcher
from osmosis_ai.services.report_files import ReportFile
from osmosis_ai.services.viewing import report_run
from osmosis_ai.viewer import conversations
from osmosis_ai.viewer.conversations import search_conversations
from osmosis_ai.viewer.local.source import LocalSource
from osmosis_ai.viewer.pages import conversation
from osmosis_ai.viewer.reports import RunReportOptions
from osmosis_ai.viewer.source import Histogram, RunQuery, SampleQuery, encode
from tests.datasets.builders import jsonl, prompt_rows
from tests.evaluation.recorded_runs import with_crc, write_run
from tests.viewer.browsing import page_text, visitor
from tests.viewer.builders import a_document, tiles_of
from tests.viewer.conftest import LocalPlace
from tests.viewer.source_contract import SourceContract, listed, places_of, sample_record

if TYPE_CHECKING:
    from starlette.testclient import TestClient


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalPlace]:
    place = LocalPlace(tmp_path_factory.mktemp("runs"))
    yield place
    place.source.close()


def change(file: Path, **changes: Any) -> None:
    """Change members of a JSON file; dots in a name lead to inner members."""
    document = json.loads(file.read_text())
    for name, value in changes.items():
        *above, last = name.split(".")
        inner = document
        for key in above:
            inner = inner[key]
        inner[last] = value
    file.write_text(json.dumps(document))


class TestLocalSource(SourceContract):
    @pytest.fixture
    def place(self, shared: LocalPlace, monkeypatch: pytest.MonkeyPatch) -> LocalPlace:
        # There are many runs by now, and the machine may be busy.
        monkeypatch.setattr("osmosis_ai.viewer.local.source._ELSEWHERE_S", 600.0)
        return shared


def test_index_continues_after_last_byte(local: LocalPlace) -> None:
    local.start("run", rows=4, n=1, records=[sample_record(0, 0, 1.0), sample_record(1, 0, 0.0)])
    journal = local.evals / "run" / "events.jsonl"
    before = journal.read_bytes()
    local.add("run", [sample_record(2, 0, 0.5)])
    line = journal.read_bytes()[len(before) :]
    journal.write_bytes(before + line[:-20])
    assert places_of(listed(local.source, "run", SampleQuery())) == [(0, 0), (1, 0)]
    # Bytes that were read are not read again, so a change of them has no effect.
    content = journal.read_bytes()
    journal.write_bytes(content.replace(b'"reward":1.0', b'"reward":7.0') + line[-20:])
    found = listed(local.source, "run", SampleQuery())
    assert [entry.reward for entry in found] == [1.0, 0.0, 0.5]


def test_index_of_a_restarted_run(local: LocalPlace) -> None:
    local.start("run", rows=2, n=1, records=[sample_record(0, 0, 1.0), sample_record(1, 0, 1.0)])
    assert len(listed(local.source, "run", SampleQuery())) == 2
    (local.evals / "run").rename(local.evals / "run.archive-20260101T000000Z")
    local.start("run", rows=2, n=1, records=[sample_record(1, 0, 0.0)])
    assert [(entry.row, entry.reward) for entry in listed(local.source, "run", SampleQuery())] == [(1, 0.0)]
    assert [entry.name for entry in local.source.runs(RunQuery(), limit=9).items] == ["run"]


def test_deleted_run(local: LocalPlace) -> None:
    local.start("run", rows=2, n=1)
    local.source.runs(RunQuery(), limit=5)
    listed(local.source, "run", SampleQuery())
    shutil.rmtree(local.evals / "run")
    assert list(local.source.runs(RunQuery(), limit=5).items) == []
    # Its page was open.
    for look in (lambda: local.source.run("eval", "run"), lambda: local.source.state("eval", "run")):
        with pytest.raises(NotFoundError):
            look()


def test_list_follows_its_runs(local: LocalPlace) -> None:
    def shown() -> list[tuple[str, str, int | None]]:
        entries = local.source.runs(RunQuery(sort="name", descending=False), limit=9).items
        return [
            (entry.name, entry.status, entry.headline.scored if entry.headline is not None else None)
            for entry in entries
        ]

    local.start("a", rows=2, n=1)
    assert shown() == [("a", "incomplete", 0)]
    local.add("a", [sample_record(0, 0, 1.0)])
    assert shown() == [("a", "incomplete", 1)]
    with run_lock(local.evals, "a"):
        assert shown() == [("a", "running", 1)]
        (running,) = local.source.runs(RunQuery(), limit=9).items
        assert running.duration_s is not None and running.duration_s > 0
    local.add("a", [sample_record(1, 0, 1.0)])
    assert shown() == [("a", "finished", 2)]
    # Done again in part: numbers are written at the end, and a directory knows of that.
    local.add("a", [sample_record(1, 0, error="boom")])
    directory = local.evals / "a"
    RunDirectory(directory).write_results({}, read_local_results(directory).metrics)
    assert shown() == [("a", "finished", 1)]
    local.start("b", rows=1, n=1)
    assert shown() == [("a", "finished", 1), ("b", "incomplete", 0)]
    # Another process finds the lines as they were left.
    again = LocalSource(local.root, cache_dir=local.root / "cache")
    names = [entry.name for entry in again.runs(RunQuery(sort="name", descending=False), limit=9).items]
    assert names == ["a", "b"]
    again.close()


@pytest.mark.parametrize("name", ["with spaces", "naïve-läufe-✓", "n" * 255, "ü" * 127])
def test_run_names(local: LocalPlace, name: str) -> None:
    local.start("run", rows=1, n=1, records=[sample_record(0, 0, 1.0)])
    (local.evals / "run").rename(local.evals / name)
    (local.evals / ".locks").mkdir(exist_ok=True)
    assert [entry.name for entry in local.source.runs(RunQuery(), limit=5).items] == [name]
    assert len(listed(local.source, name, SampleQuery())) == 1
    page = local.source.runs(RunQuery(sort="name"), limit=1)
    assert page.next is None


def test_histogram_edges() -> None:
    import numpy as np

    tenths = [tenth / 10 for tenth in range(11)]
    found = Histogram.of(np.array(tenths))
    assert found is not None and found.edges == [place / 20 for place in range(21)]
    assert found.counts == [*[1, 0] * 9, 1, 1]
    weighted = Histogram.of(np.array(tenths), np.arange(11.0))
    assert weighted is not None and weighted.counts[14] == 7 and weighted.counts[13] == 0


def test_previous_run(local: LocalPlace) -> None:
    def add_run(day: int, *, rows: int = 3, n: int = 1, bar: float = 1.0, **changes: Any) -> None:
        directory = local.evals / f"run-{day}"
        local.start(directory.name, rows=rows, n=n)
        known = {"inputs.dataset.sha256": "f", "provenance": {"config": "configs/eval/a.toml"}, **changes}
        change(directory / "manifest.json", created_at=f"2026-05-{day:02}T08:00:00Z", **known)
        records = [sample_record(row, attempt, 1.0) for row in range(rows) for attempt in range(n)]
        local.add(directory.name, records)
        (directory / "metrics.json").write_text(json.dumps({"summary": {"pass_threshold": bar}}))

    add_run(1)
    add_run(2, rows=2)
    add_run(3, **{"inputs.model_path": "another"})
    add_run(4, provenance={"config": "configs/eval/b.toml"})
    add_run(5, bar=0.5)
    add_run(6, n=4)
    add_run(7, rows=2, n=2)
    add_run(8, bar=0.5)
    add_run(9, **{"inputs.dataset.sha256": "another file"})
    before = {f"run-{day}": local.source.run("eval", f"run-{day}").previous for day in range(1, 10)}
    found = {name: run.name for name, run in before.items() if run is not None}
    assert found == {"run-6": "run-1", "run-7": "run-2", "run-8": "run-5"}
    for entry in local.source.runs(RunQuery(), limit=10).items:
        assert len(entry.trend) == (2 if entry.name in found else 1), entry.name


def test_archived_runs(local: LocalPlace) -> None:
    names = [
        "run",
        "run.archive-20260101T000000Z",
        "run.archive-20260201T000000Z",
        "other.archive-20260101T000000Z",
    ]
    for name in [*names, "runs"]:
        local.start(name, rows=1, n=1)

    def shown(query: RunQuery) -> set[str]:
        return {entry.name for entry in local.source.runs(query, limit=9).items}

    assert shown(RunQuery()) == {"run", "runs"}
    assert shown(RunQuery(archived=True)) == {*names, "runs"}
    assert local.source.runs(RunQuery(), limit=9).counts["archived"] == 3
    assert local.source.run("eval", "run").namesakes == [names[2], names[1]]
    assert local.source.run("eval", names[1]).namesakes == ["run", names[2]]
    assert local.source.run("eval", names[3]).namesakes == []
    pages = visitor(local.source)
    assert f'href="/evals/{names[1]}"' in page_text(pages.get("/evals/run"))
    assert names[1] in page_text(pages.get("/?archived=yes"))
    assert names[1] not in page_text(pages.get("/"))
    assert pages.get("/?archived=maybe").status_code == 400


@pytest.mark.parametrize("manifest", [b"", b"[" * 10_000, b'{"schema_version": 1}', b"\xff\xfe"])
def test_unreadable_manifest(local: LocalPlace, manifest: bytes) -> None:
    local.start("run", rows=1, n=1)
    (local.evals / "run" / "manifest.json").write_bytes(manifest)
    (entry,) = local.source.runs(RunQuery(), limit=9).items
    assert "is not a run's manifest" in (entry.error or "")
    assert "is not a run's manifest" in local.source.run("eval", "run").problems[0]
    with pytest.raises(OsmosisError):
        local.source.samples("run", SampleQuery(), limit=1)


def test_diagnostics_are_untrusted(local: LocalPlace) -> None:
    local.start("run", rows=1, n=1)
    record = sample_record(0, 0, error="it broke")
    local.add("run", [record])
    trial = local.evals / "run" / "rollout_trials" / record.rollout_id
    trial.mkdir(parents=True)
    told = trial / "diagnostics.json"

    def traceback() -> str | None:
        return local.source.sample("run", 0, 0, SampleQuery()).traceback

    assert traceback() is None
    told.write_text('{"traceback": "in main.py, line 3"}')
    assert traceback() == "in main.py, line 3"
    for damaged in ("", "[1]", '{"traceback": 3}', "[" * 70_000, '{"traceback": "cut'):
        told.write_text(damaged)
        assert traceback() is None
    (local.root / "secret").write_text('{"traceback": "canary"}')
    told.unlink()
    told.symlink_to(local.root / "secret")
    assert traceback() is None
    told.unlink()
    os.mkfifo(told)
    assert traceback() is None


def test_artifacts_are_regular_files_below_the_run(local: LocalPlace) -> None:
    local.start("run", rows=2, n=1)
    record = sample_record(0, 0, 1.0)
    local.add("run", [record])
    trial = local.evals / "run" / "rollout_trials" / record.rollout_id
    (trial / "artifacts" / "below").mkdir(parents=True)
    (trial / "artifacts" / "below" / "made.txt").write_text("made")
    (local.root / "secret").write_text("secret")
    (trial / "artifacts" / "link").symlink_to(local.root / "secret")
    (trial / "artifacts" / "folder").symlink_to(local.root)
    os.mkfifo(trial / "artifacts" / "pipe")
    (trial / "trajectory.json").symlink_to(local.root / "secret")
    assert [each.path for each in local.source.artifacts("run", 0, 0)] == ["below/made.txt"]
    with local.source.open_artifact("run", 0, 0, "below/made.txt") as opened:
        assert opened.read() == b"made"
    for path in ("link", "folder/secret", "pipe", "../trajectory.json", "/etc/passwd", "below", "", "a\0b"):
        with pytest.raises(NotFoundError):
            local.source.open_artifact("run", 0, 0, path)
    found = local.source.conversation("run", 0, 0, max_bytes=100)
    assert (found.content, bool(found.missing)) == (None, True)
    (trial / "trajectory.json").unlink()
    (trial / "trajectory.json").write_text("x" * 101)
    assert local.source.conversation("run", 0, 0, max_bytes=100).size == 101
    assert local.source.conversation("run", 0, 0, max_bytes=101).content == b"x" * 101


def test_written_config(local: LocalPlace) -> None:
    local.start("run", rows=1, n=1)
    kept = RunDirectory(local.evals / "run")
    assert local.source.run("eval", "run").config_written is None
    kept.write_config("# why\nn = 1\n\ud800" + "x" * MOST_OF_A_CONFIG)
    written = local.source.run("eval", "run").config_written
    assert written is not None and written.startswith("# why\nn = 1\n?x") and len(written) == MOST_OF_A_CONFIG
    kept.config.unlink()
    (local.root / "secret").write_text("secret")
    kept.config.symlink_to(local.root / "secret")
    assert local.source.run("eval", "run").config_written is None


@pytest.mark.parametrize("by", ["row", "file"])
def test_expected_answer_from_the_dataset(
    local: LocalPlace, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = local.root / "walks.jsonl"
    data.write_text(jsonl(prompt_rows(3)))
    rows = list(iter_rows(data))
    local.start("run", rows=3, n=1)
    provenance = {"dataset_path": str(data), "dataset_name": "walks"}
    digest = {"inputs.dataset.sha256": file_digest(data)}
    change(local.evals / "run" / "manifest.json", provenance=provenance, **digest)
    local.add("run", [sample_record(1, 0, 1.0, row_digest=row_digest(rows[1]) if by == "row" else None)])
    with monkeypatch.context() as without_git:
        # A report has very many conversations.
        without_git.setattr("osmosis_ai.workspace.git.run_git", pytest.fail)
        assert local.source.sample("run", 1, 0, SampleQuery()).ground_truth == rows[1].label
    data.write_text(jsonl(prompt_rows(3)).replace(str(rows[1].label), "changed"))
    assert local.source.sample("run", 1, 0, SampleQuery()).ground_truth is None
    data.unlink()
    assert local.source.sample("run", 1, 0, SampleQuery()).ground_truth is None


def test_log_pages(local: LocalPlace) -> None:
    local.start("run", rows=1, n=1)
    log = local.evals / "run" / "logs.txt"
    lines = [
        f'2026-11-22T21:37:27.573Z INFO [step] line {number} {{"number":{number}}}' for number in range(7)
    ]
    log.write_text("\n".join([*lines, "no line of ours"]) + "\n" + "torn")
    newest = local.source.log("eval", "run", limit=3)
    assert [entry.message for entry in newest.logs] == ["line 5", "line 6", "no line of ours"]
    assert newest.logs[0].details == {"number": 5}
    older = local.source.log("eval", "run", limit=100, cursor=newest.next_cursor)
    assert [entry.message for entry in older.logs] == [f"line {number}" for number in range(5)]
    assert older.next_cursor is None
    with log.open("a") as more:
        more.write('\n2026-11-22T21:37:28.000Z INFO [result] success {"row_index":4,"run_index":1}\n')
    (told,) = local.source.log("eval", "run", limit=1).logs
    assert told.message == "success (row 4, attempt 1)"
    with log.open("a") as more:
        more.write("torn")
    end = read_log(log, limit=1, direction="newer")
    with log.open("a") as more:
        more.write(" and whole\n")
    new = read_log(log, limit=5, cursor=end.next_cursor, direction="newer")
    assert [entry.message for entry in new.logs] == ["torn and whole"]


PAGES = ("/", "/evals/run", "/evals/run/samples", "/evals/run/samples/0.0", "/evals/run/changes")


@pytest.fixture
def place(local: LocalPlace) -> LocalPlace:
    """With a run of two samples."""
    local.start("run", rows=2, n=1, records=[sample_record(0, 0, 1.0), sample_record(1, 0, 0.0)])
    return local


def look(place: LocalPlace, *paths: str) -> list[str]:
    """Return the pages, after checking that none is a server error."""
    # One that has not seen the files before.
    source = LocalSource(place.root, cache_dir=place.root / "cache")
    client = visitor(source)
    replies = [client.get(path) for path in paths]
    source.close()
    assert [reply.status_code for reply in replies if reply.status_code >= 500] == []
    return [reply.text for reply in replies]


@pytest.mark.parametrize(
    "changes",
    [
        {"created_at": "0001-01-01T00:00:00+14:00"},
        {"created_at": "9999-12-31T23:59:59-14:00"},
        {"inputs.model_path": "\ud800"},
        {"inputs.n": math.inf},
        {"inputs.n": 10**12},
        {"inputs.dataset": {"selected_source_rows": "0-1999999999,1999999999-0"}},
    ],
    ids=lambda changes: ",".join(changes),
)
def test_invalid_manifest_values(place: LocalPlace, changes: dict[str, Any]) -> None:
    change(place.evals / "run" / "manifest.json", **changes)
    look(place, *PAGES, "/compare?run=run&run=run")


@pytest.mark.parametrize(
    "written",
    [
        {"summary": None},
        {"summary": {"pass_threshold": 10**400}},
        {"eval_run": {"duration_ms": math.nan}},
        {"eval_run": {"rows": {"rows": None, "total": 3}}},
        {"eval_run": {"rows": {"rows": 1, "total": 3, "kind": True}}},
    ],
    ids=str,
)
def test_invalid_metrics_are_recomputed(place: LocalPlace, written: dict[str, Any]) -> None:
    (place.evals / "run" / "metrics.json").write_text(json.dumps(written))
    assert "2 of 2 planned" in look(place, *PAGES)[1]


@pytest.mark.parametrize(
    "odd",
    [{"tokens": 2**63}, {"completion_tokens": None}, {"cost_usd": 2**63}, {"status": []}, {"notes": 5}],
    ids=str,
)
def test_invalid_journal_values(place: LocalPlace, odd: dict[str, Any]) -> None:
    journal = place.evals / "run" / "events.jsonl"
    line = {**json.loads(sample_record(0, 0, 1.0).to_line()), **odd}
    journal.write_bytes(with_crc(json.dumps(line).encode() + b"\n"))
    look(place, *PAGES)


def test_failed_sample_has_no_reward(place: LocalPlace) -> None:
    line = {**json.loads(sample_record(0, 0, 1.0).to_line()), "status": "failed"}
    (place.evals / "run" / "events.jsonl").write_bytes(with_crc(json.dumps(line).encode() + b"\n"))
    (entry,) = listed(place.source, "run", SampleQuery())
    assert (entry.status, entry.reward, entry.passed) == ("failed", None, None)


def test_sample_outside_the_run_is_damage(place: LocalPlace) -> None:
    place.add("run", [sample_record(2, 0, 1.0)])
    assert places_of(listed(place.source, "run", SampleQuery())) == [(0, 0), (1, 0)]
    assert "which is not part of the run" in look(place, "/evals/run/samples")[0]


def test_directory_name_not_utf8(place: LocalPlace) -> None:
    Path(place.evals / "run").rename(Path(os.fsdecode(os.fsencode(place.evals) + b"/run-\xff")))
    (name,) = [run.name for run in place.source.runs(RunQuery(), limit=9).items]
    assert name.startswith("run-\ufffd~")
    assert "2 of 2 planned" in look(place, f"/evals/{name}")[0]


@pytest.mark.parametrize(
    "metrics",
    [{"rollout/raw_reward": "<b>"}, {"eval/validation/reward": [1]}, {"train/loss": 1e308, "train/x": True}],
    ids=str,
)
def test_invalid_training_metrics(place: LocalPlace, metrics: dict[str, Any]) -> None:
    history = place.evals / "run" / "metrics.jsonl"
    step = {"step": 1, "timestamp_ms": 1, "metrics": metrics, "warnings": 5, "validation_rewards": ["x"]}
    history.write_text(json.dumps(step) + "\n")
    look(place, "/", "/training?sort=reward", "/training/run", "/training/run/changes")


@pytest.mark.parametrize(
    "changes",
    [
        {"generated_at": "0001-01-01T00:00:00+14:00"},
        {"usage": {"elapsed_s": 10**400, "cost_usd": math.nan}},
        {"trust.score_max": math.inf},
        {"trust.score_min": 2**63},
        {"trust.counts.runs": -1},
        {"trust.counts.runs": 10**12},
    ],
    ids=lambda changes: ",".join(changes),
)
def test_invalid_rubric_results(place: LocalPlace, changes: dict[str, Any]) -> None:
    result = place.root / "answers.json"
    result.write_text(json.dumps({"generated_at": "2026-01-01T00:00:00Z", **a_document(records=2)}))
    change(result, **changes)
    assert "record 2" in look(place, "/", "/rubrics/answers")[1]


@pytest.mark.parametrize("name", ["events.jsonl", "metrics.json", "logs.txt"])
def test_pipe_in_place_of_a_file(place: LocalPlace, name: str) -> None:
    (place.evals / "run" / name).unlink(missing_ok=True)
    os.mkfifo(place.evals / "run" / name)
    place.start("other", rows=1, n=1)
    assert "other" in look(place, "/", "/evals/run", "/evals/run/log")[0]


def test_cursor_beyond_float_range(place: LocalPlace) -> None:
    cursor = encode("samples:reward:asc", [10**310, 1, 0])
    (page,) = look(place, f"/evals/run/samples?sort=reward&cursor={cursor}")
    assert "The cursor is of another list or order." in page


def leave_conversation(local: LocalPlace, row: int, text: str) -> bytes:
    folder = local.evals / "run" / "trajectories"
    folder.mkdir(exist_ok=True)
    content = json.dumps({"steps": [{"step_id": 1, "source": "user", "message": text}]}).encode()
    (folder / f"row_{row}_run_0.json").write_bytes(content)
    return content


def test_large_conversation_download(local: LocalPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    local.start("run", rows=1, n=1, records=[sample_record(0, 0, 1.0)])
    content = leave_conversation(local, 0, "word " * 100)
    for name in ("_PIECE", "LARGEST_JSON_SHOWN", "LARGEST_CONVERSATION_BYTES"):
        monkeypatch.setattr(conversation, name, 100)
    monkeypatch.setattr(conversation, "_HEAD", 50)
    asked = []
    monkeypatch.setattr(
        LocalSource,
        "conversation",
        lambda *place, max_bytes, kind, read=LocalSource.conversation: (
            asked.append(max_bytes) or read(*place, max_bytes=max_bytes)
        ),
    )
    pages, raw = visitor(local.source), "/evals/run/samples/0.0/raw"
    reply = pages.get(f"{raw}?as=file")
    assert reply.content == content
    assert reply.headers["content-disposition"].startswith("attachment")
    page = page_text(pages.get(raw))
    assert "step_id" in page
    assert "word word" not in page
    for wanted in ("?as=messages", "?as=row", "?step=1"):
        assert "only its file can be downloaded" in page_text(pages.get(raw + wanted), status=404)
    assert set(asked) == {100}
    assert pages.get(f"{raw}?as=film").status_code == 400


def test_conversation_search_resumes_after_time_limit(
    local: LocalPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversations, "MOST_SECONDS", 0.0)
    local.start("run", rows=4, n=1, records=[sample_record(row, 0, 1.0) for row in range(4)])
    for row in range(4):
        leave_conversation(local, row, "wanted")
    query, seen, cursor, scans = SampleQuery(text="wanted"), list[int](), None, 0
    while scans == 0 or cursor is not None:
        found = search_conversations(local.source, "run", query, cursor=cursor)
        seen += [sample.row for sample in found.page.items]
        cursor, scans = found.page.next, scans + 1
        assert found.looked_at == 1
        assert found.first is not None and found.last is not None
        assert found.first.row == found.last.row == scans - 1
    assert (seen, scans) == ([0, 1, 2, 3], 4)


def test_huge_journal_line(local: LocalPlace) -> None:
    local.start("run", rows=1, n=1)
    texts = {"error": "x" * 4_000_000, "input": "y" * 4_000_000, "category": "z" * 4_000_000}
    local.add("run", [sample_record(0, 0, **texts)])
    pages = visitor(local.source)
    for path in ("/", "/evals/run", "/evals/run/samples", "/evals/run/samples/0.0"):
        assert len(page_text(pages.get(path))) < 1_000_000, path


@pytest.fixture
def evals(local: LocalPlace, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a finished run of four rows."""
    monkeypatch.setenv("OSMOSIS_CACHE_DIR", str(local.root / "cache"))
    write_run(local.evals / "finished", [[1.0], ["agent"], [None], [0.0]])
    return local.evals


@pytest.fixture
def pages(local: LocalPlace) -> TestClient:
    return visitor(local.source)


def reported(run: Path, file: Path) -> str:
    """Return the report of a run."""
    report_run(str(run), ReportFile(file), RunReportOptions())
    return file.read_text()


def test_run_with_failed_samples_only(evals: Path, pages: TestClient, tmp_path: Path) -> None:
    write_run(evals / "lost", [["agent", "grader"], ["agent", "agent"]])
    page = page_text(pages.get("/evals/lost"))
    assert "0 of 4 planned" in page and "samples pass" not in page
    assert "4: 3 agent, 1 grader" in page
    failed = page_text(pages.get("/evals/lost/samples?outcome=failed"))
    assert "4 attempts." in failed and "/evals/lost/samples/1.1" in failed
    assert "/evals/lost/samples/" not in page_text(pages.get("/evals/lost/samples?outcome=below"))
    assert "3 agent, 1 grader" in page_text(pages.get("/evals"))
    report = reported(evals / "lost", tmp_path / "report.html")
    assert "4: 3 agent, 1 grader" in report and "samples pass" not in report


def test_samples_before_damage(evals: Path, pages: TestClient) -> None:
    run = write_run(evals / "damaged", [[1.0, 0.0], [1.0, 0.0]])
    journal = run / "events.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    for intact, said in ((2, "2 attempts."), (0, "No attempt has ended yet.")):
        journal.write_text("".join([*lines[:intact], "no record\n", *lines[intact + 1 :]]))
        for words in ("", "?q=x&in=conversations"):
            page = page_text(pages.get(f"/evals/damaged/samples{words}"))
            assert (
                page.count("is damaged at line") == 1 and "Only results before this line are shown." in page
            )
            assert words or said in page
    assert "damaged" not in page_text(pages.get("/evals/finished/samples"))


@pytest.mark.parametrize("is_damaged", [True, False])
def test_unreadable_journal_in_list(
    evals: Path, pages: TestClient, monkeypatch: pytest.MonkeyPatch, is_damaged: bool
) -> None:
    write_run(evals / "intact", [[1.0], [0.0]])
    journal = write_run(evals / "barred", [[1.0]]) / "events.jsonl"
    if is_damaged:
        journal.write_text("no record\n")

    def read(path: Path, *rest: Any, **more: Any) -> Any:
        if path == journal and not is_damaged:
            raise PermissionError(13, "Permission denied", str(path))
        return load_results(path, *rest, **more)

    monkeypatch.setattr("osmosis_ai.evaluation.local_results.load_results", read)
    listed = page_text(pages.get("/evals"))
    assert 'href="/evals/intact"' in listed and "50.0%" in listed
    assert re.search(r"href=\"/evals/barred\".*?class=\"quiet why\">(The journal|`)", listed, re.DOTALL)
    problem = "is damaged at line 1" if is_damaged else "Permission denied"
    assert problem in page_text(pages.get("/evals/barred"))


def test_killed_run(evals: Path, pages: TestClient, tmp_path: Path) -> None:
    run = write_run(evals / "killed", [[1.0, 0.0], [1.0, ""]])
    with (run / "events.jsonl").open("ab") as journal:
        journal.write(b'{"row_index": 1, "run_in')
    assert not (run / "metrics.json").exists()
    page = page_text(pages.get("/evals/killed"))
    assert "incomplete" in page and tiles_of(page)["Scored"] == "3 of 4 planned"
    assert "damaged" not in page, "a line that was not ended is no damage"
    assert "3 attempts." in page_text(pages.get("/evals/killed/samples"))
    missing = page_text(pages.get("/evals/killed/samples/1.1"), status=404)
    assert "has no attempt of row 1, attempt 1" in missing
    assert "<p>Rows are numbered 0 to 1, attempts 0 to 1; this one has no result.</p>" in missing
    near = ["1.0", "0.1", "0.0"]
    assert re.findall(r'<a href="/evals/killed/samples/([0-9.]+)">Row', missing) == near
    assert '<a href="/evals/killed/samples/0.1">Row 0, attempt 1</a>' in missing
    assert '<a href="/evals/killed">Back to the run</a>' in missing and '<a href="/evals">' in missing
    # However large the number is, it is a sample that is not there.
    for row in ("9", "9" * 10, "9" * 40):
        missing = page_text(pages.get(f"/evals/killed/samples/{row}.0"), status=404)
        assert f"has no attempt of row {row}, attempt 0" in missing and "samples/1.0" in missing
    assert "3 of 4 planned" in reported(run, tmp_path / "report.html")


@pytest.mark.parametrize(
    "config", ["[evaluation]\npass_threshold = 0.5\n", "pass_threshold = 0.5\n"], ids=["eval run", "eval -m"]
)
@pytest.mark.parametrize("numbers", [None, '{"summary": [1'], ids=["gone", "torn"])
def test_pass_threshold_from_config(evals: Path, pages: TestClient, config: str, numbers: str | None) -> None:
    run = write_run(evals / "run", [[0.75, 0.25], [0.75, 0.25]])
    (run / "config.toml").write_text(config)
    if numbers is not None:
        (run / "metrics.json").write_text(numbers)
    page = page_text(pages.get("/evals/run"))
    assert (
        tiles_of(page)["Pass rate"].startswith("50.0%")
        and tiles_of(page)["Scored"].startswith("4")
        and "reward &gt;= 0.5" in page
    )
    assert "2 attempts." in page_text(pages.get("/evals/run/samples?outcome=passed"))
    assert RunWatcher(run).look().progress.passed == 2, "`eval watch` counts the same"


def test_journal_shorter_than_its_metrics(evals: Path, pages: TestClient) -> None:
    journal = evals / "finished" / "events.jsonl"
    whole = journal.read_bytes()
    metrics = read_local_results(evals / "finished").metrics
    RunDirectory(evals / "finished").write_results({}, metrics, journal_bytes=len(whole))
    assert "missing" not in page_text(pages.get("/evals/finished"))
    journal.write_bytes(whole[:-40])
    for below in ("", "/samples"):
        assert "40 bytes less than when the run last ended" in page_text(pages.get(f"/evals/finished{below}"))
    journal.unlink()
    assert "events.jsonl` does not exist." in page_text(pages.get("/evals/finished/samples"))
    page = page_text(pages.get("/evals/finished"))
    assert "events.jsonl` does not exist." in page
    assert tiles_of(page)["Scored"].startswith("2") and "those of the run&#39;s last session" in page
