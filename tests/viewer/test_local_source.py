"""The runs of this machine behind the viewer's protocol, whatever their files hold."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NoReturn, get_args

import pytest

from osmosis_ai.datasets import file_digest, iter_rows, row_digest
from osmosis_ai.datasets.selection import RowsDrawn
from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.evaluation import run_dataset_files
from osmosis_ai.evaluation.comparison.run_samples import ComparedInputs
from osmosis_ai.evaluation.local_results import read_local_results
from osmosis_ai.evaluation.local_samples import read_inputs
from osmosis_ai.evaluation.manifest import Manifest
from osmosis_ai.evaluation.record import TerminalRecord
from osmosis_ai.evaluation.run_directory import MOST_OF_A_CONFIG, RunDirectory
from osmosis_ai.evaluation.run_lock import RunLock
from osmosis_ai.training.runs.run_directory import TrainingDirectory
from osmosis_ai.training.runs.validation_samples import ValidationSamples
from osmosis_ai.viewer.cursors import SamplePosition
from osmosis_ai.viewer.judging_sessions import read_session
from osmosis_ai.viewer.local.sample_list import _parts
from osmosis_ai.viewer.local.source import LocalSource
from osmosis_ai.viewer.local.training_runs import read_training, training_detail
from osmosis_ai.viewer.source import Histogram, Outcome, RunQuery, SampleQuery, SampleSort
from tests.datasets.builders import jsonl, prompt_rows
from tests.evaluation.comparison.builders import write_journalled_run
from tests.viewer.rubric_contract import RubricContract
from tests.viewer.source_contract import (
    ORDERS,
    SourceContract,
    leave_validation,
    listed,
    mixed_records,
    places_of,
    sample_record,
)


class LocalPlace:
    """A directory of runs on this machine."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.evals = root / ".osmosis" / "evals"
        self.evals.mkdir(parents=True)
        self.source = LocalSource(root, cache_dir=root / "cache")

    def start(self, name: str, *, rows: int, n: int) -> None:
        directory = self.evals / name
        directory.mkdir()
        inputs = {"dataset": {"selected_source_rows": f"0-{rows - 1}"}, "n": n, "model_path": "osmosis/tiny"}
        Manifest.new(name, inputs, {}).write(directory / "manifest.json")
        (directory / "events.jsonl").touch()

    def add(self, name: str, records: Sequence[TerminalRecord]) -> None:
        with (self.evals / name / "events.jsonl").open("ab") as journal:
            journal.write(b"".join(record.to_line() for record in records))

    def validate(
        self, name: str, samples: ValidationSamples, conversations: Mapping[tuple[int, int], bytes]
    ) -> None:
        directory = TrainingDirectory(self.evals / name)
        if not directory.manifest.exists():
            directory.checkpoints.mkdir(parents=True)
            directory.claim({"model_path": "osmosis/tiny"}, {})
            directory.metrics.touch()
        leave_validation(directory, samples, conversations)

    def judge(self, name: str, document: Mapping[str, Any]) -> None:
        (self.root / f"{name}.json").write_text(json.dumps(document))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalPlace]:
    place = LocalPlace(tmp_path_factory.mktemp("runs"))
    yield place
    place.source.close()


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalPlace]:
    place = LocalPlace(tmp_path / "place")
    yield place
    place.source.close()


class TestLocalResults(RubricContract):
    @pytest.fixture
    def place(self, shared: LocalPlace) -> LocalPlace:
        # Names of JSON files are looked for every second or more.
        shared.source._places._walk_again = float("-inf")
        return shared


class TestLocalSource(SourceContract):
    @pytest.fixture
    def place(self, shared: LocalPlace, monkeypatch: pytest.MonkeyPatch) -> LocalPlace:
        # There are many runs by now, and the machine may be busy.
        monkeypatch.setattr("osmosis_ai.viewer.local.source._ELSEWHERE_S", 600.0)
        return shared


def lookups(source: LocalSource, run: str, query: SampleQuery) -> list[str]:
    """Return how SQLite finds a page of samples from its middle on."""
    samples, _ = source._samples(source._place("eval", run))
    position = SamplePosition(None if query.sort == "row" else 1.0, 3, 0)
    plans = []
    for statement, values in _parts(query, position, n=samples.index.n):
        bound = {**values, **samples._values(query), "limit": 10}
        plans += [
            line[-1] for line in samples.index.connection.execute(f"EXPLAIN QUERY PLAN {statement}", bound)
        ]
    return plans


