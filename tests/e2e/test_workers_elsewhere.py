"""Other machines execute runs of a platform: homes of their own, and nothing but its URL and a worker token."""

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
from tests.e2e.gate import Gate
from tests.e2e.platform_checkout import Scratch, prepare_scratch
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
from tests.e2e.turnstile import held
from tests.processes import stop_process
from tests.warm_osmosis import process_of, warm_osmosis, warm_python

pytestmark = pytest.mark.e2e

ROWS, ATTEMPTS = 30, 2
CONFIG = "configs/eval/pooled.toml"
TOKEN = "gpu.token"
SEES_GATE = {"OSMOSIS_ISOLATION": "off"}
ASKS = 40
"""So often has a model been asked when a run waits in its middle: over ten attempts are through by then."""


class Machine:
    """A machine with a worker that takes runs of the pool.

    Args:
        platform: whose runs.
        name: what its home is called.
        options: further words of the command.
        program: what runs the command.
        settings: further variables of its environment.
    """

    running: ClassVar[list[Machine]] = []
    """Those whose end nobody has seen."""

    def __init__(
        self, platform: Platform, name: str, *options: str, program: Sequence[str] = (), **settings: str
    ) -> None:
        self.home = platform.home.parent / name
        self.process = subprocess.Popen(
            [
                *(program or warm_osmosis()),
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
            env={**platform.env, "OSMOSIS_HOME": str(self.home), **settings},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.running.append(self)

    def power_off(self) -> None:
        """End it without a word; what it started is gone with it."""
        os.kill(process_of(self.process.pid), signal.SIGKILL)
        self.process.communicate()

    def end(self) -> tuple[int, Any, str]:
        """Return how it ended, and what it said on stdout and stderr."""
        out, err = self.process.communicate(timeout=600)
        return self.process.returncode, json.loads(out) if out else None, err


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Scratch:
    return prepare_scratch(tmp_path_factory.mktemp("machines") / "demo")


@pytest.fixture(scope="module")
def gate(scratch: Scratch) -> Gate:
    return Gate(scratch)


@pytest.fixture(scope="module")
def platform(scratch: Scratch, gate: Gate) -> Iterator[Platform]:
    pool = '\n[advanced.execution]\npool = "gpu"\n'
    write_config(scratch, CONFIG, rows=ROWS, more=pool, **held(ATTEMPTS))
    with connected_platform(scratch, settings={"OSMOSIS_LEASE_SECONDS": "5"}) as platform:
        platform.command("platform", "worker-token", "create", "--pool", "gpu", "--output", TOKEN)
        yield platform


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


@pytest.fixture(autouse=True)
def end_of_machines(gate: Gate) -> Iterator[None]:
    """Let no machine of a test that failed take the runs of the next one."""
    yield
    gate.open()
    while Machine.running:
        machine = Machine.running.pop()
        if machine.process.poll() is None:
            machine.power_off()


def under_way(platform: Platform, machine: Machine, run: Run, records: int) -> Run:
    """Wait until a machine has recorded so many results of a run, and return this as it is there."""
    there = Run(platform, run.id, run.name, machine.home)
    assert there.await_moment(Kill(records, "nobody", 0.0))
    return there


def test_a_run_whose_machine_is_gone_or_sent_away_is_finished_by_another_one(
    platform: Platform, calm: Run, gate: Gate
) -> None:
    run = platform.submit(CONFIG)
    gate.close(after=ASKS)
    first = Machine(platform, "first", **SEES_GATE)
    under_way(platform, first, run, 10)
    first.power_off()
    journal = first.home / "runs" / run.id / "evaluation" / run.name / "events.jsonl"
    assert 10 <= len(journal.read_bytes().splitlines()) < ROWS * ATTEMPTS, "it fell in mid-run"

    second = Machine(platform, "second", **SEES_GATE)
    under_way(platform, second, run, 25)
    token_id = platform.command("platform", "worker-token", "list")["items"][0]["id"]
    platform.command("platform", "worker-token", "revoke", token_id, "--yes")
    status, told, err = second.end()
    assert (status, told) == (1, None)
    assert json.loads(err.splitlines()[-1])["error"]["message"] == "This token has been revoked."
    gate.open()

    platform.command("platform", "worker-token", "create", "--pool", "gpu", "--output", TOKEN, "--force")
    status, told, err = Machine(platform, "third", "--once").end()
    assert (status, told["resource"]["runs"][0]["attempt"]) == (0, 3), err
    assert run.finish()["status"] == "finished"
    require_same_results(run, calm)
    assert samples(run.results) == samples(calm.results), "whoever was counted has its conversation"


def test_sigterm_puts_a_run_aside_with_all_it_has_and_another_machine_goes_on(
    platform: Platform, calm: Run, gate: Gate
) -> None:
    run = platform.submit(CONFIG)
    gate.close(after=ASKS)
    first = Machine(platform, "fourth", **SEES_GATE)
    under_way(platform, first, run, 10)
    first.process.terminate()
    status, told, err = first.end()
    assert (status, told["resource"]["runs"][0]["ending"]) == (0, "left"), err
    assert platform.command("eval", "list")["items"][0]["status"] == "running"
    gate.open()
    status, _, err = Machine(platform, "fifth", "--once").end()
    assert status == 0, err
    assert run.finish()["status"] == "finished"
    require_same_results(run, calm)
    assert samples(run.results) == samples(calm.results)


def test_a_run_that_is_stopped_while_a_machine_works_on_it_keeps_what_was_finished(
    platform: Platform, gate: Gate
) -> None:
    run = platform.submit(CONFIG)
    gate.close(after=ASKS)
    machine = Machine(platform, "stopped", "--once", **SEES_GATE)
    under_way(platform, machine, run, 10)
    assert platform.command("eval", "stop", run.name, "--yes")["status"] == "success"
    status, _, err = machine.end()
    assert status == 0, err
    assert platform.command("eval", "info", run.name)["data"]["eval_run"]["status"] == "stopped"
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


def test_a_second_sigterm_ends_a_worker_at_once_and_names_the_run_that_it_leaves(
    platform: Platform, calm: Run, gate: Gate
) -> None:
    run = platform.submit(CONFIG)
    gate.close(after=ASKS)
    patient = [warm_python(), "-c", PATIENT_WORKER]
    first = Machine(platform, "twice", program=patient, **SEES_GATE, **{NARRATE_ENV: "1"})
    under_way(platform, first, run, 10)
    worker = child_of(process_of(first.process.pid), WORKER)
    assert worker is not None
    # A stopped worker cannot release its run before the second signal. Its pending signals show the first one.
    stop_process(worker)
    os.kill(process_of(first.process.pid), signal.SIGTERM)
    await_pending(worker, signal.SIGTERM)
    os.kill(process_of(first.process.pid), signal.SIGTERM)
    status, told, err = first.end()
    assert (status, told) == (130, None), err
    assert f"let go of the run {run.name} for another worker; what was not sent is done again" in err
    gate.open()
    status, _, err = Machine(platform, "after", "--once").end()
    assert status == 0, err
    assert run.finish()["status"] == "finished"
    require_same_results(run, calm)


def test_what_is_no_worker_token_here_is_refused_in_a_sentence(platform: Platform, tmp_path: Path) -> None:
    user = platform.command("platform", "token", "create")["resource"]["token"]
    (tmp_path / "token").write_text(user)
    status, _, err = Machine(platform, "sixth", "--token-file", str(tmp_path / "token")).end()
    assert status == 1
    assert "osmosis platform worker-token create --pool NAME" in err and user not in err
