"""What is told of the files of a run on this machine and of those beside it, whatever anybody has put into them."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from osmosis_ai.datasets import file_digest, iter_rows, row_digest
from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.evaluation import run_dataset_files
from osmosis_ai.evaluation.comparison.run_samples import ComparedInputs
from osmosis_ai.evaluation.local_samples import read_inputs
from osmosis_ai.evaluation.manifest import Manifest
from osmosis_ai.evaluation.run_directory import MOST_OF_A_CONFIG, RunDirectory
from osmosis_ai.training.runs.run_directory import TrainingDirectory
from osmosis_ai.viewer.judging_sessions import read_session
from osmosis_ai.viewer.local.source import LocalSource
from osmosis_ai.viewer.local.training_runs import read_training, training_detail
from osmosis_ai.viewer.source import RunQuery, SampleQuery
from tests.datasets.builders import jsonl, prompt_rows
from tests.evaluation.comparison.builders import write_journalled_run
from tests.viewer.local_place import LocalPlace
from tests.viewer.source_contract import (
    sample_record,
)


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
