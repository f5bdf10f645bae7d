"""Cases of `dataset`, `eval`, `train`, `model`, `rollout`, `benchmark`, `secret` and others: command lines and the platform's replies."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from osmosis_ai.evaluation.manifest import Manifest
from tests.cli import benchmark_replies, eval_replies, train_replies
from tests.cli.maze import Maze
from tests.datasets.builders import jsonl, prompt_rows
from tests.decisions.builders import write_journalled_run
from tests.evaluation.recorded_runs import passing, write_results, write_run
from tests.logins import VERIFIED

DATASET: dict[str, Any] = {
    "id": "ds_31",
    "file_name": "maze-walks",
    "file_size": 1536,
    "status": "uploaded",
    "file_format": "parquet",
    "original_file_format": "csv",
    "row_count": 1200,
    "original_file_size": 4096,
    "data_preview": [{"user_prompt": "left?", "ground_truth": "no"}],
    "creator_name": "Mara",
    "created_at": "2026-10-02T07:00:00Z",
    "updated_at": "2026-10-02T07:03:10.250Z",
    "platform_url": "https://osmosis.fern.example/fern-lab/datasets/ds_31",
}
LOG = {
    "logs": [
        {"timestamp": "2026-10-02T07:00:00Z", "level": "info", "step": "start", "message": "begun"},
        {
            "timestamp": None,
            "level": "error",
            "step": None,
            "message": "row 3:\tno prompt",
            "details": {"row": 3},
        },
    ],
    "next_cursor": "2026|7",
}
MODEL: dict[str, Any] = {
    "id": "lo_1",
    "model_name": "maze-lora",
    "base_model": "fern/base-32b",
    "training_run_name": "copper-finch",
    "checkpoint_step": 40,
    "reward": 0.75,
    "validation_reward": 0.5,
    "created_at": "2026-10-02T07:00:00Z",
    "deployment_status": "active",
    "deployed_at": "2026-10-02T08:00:00Z",
    "deployed_by": "Mara",
    "hf_upload_status": "in_progress",
    "inference_model": "fern/base-32b:maze-lora",
    "platform_url": "https://osmosis.fern.example/fern-lab/models/lo_1",
}
BASE_MODEL = {
    "id": "bm_1",
    "model_name": "fern/base-32b",
    "base_model": "fern/base-32b",
    "creator_name": "Osmosis",
}
SECRET = {
    "id": "sec_1",
    "name": "API_KEY",
    "scope": "user",
    "created_at": "2026-05-01T09:00:00Z",
    "updated_at": "2026-05-02T09:00:00Z",
    "creator_name": "Mara",
}
HANDOUT = {
    "id": "sho_1",
    "names": ["API_KEY", "OPENAI_API_KEY"],
    "run_id": "run_1",
    "run_name": "amber-otter",
    "attempt": 2,
    "machine": "basement",
    "handed_at": "2026-05-03T09:00:00Z",
}
SERVER = {
    "id": "srv_1",
    "name": "calculator",
    "host": "10.1.2.3",
    "port": 9000,
    "status": "unhealthy",
    "has_key": True,
    "error": "it refuses the key (HTTP 401)",
    "probed_at": "2026-05-02T09:00:00Z",
    "created_at": "2026-05-01T09:00:00Z",
    "creator_name": "Mara",
}
HEALTHY = {"id": "srv_1", "status": "healthy", "health_check_result": {"server_info": {"active_rollouts": 3}}}
ROLLOUT = {
    "id": "ro_2",
    "name": "maze",
    "is_active": True,
    "last_synced_commit_sha": "4be1c0ffee4be1c0ffee",
    "repo_full_name": "fern/maze",
    "created_at": "2026-10-02T07:00:00Z",
}
ENDED = {"status": "finished", "completed_at": "2026-10-02T07:11:10Z"}
_REQUEST = {"advanced_config": {"execution": eval_replies.EXECUTION}}
EVAL_RUN = {**eval_replies.run(**ENDED), "request": _REQUEST}
TRAINING_RUN = {
    **train_replies.DETAIL,
    "training_run": {**train_replies.OWN, **ENDED, "name": "copper-finch"},
}


class Case(NamedTuple):
    """A command line whose JSON document is tested.

    Attributes:
        prepare: sets the platform's replies and writes the files that the command reads.
        needs: package without which the case cannot run.
        screen: mode of the golden screen, if the case has one.
    """

    line: str
    prepare: Callable[[Maze], Any] = lambda _: None
    needs: str = ""
    screen: Literal["rich", "plain"] | None = None


def answers(method: str, path: str, body: Mapping[str, Any]) -> Callable[[Maze], Any]:
    return lambda maze: getattr(maze, method)(path).respond(json=dict(body))


def page(path: str, key: str, *items: Mapping[str, Any]) -> Callable[[Maze], Any]:
    return answers("get", path, {key: list(items), "total_count": len(items)})


def together(*steps: Callable[[Maze], Any]) -> Callable[[Maze], Any]:
    def prepare(maze: Maze) -> None:
        for step in steps:
            step(maze)

    return prepare


def file(name: str, content: str) -> Callable[[Maze], Any]:
    return lambda maze: (maze.workspace.root / name).write_text(content)


def local_run(maze: Maze) -> None:
    write_run(maze.workspace.evals_dir / "good", passing(10, 4, 36))


def run_and_baseline(maze: Maze) -> None:
    """Write two runs of the same 40 rows without a significant difference."""
    rows = [
        {**row, "difficulty": "easy" if place % 2 else "hard"} for place, row in enumerate(prompt_rows(40))
    ]
    data = jsonl(rows)
    (maze.workspace.data_dir / "walks.jsonl").write_text(data)
    described = {"sha256": hashlib.sha256(data.encode()).hexdigest(), "selected_source_rows": "0-39"}
    for seed, (name, passes) in enumerate({"base": 90, "near": 86}.items()):
        write_journalled_run(
            maze.workspace.evals_dir / name,
            passing(40, 4, passes),
            digests=[hashlib.md5(str(row).encode()).hexdigest() for row in range(40)],
            inputs={"dataset": described, "seed": seed},
            provenance={"dataset_name": "walks"},
        )


def planned(maze: Maze) -> None:
    from tests.cli.test_eval_plan import configure

    configure(maze, rows=50)


def flaky_run(maze: Maze) -> None:
    """Write a run of 12 rows, 6 of them flaky, with its metrics."""
    directory = maze.workspace.evals_dir / "shaky"
    outcomes = [[1.0] * 4, [0.0] * 4] * 3 + [
        [1.0, 1.0, 0.0, 1.0],
        [0.0, 1.0, 0.0, "provider"],
        [0.0, 0.0, 1.0, 0.0],
    ] * 2
    write_run(directory, outcomes)
    manifest = directory / "manifest.json"
    replace(Manifest.load(manifest), created_at="2026-10-02T07:00:00.000Z").write(manifest)
    write_results(directory)


def logged_run(maze: Maze) -> None:
    flaky_run(maze)
    lines = (
        '2026-10-02T07:00:00.000Z INFO [run] session begins {"work":8}',
        '2026-10-02T07:00:01.500Z WARNING [server] it was late {"by_s":2.5}',
    )
    (maze.workspace.evals_dir / "shaky" / "logs.txt").write_text("".join(f"{line}\n" for line in lines))


def compared_runs(maze: Maze) -> None:
    """Write a baseline and a candidate that is better on 12 rows."""
    for name, counts in (("fern", [0, 1, 1, 2] * 3), ("moss", [1, 2, 1, 2] * 3)):
        rewards = [[1.0] * count + [0.0] * (2 - count) for count in counts]
        write_journalled_run(maze.workspace.evals_dir / name, rewards, inputs={"model_path": f"fern/{name}"})


def runs_with_conversations(maze: Maze) -> None:
    """Write two runs of two rows, each with one conversation."""
    call = {"tool_call_id": "c1", "function_name": "multiply", "arguments": {"a": 2, "b": 3}}
    for name, answer in (("quartz", "5"), ("slate", "6")):
        directory = maze.workspace.evals_dir / name
        rewards = [[float(answer == "6")], [None]]
        write_journalled_run(directory, rewards, digests=["a" * 32, "b" * 32])
        steps = [
            {"source": "user", "message": "2 * 3?"},
            {
                "source": "agent",
                "message": "",
                "reasoning_content": "I multiply.",
                "tool_calls": [call],
                "observation": {"results": [{"source_call_id": "c1", "content": answer}]},
            },
            {"source": "agent", "message": f"#### {answer}"},
        ]
        (directory / "trajectories").mkdir()
        told = {"steps": steps, "extra": {"osmosis": {"label": "6"}}}
        (directory / "trajectories" / "row_0_run_0.json").write_text(json.dumps(told))


def validated_run(maze: Maze) -> None:
    """Write a training directory with the samples of a validation."""
    from tests.cli.trained_runs import validated_here

    validated_here(maze)


def _offering(path: str, body: Mapping[str, Any]) -> Callable[[Maze], Any]:
    """Reply as a self-hosted platform, which can delete."""
    return lambda maze: maze.get(path).respond(
        json=dict(body), headers={"X-Osmosis-Capabilities": "deletion"}
    )


QUESTIONS = jsonl([{"question": f"{i} + 1?", "answer": i + 1, "level": "easy"} for i in range(4)])
_eval = answers("get", "/eval-runs/amber-otter-42", EVAL_RUN)
TRAINING_ID = train_replies.OWN["id"]
_checkpoints = answers("get", f"/training-runs/{TRAINING_ID}/checkpoints", train_replies.CHECKPOINTS)
_training = answers("get", "/training-runs/copper-finch", TRAINING_RUN)
BENCHMARK_RUN = {**benchmark_replies.RUN, **ENDED}
_benchmark_run = answers(
    "get", "/benchmark-runs/amber-otter-42", {**benchmark_replies.RUN_DETAIL, "benchmark_run": BENCHMARK_RUN}
)
MEMBERSHIPS = together(
    answers("get", "/verify", VERIFIED),
    answers("get", "/workspaces", {"workspaces": [{"id": "ws_1", "name": "fern-lab"}]}),
)

CASES: tuple[Case, ...] = (
    Case("dataset validate sums.jsonl", file("sums.jsonl", jsonl(prompt_rows(20))), screen="rich"),
    Case(
        "dataset import qa.jsonl --map prompt=question,ground_truth=answer --overwrite",
        file("qa.jsonl", QUESTIONS),
        screen="rich",
    ),
    Case("dataset list", page("/datasets", "datasets", DATASET, {"id": "ds_1"}), screen="plain"),
    Case("dataset info maze-walks", answers("get", "/datasets/maze-walks", DATASET)),
    Case("dataset preview maze-walks", answers("get", "/datasets/maze-walks", DATASET), screen="plain"),
    Case(
        "dataset delete maze-walks --yes",
        together(_offering("/datasets/maze-walks", DATASET), answers("delete", "/datasets/ds_31", {})),
    ),
    Case("dataset logs maze-walks", answers("get", "/datasets/maze-walks/logs", LOG)),
    Case(
        "eval list",
        together(
            flaky_run, page("/eval-runs", "eval_runs", {**eval_replies.ROW, **ENDED}, eval_replies.MINIMAL)
        ),
        screen="rich",
    ),
    Case(
        "eval info amber-otter-42",
        together(
            _eval,
            answers("get", "/eval-runs/er_8/metrics", {**eval_replies.METRICS, "status": "finished"}),
            answers("get", "/eval-runs/er_8/samples/manifest", {"files": [], "totals": {}}),
        ),
        screen="rich",
    ),
    Case("eval info shaky", flaky_run, screen="rich"),
    Case("eval compare fern moss --rows 2 --report compared.html --force", compared_runs, screen="rich"),
    Case("eval show quartz --side-by-side slate --limit 1", runs_with_conversations, screen="rich"),
    Case("eval gate good --min pass_rate=0.6", local_run),
    Case(
        "eval gate near --against base --margin pass_rate=0.03 --min reward=0.4 --slice difficulty",
        run_and_baseline,
        screen="rich",
    ),
    Case(
        "eval plan configs/eval/walks.toml --pilot good --detect 0.05 --max-cost 5",
        together(local_run, planned),
        screen="rich",
    ),
    Case("eval watch good", local_run),
    Case("eval watch shaky", flaky_run),
    Case("eval logs amber-otter-42", answers("get", "/eval-runs/amber-otter-42/logs", LOG), screen="rich"),
    Case("eval logs shaky --level warning", logged_run),
    Case("eval stop amber-otter-42 --yes", answers("post", "/eval-runs/amber-otter-42/stop", {"id": "er_8"})),
    Case(
        "eval delete amber-otter-42 --yes",
        together(_offering("/eval-runs/amber-otter-42", EVAL_RUN), answers("delete", "/eval-runs/er_8", {})),
    ),
    Case("eval export good --overwrite", local_run),
    Case(
        "train list",
        page("/training-runs", "training_runs", {**train_replies.ROW, **ENDED}, train_replies.MINIMAL),
        screen="rich",
    ),
    Case(
        "train info copper-finch --report copper.html --no-text --force",
        together(
            _training,
            answers("get", f"/training-runs/{TRAINING_ID}/metrics", train_replies.METRICS),
            _checkpoints,
        ),
    ),
    Case("train show trained/walks --limit 2", validated_run),
    Case("train logs copper-finch", answers("get", "/training-runs/copper-finch/logs", LOG)),
    Case(
        "train checkpoints copper-finch",
        answers("get", "/training-runs/copper-finch/checkpoints", train_replies.CHECKPOINTS),
    ),
    Case(
        "train delete copper-finch --yes",
        together(
            _offering("/training-runs/copper-finch", TRAINING_RUN),
            _checkpoints,
            answers("delete", f"/training-runs/{TRAINING_ID}", {}),
        ),
    ),
    Case(
        "train stop copper-finch --yes", answers("post", "/training-runs/copper-finch/stop", {"id": "tr_8"})
    ),
    Case(
        "model list",
        together(
            page("/models/base", "models", BASE_MODEL),
            answers(
                "get",
                "/models/lora",
                {"models": [MODEL], "total_count": 1, "active_deployments": 1, "max_active_deployments": 3},
            ),
        ),
        screen="rich",
    ),
    Case("model info maze-lora", answers("get", "/models/maze-lora", MODEL), screen="rich"),
    Case(
        "model deploy maze-lora",
        together(
            answers("post", "/models/maze-lora/deploy", {"id": "lo_1", "status": "active"}),
            answers("get", "/models/maze-lora", MODEL),
        ),
        screen="rich",
    ),
    Case(
        "model undeploy maze-lora --yes",
        answers("post", "/models/maze-lora/undeploy", {"id": "lo_1", "status": "inactive"}),
    ),
    Case("rollout init walker", screen="rich"),
    Case("rollout list", page("/rollouts", "rollouts", ROLLOUT)),
    Case("rollout server list", page("/rollout-servers", "rollout_servers", SERVER)),
    Case(
        "rollout server register calculator 10.1.2.3:9000",
        answers("post", "/rollout-server/register", HEALTHY),
    ),
    Case("rollout server probe calculator", answers("post", "/rollout-servers/calculator/probe", HEALTHY)),
    Case("rollout server remove calculator --yes", answers("delete", "/rollout-servers/calculator", {})),
    Case("template list", screen="rich"),
    Case("template apply multiply", lambda maze: shutil.rmtree(maze.workspace.rollouts_dir / "multiply")),
    Case(
        "benchmark list",
        page("/benchmarks", "benchmarks", benchmark_replies.LISTED, benchmark_replies.MINIMAL),
    ),
    Case(
        "benchmark info toy",
        together(
            answers(
                "get",
                "/benchmarks/toy",
                {"benchmark": benchmark_replies.DESCRIBED, "leaderboard": [benchmark_replies.ENTRY]},
            ),
            page("/benchmark-runs", "benchmark_runs", BENCHMARK_RUN),
        ),
        screen="rich",
    ),
    Case("benchmark runs list", page("/benchmark-runs", "benchmark_runs", BENCHMARK_RUN)),
    Case("benchmark runs info amber-otter-42", _benchmark_run, screen="plain"),
    Case("benchmark runs logs amber-otter-42", answers("get", "/benchmark-runs/amber-otter-42/logs", LOG)),
    Case(
        "benchmark runs stop amber-otter-42 --yes",
        together(_benchmark_run, answers("post", "/benchmark-runs/br_8/stop", {})),
    ),
    Case("doctor --fix", MEMBERSHIPS, screen="rich"),
    Case("whoami", MEMBERSHIPS),
    Case("auth whoami", MEMBERSHIPS),
    Case("workspace list", MEMBERSHIPS),
    Case("workspace current", answers("get", "/verify", VERIFIED)),
    Case("secret list", page("/environment-secrets", "environment_secrets", SECRET)),
    Case(
        "secret audit --limit 1",
        lambda maze: (
            maze.get("/verify").respond(json=VERIFIED, headers={"X-Osmosis-Capabilities": "secret-audit"}),
            maze.get("/environment-secrets/audit").respond(
                json={"handouts": [HANDOUT], "total_count": 2, "has_more": True, "next_offset": 1}
            ),
        ),
        screen="rich",
    ),
    Case("secret set API_KEY --env GOLDEN_KEY", answers("post", "/environment-secrets", SECRET)),
    Case(
        "secret delete API_KEY --yes",
        together(
            page("/environment-secrets", "environment_secrets", SECRET),
            answers("delete", "/environment-secrets", {}),
        ),
    ),
)
