"""The control group of a run: what is written where, what the kernel then does, and that nothing is left behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from osmosis_ai.sandbox.control_groups import (
    CGROUP_ENV,
    LEAF,
    PREFIX,
    Delegation,
    ProcessLimits,
    ProcessView,
    Resource,
    RunGroup,
    RunLimits,
    arrange,
    control_run,
    end_group,
    hierarchy_mount,
    limit_words,
    look_at_control,
    look_at_delegation,
    own_group,
    sweep,
)
from tests.sandbox.conftest import Machine

ALL = ("memory", "pids", "cpu")


class Tree:
    """A directory that looks like a hierarchy of control groups, and processes that are in one of its groups."""

    def __init__(self, root: Path, group: str = "system.slice/osmosis.service") -> None:
        self.mount, self.proc = root / "cgroup", root / "proc"
        self.group = self.mount / group
        self.view = ProcessView(proc=self.proc, systemd=root / "systemd", pid=50, user=1000, patience_s=0)
        self.add(self.mount, root=True)
        for folder in (*reversed(self.group.relative_to(self.mount).parents[:-1]), Path(group)):
            self.add(self.mount / folder)
        (self.proc / "self").mkdir(parents=True)
        (self.proc / "self" / "cgroup").write_text(f"4:memory:/else\n0::/{group}\n")
        (self.proc / "self" / "mountinfo").write_text(
            f"31 23 0:28 / /sys rw,relatime - sysfs sysfs rw\n41 31 0:38 / {self.mount} rw - cgroup2 cgroup2 rw\n"
        )
        self.process(50, parent=1)

    def add(self, group: Path, *, root: bool = False, controllers: str = "cpuset cpu io memory pids") -> None:
        group.mkdir(parents=True, exist_ok=True)
        for name in ("cgroup.controllers", "cgroup.subtree_control"):
            (group / name).write_text(f"{controllers}\n")
        (group / "cgroup.procs").write_text("")
        if not root:
            (group / "cgroup.events").write_text("populated 1\n")

    def process(self, pid: int, parent: int) -> None:
        (self.proc / str(pid)).mkdir()
        (self.proc / str(pid) / "stat").write_text(f"{pid} (a ) b) S {parent} {pid} {pid}")
        with (self.group / "cgroup.procs").open("a") as members:
            members.write(f"{pid}\n")

    def above_is_roots(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let writing be refused above the group, as it is to a service's user."""
        really, own = os.access, str(self.group)

        def access(path: str | Path, mode: int) -> bool:
            mine = not str(path).startswith(str(self.mount)) or str(path).startswith(own)
            return mine and really(path, mode)

        monkeypatch.setattr(os, "access", access)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_a_service_may_use_its_delegated_group_unless_others_have_processes_there(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "not delegated" in (look_at_delegation(tree.view).problem or ""), "its user may write above it"
    tree.above_is_roots(monkeypatch)
    tree.process(51, parent=50)
    assert own_group(tree.proc) == tree.group
    assert look_at_delegation(tree.view) == Delegation(tree.group, ALL)
    tree.process(70, parent=1)
    found = look_at_delegation(tree.view)
    assert found.path is None and "not this platform's alone" in (found.problem or "")

    def end(_seconds: float) -> None:
        (tree.group / "cgroup.procs").write_text("50\n")

    # The processes of an ending sandbox lose their parent before they are gone.
    monkeypatch.setattr("osmosis_ai.sandbox.control_groups.time.sleep", end)
    assert look_at_delegation(replace(tree.view, patience_s=60)).path == tree.group
    (tree.group / "cgroup.controllers").write_text("memory pids\n")
    assert look_at_delegation(tree.view).controllers == ("memory", "pids")
    (tree.group / "cgroup.controllers").write_text("hugetlb\n")
    assert "none of the controllers memory, pids, cpu" in (look_at_delegation(tree.view).problem or "")
    (tree.group / "cgroup.controllers").write_text("memory\n")
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "not delegated" in (look_at_delegation(tree.view).problem or "")


def test_a_worker_in_the_leaf_of_the_platform_makes_groups_beside_it(tree: Tree) -> None:
    tree.add(tree.group / LEAF)
    (tree.proc / "self" / "cgroup").write_text("0::/system.slice/osmosis.service/osmosis-main\n")
    assert look_at_delegation(tree.view) == Delegation(tree.group, ALL)


def test_root_needs_systemds_word_where_systemd_runs(tree: Tree) -> None:
    root = replace(tree.view, user=0)
    assert look_at_delegation(root).path == tree.group
    root.systemd.mkdir()
    assert look_at_delegation(root).path is None


def test_what_the_users_systemd_gave_away_is_known_by_its_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It marks none of its groups, and all of them may be written to."""
    ours = "user.slice/user-1000.slice/user@1000.service/app.slice/run-r5.scope"
    tree = Tree(tmp_path, ours)
    tree.view.systemd.mkdir()
    program, answer = tmp_path / "bin" / "systemctl", tmp_path / "answer"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\n[ "$1 $2 $5 $6" = "--user show -- run-r5.scope" ] && cat {answer}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    for said, given in (
        (f"Delegate=yes\nControlGroup=/{ours}\n", tree.group),
        (f"Delegate=no\nControlGroup=/{ours}\n", None),
        ("Delegate=yes\nControlGroup=/user.slice/another/run-r5.scope\n", None),
        ("Delegate=yes\nControlGroup=\n", None),
    ):
        answer.write_text(said)
        assert look_at_delegation(tree.view).path == given
    answer.unlink()
    assert look_at_delegation(tree.view).path is None


def test_in_a_container_what_started_the_platform_moves_with_it(tmp_path: Path) -> None:
    tree = Tree(tmp_path, "")
    (tree.mount / "cgroup.events").write_text("populated 1\n")
    tree.process(1, parent=0)
    assert look_at_delegation(tree.view) == Delegation(tree.mount, ALL)
    tree.process(9, parent=1)
    assert "not this platform's alone" in (look_at_delegation(tree.view).problem or "")


def test_a_group_that_lies_outside_of_what_is_shown_is_none(tree: Tree) -> None:
    (tree.proc / "self" / "cgroup").write_text("0::/../elsewhere\n")
    assert "version 2" in (look_at_delegation(tree.view).problem or "")
    (tree.proc / "self" / "mountinfo").write_text("")
    (tree.proc / "self" / "cgroup").write_text("0::/\n")
    assert own_group(tree.proc) is None


@pytest.mark.parametrize(
    ("limits", "written"),
    [
        (
            RunLimits(memory_gb=1.5, cpus=0.5, processes=100),
            {"memory.max": "1610612736", "pids.max": "100", "cpu.max": "50000 100000"},
        ),
        (RunLimits(), {"pids.max": "4096"}),
    ],
)
def test_the_limits_of_a_run_are_written_where_the_kernel_reads_them(
    tmp_path: Path, limits: RunLimits, written: dict[str, str]
) -> None:
    group = RunGroup.make(Delegation(tmp_path, ALL), "r1", limits)
    found = {file.name: file.read_text() for file in group.path.iterdir()}
    assert found == {**written, "cgroup.subtree_control": "+memory"}
    command = group.command(["/bin/bwrap", "x"], "server-2")
    assert command[3:] == [str(group.path / "server-2" / "cgroup.procs"), "/bin/bwrap", "x"]
    assert (group.path / "server-2" / "memory.oom.group").read_text() == "1"
    # The kernel makes this file if it accounts for swap.
    (group.path / "memory.swap.max").write_text("max")
    RunGroup.make(Delegation(tmp_path, ALL), "r1", limits)
    assert (group.path / "memory.swap.max").read_text() == ("max" if limits.memory_gb is None else "0")


def test_a_death_at_the_runs_limit_of_memory_says_so(tmp_path: Path) -> None:
    group = RunGroup.make(Delegation(tmp_path, ALL), "r1", RunLimits(memory_gb=4))

    def events(place: Path, oom: int, killed: int) -> None:
        (place / "memory.events").write_text(
            f"low 0\nhigh 0\nmax 9\noom {oom}\noom_kill {killed}\noom_group_kill 1\n"
        )

    group.command(["/bin/true"], "server-1")
    assert group.end_of("server-1") is None
    events(group.path / "server-1", 0, 3)
    assert group.end_of("server-1") is None, (
        "the machine had no memory left, and the run was within its limit"
    )
    events(group.path, 1, 3)
    said = group.end_of("server-1")
    assert said is not None and said.words == "killed for memory: the run's limit is 4 GB"
    assert "memory_gb" in said.remedy
    group.command(["/bin/true"], "server-1")
    assert group.end_of("server-1") is None, "that was the start before"


def test_processes_that_a_run_was_refused_are_told_like_memory(tmp_path: Path) -> None:
    group = RunGroup.make(Delegation(tmp_path, ALL), "r1", RunLimits(processes=64))
    events, peak = group.path / "pids.events", group.path / "pids.peak"

    group.command(["/bin/true"], "server-1")
    assert group.end_of("server-1") is None and group.refused == 0
    events.write_text("max 3\n")
    said = group.end_of("server-1")
    assert said is not None and said.words == "refused a process: the run's limit is 64"
    assert "threads count, too" in said.remedy
    assert group.refused == 3
    peak.write_text("12\n")
    assert group.end_of("server-1") is None and group.refused == 0, (
        "a group above had no more to give, and the run was within its limit"
    )
    peak.write_text("64\n")
    assert group.end_of("server-1") == said
    group.command(["/bin/true"], "server-1")
    assert group.end_of("server-1") is None, "that was the start before"
    for place in (group.path, group.path / "server-1"):
        (place / "memory.events").write_text("oom 1\noom_kill 1\n")
    events.write_text("max 4\n")
    said = group.end_of("server-1")
    assert said is not None and said.words.startswith("killed for memory"), "that is what ended it"


@pytest.mark.parametrize(
    ("limited", "user", "words"),
    [
        (("memory", "processes", "CPU"), 0, "cgroup (memory, processes, CPU)"),
        (
            ("processes",),
            7,
            "cgroup (processes), rlimits (memory of each process); unlimited: memory of the run, CPU",
        ),
        ((), 7, "rlimits (memory of each process, processes); unlimited: memory of the run, CPU"),
        # The kernel counts no processes of root.
        ((), 0, "rlimits (memory of each process); unlimited: memory of the run, processes, CPU"),
    ],
)
def test_limits_are_described_and_a_process_limits_what_its_group_does_not(
    limited: tuple[Resource, ...], user: int, words: str
) -> None:
    assert limit_words(frozenset(limited), by="cgroup", user=user) == f"limits: {words}"
    script = RunLimits(memory_gb=1, processes=9).shell(limited)
    assert ("ulimit -d 1048576" in script) == ("memory" not in limited)
    assert ("ulimit -u 9" in script) == ("processes" not in limited)


def test_a_sandbox_starts_in_its_group_or_not_at_all(machine: Machine, tmp_path: Path) -> None:
    """The kernel's side is a directory here, and the file that a process joins by a plain one."""
    group = RunGroup.make(Delegation(tmp_path, ALL), "r1", RunLimits())
    machine.sandbox = replace(machine.sandbox, control=group)
    assert machine.run("ulimit -u; echo up").stdout.split()[-1] == "up"
    (joined,) = (group.path / "program" / "cgroup.procs").read_text().split()
    assert joined.isdigit()
    shutil.rmtree(group.path / "program")
    (group.path / "program").write_text("not a directory")
    ended = machine.run("echo up")
    assert ended.returncode != 0 and "up" not in ended.stdout.split()


def test_groups_whose_worker_is_gone_are_ended_and_those_of_others_are_not(tmp_path: Path) -> None:
    mine = RunGroup(tmp_path / f"{PREFIX}mine.{os.getpid()}.0", (), RunLimits())
    gone = subprocess.Popen(["/bin/true"])
    gone.wait()
    for name in (f"{PREFIX}a.{gone.pid}.77/server-1", mine.path.name, "another.service"):
        (tmp_path / name).mkdir(parents=True)
    owned = RunGroup.make(Delegation(tmp_path, ()), "r2", RunLimits())
    # The number of this process, of a time when another one had it: nobody's, too.
    assert sweep(tmp_path) == 2
    assert {entry.name for entry in tmp_path.iterdir()} == {owned.path.name, "another.service"}


def test_the_operator_may_have_no_group_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CGROUP_ENV, "off")
    assert look_at_control().words.endswith("no cgroup: OSMOSIS_CGROUP=off")
    assert control_run("r1", RunLimits()) == ProcessLimits("OSMOSIS_CGROUP=off")


