"""Three seeded runs equal the results that are stored next to this test, in every key that users and platforms read.

``UPDATE_SEEDED=1`` writes the stored results again; review the difference as a change of behaviour.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.rubric.judge_server import running_judge
from tests.warm_osmosis import run_osmosis
from tests.workspace.builders import make_workspace

pytestmark = pytest.mark.e2e

PROJECT = Path(__file__).parents[2]
STORED = Path(__file__).with_name("seeded_runs")
SUMMARY = (
    *("total_samples", "completed_samples", "graded", "passed", "failed", "skipped", "pass_rate"),
    *("pass_threshold", "tokens_used", "reward_stats", "n_runs", "pass_at_k"),
)
INDEX = ("row_index", "run_index", "status", "reward", "tokens", "error_type")
STEP = ("step_id", "source", "message")
CALL = ("function_name", "arguments")
TOKENS = ("prompt_tokens", "completion_tokens")
RESULTS = {"duration_ms", "total_duration_ms", "run_name", "run_dir", "started_at", "completed_at"}
JUDGED = ("model", "rubric", "data_path", "number", "overall_statistics")
RECORD = ("index", "label", "explanations", "errors", "statistics")


def osmosis(root: Path, *words: str, **environment: str) -> None:
    cache = {"OSMOSIS_CACHE_DIR": str(root.parent / "cache")}
    done = run_osmosis(*words, cwd=root, env={**os.environ, **cache, **environment})
    assert done.returncode == 0, done.stderr


def chosen(keys: tuple[str, ...], document: dict[str, Any]) -> dict[str, Any]:
    return {key: document[key] for key in keys if key in document}


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def conversation(path: Path) -> list[dict[str, Any]]:
    steps = json.loads(path.read_text())["steps"]
    return [
        {
            **chosen(STEP, step),
            "tool_calls": [chosen(CALL, call) for call in step.get("tool_calls") or []],
            "results": [each["content"] for each in (step.get("observation") or {}).get("results", [])],
            "metrics": chosen(TOKENS, step.get("metrics") or {}),
        }
        for step in steps
    ]


def without(keys: set[str], value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without(keys, item) for key, item in value.items() if key not in keys}
    return [without(keys, item) for item in value] if isinstance(value, list) else value


def equals_stored(name: str, found: dict[str, Any]) -> None:
    """Compare with the stored results; the last bits of numbers may differ between machines."""
    path = STORED / f"{name}.json"
    if os.environ.get("UPDATE_SEEDED") == "1":
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    stored = json.loads(path.read_text())
    assert rounded(json.loads(json.dumps(found))) == rounded(stored)


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return round(value, 9) if isinstance(value, float) else value


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A workspace with the sample rollout and its data."""
    workspace = make_workspace(tmp_path / "workspace").root
    for name in ("rollouts/multiply", "configs/eval/multiply.toml", "data/multiply.jsonl"):
        source, target = PROJECT / name, workspace / name
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
    return workspace


def test_evaluation(root: Path) -> None:
    config = root / "configs/eval/multiply.toml"
    osmosis(root, "eval", "run", str(config), "--rows", "0-1", "--seed", "3", "--name", "seeded", "--yes")
    run = root / ".osmosis/evals/seeded"
    index = lines(run / "index.jsonl")
    assert (run / "summary.jsonl").read_text() == (run / "index.jsonl").read_text()
    found = {
        "index": [chosen(INDEX, entry) for entry in index],
        "progress": json.loads((run / "progress.json").read_text()),
        "summary": chosen(SUMMARY, json.loads((run / "metrics.json").read_text())["summary"]),
        "trajectories": {
            path.name: conversation(path) for path in sorted((run / "trajectories").glob("*.json"))
        },
    }
    equals_stored("evaluation", found)


def test_agent_loop(root: Path) -> None:
    # The rows bring the instructions.
    loop = Path(__file__).with_name("multiply_loop.py").read_text()
    (root / "multiply_loop.py").write_text(loop.replace("[INSTRUCTIONS, *", "[*"))
    shutil.copy(root / "rollouts/multiply/main.py", root / "main.py")
    questions = lines(root / "data/multiply.jsonl")[:6]
    (root / "rows.jsonl").write_text(
        "".join(
            json.dumps({"system_prompt": "Answer with #### and the number.", **row}) + "\n"
            for row in questions
        )
    )
    words = ("-m", "multiply_loop:agent_loop", "-d", "rows.jsonl", "--eval-fn", "multiply_loop:product")
    choice = ("--model", "osmosis/tiny", "--n", "2", "--seed", "3", "--name", "seeded")
    osmosis(root, "eval", *words, *choice, "-o", "results.json")
    found = without(RESULTS, json.loads((root / "results.json").read_text()))
    equals_stored("agent_loop", found)


def test_judge(root: Path) -> None:
    records = [
        {
            "id": f"r{row}",
            "solution_str": f"answer {row} [score 0.{row}] [noise 0.1]",
            "human_score": row / 10,
        }
        for row in range(8)
    ]
    (root / "data.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    with running_judge() as judge:
        settings = {"OPENAI_BASE_URL": judge.base_url, "OPENAI_API_KEY": "sk-stand-in"}
        words = ("-d", "data.jsonl", "-r", "Is it right?", "--model", "openai/judge", "-n", "2")
        osmosis(root, "eval", "rubric", *words, "-o", "judged.json", **settings)
    judged = json.loads((root / "judged.json").read_text())
    # The calls of a record are sent at once: which of them draws which noise is not fixed.
    records = [{**chosen(RECORD, each), "scores": sorted(each["scores"])} for each in judged["records"]]
    equals_stored("judge", {**chosen(JUDGED, judged), "records": records})