@pytest.mark.parametrize("outcome", [None, *get_args(Outcome)])
@pytest.mark.parametrize(("sort", "descending"), ORDERS)
def test_no_page_of_samples_sorts_or_reads_them_all(
    shared: LocalPlace, sort: SampleSort, descending: bool, outcome: Outcome | None
) -> None:
    if not (shared.evals / "planned").exists():
        shared.start("planned", rows=9, n=3)
        shared.add("planned", mixed_records())
    for text in ("", "of_it", "äpfel"):
        query = SampleQuery(outcome=outcome, sort=sort, descending=descending, text=text)
        plans = lookups(shared.source, "planned", query)
        assert not [plan for plan in plans if "TEMP B-TREE FOR ORDER" in plan]
        assert any("SEARCH samples USING" in plan for plan in plans)


def test_runs_are_found_whatever_the_case_of_their_letters(local: LocalPlace) -> None:
    local.start("run", rows=1, n=1)
    manifest = local.evals / "run" / "manifest.json"
    manifest.write_text(manifest.read_text("utf-8").replace("osmosis/tiny", "osmosis/Straße-Äpfel"), "utf-8")
    for text in ("ÄPFEL", "äpfel", "STRASSE"):
        assert [entry.name for entry in local.source.runs(RunQuery(text=text), limit=5).items] == ["run"], (
            text
        )


def test_a_sample_is_found_by_its_letters_in_capitals_where_one_becomes_two(local: LocalPlace) -> None:
    local.start("run", rows=3, n=1)
    said = ("Große Straße", "GROSSE STRASSE", "Grobe Strafe")
    local.add("run", [sample_record(row, 0, 1.0, input=text) for row, text in enumerate(said)])
    for text in ("GROSSE STRASSE", "große strasse", "Große Straße", "SS"):
        found = local.source.samples("run", SampleQuery(text=text), limit=5).items
        assert [each.row for each in found] == [0, 1], text


def test_an_index_goes_on_from_the_last_byte_and_a_torn_line_waits(local: LocalPlace) -> None:
    local.start("run", rows=4, n=1)
    local.add("run", [sample_record(0, 0, 1.0), sample_record(1, 0, 0.0)])
    journal = local.evals / "run" / "events.jsonl"
    line = sample_record(2, 0, 0.5).to_line()
    with journal.open("ab") as torn:
        torn.write(line[:-20])
    assert places_of(listed(local.source, "run", SampleQuery())) == [(0, 0), (1, 0)]
    # What was read is not read again: another process would not find a change of it.
    content = journal.read_bytes()
    journal.write_bytes(content.replace(b'"reward":1.0', b'"reward":7.0') + line[-20:])
    again = LocalSource(local.root, cache_dir=local.root / "cache")
    found = listed(again, "run", SampleQuery())
    assert [entry.reward for entry in found] == [1.0, 0.0, 0.5]
    again.close()


def test_a_run_that_was_started_afresh_under_its_name_is_read_anew(local: LocalPlace) -> None:
    local.start("run", rows=2, n=1)
    local.add("run", [sample_record(0, 0, 1.0), sample_record(1, 0, 1.0)])
    assert len(listed(local.source, "run", SampleQuery())) == 2
    (local.evals / "run").rename(local.evals / "run.archive-20260101T000000Z")
    local.start("run", rows=2, n=1)
    local.add("run", [sample_record(1, 0, 0.0)])
    assert [(entry.row, entry.reward) for entry in listed(local.source, "run", SampleQuery())] == [(1, 0.0)]
    assert [entry.name for entry in local.source.runs(RunQuery(), limit=9).items] == ["run"]


def test_an_archived_run_is_listed_where_it_was_asked_for_by_its_directory(local: LocalPlace) -> None:
    local.start("run", rows=2, n=1)
    archived = (local.evals / "run").rename(local.evals / "run.archive-20260101T000000Z")
    asked = LocalSource(archived, cache_dir=local.root / "cache")
    assert [entry.name for entry in asked.runs(RunQuery(), limit=9).items] == [archived.name]
    asked.close()


