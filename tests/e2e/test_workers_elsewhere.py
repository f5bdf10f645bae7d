"""Other machines execute runs of a platform, with homes of their own, its URL and a worker token."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from osmosis_ai.cli.application import NARRATE_ENV
from tests.e2e.platform_checkout import Scratch
from tests.e2e.platform_process import (
    PATIENT_WORKER,
    WORKER,
    Kill,
    Platform,
    Run,
    child_of,
    connected_platform,
    write_config,
)
from tests.e2e.test_demo_platform import numbers, samples
from tests.e2e.test_platform_kill import published
from tests.e2e.turnstile import Turnstile, held
from tests.platform.evaluations import wait_until
from tests.processes import stop_process
from tests.warm_osmosis import process_of, warm_osmosis, warm_python

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
        program: The command that runs `osmosis`.
        settings: Further environment variables.
    """

    running: ClassVar[list[Machine]] = []
    """The machines that may still be running."""

    def __init__(
        self, platform: Platform, name: str, *options: str, program: Sequence[str] = (), **settings: str
    ) -> None:
        self.home = platform.home.parent / name
        self.process = subprocess.Popen(
            [
                *(program or warm_osmosis()),
                *("platform", "worker", "--json", "--pool", "gpu", "--token-file", TOKEN, *options),
            ],
            cwd=platform.workspace,
            env={**platform.env, "OSMOSIS_HOME": str(self.home), **settings},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.running.append(self)

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


def require_same_results(one: Run, other: Run) -> None:
    """Check that two runs have the same results and conversations."""
    assert published(one.results) == published(other.results)
    assert numbers(one.results) == numbers(other.results)
    assert samples(one.results).items() <= samples(other.results).items()


@pytest.fixture(autouse=True)
def end_of_machines(turnstile: Turnstile) -> Iterator[None]:
    """Stop the machines of a failed test, which would execute the runs of the next one."""
    yield
    turnstile.open()
    while Machine.running:
        machine = Machine.running.pop()
        if machine.process.poll() is None:
            machine.power_off()


def start_until(
    records: int, turnstile: Turnstile, run: Run, name: str, *options: str, **how: Any
) -> tuple[Machine, Run]:
    """Start a machine, and hold the run once the machine has so many results; return both."""
    turnstile.hold()
    machine = Machine(run.platform, name, *options, **how)
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
    require_same_results(run, calm)
    assert samples(run.results) == samples(calm.results), "every counted attempt has its conversation"


def test_sigterm(platform: Platform, calm: Run, turnstile: Turnstile) -> None:
    run = platform.submit(CONFIG)
    first, _ = start_until(10, turnstile, run, "fourth")
    first.process.terminate()
    status, reply, err = first.end()
    assert (status, reply["resource"]["runs"][0]["ending"]) == (0, "left"), err
    assert platform.command("eval", "list")["items"][0]["status"] == "running"
    turnstile.open()
    status, _, err = Machine(platform, "fifth", "--once").end()
    assert status == 0, err
    assert run.finish()["status"] == "finished"
    require_same_results(run, calm)
    assert samples(run.results) == samples(calm.results)


def test_stopped_run(platform: Platform, turnstile: Turnstile) -> None:
    run = platform.submit(CONFIG)
    machine, _ = start_until(10, turnstile, run, "stopped", "--once")
    assert platform.command("eval", "stop", run.name, "--yes")["status"] == "success"
    status, _, err = machine.end()
    assert status == 0, err
    wait_until(lambda: platform.command("eval", "info", run.name)["data"]["eval_run"]["status"] == "stopped")
    platform.command("eval", "download", run.name)
    assert 10 <= len(samples(run.results)) < ROWS * ATTEMPTS


def await_pending(process: int, number: signal.Signals) -> None:
    """Wait until a stopped process has been sent a signal."""
    deadline = time.monotonic() + 300
    while True:
        status = Path(f"/proc/{process}/status").read_text()
        pending = re.search(r"(?m)^ShdPnd:\s*(\w+)", status)
        assert pending is not None, status
        if int(pending[1], 16) & 1 << (number - 1):
            return
        assert time.monotonic() < deadline, "the signal was not passed on"
        time.sleep(0.01)


def test_second_sigterm(platform: Platform, calm: Run, turnstile: Turnstile) -> None:
    run = platform.submit(CONFIG)
    patient = [warm_python(), "-c", PATIENT_WORKER]
    first, _ = start_until(10, turnstile, run, "twice", program=patient, **{NARRATE_ENV: "1"})
    worker = child_of(process_of(first.process.pid), WORKER)
    assert worker is not None
    # A stopped worker cannot release its run before the second signal. Its pending signals show the first one.
    stop_process(worker)
    os.kill(process_of(first.process.pid), signal.SIGTERM)
    await_pending(worker, signal.SIGTERM)
    os.kill(process_of(first.process.pid), signal.SIGTERM)
    status, reply, err = first.end()
    assert (status, reply) == (130, None), err
    assert f"released the run {run.name} for another worker; attempts that were not reported run again" in err
    turnstile.open()
    status, _, err = Machine(platform, "after", "--once").end()
    assert status == 0, err
    assert run.finish()["status"] == "finished"
    require_same_results(run, calm)


def test_user_token(platform: Platform, tmp_path: Path) -> None:
    user = platform.command("platform", "token", "create")["resource"]["token"]
    (tmp_path / "token").write_text(user)
    status, _, err = Machine(platform, "sixth", "--token-file", str(tmp_path / "token")).end()
    assert status == 1
    assert "osmosis platform worker-token create --pool NAME" in err and user not in err
