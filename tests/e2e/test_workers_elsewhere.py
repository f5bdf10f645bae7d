"""Other machines execute runs of a platform: homes of their own, and nothing but its URL and a worker token."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.services.demo import prepare_scratch
from tests.e2e.platform_process import Kill, Platform, Run
from tests.e2e.test_demo_platform import numbers, samples
from tests.e2e.test_platform_kill import published
from tests.warm_osmosis import process_of, warm_osmosis

pytestmark = pytest.mark.e2e

ROWS, ATTEMPTS = 30, 2
CONFIG = "configs/eval/pooled.toml"
TOKEN = "gpu.token"


class Machine:
    """A machine with a worker that takes runs of the pool.

    Args:
        platform: whose runs.
        name: what its home is called.
        options: further words of the command.
    """

    def __init__(self, platform: Platform, name: str, *options: str) -> None:
        self.home = platform.home.parent / name
        self.process = subprocess.Popen(
            [
                *warm_osmosis(),
                "platform",
                "worker",
                "--json",
                "--pool",
                "gpu",
                "--token-file",
                TOKEN,
                *options,
            ],
            cwd=platform.workspace,
            env={**platform.env, "OSMOSIS_HOME": str(self.home)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def power_off(self) -> None:
        """End it without a word; what it started is gone with it."""
        os.kill(process_of(self.process.pid), signal.SIGKILL)
        self.process.communicate()

    def end(self) -> tuple[int, Any, str]:
        """Return how it ended, and what it said on stdout and stderr."""
        out, err = self.process.communicate(timeout=600)
        return self.process.returncode, json.loads(out) if out else None, err


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    scratch = prepare_scratch(tmp_path_factory.mktemp("machines") / "demo")
    sample = (scratch.workspace / "configs/eval/multiply.toml").read_text()
    sample = re.sub(r"(?m)^n = \d+", f"n = {ATTEMPTS}", sample.replace("limit = 100", f"limit = {ROWS}"))
    sample = re.sub(r"(?m)^batch_size = \d+", "batch_size = 8", sample)  # so that a kill falls in mid-run
    (scratch.workspace / CONFIG).write_text(f'{sample}\n[advanced.execution]\npool = "gpu"\n')
    scratch.push()
    platform = Platform(scratch, settings={"OSMOSIS_LEASE_SECONDS": "3"})
    try:
        platform.command("platform", "connect", str(scratch.origin))
        platform.command("dataset", "upload", "data/multiply.jsonl", "--wait", "--yes")
        platform.command("platform", "worker-token", "create", "--pool", "gpu", "--output", TOKEN)
        yield platform
    finally:
        with suppress(ProcessLookupError):
            platform.process.kill()
        platform.process.wait()


@pytest.fixture(scope="module")
def calm(platform: Platform) -> Run:
    """A run that another machine executed, undisturbed."""
    run = platform.submit(CONFIG)
    status, told, err = Machine(platform, "calm", "--once").end()
    assert status == 0, err
    assert told["resource"]["runs"] == [{"id": run.id, "name": run.name, "attempt": 1, "ending": "ended"}]
    assert run.finish()["status"] == "finished"
    assert len(published(run.results)) == ROWS * ATTEMPTS
    assert not (platform.home / "runs" / run.id).exists(), "it was not executed on the platform's machine"
    return run


def require_same_results(one: Run, other: Run) -> None:
    """Hold that two runs came to the same, sample by sample, and that no conversation is another."""
    assert published(one.results) == published(other.results)
    assert numbers(one.results) == numbers(other.results)
    assert samples(one.results).items() <= samples(other.results).items()


def under_way(platform: Platform, machine: Machine, run: Run, records: int) -> None:
    """Wait until a machine has recorded so many results of a run."""
    assert Run(platform, run.id, run.name, machine.home).await_moment(Kill(records, "nobody", 0.0))


def test_a_run_whose_machine_is_gone_or_sent_away_is_finished_by_another_one(
    platform: Platform, calm: Run
) -> None:
    run = platform.submit(CONFIG)
    first = Machine(platform, "first")
    under_way(platform, first, run, 10)
    first.power_off()
    journal = first.home / "runs" / run.id / "evaluation" / run.name / "events.jsonl"
    assert 10 <= len(journal.read_bytes().splitlines()) < ROWS * ATTEMPTS, "it fell in mid-run"

    second = Machine(platform, "second")
    under_way(platform, second, run, 25)
    token_id = platform.command("platform", "worker-token", "list")["items"][0]["id"]
    platform.command("platform", "worker-token", "revoke", token_id, "--yes")
    status, told, err = second.end()
    assert (status, told) == (1, None)
    assert json.loads(err.splitlines()[-1])["error"]["message"] == "This token has been revoked."

    platform.command("platform", "worker-token", "create", "--pool", "gpu", "--output", TOKEN, "--force")
    status, told, err = Machine(platform, "third", "--once").end()
    assert (status, told["resource"]["runs"][0]["attempt"]) == (0, 3), err
    assert run.finish()["status"] == "finished"
    require_same_results(run, calm)
    assert samples(run.results) == samples(calm.results), "whoever was counted has its conversation"


def test_sigterm_puts_a_run_aside_with_all_it_has_and_another_machine_goes_on(
    platform: Platform, calm: Run
) -> None:
    run = platform.submit(CONFIG)
    first = Machine(platform, "fourth")
    under_way(platform, first, run, 10)
    first.process.terminate()
    status, told, err = first.end()
    assert (status, told["resource"]["runs"][0]["ending"]) == (0, "left"), err
    assert platform.command("eval", "list")["items"][0]["status"] == "running"
    status, _, err = Machine(platform, "fifth", "--once").end()
    assert status == 0, err
    assert run.finish()["status"] == "finished"
    require_same_results(run, calm)
    assert samples(run.results) == samples(calm.results)


def test_what_is_no_worker_token_here_is_refused_in_a_sentence(platform: Platform, tmp_path: Path) -> None:
    user = platform.command("platform", "token", "create")["resource"]["token"]
    (tmp_path / "token").write_text(user)
    status, _, err = Machine(platform, "sixth", "--token-file", str(tmp_path / "token")).end()
    assert status == 1
    assert "osmosis platform worker-token create --pool NAME" in err and user not in err