# -- the kernel's own ------------------------------------------------------------------------


@pytest.fixture
def hierarchy() -> Iterator[Path]:
    """A new group of this machine's unified hierarchy, or of what this process was given of it; it may limit nothing."""
    above = look_at_delegation().path or hierarchy_mount()
    if above is None:
        pytest.skip("there is no unified hierarchy of control groups here (cgroup v2)")
    place = above / f"osmosis-test-{os.getpid()}"
    try:
        place.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made at {above}: {error.strerror}")
    yield place
    assert end_group(place)


@pytest.mark.integration
def test_what_left_its_session_ends_with_the_group(hierarchy: Path) -> None:
    group = RunGroup.make(Delegation(hierarchy, ()), "r1", RunLimits())
    script = "setsid sleep 600 & setsid sleep 600 & echo up; wait"
    server = subprocess.Popen(group.command(["/bin/sh", "-c", script], "server-1"), stdout=subprocess.PIPE)
    assert server.stdout is not None and server.stdout.readline() == b"up\n"
    group.close()
    # The pipe's last writers are those that left: at its end there is none.
    assert server.stdout.read() == b""
    assert server.wait() == -9 and not group.path.exists()
    server.stdout.close()


@pytest.mark.integration
def test_what_is_in_the_sandbox_is_in_the_group_and_sees_none_around_it(
    machine: Machine, hierarchy: Path
) -> None:
    group = RunGroup.make(Delegation(hierarchy, ()), "r1", RunLimits())
    machine.sandbox = replace(machine.sandbox, control=group)
    program = machine.sandbox.command(
        ["/bin/sh", "-c", "grep 0:: /proc/self/cgroup; ls /sys/fs/cgroup; exec sleep 600"],
        cwd=machine.sandbox.source,
        writable=[],
        part="server-1",
    )
    server = machine.popen(program)
    assert server.stdout is not None and server.stdout.readline() == b"0::/\n"
    # Bubblewrap outside, its first process inside, and the program with what it starts.
    assert len((group.path / "server-1" / "cgroup.procs").read_text().split()) >= 3
    group.close()
    assert server.stdout.read() == b"" and server.wait() == -9
    server.stdout.close()


