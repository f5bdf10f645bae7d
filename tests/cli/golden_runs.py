"""Cases of submits, uploads and downloads, with a fake platform and a fake object store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.api.blob_server import serve
from tests.cli import benchmark_replies, eval_replies, test_dev_server, test_run_changes, train_replies
from tests.cli.eval_downloads import offer_files
from tests.cli.eval_submits import TEXT, commit, store_secrets
from tests.cli.golden_cases import ENDED, TRAINING_ID, TRAINING_RUN, Case, answers, file, together
from tests.cli.maze import Maze, replies
from tests.cli.test_dataset import announce
from tests.cli.test_dataset import offer as offer_dataset
from tests.cli.test_eval_upload import Importer
from tests.cli.test_model import offer as offer_adapter
from tests.cli.test_train_compare import offer_both
from tests.datasets.builders import jsonl, prompt_rows
from tests.logins import VERIFIED
from tests.platform.local_runs import LocalRun

SUBMITTED = {"id": "er_9", "name": "copper-finch", "status": "pending", "created_at": "2026-10-02T08:00:00Z"}
DEV_SERVER = {
    "id": "ds_1",
    "name": "maze",
    "url": "https://ds-1.fern.example",
    "status": "running",
    "expires_at": "2026-10-03T07:00:00Z",
}
DATASET = {"id": "ds_31", "file_name": "maze-walks", "status": "uploaded"}


def committed(maze: Maze) -> None:
    """Commit everything and pretend that it is pushed."""
    maze.patch.setattr("osmosis_ai.services.runs.submit._ask_github", lambda identity, sha: "present")
    commit(maze)


def offer_adapter_and_hub(maze: Maze) -> None:
    offer_adapter(maze)
    maze.patch.setattr(
        "osmosis_ai.services.model_export.push_to_hub", lambda name, **_: f"https://huggingface.co/{name}"
    )


def submittable(kind: str, config: str, text: str) -> Callable[[Maze], Any]:
    """Write a config that passes every check before its submission."""

    def prepare(maze: Maze) -> None:
        from osmosis_ai.services.rollout_preflight import ImportOutcome

        file(config, text)(maze)
        committed(maze)
        imported = ImportOutcome("imported", "rollouts/multiply/main.py")
        maze.patch.setattr("osmosis_ai.services.runs.submit._import_code", lambda *_, **__: imported)
        store_secrets(maze, ("OPENAI_API_KEY", "workspace"), ("SEARCH_KEY", "user"))
        # As the hosted service, which cannot be asked beforehand.
        maze.post(f"/{kind}/check").respond(404, html="<h1>404</h1>")
        maze.post(f"/{kind}").respond(json=SUBMITTED)
        maze.get("/datasets/maze-walks").respond(json=DATASET)

    return prepare


def downloadable(run: str, name: str, content: bytes) -> Callable[[Maze], Any]:
    """Serve a file of a run."""

    def prepare(maze: Maze) -> None:
        store = maze.stack.enter_context(serve())
        store.blobs[name] = content
        offer_files(maze, store, run, [{"path": name, "size": len(content)}])

    return prepare


def local_and_remote_dataset(maze: Maze) -> None:
    content = jsonl(prompt_rows(20))
    file("sums.jsonl", content)(maze)
    store = maze.stack.enter_context(serve())
    announce(maze, store, len(content))
    offer_dataset(maze, store, content.encode())


def uploadable(maze: Maze) -> None:
    maze.patch.setattr("osmosis_ai.services.eval_runs.upload.PARALLEL", 1)
    directory = maze.workspace.evals_dir / "maze-20261102"
    LocalRun().write(directory.parent)
    Importer(maze, maze.stack.enter_context(serve()), directory)


def dev_server_starts(maze: Maze) -> None:
    committed(maze)
    maze.patch.chdir(maze.workspace.rollouts_dir / "multiply")
    answers("get", "/verify", VERIFIED)(maze)
    maze.post("/dev-rollout-server").respond(json=test_dev_server.REPLY)


def logs(maze: Maze) -> None:
    lines = [
        {"timestamp": "2026-10-02T07:00:00Z", "message": "ready"},
        {"timestamp": None, "message": "row 3"},
    ]
    maze.get("/dev-rollout-server/ds_1/logs").respond(json={"logs": lines})


def resubmittable(kind: str, detail: dict[str, Any]) -> Callable[[Maze], Any]:
    def prepare(maze: Maze) -> None:
        test_run_changes.resubmittable(maze, detail, kind)
        maze.post(f"/{kind}/check").respond(json=test_run_changes.VERDICT)

    return prepare


def training_that_ends(maze: Maze) -> None:
    """End the training run at the second poll."""
    run = f"/training-runs/{TRAINING_ID}"
    running = {**train_replies.DETAIL, "training_run": {**train_replies.OWN, "name": "copper-finch"}}
    maze.get("/training-runs/copper-finch").side_effect = replies(running, TRAINING_RUN)
    maze.get(run).side_effect = replies(running, TRAINING_RUN)
    maze.get(f"{run}/metrics").respond(json=train_replies.METRICS)
    maze.get(f"{run}/checkpoints").respond(json=train_replies.CHECKPOINTS)


_TRAINING_AGAIN = {
    **train_replies.DETAIL,
    "config": {"training": {"lr": 1e-6}},
    "resolved_secret_scopes": {"SEARCH_KEY": "workspace"},
}
_EXECUTION = """
[advanced.execution]
pool = "gpu"
labels = ["a100", "west"]
workers = 4
max_cost = 5
cpus = 4
gpus = 1
memory_gb = 64
network = "none"
"""
_STEP = {"id": "tr_8", "name": "copper-finch", "status": "pending", "step": 40}

CASES = (
    Case("dataset upload sums.jsonl --yes", local_and_remote_dataset),
    Case("dataset download sums --output downloaded.jsonl --overwrite", local_and_remote_dataset),
    Case(
        "eval submit configs/eval/maze.toml --yes",
        submittable("eval-runs", "configs/eval/maze.toml", TEXT + _EXECUTION),
        screen="rich",
    ),
    Case("eval resubmit amber --yes", resubmittable("eval-runs", test_run_changes.OURS)),
    Case("eval retry amber --yes", test_run_changes.retriable, screen="rich"),
    Case(
        "eval download amber --overwrite",
        together(
            answers("get", "/eval-runs/amber", eval_replies.run("finished")),
            downloadable("/eval-runs/er_8/samples", "metrics.json", b'{"summary": {}}\n'),
        ),
    ),
    Case("eval upload maze-20261102", uploadable),
    Case(
        "train submit configs/training/maze.toml --yes",
        submittable("training-runs", train_replies.CONFIG, train_replies.TEXT),
    ),
    Case("train resubmit amber --yes", resubmittable("training-runs", _TRAINING_AGAIN)),
    Case("train resume copper-finch", answers("post", "/training-runs/copper-finch/resume", _STEP)),
    Case("train info kestrel", train_replies.offer_validated, screen="rich"),
    Case("train watch copper-finch", training_that_ends, screen="rich"),
    Case("train compare old new", offer_both, screen="rich"),
    Case("model download maze-lora", offer_adapter),
    Case("model push maze-lora fern-org/multiplier --yes", offer_adapter_and_hub),
    Case(
        "benchmark submit configs/benchmark/toy.toml --yes",
        together(
            lambda maze: (maze.workspace.root / "configs/benchmark").mkdir(),
            file("configs/benchmark/toy.toml", benchmark_replies.CONFIG_TEXT),
            lambda maze: store_secrets(
                maze, *((name, "workspace") for name in ("OPENAI_API_KEY", "FERN_KEY", "GRADER_KEY"))
            ),
            answers("get", "/verify", VERIFIED),
            answers("post", "/benchmark-runs", benchmark_replies.SUBMITTED),
        ),
    ),
    Case(
        "benchmark runs download amber --overwrite",
        together(
            answers("get", "/benchmark-runs/amber", {"benchmark_run": {**benchmark_replies.RUN, **ENDED}}),
            downloadable("/benchmark-runs/br_8/outputs", "summary.csv", b"agent,pass_at_1\n"),
        ),
    ),
    Case("dev server up", dev_server_starts),
    Case(
        "dev server down ds_1",
        answers("delete", "/dev-rollout-server/ds_1", {"id": "ds_1", "status": "stopped"}),
    ),
    Case("dev server list", answers("get", "/dev-rollout-server", {"dev_rollout_servers": [DEV_SERVER]})),
    Case("dev server logs ds_1 --no-follow", logs),
)