def test_of_a_damaged_journal_what_stands_before_the_damage_is_shown(local: LocalPlace) -> None:
    local.start("run", rows=4, n=1)
    local.add("run", [sample_record(0, 0, 1.0)])
    with (local.evals / "run" / "events.jsonl").open("ab") as journal:
        journal.write(b'{"row_index": 1, oops\n')
    local.add("run", [sample_record(2, 0, 1.0)])
    assert places_of(listed(local.source, "run", SampleQuery())) == [(0, 0)]
    detail = local.source.run("eval", "run")
    assert [sentence for sentence in detail.problems if "damaged at line 2" in sentence]
    assert local.source.runs(RunQuery(), limit=9).items[0].error


@pytest.mark.parametrize(
    ("manifest", "says"),
    [
        (b"", "is not a run's manifest"),
        (b"[" * 10_000, "is not a run's manifest"),
        (b'{"schema_version": 1}', "is not a run's manifest"),
        (b"\xff\xfe", "is not a run's manifest"),
    ],
)
def test_a_run_whose_manifest_can_not_be_read_stays_in_the_list_and_says_so(
    local: LocalPlace, manifest: bytes, says: str
) -> None:
    local.start("run", rows=1, n=1)
    (local.evals / "run" / "manifest.json").write_bytes(manifest)
    (entry,) = local.source.runs(RunQuery(), limit=9).items
    assert says in (entry.error or "")
    assert says in local.source.run("eval", "run").problems[0]
    with pytest.raises(OsmosisError):
        local.source.samples("run", SampleQuery(), limit=1)


def test_what_the_system_refuses_is_said_in_words_and_without_its_number(
    local: LocalPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    local.start("run", rows=1, n=1)
    monkeypatch.setattr("osmosis_ai.evaluation.manifest.open_regular", refuse)
    (entry,) = local.source.runs(RunQuery(), limit=9).items
    assert entry.error == f"`{local.evals}/run/manifest.json` is not a run's manifest (Permission denied)."
    judged, _, _ = read_session(local.root / "gone.json", "gone")
    assert (judged.error or "").endswith("that can be read (No such file or directory).")


def test_a_run_of_a_newer_release_says_to_upgrade(local: LocalPlace) -> None:
    local.start("run", rows=1, n=1)
    path = local.evals / "run" / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b'"schema_version": 1', b'"schema_version": 9'))
    assert "upgrade Osmosis" in local.source.run("eval", "run").problems[0]
    # Its keys may be others by then.
    path.write_text(json.dumps({"schema_version": 2, "run": {"id": "a" * 32}}))
    assert "upgrade Osmosis" in local.source.run("eval", "run").problems[0]
    with pytest.raises(OsmosisError, match="has schema version 2; this release knows 1"):
        local.source.samples("run", SampleQuery(), limit=1)


@pytest.mark.parametrize("version", [0, "2", None, True, 1.5])
def test_a_run_whose_version_there_never_was_is_not_told_to_be_of_a_newer_release(
    local: LocalPlace, version: object
) -> None:
    local.start("run", rows=1, n=1)
    path = local.evals / "run" / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema_version": version}))
    (problem, *_) = local.source.run("eval", "run").problems
    assert "is not a run's manifest (schema version" in problem and "upgrade" not in problem


def test_an_index_is_removed_with_its_run(local: LocalPlace) -> None:
    local.start("run", rows=2, n=1)
    local.source.runs(RunQuery(), limit=5)
    listed(local.source, "run", SampleQuery())
    assert list((local.root / "cache" / "viewer").glob("run-*.sqlite"))
    shutil.rmtree(local.evals / "run")
    assert list(local.source.runs(RunQuery(), limit=5).items) == []
    assert not list((local.root / "cache" / "viewer").glob("run-*"))
    # Its page was open.
    for look in (lambda: local.source.run("eval", "run"), lambda: local.source.changes("eval", "run")):
        with pytest.raises(NotFoundError):
            look()


def test_a_journal_is_read_piece_by_piece_where_somebody_waits(local: LocalPlace) -> None:
    local.start("run", rows=5_000, n=1)
    local.add("run", [sample_record(row, 0, 1.0) for row in range(5_000)])
    source = LocalSource(local.root, cache_dir=local.root / "cache", patience_s=0.0)
    assert "so far" in source.run("eval", "run").problems[-1]
    seen = []
    while (page := source.samples("run", SampleQuery(), limit=1)).progress is not None:
        seen.append(page.progress)
    assert seen == sorted(seen)
    assert 0 < seen[0] < 1
    assert page.counts["total"] == 5_000
    assert source.run("eval", "run").problems == []
    source.close()