@pytest.mark.integration
def test_the_run_of_a_killed_worker_is_ended_by_the_next_one(hierarchy: Path) -> None:
    code = (
        "import subprocess, sys; from pathlib import Path; from osmosis_ai.sandbox.control_groups import RunLimits;"
        "from osmosis_ai.sandbox.control_groups import RunGroup; from osmosis_ai.sandbox.control_groups import Delegation;"
        f"group = RunGroup.make(Delegation(Path({str(hierarchy)!r}), ()), 'r1', RunLimits());"
        "server = subprocess.Popen(group.command(['/bin/sh', '-c', 'echo up; exec sleep 600'], 'server-1'));"
        "server.wait()"
    )
    worker = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert worker.stdout is not None and worker.stdout.readline() == b"up\n"
    assert sweep(hierarchy) == 0, "its worker is there"
    worker.kill()
    worker.wait()
    assert sweep(hierarchy) == 1
    assert worker.stdout.read() == b"" and not list(hierarchy.glob(f"{PREFIX}*"))
    worker.stdout.close()


@pytest.mark.integration
def test_a_process_that_arranges_its_group_moves_out_of_its_childrens_way(hierarchy: Path) -> None:
    code = (
        "from pathlib import Path; import subprocess, sys;"
        f"Path({str(hierarchy / 'cgroup.procs')!r}).write_text('0');"
        "from osmosis_ai.sandbox.control_groups import *;"
        "child = subprocess.Popen(['sleep', '600']);"
        "arrange(Delegation(own_group(), ())); print(own_group().name);"
        f"print(Path({str(hierarchy / 'cgroup.procs')!r}).read_text().split(), flush=True);"
        "child.kill(); child.wait()"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == [LEAF, "[]"]


@pytest.fixture
def delegated() -> Delegation:
    """What this machine's kernel limits for this process, arranged."""
    found = arrange(look_at_delegation())
    if found.path is None:
        pytest.skip(f"no control group limits anything here: {found.problem}")
    return found


@pytest.mark.integration
@pytest.mark.parametrize(
    ("controller", "limits", "script", "words"),
    [
        (
            "pids",
            RunLimits(processes=32),
            "i=0; while [ $i -lt 200 ]; do sleep 600 & i=$((i+1)); done; echo done",
            "refused a process: the run's limit is 32",
        ),
        (
            "memory",
            RunLimits(memory_gb=0.1),
            "head -c 300000000 /dev/zero | tail -c 300000000 >/dev/null && echo done",
            "killed for memory: the run's limit is 0.1 GB",
        ),
        ("cpu", RunLimits(cpus=0.2), "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done", None),
    ],
)
def test_the_kernel_limits_a_run(
    machine: Machine,
    delegated: Delegation,
    controller: str,
    limits: RunLimits,
    script: str,
    words: str | None,
) -> None:
    if controller not in delegated.controllers:
        pytest.skip(f"the kernel does not limit {controller} here")
    group = RunGroup.make(delegated, controller, limits)
    machine.sandbox = replace(machine.sandbox, control=group)
    try:
        ended = machine.run(script)
        met, statistics = group.end_of("program"), group.path / "cpu.stat"
        throttled = words is None and "nr_throttled 0\n" not in statistics.read_text()
    finally:
        group.close()
    assert "done" not in ended.stdout
    assert (met.words if met is not None else None) == words
    assert words is not None or throttled
