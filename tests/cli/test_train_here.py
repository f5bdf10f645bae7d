"""Training directories of this machine: by `osmosis train info`, and as the viewer reads them."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from osmosis_ai.cli.runs import view
from osmosis_ai.evaluation.manifest import Manifest
from osmosis_ai.training.runs.metrics import MetricsHistory, StepRecord
from osmosis_ai.training.runs.run_directory import TrainingDirectory
from osmosis_ai.viewer.local.source import LocalSource
from osmosis_ai.viewer.source import RunQuery
from tests.cli.maze import Maze
from tests.evaluation.recorded_runs import write_run


def trained_here(directory: Path) -> Path:
    """Write a training directory of three steps, of which a session went on after the first."""
    (directory / "checkpoints" / "step-00000003" / "adapter").mkdir(parents=True)
    (directory / "checkpoints" / "step-00000003" / "adapter" / "adapter.bin").write_bytes(b"12345")
    inputs = {"model_path": "osmosis/tiny", "rollout": {"name": "maze"}, "settings": {"seed": 3}}
    Manifest.new(directory.name, inputs, {}).write(directory / "manifest.json")
    history = MetricsHistory(directory / "metrics.jsonl")
    for step in range(1, 4):
        measured = {"rollout/raw_reward": step / 4}
        if step == 3:
            measured |= {
                "eval/validation/reward": 0.5,
                "eval/validation/reward_low": 0.4,
                "eval/validation/reward_high": 0.6,
                "eval/validation/scored": 8,
                "eval/validation/samples": 10,
            }
        history.append(
            StepRecord(step, 1_790_000_000_000 + step, measured, warnings=["it is slow"] * (step == 2))
        )
    lines = [
        f'2026-10-02T07:00:00.000Z INFO [plan] training {{"steps_done":{done},"total_steps":3}}'
        for done in (0, 1)
    ]
    (directory / "logs.txt").write_text("\n".join(lines) + "\n")
    return directory


def test_a_training_directory_of_this_machine_is_shown_without_a_platform(maze: Maze) -> None:
    directory = trained_here(maze.workspace.root / "trained" / "walks")
    outcome = maze.osmosis("train", "info", "trained/walks", "--json")
    data = outcome.json["data"]
    assert outcome.status == 0
    assert (data["local_run"]["status"], data["local_run"]["avg_reward"]) == ("finished", 0.5)
    assert data["local_run"]["output_path"] == str(directory)
    assert data["checkpoints"] == [{"name": "step-00000003", "step": 3, "reward": 0.5, "size_bytes": 5}]
    summaries = {each["key"]: each for each in data["metrics"]["overview"]["metric_summaries"]}
    assert (summaries["rollout/raw_reward"]["initial"], summaries["rollout/raw_reward"]["latest"]) == (
        0.25,
        0.75,
    )
    shown = maze.osmosis("train", "info", "trained/walks").out
    assert "3 of 3" in shown
    # What its newest validation stands on, as of a platform's run.
    assert (
        data["validation"]["words"]
        == "validation reward 0.500 (0.400 – 0.600) after step 3; scored 8 of 10 planned"
    )
    assert "0.500 (0.400 – 0.600) after step 3" in shown and "8 of 10 planned" in shown
    assert "only 8 of 10 finished attempts have a score (80.0 %)" in data["validation"]["warnings"][0]
    assert "validation: only 8 of 10" in shown
    assert "step-00000003" in shown
    assert maze.osmosis("train", "info", "trained/walks", "-o", "x").status == 1


def test_a_training_directory_is_one_of_the_places_of_the_viewer(maze: Maze) -> None:
    trained_here(maze.workspace.root / "trained" / "walks")
    source = LocalSource(maze.workspace.root, cache_dir=maze.scratch)
    (entry,) = source.runs(RunQuery(kind="training"), limit=5).items
    assert (entry.name, entry.reward_low, entry.reward_high) == ("walks", 0.4, 0.6)
    curves = source.curves("walks")
    validated = next(curve for curve in curves.curves if curve.key == "eval/validation/reward")
    assert [(point.step, point.low, point.over, point.of) for point in validated.points] == [(3, 0.4, 8, 10)]
    assert {(mark.kind, mark.step) for mark in curves.marks} == {
        ("warning", 2),
        ("restart", 1),
        ("checkpoint", 3),
    }
    before = source.changes("training", "walks").cursor
    with (maze.workspace.root / "trained" / "walks" / "metrics.jsonl").open("ab") as history:
        history.write(b"no record\n")
    assert source.changes("training", "walks").cursor != before
    assert "damaged at line 4" in source.run("training", "walks").problems[0]
    source.close()


@pytest.mark.parametrize("manifest", [b"", b"{}", b"[1]"])
def test_a_training_directory_that_can_not_be_read_is_refused_in_a_sentence(
    maze: Maze, manifest: bytes
) -> None:
    directory = trained_here(maze.workspace.root / "walks")
    (directory / "manifest.json").write_bytes(manifest)
    assert "is not a run's manifest" in maze.osmosis("train", "info", "./walks").err


def test_an_evaluation_is_asked_of_a_training_directory_in_vain(maze: Maze) -> None:
    trained_here(maze.workspace.root / "trained" / "walks")
    write_run(maze.workspace.evals_dir / "fern", [[1.0]])
    for words in (("info", "trained/walks"), ("show", "trained/walks"), ("compare", "trained/walks", "fern")):
        refused = maze.osmosis("eval", *words, "--json").error
        assert "trained/walks is a training directory, and no evaluation." in refused["message"]
        assert "osmosis train info" in refused["hint"]
    assert not maze.router.calls


def test_what_is_no_training_directory_is_told_as_what_it_is(maze: Maze) -> None:
    root = maze.workspace.root
    write_run(maze.workspace.evals_dir / "fern", [[1.0]])
    downloaded = maze.workspace.evals_dir / "moss"
    downloaded.mkdir()
    for name in ("metrics.json", "summary.jsonl"):
        (downloaded / name).write_text("{}")
    (root / "notes").mkdir()
    (root / "notes" / "a.txt").write_text("mine")
    for command in ("info", "show"):
        evaluation = maze.osmosis("train", command, ".osmosis/evals/fern", "--json").error
        assert "is the directory of an evaluation, and no training directory" in evaluation["message"]
        assert (
            evaluation["hint"]
            == "osmosis eval info .osmosis/evals/fern, osmosis eval show .osmosis/evals/fern"
        )
        assert "an evaluation" in maze.osmosis("train", command, str(downloaded), "--json").error["message"]
        for path in ("./notes", str(root / "notes"), "."):
            refused = maze.osmosis("train", command, path, "--json").error
            assert f"{path} is no training directory: it is a directory without" in refused["message"]
        file = maze.osmosis("train", command, "notes/a.txt", "--json").error
        assert "is no training directory: it is a file" in file["message"]
        assert "osmosis view notes finds" in file["hint"]
    assert not maze.router.calls


def test_a_path_that_leads_nowhere_is_told_with_the_training_directories_that_are_likest(
    maze: Maze, tmp_path: Path
) -> None:
    for name in ("walks", "runs"):
        trained_here(maze.workspace.root / "trained" / name)
    written, there = "./trained/wakls", str(tmp_path / "none" / "walks")
    missing = maze.osmosis("train", "info", written, "--json").error
    assert missing["message"] == "there is no training directory `./trained/wakls`."
    assert missing["hint"].startswith("did you mean trained/walks or trained/runs? ")
    assert missing["details"]["nearest"] == ["trained/walks", "trained/runs"]
    # Not even the folder is there.
    assert "did you mean trained/walks or trained/runs?" in maze.osmosis("train", "show", there).err
    assert not maze.router.calls
    maze.get("/training-runs/trained%2Fwakls").respond(404, json={"error": "no such run"})
    assert "no such run" in maze.osmosis("train", "info", "trained/wakls").err


def test_without_a_login_a_path_that_leads_nowhere_is_no_run_of_a_platform(
    maze: Maze, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSMOSIS_PLATFORM_URL", "https://nobody.example")
    trained_here(maze.workspace.root / "trained" / "walks")
    for command in ("info", "show"):
        missing = maze.osmosis("train", command, "trained/typo", "--json").error
        assert (missing["code"], missing["message"]) == (
            "NOT_FOUND",
            "there is no training directory `trained/typo`.",
        )
        assert missing["hint"].startswith("did you mean trained/walks? ")
    assert maze.osmosis("train", "info", "typo", "--json").error["code"] == "AUTH_REQUIRED"


def test_the_log_of_a_training_directory_is_read_without_a_login(
    maze: Maze, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSMOSIS_PLATFORM_URL", "https://nobody.example")
    directory = trained_here(maze.workspace.root / "trained" / "walks")
    with (directory / "logs.txt").open("a") as log:
        log.write("2026-10-02T07:00:01.000Z WARNING [step] it is slow {}\n")
    outcome = maze.osmosis("train", "logs", "trained/walks", "--json")
    assert (outcome.status, len(outcome.json["items"])) == (0, 3)
    assert outcome.json["output_path"] == str(directory)
    slow = maze.osmosis("train", "logs", "./trained/walks", "--level", "warning")
    assert "it is slow" in slow.out and "training" not in slow.out
    older = maze.osmosis("train", "logs", "trained/walks", "--limit", "1")
    assert "osmosis train logs trained/walks --cursor" in older.out
    followed = maze.osmosis("train", "logs", "trained/walks", "--follow", "--limit", "2").out
    assert followed.count("training") == 1 and "it is slow" in followed


def test_the_log_of_a_training_directory_is_followed_until_nobody_trains_in_it(
    maze: Maze, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = trained_here(maze.workspace.root / "walks")
    with ExitStack() as trains:
        trains.enter_context(TrainingDirectory(directory).held())

        def train_on() -> None:
            with (directory / "logs.txt").open("a") as log:
                log.write("2026-10-02T07:00:02.000Z INFO [end] that was all {}\n")
            trains.close()

        monkeypatch.setattr(view, "pause", train_on)
        outcome = maze.osmosis("train", "logs", "./walks", "--follow", "--limit", "1")
    assert outcome.status == 0 and "that was all" in outcome.out
    assert not maze.router.calls


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("watch", "trained/walks"), "osmosis train logs trained/walks --follow"),
        (("checkpoints", "./trained/walks"), "osmosis train info ./trained/walks"),
        (("compare", "trained/walks", "trained/runs"), "osmosis view trained"),
        (("compare", "keen-owl-2", "trained/runs"), "osmosis view trained"),
    ],
)
def test_what_can_not_be_done_with_a_training_directory_names_what_can(
    maze: Maze, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], hint: str
) -> None:
    for name in ("walks", "runs"):
        trained_here(maze.workspace.root / "trained" / name)
    for is_logged_in in (True, False):
        if not is_logged_in:
            monkeypatch.setenv("OSMOSIS_PLATFORM_URL", "https://nobody.example")
        outcome = maze.osmosis("train", *words, "--json")
        error = outcome.error
        assert (outcome.status, error["code"]) == (1, "VALIDATION")
        assert f"and `osmosis train {words[0]}` takes runs of a platform." in error["message"]
        assert hint in error["hint"]
    assert not maze.router.calls


@pytest.mark.parametrize("words", [("logs",), ("watch",), ("compare", "keen-owl-2"), ("checkpoints",)])
def test_without_a_login_a_path_is_what_it_is_to_every_command_about_a_training(
    maze: Maze, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setenv("OSMOSIS_PLATFORM_URL", "https://nobody.example")
    trained_here(maze.workspace.root / "trained" / "walks")
    missing = maze.osmosis("train", *words, "./trained/wakls", "--json").error
    assert missing["message"] == "there is no training directory `./trained/wakls`."
    assert (
        "is no training directory: it is a directory without"
        in maze.osmosis("train", *words, "./trained").err
    )
    assert maze.osmosis("train", *words, "walks", "--json").error["code"] == "AUTH_REQUIRED"


def test_a_name_that_is_a_training_directory_is_that_where_no_platform_can_be_asked(
    maze: Maze, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSMOSIS_PLATFORM_URL", "https://nobody.example")
    trained_here(maze.workspace.root / "walks")
    for words in (("watch", "walks"), ("compare", "walks", "moss"), ("checkpoints", "walks")):
        assert "takes runs of a platform" in maze.osmosis("train", *words, "--json").error["message"]
    assert maze.osmosis("train", "watch", "w" * 300, "--json").error["code"] == "AUTH_REQUIRED"


def test_a_run_of_a_platform_is_watched_though_a_directory_here_has_its_name(maze: Maze) -> None:
    trained_here(maze.workspace.root / "walks")
    maze.get("/training-runs/walks").respond(404, json={"error": "no such run"})
    assert "no such run" in maze.osmosis("train", "watch", "walks").err
    assert "no such run" in maze.osmosis("train", "compare", "walks", "walks").err