def test_where_an_error_came_from_is_read_as_what_anybody_may_have_put_there(local: LocalPlace) -> None:
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


def test_only_regular_files_below_the_run_are_artifacts_and_conversations(local: LocalPlace) -> None:
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


def test_a_config_is_shown_as_it_was_written_and_no_file_beside_the_run_is(local: LocalPlace) -> None:
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


def test_a_training_directory_tells_the_config_that_was_submitted(tmp_path: Path) -> None:
    submitted = {
        "experiment_config": {"model_path": "osmosis/tiny", "branch": None},
        "env_config": {"A": "1"},
    }
    Manifest.new("owl", {}, {"config": submitted}).write(tmp_path / "manifest.json")
    detail = training_detail(read_training(tmp_path, "owl"), tmp_path)
    assert detail.config_written == '[experiment]\nmodel_path = "osmosis/tiny"\n\n[env]\nA = "1"\n'
    assert "Config" not in dict(detail.facts)


def test_what_a_run_ran_in_is_told_of_a_file_of_its_own_alone(local: LocalPlace, tmp_path: Path) -> None:
    local.start("run", rows=1, n=1)
    RunDirectory(local.evals / "run").write_environment("the running Python, uv.lock SHA-256 0f")
    facts = dict(local.source.run("eval", "run").facts)
    assert facts["Environment"] == "the running Python, uv.lock SHA-256 0f"
    training = TrainingDirectory(tmp_path / "owl")
    training.path.mkdir()
    Manifest.new("owl", {}, {"isolation": "bubblewrap, network host"}).write(training.manifest)
    training.write_environment("an environment of its own")
    facts = dict(training_detail(read_training(training.path, "owl"), training.path).facts)
    assert (facts["Environment"], facts["Isolation"]) == (
        "an environment of its own",
        "bubblewrap, network host",
    )
    (tmp_path / "secret").write_text("secret")
    (training.path / "environment.txt").unlink()
    (training.path / "environment.txt").symlink_to(tmp_path / "secret")
    facts = dict(training_detail(read_training(training.path, "owl"), training.path).facts)
    assert "Environment" not in facts


def test_a_line_of_the_list_follows_its_run(local: LocalPlace) -> None:
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
    with RunLock(local.evals, "a"):
        assert shown() == [("a", "running", 1)]
    local.add("a", [sample_record(1, 0, 1.0)])
    assert shown() == [("a", "finished", 2)]
    # Done again in part: numbers are written at the end, and a directory knows of that.
    local.add("a", [sample_record(1, 0, error="boom")])
    directory = local.evals / "a"
    RunDirectory(directory).write_metrics({}, read_local_results(directory).metrics)
    assert shown() == [("a", "finished", 1)]
    local.start("b", rows=1, n=1)
    assert shown() == [("a", "finished", 1), ("b", "incomplete", 0)]
    # Another process finds the lines as they were left.
    again = LocalSource(local.root, cache_dir=local.root / "cache")
    names = [entry.name for entry in again.runs(RunQuery(sort="name", descending=False), limit=9).items]
    assert names == ["a", "b"]
    again.close()


@pytest.mark.parametrize("name", ["with spaces", "naïve-läufe-✓", "n" * 255, "ü" * 127])
def test_a_run_may_have_any_name_that_a_directory_has(local: LocalPlace, name: str) -> None:
    local.start("run", rows=1, n=1)
    local.add("run", [sample_record(0, 0, 1.0)])
    (local.evals / "run").rename(local.evals / name)
    (local.evals / ".locks").mkdir(exist_ok=True)
    assert [entry.name for entry in local.source.runs(RunQuery(), limit=5).items] == [name]
    assert len(listed(local.source, name, SampleQuery())) == 1
    page = local.source.runs(RunQuery(sort="name"), limit=1)
    assert page.next is None


