"""A run of a platform has the same samples and metrics after kills of the platform, its worker and its rollout server."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.kill_plan import KILLS, after, plan_of_kills, seed_of_kills, sizes
from tests.e2e.platform_checkout import Scratch
from tests.e2e.platform_process import (
    PROGRAM,
    Kill,
    Platform,
    Run,
    connected_platform,
    processes,
    write_config,
)
from tests.e2e.test_demo_platform import numbers, samples
from tests.e2e.turnstile import Turnstile, held

pytestmark = pytest.mark.e2e

VICTIMS = ("platform", "worker", "server")
ROWS, ATTEMPTS = sizes(VICTIMS)
SAMPLES = ROWS * ATTEMPTS
CONFIG = "configs/eval/kill.toml"


def published(results: Path) -> list[tuple[Any, ...]]:
    """Return the result of each attempt in the downloaded summary, in its order."""
    facts = ("row_index", "run_index", "status", "reward", "tokens", "error_type")
    lines = (results / "summary.jsonl").read_text().splitlines()
    return [tuple(json.loads(line).get(fact) for fact in facts) for line in lines]


@pytest.fixture(scope="module")
def platform(scratch: Scratch, turnstile: Turnstile) -> Iterator[Platform]:
    write_config(scratch, CONFIG, rows=ROWS, **held(ATTEMPTS))
    with connected_platform(scratch, program=PROGRAM if KILLS > 1 else None) as platform:
        yield platform


def test_kills_lose_and_repeat_no_attempt(platform: Platform, turnstile: Turnstile) -> None:
    turnstile.hold()
    calm = platform.submit(CONFIG)
    turnstile.hold_after(1, lambda: len(calm.journal()))  # it does not end before its journal is found
    assert calm.await_moment(Kill(1, "none", 0.0))
    turnstile.open()
    assert calm.finish()["status"] == "finished"

    kills = plan_of_kills(seed_of_kills(), VICTIMS, SAMPLES)
    turnstile.hold()
    stormy = platform.submit(CONFIG)
    began = time.monotonic()
    before: list[bytes] = []
    under_way = 0
    for kill in kills:
        moment = after(kill, len(stormy.journal()))
        turnstile.hold_after(moment.records, lambda: len(stormy.journal()))
        if not stormy.await_moment(moment):
            break
        while not platform.kill(kill.victim) and not stormy.ended():
            time.sleep(0.005)
        lines = stormy.journal()
        under_way += not stormy.ended()
        assert lines[: len(before)] == before, "a committed result was changed or lost"
        before = lines
        print(
            f"{time.monotonic() - began:5.1f} s: killed the {kill.victim} at {len(lines)} of {SAMPLES} results"
        )
        if kill.victim == "platform":
            platform.start()
    turnstile.open()
    ended = stormy.finish()
    assert ended["status"] == "finished", ended["error"]
    assert under_way == len(kills)
    assert platform.starts == 1 + KILLS

    lines = stormy.journal()
    assert lines[: len(before)] == before
    assert len(lines) == SAMPLES, "a finished attempt ran twice, or is missing"
    assert published(stormy.results) == published(calm.results)
    assert numbers(stormy.results) == numbers(calm.results)
    assert len(samples(stormy.results)) == SAMPLES
    assert samples(stormy.results) == samples(calm.results)

    platform.command("platform", "stop")
    await_none_left(platform, stormy)
    assert not list((platform.home / "runs").glob("*")), "a finished shard left its directory"


def await_none_left(platform: Platform, run: Run) -> None:
    """Wait until all processes of the platform have ended."""
    deadline = time.monotonic() + 300
    while left := [p.command for p in processes() if run.id in p.command or str(platform.home) in p.command]:
        assert time.monotonic() < deadline, f"a process outlived the platform: {left}"
        time.sleep(0.05)
