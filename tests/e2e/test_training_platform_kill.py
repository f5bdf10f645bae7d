"""A platform's training run has the same curve and checkpoints after kills of the platform, worker and rollout server.

Each is killed ``OSMOSIS_KILLS`` times during one run.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from osmosis_ai.training.learner.checkpoints import checkpoints_in
from tests.e2e.kill_plan import KILLS, seed_of_kills
from tests.e2e.platform_checkout import Scratch
from tests.e2e.platform_process import PROGRAM, Platform, connected_platform
from tests.e2e.turnstile import Turnstile
from tests.warm_osmosis import warm_osmosis

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

STEPS = 14
CONFIG = "configs/training/kill.toml"
# Small steps of the sample agent, so that there are many moments between them.
TEXT = f"""
[experiment]
rollout = "multiply"
entrypoint = "main.py"
model_path = "osmosis/tiny"
dataset = "few"

[training]
lr = 2e-3
n_samples_per_prompt = 4
rollout_batch_size = 4
max_prompt_length = 512
max_response_length = 128

[checkpoints]
eval_interval = 7
checkpoint_save_freq = 4

[advanced]
max_steps = {STEPS}
"""


class Kill(NamedTuple):
    """When the checkpoint of ``step`` exists, and ``delay_s`` later, ``victim`` is killed."""

    step: int
    victim: str
    delay_s: float


def plan_of_kills(seed: int) -> list[Kill]:
    """Each victim equally often, one kill in each equal part of the run, from its start to two steps before its end.

    Before the first step a worker is killed while it loads; later, another resumes from a checkpoint.
    """
    draw = random.Random(seed)
    victims = ["platform", "worker", "server"] * KILLS
    draw.shuffle(victims)
    width = (STEPS - 2) / len(victims)
    return [
        Kill(int((number + draw.random()) * width), victim, draw.uniform(0, 1.0))
        for number, victim in enumerate(victims)
    ]


def submit(platform: Platform) -> dict[str, Any]:
    submitted: dict[str, Any] = platform.command("train", "submit", CONFIG, "--yes")["resource"]
    return submitted


def steps_done(platform: Platform) -> int:
    """Return the step of the newest checkpoint of the run that is executed."""
    folders = (platform.home / "runs").glob("*/training/checkpoints")
    return max((one.step for folder in folders for one in checkpoints_in(folder)), default=0)


def is_near(platform: Platform, step: int) -> bool:
    return steps_done(platform) <= step


def curve(platform: Platform, run: dict[str, Any], exported: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the computed metrics of each step, without measurements of the machine."""
    platform.command("train", "info", run["name"], "--output", str(exported))
    measured = ("time/", "speed/", "train/logprob_gap")
    metrics = json.loads(exported.read_text())["metrics"]
    return {
        each["key"]: [(point["step"], point["value"]) for point in each["data"]]
        for each in metrics
        if not each["key"].startswith(measured)
    }


def checkpoint_steps(platform: Platform, run: dict[str, Any]) -> list[int]:
    listed = platform.command("train", "checkpoints", run["name"])["items"]
    return [one["checkpoint_step"] for one in listed]


@pytest.fixture(scope="module")
def platform(scratch: Scratch, turnstile: Turnstile) -> Iterator[Platform]:
    rows = (scratch.workspace / "data/multiply_train.jsonl").read_text().splitlines()[:120]
    (scratch.workspace / "data/few.jsonl").write_text("\n".join(rows) + "\n")
    (scratch.workspace / CONFIG).write_text(TEXT)
    program = PROGRAM if KILLS > 1 else warm_osmosis(torch=True)
    with connected_platform(scratch, "few", program=program) as platform:
        yield platform


def await_end(platform: Platform, run: dict[str, Any]) -> None:
    ended = platform.command("train", "watch", run["name"])["resource"]
    assert ended["status"] == "finished", ended


@pytest.mark.nightly
def test_kills_change_neither_curve_nor_checkpoints(
    platform: Platform, turnstile: Turnstile, tmp_path: Path
) -> None:
    calm = submit(platform)
    await_end(platform, calm)
    while list((platform.home / "runs").glob("*")):
        time.sleep(0.01)  # its worker deletes its directory last

    seed = seed_of_kills()
    turnstile.hold()
    stormy = submit(platform)
    began = time.monotonic()
    for kill in plan_of_kills(seed):
        # The run gets at most two steps further, so it does not finish.
        turnstile.may_pass = partial(is_near, platform, kill.step)
        while steps_done(platform) < kill.step:
            assert time.monotonic() < began + 900, "the run makes no progress"
            time.sleep(0.01)
        time.sleep(kill.delay_s)  # the moment itself is what the test varies
        while not platform.kill(kill.victim):
            assert time.monotonic() < began + 900, f"there is no {kill.victim}"
            time.sleep(0.01)
        print(
            f"{time.monotonic() - began:5.1f} s: killed the {kill.victim} after step {steps_done(platform)}"
        )
        if kill.victim == "platform":
            platform.start()
    turnstile.open()
    await_end(platform, stormy)
    assert platform.starts == 1 + KILLS

    ours, theirs = (
        curve(platform, run, tmp_path / f"{name}.json") for run, name in ((stormy, "stormy"), (calm, "calm"))
    )
    assert [step for step, _ in theirs["validation_reward"]] == [0, 7, 14]
    assert set(ours) == set(theirs)
    for key, expected in theirs.items():
        assert [step for step, _ in ours[key]] == [step for step, _ in expected], key
        values = [value for _, value in expected]
        assert [value for _, value in ours[key]] == pytest.approx(values, rel=1e-4, abs=1e-6), key
    assert checkpoint_steps(platform, stormy) == checkpoint_steps(platform, calm) == [4, 8, 12, STEPS]