@pytest.mark.parametrize("by", ["row", "file"])
def test_the_expected_answer_is_that_of_the_dataset_while_it_has_the_row(
    local: LocalPlace, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = local.root / "walks.jsonl"
    data.write_text(jsonl(prompt_rows(3)))
    rows = list(iter_rows(data))
    local.start("run", rows=3, n=1)
    path = local.evals / "run" / "manifest.json"
    manifest = Manifest.load(path)
    dataset = {"selected_source_rows": "0-2", "sha256": file_digest(data)}
    provenance = {"dataset_path": str(data), "dataset_name": "walks"}
    replace(manifest, inputs={**manifest.inputs, "dataset": dataset}, provenance=provenance).write(path)
    digest = row_digest(rows[1]) if by == "row" else None
    local.add("run", [sample_record(1, 0, 1.0, row_digest=digest)])
    with monkeypatch.context() as without_git:
        # A report has very many conversations.
        without_git.setattr("osmosis_ai.workspace.git.run_git", pytest.fail)
        assert local.source.sample("run", 1, 0, SampleQuery()).ground_truth == rows[1].label
    data.write_text(jsonl(prompt_rows(3)).replace(str(rows[1].label), "changed"))
    assert local.source.sample("run", 1, 0, SampleQuery()).ground_truth is None
    data.unlink()
    assert local.source.sample("run", 1, 0, SampleQuery()).ground_truth is None


def test_a_dataset_of_the_workspace_is_found_by_the_run_s_place_and_its_inputs_are_read_once(
    local: LocalPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = local.root / "data" / "walks.jsonl"
    data.parent.mkdir()
    data.write_text(jsonl(prompt_rows(3)))
    rows = list(iter_rows(data))
    local.start("run", rows=3, n=1)
    path = local.evals / "run" / "manifest.json"
    manifest = Manifest.load(path)
    replace(manifest, provenance={"dataset_name": "walks"}).write(path)
    local.add("run", [sample_record(row, 0, 1.0, row_digest=row_digest(rows[row])) for row in range(3)])
    read: list[Path] = []

    def counted(directory: Path) -> ComparedInputs:
        read.append(directory)
        return read_inputs(directory)

    monkeypatch.setattr(run_dataset_files, "read_inputs", counted)
    monkeypatch.setattr("osmosis_ai.workspace.git.run_git", pytest.fail)
    answers = [local.source.sample("run", row, 0, SampleQuery()).ground_truth for row in range(3)]
    assert answers == [row.label for row in rows] and len(read) == 1
    replace(manifest, provenance={"dataset_name": "some other walks"}).write(path)
    assert local.source.sample("run", 1, 0, SampleQuery()).ground_truth is None and len(read) == 2


def test_two_runs_of_one_name_have_names_of_their_own(local: LocalPlace) -> None:
    other = LocalPlace(local.root / "below")
    for place in (local, other):
        place.start("run", rows=1, n=1)
    names = [entry.name for entry in local.source.runs(RunQuery(sort="name"), limit=5).items]
    assert len(set(names)) == 2
    assert all(local.source.run("eval", name).summary.name == name for name in names)
    other.source.close()


def test_a_log_is_paged_from_its_end_and_followed(local: LocalPlace) -> None:
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
    following = local.source.changes("eval", "run").log_cursor
    end = local.source.log("eval", "run", limit=1, direction="newer")
    with log.open("a") as more:
        more.write(" and whole\n")
    assert following
    new = local.source.log("eval", "run", limit=5, cursor=end.next_cursor, direction="newer")
    assert [entry.message for entry in new.logs] == ["torn and whole"]


def test_a_run_whose_journal_is_not_there_is_shown_without_samples(tmp_path: Path) -> None:
    directory = tmp_path / ".osmosis" / "evals" / "bare"
    directory.mkdir(parents=True)
    inputs = {"dataset": {"sha256": "d" * 64, "selected_source_rows": "0-3"}, "n": 2, "seed": 1}
    Manifest.new("bare", inputs, {}).write(directory / "manifest.json")
    source = LocalSource(tmp_path, cache_dir=tmp_path / "cache")
    assert list(source.samples("bare", SampleQuery(), limit=5).items) == []
    assert source.run("eval", "bare").failures == []


def test_what_is_decided_about_a_config_is_known_of_its_runs_and_a_wrong_file_is_said(
    local: LocalPlace,
) -> None:
    for name, config in (("mine", "configs/eval/math.toml"), ("strange", "../configs/eval/math.toml")):
        write_journalled_run(local.evals / name, [[1.0]], provenance={"config": config})
    decided = local.root / "configs" / "eval" / "math.decide.toml"
    decided.parent.mkdir(parents=True)
    decided.write_text('[decide]\nslices = ["level"]\nreward_range = [0, 2]\n')
    found = local.source.run("eval", "mine").decided
    assert found is not None and (found.slices, found.reward_range) == (("level",), (0.0, 2.0))
    strange = local.source.run("eval", "strange").decided
    assert strange is not None and strange.slices == ()
    decided.write_text("[decide]\nslice = 1\n")
    wrong = local.source.run("eval", "mine")
    assert wrong.decided is None and any("math.decide.toml" in problem for problem in wrong.problems)


def test_one_reward_that_all_samples_have_is_drawn_on_the_scale_of_rewards() -> None:
    import numpy as np

    for reward, ends in ((0.0, (0.0, 1.0)), (1.0, (0.0, 1.0)), (-2.0, (-2.0, 1.0)), (7.0, (0.0, 7.0))):
        found = Histogram.of(np.full(3, reward))
        assert found is not None and sum(found.counts) == 3
        assert (found.edges[0], found.edges[-1]) == ends
    assert Histogram.of(np.empty(0)) is None and Histogram.of(np.array([-1.7e308, 1.7e308])) is None


def test_a_reward_on_the_edge_of_a_bar_lies_in_the_bar_that_begins_there() -> None:
    import numpy as np

    tenths = [tenth / 10 for tenth in range(11)]
    found = Histogram.of(np.array(tenths))
    assert found is not None and found.edges == [place / 20 for place in range(21)]
    assert found.counts == [*[1, 0] * 9, 1, 1]
    weighted = Histogram.of(np.array(tenths), np.arange(11.0))
    assert weighted is not None and weighted.counts[14] == 7 and weighted.counts[13] == 0


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 1e-300), (1.0, 1.0 + 1e-13), (-1e300, 1e300), (-1.0, 1.0), (3.7, 1234.5)]
)
def test_bars_of_any_scale_hold_every_reward_once(low: float, high: float) -> None:
    import numpy as np

    rewards = np.concatenate((np.linspace(low, high, 1001), [low, high]))
    found = Histogram.of(rewards)
    assert found is not None and sum(found.counts) == len(rewards)
    assert (found.edges[0], found.edges[-1]) == (low, high)
    for edge, count in zip(found.edges, found.counts, strict=False):
        assert (rewards >= edge).sum() >= count


