"""What a malicious rollout reaches from its sandbox: nothing that was planted, and nothing that it could spoil."""

from __future__ import annotations

import os
import re
import resource
import secrets
import shutil
import stat
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from osmosis_ai.process_environment import program_environment
from osmosis_ai.processes.child_process import ChildProcess
from osmosis_ai.sandbox.control_groups import processors_for
from tests.sandbox.conftest import Machine

pytestmark = pytest.mark.integration

# Reads what is named, the environments and arguments of all processes, then every file outside of the system.
READ_NAMED = """
for place in "$@" /proc/[0-9]*/environ /proc/[0-9]*/cmdline; do
  cat "$place" 2>/dev/null
  [ -d "$place" ] && find "$place" -type f -exec cat {} + 2>/dev/null
done
"""
READ_ALL = f"""{READ_NAMED}
find / -xdev -type f -size -64k -not -path "/usr/*" -not -path "/proc/*" -exec cat {{}} + 2>/dev/null
find "$HOME" /root /tmp /var /run /home -type f -size -64k -exec cat {{}} + 2>/dev/null
exit 0
"""


def test_no_canary_is_within_reach_and_without_a_sandbox_every_one_is(machine: Machine) -> None:
    places = [place for place in machine.canaries if place.startswith("/")]
    assert machine.found(machine.run(READ_ALL, machine.root, *places).stdout) == []
    assert len(machine.canaries) == 9
    operator = {"PATH": os.environ["PATH"], "X": machine.canaries["the operator's environment"]}
    unsandboxed = subprocess.run(
        ["/bin/sh", "-c", READ_NAMED, "sh", *places], env=operator, capture_output=True, check=False
    )
    found = machine.found(unsandboxed.stdout.decode(errors="replace"))
    assert sorted(found) == sorted(machine.canaries)


def test_directories_beside_the_runs_own_are_not_even_there(machine: Machine) -> None:
    data = machine.root / "data"
    seen = machine.run('find "$1" -maxdepth 3', data).stdout.split()
    mine = machine.sandbox.source.parent
    assert set(seen) == {
        *(str(place) for place in (data, data / "runs", mine, mine / "source", mine / "evaluation"))
    }


@pytest.mark.parametrize(
    "place", ["/usr/x", "/etc/x", "/x", "/run/x", "/proc/x", "/var/x", "/etc/passwd", "/proc/sysrq-trigger"]
)
def test_the_system_cannot_be_written_to(machine: Machine, place: str) -> None:
    ended = machine.run(': >> "$1" && echo opened', place)
    assert "opened" not in ended.stdout
    assert not place.endswith("/x") or not Path(place).exists()


def test_no_setting_of_the_kernel_can_be_changed_and_none_of_its_memory_read(machine: Machine) -> None:
    ended = machine.run(
        "find /proc -path '/proc/[0-9]*' -prune -o -path /proc/pressure -prune -o -type f -writable -print;"
        " cat /proc/kcore /proc/kmsg /proc/kpageflags /proc/slabinfo | head -c 10"
    )
    assert [line for line in ended.stdout.splitlines() if "No such file" not in line] == []


@pytest.mark.parametrize("overlays", [True, False])
def test_what_it_changes_in_its_source_ends_with_it(machine: Machine, overlays: bool) -> None:
    if overlays and not machine.sandbox.overlays:
        pytest.skip("the kernel has no overlays here")
    machine.sandbox = replace(machine.sandbox, overlays=overlays)
    ended = machine.run(
        "cat main.py; rm main.py && echo mine > main.py && cat main.py; mkdir -p a/b && echo x > a/b/c"
    )
    assert ended.stdout == "agentmine\n"
    source = machine.sandbox.source
    assert [path.name for path in source.iterdir()] == ["main.py"]
    assert (source / "main.py").read_text() == "agent"


def test_what_it_leaves_among_its_artifacts_stays(machine: Machine) -> None:
    machine.run('echo made > "$1"/made', machine.artifacts)
    made = machine.artifacts / "made"
    assert made.read_text() == "made\n"
    assert made.stat().st_uid == os.geteuid()


def test_temporary_places_hold_no_more_than_they_may(tmp_path: Path, machine: Machine) -> None:
    limits = replace(machine.sandbox.limits, temporary_bytes=1 << 20)
    machine.sandbox = replace(machine.sandbox, limits=limits)
    ended = machine.run(
        'for place in /tmp "$HOME" /dev/shm /var/tmp; do head -c 8388608 /dev/zero > "$place/x"; wc -c < "$place/x"; done'
    )
    sizes = [int(line) for line in ended.stdout.splitlines() if line.strip().isdigit()]
    assert len(sizes) == 4
    assert max(sizes) <= 1 << 20


