"""Which of the three holds a run to its limits: a group that was given, one that systemd gives, or each process's own."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from osmosis_ai.controller.environments import Uv, UvError
from osmosis_ai.controller.server_process import RolloutServer, ServerSpec
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.isolation import look_at_isolation
from osmosis_ai.platform.worker.process import WorkingDirectory, worker_starter
from osmosis_ai.processes.child_process import ChildProcess
from osmosis_ai.processes.service import ServiceError
from osmosis_ai.sandbox import control_groups
from osmosis_ai.sandbox.bubblewrap import interpreter_places
from osmosis_ai.sandbox.control_groups import (
    CGROUP_ENV,
    Delegation,
    RunGroup,
    RunLimits,
    control_run,
    look_at_control,
    prepare_control,
)
from osmosis_ai.sandbox.isolation import SandboxCapability
from tests.platform.evaluations import wait_until
from tests.platform.worker.fake_platform import assignment

ALL = ("memory", "pids", "cpu")
NOT_GIVEN = Delegation(problem="the cgroup of this process is not delegated to it")


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory in the place of a group that this process may arrange."""
    monkeypatch.delenv(CGROUP_ENV)
    group = tmp_path / "osmosis.service"
    group.mkdir()
    found = Delegation(group, ALL)
    monkeypatch.setattr(control_groups, "look_at_delegation", lambda: found)
    monkeypatch.setattr(control_groups, "arrange", lambda found: found)
    # A kernel's group is empty once its processes are gone; the files of a directory stay.
    monkeypatch.setattr(control_groups, "end_group", shutil.rmtree)
    return group


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `systemd-run` that writes down how it was called and makes no scope, with what the kernel limits there."""
    monkeypatch.delenv(CGROUP_ENV)
    program, called, mount = tmp_path / "systemd-run", tmp_path / "called", tmp_path / "mount"
    program.write_text(
        f'#!/bin/sh\necho "$*" >> {called}\nwhile [ "$1" != -- ]; do shift; done\nshift\nexec "$@"\n'
    )
    program.chmod(0o755)
    own = next(line for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
    scope = mount / own[3:].lstrip("/")
    scope.mkdir(parents=True)
    (scope / "cgroup.controllers").write_text("cpuset memory pids\n")
    monkeypatch.setattr(control_groups, "look_at_delegation", lambda: NOT_GIVEN)
    monkeypatch.setattr(control_groups, "hierarchy_mount", lambda: mount)
    monkeypatch.setattr(control_groups.shutil, "which", lambda name: str(program))
    return called


def test_a_group_that_was_given_holds_everything(given: Path) -> None:
    assert look_at_control().words == prepare_control().words == "limits: cgroup (memory, processes, CPU)"
    held = control_run("r1", RunLimits(memory_gb=2))
    assert isinstance(held, RunGroup) and held.path.parent == given
    held.close()


def test_a_worker_in_a_scope_says_that_it_is_one(given: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scope = given.parent / "run-r5.scope"
    scope.mkdir()
    monkeypatch.setattr(control_groups, "look_at_delegation", lambda: Delegation(scope, ("memory", "pids")))
    assert control_run("r1", RunLimits()).words == (
        "limits: cgroup of a systemd scope (memory, processes); unlimited: CPU"
    )


def test_where_no_group_can_be_made_the_reason_is_kept(given: Path) -> None:
    given.rmdir()
    held = control_run("r1", RunLimits())
    assert not held.holds
    assert "No such file" in (getattr(held, "problem", "") or "")


OUT_OF_MEMORY = (
    "for place in {0} {0}/build; do printf 'oom 1\\noom_kill 1\\n' > $place/memory.events; done; kill -9 $$"
)
OUT_OF_PROCESSES = "printf 'max 1\\n' > {0}/pids.events; exit 2"


@pytest.mark.parametrize(
    ("limits", "script", "words"),
    [
        (RunLimits(memory_gb=2), OUT_OF_MEMORY, "killed for memory: the run's limit is 2 GB"),
        (RunLimits(processes=99), OUT_OF_PROCESSES, "refused a process: the run's limit is 99"),
    ],
    ids=["memory", "processes"],
)
def test_a_build_that_meets_its_runs_limit_says_so(
    given: Path, tmp_path: Path, capability: SandboxCapability, limits: RunLimits, script: str, words: str
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    held = control_run("r1", limits)
    assert isinstance(held, RunGroup)
    program = source / "uv"
    program.write_text(f"#!/bin/sh\n{script.format(held.path)}\n")
    program.chmod(0o755)
    sandbox = capability.sandbox(source, limits=held.limits, control=held)
    uv = Uv(program, sandbox, tmp_path, (held.path,))
    with pytest.raises(UvError) as ended:
        uv.run(["sync"], cwd=source, doing="building")
    assert ended.value.message == f"building failed: uv was {words}."
    assert not ended.value.is_infrastructure


def test_systemd_starts_workers_in_a_scope_that_is_theirs_to_arrange(
    systemd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = prepare_control()
    words = "limits: cgroup of a systemd scope (memory, processes); unlimited: CPU"
    assert found.words == look_at_control().words == words
    monkeypatch.setattr(
        "osmosis_ai.platform.isolation.check_sandbox", lambda _home: SandboxCapability(Path("/bin/bwrap"))
    )
    assert look_at_isolation(PlatformConfig(home=tmp_path)) == (f"bubblewrap, network host; {words}", True)
    systemd.unlink()
    start = worker_starter(PlatformConfig(home=tmp_path), "http://127.0.0.1:9")
    claimed = assignment("r1")
    worker = start(claimed)
    assert isinstance(worker, ChildProcess)
    wait_until(lambda: systemd.read_text().endswith(".worker\n"))
    worker.finish(timeout_s=0)
    *_, last = systemd.read_text().splitlines()
    scope, _, program = last.partition(" -- ")
    assert "--scope --quiet --collect --property=Delegate=yes" in scope
    assert program.split()[0] == sys.executable and program.endswith(".worker")
    assert claimed.lease.token.get_secret_value() not in last
    assert WorkingDirectory(PlatformConfig(home=tmp_path).runs_dir, claimed.shard.id).path.is_dir()


def test_a_systemd_that_makes_no_scope_counts_as_none(systemd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = systemd.with_name("systemd-run")
    program.write_text("#!/bin/sh\necho 'Failed to connect to bus' >&2\nexit 1\n")
    found = look_at_control()
    assert found.starter == () and "unlimited: memory of the run" in found.words
    assert found.words.endswith("no cgroup: the cgroup of this process is not delegated to it")
    monkeypatch.setattr(control_groups.shutil, "which", lambda name: None)
    assert look_at_control().starter == ()


async def test_a_server_that_is_killed_at_its_runs_limit_says_so(
    given: Path, tmp_path: Path, capability: SandboxCapability
) -> None:
    """The kernel's part, counting and killing, is the rollout's here: it is let at the file of its group."""
    source = tmp_path / "source"
    source.mkdir()
    held = control_run("r1", RunLimits(memory_gb=2))
    assert isinstance(held, RunGroup)
    (source / "main.py").write_text(
        "import os, signal\nfrom pathlib import Path\n"
        f"for place in ('', 'server-1'):\n    Path({str(held.path)!r}, place, 'memory.events').write_text('oom 1\\noom_kill 1\\n')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    sandbox = capability.sandbox(
        source, readable=interpreter_places(Path(sys.executable)), limits=held.limits, control=held
    )
    spec = ServerSpec(
        rollout_dir=source,
        entrypoint="main.py",
        python=Path(sys.executable),
        env={},
        artifact_root=held.path,
        port=None,
        log_path=tmp_path / "server.log",
        sandbox=sandbox,
    )
    with pytest.raises(ServiceError) as ended:
        async with RolloutServer(spec):
            pass
    first = ended.value.message.splitlines()[0]
    assert "ended before it was ready (killed for memory: the run's limit is 2 GB)" in first
    assert "memory_gb" in (ended.value.hint or "")
    # Whose limit it met is the run's own: nobody tries it again elsewhere.
    assert not ended.value.is_infrastructure and ended.value.cause == "ended"
