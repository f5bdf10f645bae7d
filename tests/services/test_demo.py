from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.conversation import SpokenTurn
from osmosis_ai.platform.process_state import running_platform
from osmosis_ai.services.demo import CONFIG, DemoOutcome, prepare_scratch, run_demo
from osmosis_ai.services.demo.outcome import most_telling_sample
from osmosis_ai.services.demo.session import Session

TRAJECTORY = {
    "schema_version": "ATIF-v1.7",
    "steps": [
        {"step_id": 1, "source": "user", "message": "Compute 2 * 3."},
        {
            "step_id": 2,
            "source": "agent",
            "message": "Let me see.",
            "tool_calls": [
                {"tool_call_id": "c1", "function_name": "multiply", "arguments": {"a": 2, "b": "é"}},
                {"tool_call_id": "c2", "function_name": "think", "arguments": "not JSON"},
            ],
            "observation": {
                "results": [
                    {"source_call_id": "c1", "content": "6"},
                    {
                        "source_call_id": "gone",
                        "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
                    },
                ]
            },
        },
        {"step_id": 3, "source": "agent", "message": "#### 6"},
    ],
    "extra": {"osmosis": {"label": "6", "reward": 1.0}},
}


def write_results(
    results: Path, *, planned: int, scored: int, trajectories: Mapping[int, Any] | None = None
) -> None:
    (results / "trajectories").mkdir(parents=True)
    counts = {"planned": planned, "scored": scored}
    (results / "metrics.json").write_text(json.dumps({"summary": {}, "estimates": {"counts": counts}}))
    for row, trajectory in (trajectories or {}).items():
        (results / "trajectories" / f"row_{row}_run_0.json").write_text(json.dumps(trajectory))


def evaluation_that_leaves(monkeypatch: pytest.MonkeyPatch, status: int, **left: Any) -> None:
    def evaluate(session: Session, *_: str, **__: Any) -> tuple[int, None]:
        if left:
            write_results(session.scratch.workspace / ".osmosis" / "evals" / "demo", **left)
        return status, None

    monkeypatch.setattr(Session, "watch", evaluate)


def run_here(directory: Path) -> DemoOutcome:
    return run_demo(prepare_scratch(directory), display="rich", tell=lambda _: None, local=True)


def test_the_scratch_is_a_workspace_of_its_own_outside_the_users_home(home: Path) -> None:
    scratch = prepare_scratch(None)
    assert not scratch.root.is_relative_to(home)
    assert (scratch.workspace / CONFIG).is_file()
    log = subprocess.run(
        ["git", "log", "--format=%an"], cwd=scratch.workspace, capture_output=True, text=True
    )
    assert log.stdout == "Osmosis\n"
    assert list(home.iterdir()) == []


def test_a_named_directory_must_be_empty(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(OsmosisError, match="is not an empty directory"):
        prepare_scratch(tmp_path)
    assert prepare_scratch(tmp_path / "new" / "place").workspace == tmp_path / "new" / "place" / "workspace"


def test_nothing_of_the_users_osmosis_or_git_shows_through(tmp_path: Path) -> None:
    scratch = prepare_scratch(tmp_path / "demo")
    environment = scratch.environment(
        {
            "PATH": "/bin",
            "OSMOSIS_TOKEN": "t",
            "OSMOSIS_PLATFORM_URL": "https://a.example",
            "OSMOSIS_DEBUG": "1",
            "_OSMOSIS_COMPLETE": "x",
            "GIT_DIR": "/elsewhere/.git",
        }
    )
    assert environment["PATH"] == "/bin"
    assert environment["OSMOSIS_DEBUG"] == "1"
    assert not {"OSMOSIS_TOKEN", "OSMOSIS_PLATFORM_URL", "_OSMOSIS_COMPLETE", "GIT_DIR"} & set(environment)
    assert environment["GIT_CONFIG_GLOBAL"] == "/dev/null"
    for name in ("OSMOSIS_CONFIG_DIR", "OSMOSIS_CACHE_DIR", "OSMOSIS_HOME", "OSMOSIS_ENV_FILE"):
        assert Path(environment[name]).is_relative_to(scratch.root)
        assert Path(environment[name]).exists()


def test_a_conversation_is_read_turn_by_turn_with_calls_and_their_results(tmp_path: Path) -> None:
    write_results(tmp_path, planned=1, scored=1, trajectories={0: TRAJECTORY})
    sample = most_telling_sample(tmp_path)
    assert sample is not None
    assert (sample.reward, sample.label) == (1.0, "6")
    assert sample.messages == (
        SpokenTurn("user", "Compute 2 * 3."),
        SpokenTurn("assistant", 'Let me see.\nmultiply(a=2, b="é")\nthink(not JSON)', "calls a tool"),
        SpokenTurn("tool", "6", "multiply"),
        SpokenTurn("tool", "a\nb", ""),
        SpokenTurn("assistant", "#### 6"),
    )


def test_the_sample_shown_is_the_best_and_used_a_tool_if_any_did(tmp_path: Path) -> None:
    def silent(reward: float | None) -> dict[str, Any]:
        return {
            "steps": [{"source": "agent", "message": "#### 6"}],
            "extra": {"osmosis": {"reward": reward}},
        }

    told = {0: silent(0.0), 1: silent(1.0), 2: TRAJECTORY, 3: silent(None), 10: silent(1.0)}
    write_results(tmp_path, planned=11, scored=4, trajectories=told)
    sample = most_telling_sample(tmp_path)
    assert sample is not None and sample.row_index == 2


@pytest.mark.parametrize(
    "status, planned, scored, complete",
    [(0, 2, 2, True), (0, 2, 1, False), (1, 2, 2, False), (0, 0, 0, False)],
)
def test_the_demo_is_complete_only_when_every_sample_is_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, planned: int, scored: int, complete: bool
) -> None:
    evaluation_that_leaves(monkeypatch, status, planned=planned, scored=scored)
    outcome = run_here(tmp_path / "demo")
    evaluation = outcome.evaluation
    assert (outcome.complete, evaluation.scored, evaluation.sample) == (complete, scored, None)


def test_an_evaluation_without_results_is_an_error_that_says_where_its_files_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluation_that_leaves(monkeypatch, 1)
    with pytest.raises(OsmosisError, match="ended with status 1 before it had results; its files are in"):
        run_here(tmp_path / "demo")


@pytest.mark.e2e
def test_what_the_evaluation_says_is_the_demos_error_for_scripts(tmp_path: Path) -> None:
    scratch = prepare_scratch(tmp_path / "demo")
    (scratch.workspace / CONFIG).write_text("[experiment\n")
    with pytest.raises(OsmosisError, match=r"^`osmosis eval run .*` failed: .*multiply\.toml"):
        run_demo(scratch, display="json", tell=lambda _: None, local=True)


@pytest.mark.e2e
def test_a_platform_that_cannot_start_is_the_demos_error_and_leaves_nothing_running(tmp_path: Path) -> None:
    scratch = prepare_scratch(tmp_path / "demo")
    (scratch.root / "data" / "platform.db").write_text("no database")
    said: list[str] = []
    with pytest.raises(OsmosisError, match=r"^`osmosis platform start` failed: ") as failed:
        run_demo(scratch, display="plain", keep=True, tell=said.append)
    assert "osmosis demo --local" in (failed.value.hint or "")
    assert said == ["$ osmosis platform start --port 0 --login &"]
    assert running_platform(scratch.root / "data") is None
