"""What `osmosis view`, and every command with a report, makes of its options before it looks at anything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.cli.test_train_here import trained_here
from tests.evaluation.recorded_runs import write_run
from tests.viewer.builders import a_document


@pytest.mark.parametrize(
    "words", [("--max-mb", "2"), ("--max-mb", "10"), ("--all",), ("--no-text", "--force")]
)
def test_what_is_of_a_report_needs_one(cli: Cli, words: tuple[str, ...]) -> None:
    result = cli("view", *words)
    assert (result.status, result.out) == (2, "")
    assert all(word in result.err for word in words if word.startswith("--")) and "--report" in result.err


@pytest.mark.parametrize("size", ["nan", "inf"])
def test_what_is_no_number_is_no_size_of_a_report(cli: Cli, size: str, tmp_path: Path) -> None:
    result = cli("view", str(tmp_path), "--report", str(tmp_path / "a.html"), "--max-mb", size)
    assert (result.status, result.out) == (2, "")
    assert "'--max-mb': must be a finite number" in result.err


def test_a_limit_of_conversations_is_refused_for_what_has_none_and_taken_for_an_evaluation(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OSMOSIS_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "answers.json").write_text(
        json.dumps({"generated_at": "2026-10-02T07:00:00+00:00", **a_document(2)})
    )
    result = cli("view", "answers.json", "--report", "a.html", "--max-mb", "0")
    said = " ".join(result.err.split())
    assert (result.status, result.out) == (1, "") and not (tmp_path / "a.html").exists()
    assert "--max-mb limits the conversations of an evaluation, and answers is a rubric result" in said
    assert "leave out --max-mb" in said
    assert cli("view", "answers.json", "--report", "a.html").status == 0
    write_run(tmp_path / "run", [[1.0, 0.0]])
    assert "2 samples, 0 conversations" in cli("view", "run", "--report", "b.html", "--max-mb", "0").out


def test_what_is_said_to_go_into_a_report_is_what_a_file_of_that_kind_holds(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OSMOSIS_CACHE_DIR", str(tmp_path / "cache"))
    document = {"generated_at": "2026-10-02T07:00:00+00:00", **a_document(2)}
    (tmp_path / "answers.json").write_text(json.dumps(document))
    trained_here(tmp_path / "walks")
    write_run(tmp_path / "run", [[1.0, 0.0]])
    said = {
        kind: " ".join(cli("view", named, "--report", f"{kind}.html").err.split())
        for kind, named in (("eval", "run"), ("training", "walks"), ("rubric", "answers.json"))
    }
    same = " ".join(cli("train", "info", "walks", "--report", "same.html").err.split())
    assert said["training"] and same.startswith(said["training"])
    assert "the config, warnings and errors" in said["training"]
    assert "the records and what the judges said of them" in said["rubric"]
    assert "what dataset, models, tools" in said["eval"]
    assert not any("tools" in said[kind] for kind in ("training", "rubric"))
    bare = cli("view", "walks", "--report", "bare.html", "--no-text").err
    assert "curves, checkpoints" in bare and "warnings" not in bare


@pytest.mark.parametrize(
    "words",
    [
        ("eval", "compare", "one", "other", "--no-text"),
        ("eval", "compare", "one", "other", "--force"),
        ("train", "info", "run", "--no-text", "--force"),
        ("eval", "rubric", "-d", "a.jsonl", "-r", "tone", "--model", "openai/gpt-5-mini", "--no-text"),
    ],
)
def test_no_command_takes_what_is_of_a_report_without_one(cli: Cli, words: tuple[str, ...]) -> None:
    result = cli(*words)
    assert (result.status, result.out) == (2, "")
    assert f"{words[-1]} needs --report FILE.html" in result.err


@pytest.mark.parametrize("words", [("view",), ("eval", "compare", "one", "other"), ("train", "info", "run")])
def test_a_report_goes_into_a_file_and_nowhere_else(
    cli: Cli, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for named, said in (("", "is a directory"), ("..", "is a directory"), ("-", "and `-` is none")):
        result = cli(*words, "--report", named)
        assert (result.status, result.out) == (1, "") and said in " ".join(result.err.split()), result.err
        assert "for instance report.html" in " ".join(result.err.split())
        assert "is a directory" in cli(*words, "--report", "..", "--force").err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", [("train", "info"), ("train", "show"), ("view",)])
def test_outside_of_a_workspace_a_run_that_is_not_there_is_said_not_to_be(
    cli: Cli, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = cli(*words, "nosuch", *(["--report", "a.html"] if words == ("view",) else []))
    said = " ".join(result.err.split())
    assert result.status == 1 and "run `nosuch`" in said and "Git" not in said
