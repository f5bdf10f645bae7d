from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.errors import OsmosisError
from osmosis_ai.services import demo
from osmosis_ai.services.demo import Message, prepare_scratch, read_sample, run_demo

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


def write_run(run: Path, rewards: list[float | None], *, total: int, trajectories: dict[int, Any]) -> None:
    (run / "trajectories").mkdir(parents=True)
    (run / "metrics.json").write_text('{"summary": {"pass_rate": 0.5}}')
    (run / "progress.json").write_text(json.dumps({"total_runs": total}))
    records = [
        {"row_index": row, "run_index": 0, "status": "success"}
        | ({} if reward is None else {"reward": reward})
        for row, reward in enumerate(rewards)
    ]
    (run / "index.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    for row, trajectory in trajectories.items():
        (run / "trajectories" / f"row_{row}_run_0.json").write_text(json.dumps(trajectory))


def evaluation_that_leaves(
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    rewards: list[float | None],
    *,
    total: int,
    trajectories: Any = None,
) -> None:
    def evaluate(scratch: demo.Scratch, display: str) -> tuple[int, None]:
        write_run(scratch.run_directory, rewards, total=total, trajectories=trajectories or {})
        return status, None

    monkeypatch.setattr(demo, "_evaluate", evaluate)


def test_the_scratch_is_a_workspace_of_its_own_outside_the_users_home(home: Path) -> None:
    scratch = prepare_scratch(None)
    assert not scratch.root.is_relative_to(home)
    assert (scratch.workspace / demo.CONFIG).is_file()
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
    write_run(tmp_path, [1.0], total=1, trajectories={0: TRAJECTORY})
    sample = read_sample(tmp_path, {"row_index": 0, "run_index": 0, "reward": 1.0})
    assert sample is not None
    assert (sample.reward, sample.label, sample.used_a_tool) == (1.0, "6", True)
    assert sample.messages == (
        Message("user", "Compute 2 * 3."),
        Message("assistant", 'Let me see.\nmultiply(a=2, b="é")\nthink(not JSON)', "calls a tool"),
        Message("tool", "6", "multiply"),
        Message("tool", "a\nb", ""),
        Message("assistant", "#### 6"),
    )


def test_the_sample_shown_is_the_best_and_used_a_tool_if_any_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = {"steps": [{"source": "agent", "message": "#### 6"}]}
    evaluation_that_leaves(
        monkeypatch,
        0,
        [0.0, 1.0, 1.0, 1.0],
        total=4,
        trajectories={0: TRAJECTORY, 1: silent, 2: TRAJECTORY},
    )
    outcome = run_demo(prepare_scratch(tmp_path / "demo"), display="rich")
    assert outcome.sample is not None
    assert outcome.sample.row_index == 2
    assert outcome.complete


@pytest.mark.parametrize(
    "status, rewards, total, scored",
    [(0, [1.0, None], 2, 1), (0, [1.0], 2, 1), (1, [1.0, 0.0], 2, 2), (0, [], 0, 0)],
)
def test_the_demo_is_complete_only_when_every_sample_is_scored(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    rewards: list[float | None],
    total: int,
    scored: int,
) -> None:
    evaluation_that_leaves(monkeypatch, status, rewards, total=total)
    outcome = run_demo(prepare_scratch(tmp_path / "demo"), display="rich")
    assert (outcome.complete, outcome.scored, outcome.sample) == (False, scored, None)


def test_an_evaluation_without_results_is_an_error_that_says_where_its_files_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "_evaluate", lambda scratch, display: (1, None))
    with pytest.raises(OsmosisError, match="ended with status 1 before it had results; its files are in"):
        run_demo(prepare_scratch(tmp_path / "demo"), display="rich")


@pytest.mark.e2e
def test_what_the_evaluation_says_is_the_demos_error_for_scripts(tmp_path: Path) -> None:
    scratch = prepare_scratch(tmp_path / "demo")
    (scratch.workspace / demo.CONFIG).write_text("[experiment\n")
    with pytest.raises(OsmosisError, match=r"^the evaluation failed: .*multiply\.toml"):
        run_demo(scratch, display="json")