def test_a_run_tells_how_many_rows_of_how_many_it_uses(local: LocalPlace) -> None:
    local.start("run", rows=2, n=1)
    local.add("run", [sample_record(row, 0, 1.0) for row in range(2)])
    directory = local.evals / "run"
    metrics = read_local_results(directory).metrics
    RunDirectory(directory).write_metrics({"rows": asdict(RowsDrawn(2, 20, "first"))}, metrics)
    headline = local.source.run("eval", "run").summary.headline
    assert headline is not None and headline.rows == RowsDrawn(2, 20, "first")
    assert headline.words.endswith("2 of 20 rows, the first")


def test_a_run_is_gone_on_with_by_the_options_it_was_started_with(local: LocalPlace) -> None:
    config, begun = {"config": "configs/eval/math.toml"}, [[1.0, 0.0], [1.0]]
    options = ["--rows", "3,7", "--dataset-file", "my rows.jsonl", "--isolate"]
    write_journalled_run(local.evals / "told", begun, provenance={**config, "options": options})
    write_journalled_run(local.evals / "older", begun, inputs={"seed": 4}, provenance=config)
    write_journalled_run(local.evals / "odd", begun, provenance={**config, "options": 5})
    again = "osmosis eval run configs/eval/math.toml --name"
    told = f"{again} told --rows 3,7 --dataset-file 'my rows.jsonl' --isolate"
    assert local.source.run("eval", "told").commands == [told]
    assert local.source.run("eval", "older").commands == [f"{again} older --rows 0-1 --seed 4"]
    assert local.source.run("eval", "odd").commands == [f"{again} odd --rows 0-1"]


def test_a_run_that_was_put_aside_is_gone_on_with_and_not_the_one_that_has_its_name(
    local: LocalPlace,
) -> None:
    aside = "fern.archive-20260101T000000Z"
    for name in ("fern", aside):
        provenance = {"config": "configs/eval/math.toml", "options": []}
        write_journalled_run(local.evals / name, [[1.0, 0.0], [1.0]], provenance=provenance)
    manifest = local.evals / aside / "manifest.json"
    manifest.write_text(manifest.read_text().replace(aside, "fern"))
    assert json.loads(manifest.read_text())["run_name"] == "fern"
    for name in ("fern", aside):
        command = f"osmosis eval run configs/eval/math.toml --name {name}"
        assert local.source.run("eval", name).commands == [command]