def test_it_is_nobody_of_the_machine_and_has_no_rights(machine: Machine) -> None:
    ended = machine.run(
        "id -u; id -g; hostname; grep CapEff /proc/self/status; echo $HOME $USER; unshare -U true"
    )
    uid, gid, host, capabilities, home, *refused = ended.stdout.splitlines()
    assert (uid, gid, host, home) == ("1000", "1000", "rollout", "/home/rollout rollout")
    assert int(capabilities.split()[1], 16) == 0
    assert refused, "a user namespace could be made inside"


def test_processes_of_the_machine_cannot_be_seen(machine: Machine) -> None:
    seen = machine.run("ls -d /proc/[0-9]* | wc -l").stdout.strip()
    assert int(seen) < 8


def test_the_first_process_of_the_sandbox_leads_nowhere_beyond_it(machine: Machine) -> None:
    """Not its root, its directories and open files, and not the environment that it was started with."""
    places = [place for place in machine.canaries if place.startswith("/")]
    ended = machine.run(
        'cat /proc/1/environ /proc/1/cmdline; for place in root cwd fd/*; do for file in "$@"; do cat "/proc/1/$place$file";'
        ' done; ls -R "/proc/1/$place/data" "/proc/1/$place/oldroot" "/proc/1/$place/newroot"; done; echo looked',
        *places,
    )
    assert ended.stdout.endswith("looked\n")
    assert machine.found(ended.stdout) == []


def tree_of(pid: int) -> list[int]:
    """Return a process and all that came of it."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(each for child in children for each in tree_of(int(child)))]


def test_it_gets_its_own_secrets_by_its_environment_alone(machine: Machine) -> None:
    """No process around it has them in its arguments, or among the variables that it was started with."""
    ended = machine.run('echo "$OWN_SECRET"', env={"OWN_SECRET": "mine"})
    assert ended.stdout == "mine\n"
    canary = secrets.token_hex(12)
    # It replaces itself by no other program while it is looked at.
    program = machine.sandbox.command(
        ["/bin/sh", "-c", "echo up; while :; do sleep 600; done"], cwd=machine.sandbox.source, writable=[]
    )
    server = machine.popen(program, {"PATH": os.environ["PATH"], "OWN_SECRET": canary})
    assert server.stdout is not None and server.stdout.readline() == b"up\n"
    try:
        # Bubblewrap outside, the sandbox's first process, the shell, and perhaps already its child.
        bubblewrap, first, program_itself, *_ = tree_of(server.pid)
        around = (bubblewrap, first)
        for pid in (*around, program_itself):
            assert canary.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
        for pid in around:
            assert canary.encode() not in Path(f"/proc/{pid}/environ").read_bytes()
        assert canary.encode() in Path(f"/proc/{program_itself}/environ").read_bytes()
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


def test_its_environment_is_the_one_that_it_was_given_and_nothing_else(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even where bubblewrap itself is started with more; and what gave it is not left open."""
    given = {
        "PATH": os.environ["PATH"],
        "EMPTY": "",
        "LINES": "a\nb",
        "BYTES": "\udcff",
        "SSH_AUTH_SOCK": "/x",
    }
    monkeypatch.setenv("LD_LIBRARY_PATH", "/of/the/starter")
    program = machine.sandbox.command(
        ["/bin/sh", "-c", "exec env -0"], cwd=machine.sandbox.source, writable=[machine.artifacts]
    )
    with program.start(given) as begun:
        said = subprocess.run(
            begun.command,
            env={**begun.env, "MORE": "canary"},
            pass_fds=begun.fds,
            capture_output=True,
            check=True,
        ).stdout
    seen = dict(pair.split("=", 1) for pair in os.fsdecode(said).split("\0") if pair)
    # A shell says where it is.
    assert {name: value for name, value in seen.items() if name not in ("PWD", "OLDPWD", "SHLVL", "_")} == {
        **{name: given[name] for name in ("PATH", "EMPTY", "LINES", "BYTES")},
        "HOME": "/home/rollout",
        "TMPDIR": "/tmp",
        "USER": "rollout",
        "LOGNAME": "rollout",
    }
    left = machine.run(
        'for one in 1 "$$"; do for fd in /proc/$one/fd/*; do readlink "$fd"; done; done; echo looked'
    )
    assert left.stdout.endswith("looked\n")
    outputs = {line for line in left.stdout.splitlines() if line.startswith(("pipe:", "/memfd:"))}
    assert len(outputs) == 1, f"more than the pipe of its output is open: {outputs}"


