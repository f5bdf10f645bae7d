"""A config's file: its syntax, where it may lie, and the rollout that it names."""

from __future__ import annotations

from pathlib import Path

import pytest

from osmosis_ai.errors import OsmosisError
from osmosis_ai.workspace.config_files import (
    entrypoint_path,
    load_eval_config,
    rollout_directory,
)
from osmosis_ai.workspace.layout import WorkspaceDirectory
from tests.workspace.builders import MINIMAL_EVAL, MINIMAL_TRAINING, issues_of, load_eval, write_config


@pytest.mark.parametrize(
    "text, problem, line, column, excerpt",
    [
        ("[experiment]\n\tlimit 5\n", "expected '=' after a key", 2, 8, "  2 | \tlimit 5\n    | \t      ^"),
        ("[experiment]\r\na = 1\r\nb = x\r\n", "invalid value", 3, 5, "  3 | b = x\n    |     ^"),
        ("a = 1\na = 2\n", "cannot overwrite a value", 2, 6, "  2 | a = 2\n    |      ^"),
        ("a = [1,\n", "", 1, 8, "  1 | a = [1,\n    |        ^"),
    ],
)
def test_a_syntax_error_shows_line_column_and_the_place(
    workspace: WorkspaceDirectory, text: str, problem: str, line: int, column: int, excerpt: str
) -> None:
    with pytest.raises(OsmosisError) as caught:
        load_eval(workspace, text)
    message = caught.value.message
    assert message.startswith(f"Invalid TOML in configs/eval/a.toml: {problem}")
    assert f"(line {line}, column {column})" in message
    assert message.endswith(excerpt)
    assert caught.value.details == {"path": "configs/eval/a.toml", "line": line, "column": column}


def test_a_long_line_is_cut_around_the_mistake(workspace: WorkspaceDirectory) -> None:
    with pytest.raises(OsmosisError) as caught:
        load_eval(workspace, "a = '" + "x" * 5000 + "' oops")
    *_, shown, caret = caught.value.message.splitlines()
    assert len(shown) < 120
    assert shown[caret.index("^")] == "o"


@pytest.mark.parametrize("text", ["a = " + "9" * 5000, "a = " + "[" * 20000])
def test_extreme_values_are_an_error_like_any_other(workspace: WorkspaceDirectory, text: str) -> None:
    with pytest.raises(OsmosisError, match=r"configs/eval/a\.toml"):
        load_eval(workspace, text)


def test_a_byte_order_mark_does_not_matter(workspace: WorkspaceDirectory) -> None:
    assert load_eval(workspace, b"\xef\xbb\xbf" + MINIMAL_EVAL.encode()).secrets == ()


def test_a_file_that_is_not_utf8_is_named_with_the_byte(workspace: WorkspaceDirectory) -> None:
    with pytest.raises(
        OsmosisError, match=r"Cannot read config file configs/eval/a\.toml: it is not UTF-8 \(byte 6\)"
    ):
        load_eval(workspace, b"a = 'x\xff'")


def test_a_directory_is_no_config(workspace: WorkspaceDirectory) -> None:
    (workspace.eval_configs_dir / "d.toml").mkdir()
    with pytest.raises(OsmosisError, match=r"Cannot read config file configs/eval/d\.toml"):
        load_eval_config(Path("configs/eval/d.toml"), workspace)


def test_a_missing_file_is_named_and_the_likely_one_suggested(workspace: WorkspaceDirectory) -> None:
    write_config(workspace, MINIMAL_EVAL, name="multiply.toml")
    with pytest.raises(OsmosisError) as caught:
        load_eval_config(Path("configs/eval/multipy.toml"), workspace)
    assert caught.value.message == "Config file not found: configs/eval/multipy.toml"
    assert caught.value.hint == "did you mean configs/eval/multiply.toml?"
    with pytest.raises(OsmosisError) as caught:
        load_eval_config(Path("configs/eval/nope.toml"), workspace)
    assert caught.value.hint == "configs/eval/ has multiply.toml"
    write_config(workspace, MINIMAL_EVAL, name="nokey.toml")
    with pytest.raises(OsmosisError) as caught:
        load_eval_config(Path("configs/eval/nope.toml"), workspace)
    assert caught.value.hint == "configs/eval/ has multiply.toml, nokey.toml"


