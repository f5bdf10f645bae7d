"""Other machines execute runs of a platform, with homes of their own, its URL and a worker token."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.platform_checkout import Scratch
from tests.e2e.platform_process import Kill, Platform, Run, connected_platform, write_config
from tests.e2e.test_demo_platform import numbers, samples
from tests.e2e.test_platform_kill import published
from tests.e2e.turnstile import Turnstile, held
from tests.warm_osmosis import process_of, warm_osmosis

pytestmark = pytest.mark.e2e

ROWS, ATTEMPTS = 30, 2
CONFIG = "configs/eval/pooled.toml"
TOKEN = "gpu.token"


class Machine:
    """A machine that executes runs of the pool.

    Args:
        platform: The platform that has the runs.
        name: The name of its home directory.
        options: Further arguments of the command.
        settings: Further environment variables.
    """

    def __init__(self, platform: Platform, name: str, *options: str, **settings: str) -> None:
        self.home = platform.home.parent / name
        self.process = subprocess.Popen(
            [
                *warm_osmosis(),
                *("platform", "worker", "--json", "--pool", "gpu", "--token-file", TOKEN, *options),
            ],
            cwd=platform.workspace,
            env={**platform.env, "OSMOSIS_HOME": str(self.home), **settings},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def power_off(self) -> None:
        """Kill it with everything that it has started."""
        os.kill(process_of(self.process.pid), signal.SIGKILL)
        self.process.communicate()

    def end(self) -> tuple[int, Any, str]:
        """Wait for its end; return its exit status, its JSON output and its stderr."""
        out, err = self.process.communicate(timeout=600)
        return self.process.returncode, json.loads(out) if out else None, err


@pytest.fixture(scope="module")
def platform(scratch: Scratch, turnstile: Turnstile) -> Iterator[Platform]:
    pool = '\n[advanced.execution]\npool = "gpu"\n'
    write_config(scratch, CONFIG, rows=ROWS, more=pool, **held(ATTEMPTS))
    with connected_platform(scratch, settings={"OSMOSIS_LEASE_SECONDS": "5"}) as platform:
        platform.command("platform", "worker-token", "create", "--pool", "gpu", "--output", TOKEN)
        yield platform


@pytest.fixture(scope="module")
def calm(platform: Platform) -> Run:
    """A run that another machine executed, undisturbed."""
    run = platform.submit(CONFIG)
    status, reply, err = Machine(platform, "calm", "--once").end()
    assert status == 0, err
    assert reply["resource"]["runs"] == [{"id": run.id, "name": run.name, "attempt": 1, "ending": "ended"}]
    assert run.finish()["status"] == "finished"
    assert len(published(run.results)) == ROWS * ATTEMPTS
    assert not list((platform.home / "runs").glob("*")), "it was not executed on the platform's machine"
    return run


def start_until(records: int, turnstile: Turnstile, run: Run, name: str) -> tuple[Machine, Run]:
    """Start a machine, and hold the run once the machine has so many results; return both."""
    turnstile.hold()
    machine = Machine(run.platform, name)
    there = Run(run.platform, run.id, run.name, machine.home)
    turnstile.hold_after(records, lambda: len(there.journal()))
    assert there.await_moment(Kill(records, "none", 0.0))
    return machine, there


def test_power_cut_and_revoked_token(platform: Platform, calm: Run, turnstile: Turnstile) -> None:
    run = platform.submit(CONFIG)
    first, there = start_until(10, turnstile, run, "first")
    first.power_off()
    assert 10 <= len(there.journal()) < ROWS * ATTEMPTS, "it was switched off in mid-run"

    second, _ = start_until(25, turnstile, run, "second")
    token_id = platform.command("platform", "worker-token", "list")["items"][0]["id"]
    platform.command("platform", "worker-token", "revoke", token_id, "--yes")
    status, reply, err = second.end()
    assert (status, reply) == (1, None)
    assert json.loads(err.splitlines()[-1])["error"]["message"] == "This token has been revoked."
    turnstile.open()

    platform.command("platform", "worker-token", "create", "--pool", "gpu", "--output", TOKEN, "--force")
    status, reply, err = Machine(platform, "third", "--once").end()
    assert (status, reply["resource"]["runs"][0]["attempt"]) == (0, 3), err
    assert run.finish()["status"] == "finished"
    assert published(run.results) == published(calm.results)
    assert numbers(run.results) == numbers(calm.results)
    assert samples(run.results) == samples(calm.results), "every counted attempt has its conversation"