def test_more_variables_than_a_pipe_holds_reach_it(machine: Machine) -> None:
    ended = machine.run(
        "echo ${#LONG}; env | grep -c ^MANY",
        env={"LONG": "x" * 100_000, **{f"MANY_{number}": "y" * 100 for number in range(1500)}},
    )
    assert ended.stdout.split() == ["100000", "1500"]


@pytest.mark.parametrize("sandboxed", [True, False])
def test_variables_that_are_too_long_alone_or_together_are_named_without_their_values(
    machine: Machine, sandboxed: bool
) -> None:
    words, source = ["/bin/sh", "-c", "exit 7"], machine.sandbox.source
    program = machine.sandbox.command(words, cwd=source, writable=[]) if sandboxed else words

    def run(env: dict[str, str]) -> int | None:
        return ChildProcess(program, env=env, cwd=source, stdout=None).finish(timeout_s=60)

    limit, base = 32 * os.sysconf("SC_PAGE_SIZE"), program_environment(os.environ)
    longest = "x" * (limit - len("LONG=") - 1)
    assert run({**base, "LONG": longest}) == 7
    with pytest.raises(
        OSError, match=f"the variable LONG is too long: {limit + 1:,} bytes with its name"
    ) as e:
        run({**base, "LONG": longest + "x"})
    assert "xx" not in str(e.value)

    stack, _ = resource.getrlimit(resource.RLIMIT_STACK)
    most = 6 << 20 if stack == resource.RLIM_INFINITY else min(stack // 4, 6 << 20)
    base |= {"LARGEST": "x" * 100_000, "LARGER": "x" * 90_000}
    base |= {f"MANY_{number}": "x" * 80_000 for number in range((most - 250_000) // 80_000)}
    assert run(base) == 7
    too_many = {**base, "ONE_MORE": "x" * 80_000, "TWO_MORE": "x" * 80_000}
    with pytest.raises(OSError, match="bytes together") as e:
        run(too_many)
    total = sum(len(name) + len(value) + 2 for name, value in too_many.items())
    counted = int(re.findall(r"([\d,]+) bytes together", str(e.value))[0].replace(",", ""))
    assert 0 <= counted - total < 100, "only the lifeline's variable is added"
    assert f"{most:,}" in str(e.value) and "xx" not in str(e.value)
    assert "the largest are LARGEST (100,009), LARGER (90,008), ONE_MORE (80,010)" in str(e.value)


@pytest.mark.parametrize(
    "env", [{"KEY": "x\0--bind\0/\0/mnt"}, {"KEY\0x": "y"}, {"": "x"}, {"A=B": "x"}], ids=repr
)
def test_no_value_becomes_an_option_of_bubblewraps(machine: Machine, env: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="variable's name is empty"):
        machine.run("ls /mnt", env=env)


def test_links_that_it_makes_lead_nowhere_beyond_it(machine: Machine) -> None:
    secret = machine.root / "somewhere" / "else"
    ended = machine.run(
        'ln "$2" "$1/hard"; ln -s "$2" "$1/soft"; mkfifo "$1/pipe"; mknod "$1/disk" b 8 0; ls "$1"',
        machine.artifacts,
        secret,
    )
    left = {entry.name: entry.stat(follow_symlinks=False).st_mode for entry in os.scandir(machine.artifacts)}
    assert set(left) == {"soft", "pipe"}, ended.stdout
    assert stat.S_ISLNK(left["soft"]) and stat.S_ISFIFO(left["pipe"])


def test_a_run_starts_on_as_many_processors_as_it_was_granted(machine: Machine) -> None:
    there = os.sched_getaffinity(0)
    assert processors_for(None) == processors_for(len(there)) == ()
    if len(there) < 2 or shutil.which("taskset") is None:
        pytest.skip("there is one processor, or no taskset")
    chosen = processors_for(0.5)
    assert len(chosen) == 1 and set(chosen) < there
    machine.sandbox = replace(machine.sandbox, limits=replace(machine.sandbox.limits, processors=chosen))
    assert machine.run("grep Cpus_allowed_list /proc/self/status").stdout.split()[1] == str(chosen[0])
