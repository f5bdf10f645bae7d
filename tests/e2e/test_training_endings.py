"""Training runs of a platform that cannot go on: each ends, or goes on, and says why where people look.

All are worked on at once, each by a real worker, and every trouble is a real one: the kernel refuses the file or the
memory, an update overflows. What a test reads is what `train info`, `train logs` and `train
checkpoints` say.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.services.demo import Scratch, prepare_scratch
from osmosis_ai.training.learner.checkpoints import checkpoints_in
from osmosis_ai.workspace.git import run_git
from tests.e2e.platform_checkout import run, running
from tests.e2e.platform_process import WORKER, processes
from tests.e2e.turnstile import Turnstile
from tests.warm_osmosis import process_of

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="limits what another process may use"),
]

TEXT = """
[experiment]
rollout = "{rollout}"
entrypoint = "main.py"
model_path = "osmosis/tiny"
dataset = "few"

[training]
lr = {lr}
n_samples_per_prompt = {samples}
rollout_batch_size = {prompts}
max_prompt_length = 512
max_response_length = 128

[checkpoints]
eval_interval = 100
checkpoint_save_freq = 100

[advanced]
max_steps = {steps}
{advanced}
"""
SMALL = {"rollout": "multiply", "lr": "2e-3", "samples": 4, "prompts": 2, "steps": 20, "advanced": ""}
CONFIGS: dict[str, dict[str, Any]] = {
    # 0.9 million parameters: an adapter of 3.6 MB, a checkpoint of 11 MB more.
    "disk": {"advanced": "lora_rank = 128"},
    # A micro-batch of 128 rollouts wants some hundred MB.
    "memory": {"samples": 16, "prompts": 8},
    "diverged": {"lr": "1e30"},
    "equal": {"rollout": "generous"},
}
MB = 1_000_000


class Runs:
    """The runs, and the platform they were submitted to."""

    def __init__(self, scratch: Scratch, env: dict[str, str]) -> None:
        self._scratch = scratch
        self._env = env
        self._submitted: dict[str, dict[str, Any]] = {}

    def command(self, *words: str) -> Any:
        outcome = run(*words, cwd=self._scratch.workspace, env=self._env)
        assert outcome.status == 0, outcome.err
        return json.loads(outcome.out)

    def submit(self, which: str) -> None:
        config = f"configs/training/{which}.toml"
        (self._scratch.workspace / config).write_text(TEXT.format(**{**SMALL, **CONFIGS[which]}))
        self._submitted[which] = self.command("train", "submit", config, "--yes")["resource"]

    def name(self, which: str) -> str:
        found: str = self._submitted[which]["name"]
        return found

    def directory(self, which: str) -> Path:
        return self._scratch.root / "data" / "runs" / self._submitted[which]["id"] / "training"

    def steps_done(self, which: str) -> int:
        """The step behind which a worker would go on; 0 once it has begun, -1 before."""
        directory = self.directory(which)
        if not (directory / "metrics.jsonl").exists():
            return -1
        return max((one.step for one in checkpoints_in(directory / "checkpoints")), default=0)

    def worker(self, which: str) -> int:
        run_id = self._submitted[which]["id"]
        found = next(one.pid for one in processes() if WORKER in one.command and run_id in one.command)
        return process_of(found)

    def ended(self, which: str) -> dict[str, Any]:
        """Wait for the end; what `train info` says of the run itself."""
        run("train", "watch", self.name(which), cwd=self._scratch.workspace, env=self._env)
        found: dict[str, Any] = self.command("train", "info", self.name(which))["data"]["training_run"]
        return found

    def log(self, which: str) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = self.command("train", "logs", self.name(which), "--limit", "200")[
            "items"
        ]
        return listed

    def checkpoints(self, which: str) -> list[int]:
        listed = self.command("train", "checkpoints", self.name(which))["items"]
        return [one["checkpoint_step"] for one in listed]


def wait_until(condition: Callable[[], bool], *, pause_s: float) -> None:
    deadline = time.monotonic() + 900
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(pause_s)


def allow_no_file_above(pid: int, size: int) -> None:
    """Make a larger file fail as on a full disk, for this process alone."""
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def allow_no_more_memory_than(pid: int, spare: int) -> None:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + spare
    resource.prlimit(pid, resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


def make_trouble(runs: Runs, turnstile: Turnstile) -> None:
    """Trouble each run after a step of its own. While a trouble is due, no run starts an attempt."""
    troubles: dict[str, tuple[int, Callable[[], None]]] = {
        "disk": (2, lambda: allow_no_file_above(runs.worker("disk"), 6 * MB)),
        "memory": (0, lambda: allow_no_more_memory_than(runs.worker("memory"), 100 * MB)),
    }

    def none_is_due() -> bool:
        return all(runs.steps_done(which) < step for which, (step, _) in list(troubles.items()))

    def all_are_made() -> bool:
        for which, (step, trouble) in list(troubles.items()):
            if runs.steps_done(which) >= step:
                trouble()
                del troubles[which]
        return not troubles

    turnstile.may_pass = none_is_due
    wait_until(all_are_made, pause_s=0.02)


def prepare(scratch: Scratch) -> None:
    """Add few rows, so that few are held out, and an agent that is always right."""
    rows = (scratch.workspace / "data/multiply_train.jsonl").read_text().splitlines()[:120]
    (scratch.workspace / "data/few.jsonl").write_text("\n".join(rows) + "\n")
    sample, generous = (scratch.workspace / "rollouts" / name for name in ("multiply", "generous"))
    generous.mkdir()
    project = (sample / "pyproject.toml").read_text()
    (generous / "pyproject.toml").write_text(project.replace('name = "multiply"', 'name = "generous"'))
    agent, graded = (sample / "main.py").read_text(), "ctx.set_reward(1.0 if correct else 0.0)"
    assert graded in agent
    (generous / "main.py").write_text(agent.replace(graded, "ctx.set_reward(1.0)"))
    git = ["-c", "user.name=Mara", "-c", "user.email=mara@fern.example"]
    for words in (
        ["add", "rollouts"],
        [*git, "commit", "--quiet", "-m", "Add an agent that is always right"],
    ):
        assert run_git(words, cwd=scratch.workspace, env=scratch.own_variables()).returncode == 0
    scratch.push()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    scratch = prepare_scratch(tmp_path_factory.mktemp("endings") / "demo")
    turnstile = Turnstile(scratch.workspace)
    turnstile.hold()
    prepare(scratch)
    with closing(turnstile), running(scratch, trains=True, OSMOSIS_EXECUTOR_SLOTS=str(len(CONFIGS))) as env:
        found = Runs(scratch, env)
        found.command("platform", "connect", str(scratch.origin))
        found.command("dataset", "upload", "data/few.jsonl", "--wait", "--yes")
        for which in CONFIGS:
            found.submit(which)
        make_trouble(found, turnstile)
        yield found


def assert_failed_with_one_sentence(runs: Runs, which: str) -> str:
    """Return the sentence, which is the log's only error, and its last line."""
    found = runs.ended(which)
    assert found["status"] == "failed", found
    lines = runs.log(which)
    errors = [line["message"] for line in lines if line["level"] == "error"]
    assert errors == [found["error"]] and lines[-1]["message"] == found["error"]
    return errors[0]