def test_a_relative_path_is_of_the_workspace_first_and_of_the_current_directory_then(
    workspace: WorkspaceDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_config(workspace, MINIMAL_EVAL)
    monkeypatch.chdir(workspace.data_dir)
    assert load_eval_config(Path("configs/eval/a.toml"), workspace).path == file
    assert load_eval_config(Path("../configs/eval/a.toml"), workspace).path == file
    monkeypatch.chdir(workspace.eval_configs_dir)
    assert load_eval_config(Path("a.toml"), workspace).path == file


def test_a_config_in_a_sub_directory_is_fine(workspace: WorkspaceDirectory) -> None:
    (workspace.eval_configs_dir / "nightly").mkdir()
    file = write_config(workspace, MINIMAL_EVAL, name="nightly/a.toml")
    assert load_eval_config(file, workspace).path == file


def test_a_config_elsewhere_is_refused_with_both_places(
    workspace: WorkspaceDirectory, tmp_path: Path
) -> None:
    training = write_config(workspace, MINIMAL_EVAL, kind="training")
    outside = tmp_path / "b.toml"
    outside.write_text(MINIMAL_EVAL)
    link = workspace.eval_configs_dir / "link.toml"
    link.symlink_to(outside)
    for path, found in ((training, training), (outside, outside), (link, outside)):
        with pytest.raises(OsmosisError) as caught:
            load_eval_config(path, workspace)
        assert str(found) in caught.value.message
        assert str(workspace.eval_configs_dir) in caught.value.message
        assert caught.value.hint == f"move it there, and name it as configs/eval/{path.name}"


def test_a_config_of_training_is_not_to_be_moved_over_one_of_evaluation(
    workspace: WorkspaceDirectory,
) -> None:
    write_config(workspace, MINIMAL_EVAL)
    training = write_config(workspace, MINIMAL_TRAINING, kind="training")
    with pytest.raises(OsmosisError) as caught:
        load_eval_config(training, workspace)
    assert caught.value.hint == "did you mean configs/eval/a.toml?"


def test_a_config_is_a_toml_file(workspace: WorkspaceDirectory) -> None:
    path = write_config(workspace, MINIMAL_EVAL, name="a.yaml")
    with pytest.raises(OsmosisError, match=r"\.toml file in configs/eval/"):
        load_eval_config(path, workspace)


def test_a_rollout_that_is_a_link_out_of_the_workspace_is_refused(
    workspace: WorkspaceDirectory, tmp_path: Path
) -> None:
    (tmp_path / "away").mkdir()
    (tmp_path / "away" / "main.py").write_text("")
    (workspace.rollouts_dir / "away").symlink_to(tmp_path / "away")
    with pytest.raises(OsmosisError, match="leads out of rollouts/"):
        rollout_directory(workspace, "away")


def test_an_entrypoint_that_is_a_link_out_of_the_rollout_is_refused(
    workspace: WorkspaceDirectory, tmp_path: Path
) -> None:
    (tmp_path / "main.py").write_text("")
    (workspace.rollouts_dir / "multiply" / "away.py").symlink_to(tmp_path / "main.py")
    text = MINIMAL_EVAL.replace("main.py", "away.py")
    (issue,) = issues_of(workspace, text)
    assert issue.key == "experiment.entrypoint"
    assert "leads out of rollouts/multiply/" in issue.message


def test_the_entrypoint_of_an_experiment_is_found(workspace: WorkspaceDirectory) -> None:
    experiment = load_eval(workspace, MINIMAL_EVAL).experiment
    assert entrypoint_path(workspace, experiment) == workspace.rollouts_dir / "multiply" / "main.py"


def test_a_missing_rollout_says_how_to_make_one(workspace: WorkspaceDirectory) -> None:
    with pytest.raises(OsmosisError, match=r"\(did you mean 'multiply'\?\)") as caught:
        rollout_directory(workspace, "Multiply")
    assert "osmosis rollout init" in str(caught.value.hint)


def test_a_config_with_something_wrong_says_nothing_about_files_it_cannot_name(
    workspace: WorkspaceDirectory,
) -> None:
    found = issues_of(workspace, MINIMAL_EVAL.replace('"main.py"', "7"))
    assert [issue.key for issue in found] == ["experiment.entrypoint"]