def test_a_full_disk_ends_the_run_and_the_checkpoint_before_is_kept(runs: Runs) -> None:
    said = assert_failed_with_one_sentence(runs, "disk")
    (kept,) = runs.checkpoints("disk")
    assert said == (
        f"the checkpoint of step {kept + 1} could not be written to {runs.directory('disk')}/checkpoints: the disk "
        f"is full; the one of step {kept} is intact; make room there, then start the run again. "
        f"It can go on from the checkpoint of step {kept}: `osmosis train resume {runs.name('disk')}`."
    )


def test_a_step_that_finds_no_memory_is_tried_in_halves_and_then_ends_the_run(runs: Runs) -> None:
    said = assert_failed_with_one_sentence(runs, "memory")
    assert said.startswith("the memory of cpu does not suffice to learn from sequences of up to ")
    assert "in micro-batches of 4096 tokens; lower [training].max_response_length" in said
    assert runs.checkpoints("memory") == []


def test_an_update_that_destroys_the_policy_ends_the_run_before_it_is_served(runs: Runs) -> None:
    assert assert_failed_with_one_sentence(runs, "diverged") == (
        "update 1 made the adapter's numbers too large to compute with (lr = 1e+30): the policy is lost; "
        "lower [training].lr."
    )
    assert runs.checkpoints("diverged") == []


def test_rewards_that_are_all_equal_are_warned_of_and_end_the_run(runs: Runs) -> None:
    said = assert_failed_with_one_sentence(runs, "equal")
    assert said.startswith(
        "in 10 steps in a row all attempts on each prompt got equal rewards (1 on average in the last of them), so "
        "there was nothing to learn from; the task is too hard or too easy for this model"
    )
    warned = [
        line["message"] for line in runs.log("equal") if "The run ends after 10 such steps" in line["message"]
    ]
    assert len(warned) == 1
