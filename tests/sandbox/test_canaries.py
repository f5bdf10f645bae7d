"""What a malicious rollout reaches from its sandbox: nothing that was planted, and nothing that it could spoil."""

from __future__ import annotations

import os
import re
import resource
import secrets
import shutil
import socket
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import osmosis_ai
from osmosis_ai.process_environment import program_environment
from osmosis_ai.processes import ChildProcess
from osmosis_ai.sandbox import SandboxCapability, processors_for
from osmosis_ai.sandbox.bubblewrap import interpreter_places
from tests.sandbox.conftest import Machine, make_machine

pytestmark = pytest.mark.integration

# What is asked for by name, then whatever else there is that is no system's file.
NAMED = """
for place in "$@" /proc/[0-9]*/environ /proc/[0-9]*/cmdline; do
  cat "$place" 2>/dev/null
  [ -d "$place" ] && find "$place" -type f -exec cat {} + 2>/dev/null
done
"""
ELSE = """
find / -xdev -type f -size -64k -not -path "/usr/*" -not -path "/proc/*" -exec cat {} + 2>/dev/null
find "$HOME" /root /tmp /var /run /home -type f -size -64k -exec cat {} + 2>/dev/null
exit 0
"""
EVERYTHING = NAMED + ELSE

REACH = """
import socket, sys
places = [("loopback", socket.AF_INET, ("127.0.0.1", int(sys.argv[1]))), ("abstract", socket.AF_UNIX, "\\0" + sys.argv[2])]
for name, family, place in places:
    with socket.socket(family) as tried:
        print("-" if tried.connect_ex(place) else name)
"""


def test_no_canary_is_within_reach(machine: Machine) -> None:
    places = [place for place in machine.canaries if place.startswith("/")]
    ended = machine.run(EVERYTHING, machine.root, *places)
    assert machine.found(ended.stdout) == []
    assert len(machine.canaries) == 9


def test_the_same_reading_finds_every_canary_without_a_sandbox(machine: Machine) -> None:
    machine.run("true")
    ended = subprocess.run(
        [
            "/bin/sh",
            "-c",
            EVERYTHING.partition("find / ")[0],
            "sh",
            *[place for place in machine.canaries if place[0] == "/"],
        ],
        env={
            "PATH": os.environ["PATH"],
            "HOME": "/nonexistent",
            "X": machine.canaries["the operator's environment"],
        },
        capture_output=True,
        check=False,
    )
    assert sorted(machine.found(ended.stdout.decode(errors="replace"))) == sorted(machine.canaries)


def test_directories_beside_the_runs_own_are_not_even_there(machine: Machine) -> None:
    data = machine.root / "data"
    seen = machine.run('find "$1" -maxdepth 3', data).stdout.split()
    mine = machine.sandbox.source.parent
    assert set(seen) == {
        *(str(place) for place in (data, data / "runs", mine, mine / "source", mine / "evaluation")),
    }


@pytest.mark.parametrize(
    "place", ["/usr/x", "/etc/x", "/x", "/run/x", "/proc/x", "/var/x", "/etc/passwd", "/proc/sysrq-trigger"]
)
def test_the_system_can_not_be_written_to(machine: Machine, place: str) -> None:
    ended = machine.run(': >> "$1" && echo opened', place)
    assert "opened" not in ended.stdout
    assert not place.endswith("/x") or not Path(place).exists()


def test_no_setting_of_the_kernel_can_be_changed_and_none_of_its_memory_read(machine: Machine) -> None:
    ended = machine.run(
        "find /proc -path '/proc/[0-9]*' -prune -o -path /proc/pressure -prune -o -type f -writable -print;"
        " cat /proc/kcore /proc/kmsg /proc/kpageflags /proc/slabinfo | head -c 10"
    )
    assert [line for line in ended.stdout.splitlines() if "No such file" not in line] == []


def test_the_sdk_and_the_interpreter_can_not_be_written_to(machine: Machine) -> None:
    places = [Path(osmosis_ai.__file__).parent / "x.py", Path(sys.prefix) / "x.py"]
    ended = machine.run('for place in "$@"; do echo x > "$place" && echo written; done', *places)
    assert "written" not in ended.stdout
    assert not any(place.exists() for place in places)


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


def test_processes_of_the_machine_can_not_be_seen(machine: Machine) -> None:
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


@pytest.mark.parametrize("held_back", [True, False])
def test_a_variable_that_is_longer_than_linux_lets_one_be_is_named_with_the_limit(
    machine: Machine, held_back: bool
) -> None:
    words, source = ["/bin/sh", "-c", "exit 7"], machine.sandbox.source
    program = machine.sandbox.command(words, cwd=source, writable=[]) if held_back else words
    limit = 32 * os.sysconf("SC_PAGE_SIZE")
    longest = {**program_environment(os.environ), "LONG": "x" * (limit - len("LONG=") - 1)}
    assert ChildProcess(program, env=longest, cwd=source, stdout=None).finish(timeout_s=60) == 7
    said = f"the variable LONG has {limit + 1:,} bytes with its name, and Linux gives a program none of more than"
    with pytest.raises(OSError, match=said) as refused:
        ChildProcess(program, env={**longest, "LONG": longest["LONG"] + "x"}, cwd=source, stdout=None)
    assert "xx" not in str(refused.value)


@pytest.mark.parametrize("held_back", [True, False])
def test_variables_that_are_too_long_together_are_named_with_their_total_and_without_their_values(
    machine: Machine, held_back: bool
) -> None:
    words, source = ["/bin/sh", "-c", "exit 7"], machine.sandbox.source
    program = machine.sandbox.command(words, cwd=source, writable=[]) if held_back else words
    stack, _ = resource.getrlimit(resource.RLIMIT_STACK)
    most = 6 << 20 if stack == resource.RLIM_INFINITY else min(stack // 4, 6 << 20)
    shared = {**program_environment(os.environ), "LARGEST": "x" * 100_000, "LARGER": "x" * 90_000}
    many = {f"MANY_{number}": "x" * 80_000 for number in range((most - 250_000) // 80_000)}
    assert ChildProcess(program, env={**shared, **many}, cwd=source, stdout=None).finish(timeout_s=60) == 7
    too_many = {**shared, **many, "ONE_MORE": "x" * 80_000, "TWO_MORE": "x" * 80_000}
    total = sum(len(name) + len(value) + 2 for name, value in too_many.items())
    with pytest.raises(OSError, match="bytes together, and") as refused:
        ChildProcess(program, env=too_many, cwd=source, stdout=None)
    # The lifeline's variable is one of them.
    told = int(re.findall(r"have ([\d,]+) bytes together", str(refused.value))[0].replace(",", ""))
    assert 0 <= told - total < 100
    assert f"{most:,}" in str(refused.value)
    assert "the largest are LARGEST (100,009), LARGER (90,008), ONE_MORE (80,010)" in str(refused.value)
    assert "xx" not in str(refused.value)


@pytest.mark.parametrize(
    "env", [{"KEY": "x\0--bind\0/\0/mnt"}, {"KEY\0x": "y"}, {"": "x"}, {"A=B": "x"}], ids=repr
)
def test_no_value_becomes_an_option_of_bubblewraps(machine: Machine, env: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="variable's name is empty"):
        machine.run("ls /mnt", env=env)


def test_one_that_outlives_its_server_in_a_session_of_its_own_ends_with_the_sandbox(machine: Machine) -> None:
    alive = machine.artifacts / "alive"
    script = 'setsid sh -c \'while :; do echo x >> "$1"; sleep 0.01; done\' sh "$1" & while [ ! -s "$1" ]; do :; done; echo up; exec sleep 600'
    program = machine.sandbox.command(
        ["/bin/sh", "-c", script, "sh", str(alive)], cwd=machine.sandbox.source, writable=[machine.artifacts]
    )
    server = machine.popen(program)
    assert server.stdout is not None and server.stdout.readline() == b"up\n"
    server.kill()
    server.wait()
    # The pipe's last writer is the one in a session of its own: at its end there is none left.
    assert server.stdout.read() == b""
    server.stdout.close()
    assert alive.read_text()


def test_forking_without_end_meets_the_runs_own_limit(nobodys_machine: Machine) -> None:
    ended = nobodys_machine.run("i=0; while [ $i -lt 200 ]; do sleep 600 & i=$((i+1)); done; echo forked")
    assert "fork" in ended.stdout, ended.stdout
    assert "forked" not in ended.stdout


def test_what_an_ordinary_users_sandbox_reaches_holds_no_canary_either(nobodys_machine: Machine) -> None:
    places = [place for place in nobodys_machine.canaries if place.startswith("/")]
    ended = nobodys_machine.run(f"id -u; {EVERYTHING}", nobodys_machine.root, *places)
    assert ended.stdout.startswith("1000\n")
    assert nobodys_machine.found(ended.stdout) == []


def test_forking_as_root_meets_no_limit_which_is_why_a_platform_has_a_user_of_its_own(
    tmp_path: Path, capability: SandboxCapability
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root is not counted")
    machine = make_machine(tmp_path, capability, processes=8)
    ended = machine.run("i=0; while [ $i -lt 32 ]; do sleep 600 & i=$((i+1)); done; echo forked")
    assert "forked" in ended.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="abstract sockets are Linux's")
def test_with_a_network_it_reaches_what_listens_on_its_machine(machine: Machine) -> None:
    abstract = f"\0osmosis-{secrets.token_hex(8)}"
    with socket.create_server(("127.0.0.1", 0)) as loopback, socket.socket(socket.AF_UNIX) as unnamed:
        unnamed.bind(abstract)
        unnamed.listen()
        places = [str(loopback.getsockname()[1]), abstract[1:]]
        machine.sandbox = replace(machine.sandbox, readable=interpreter_places(Path(sys.executable)))
        with_network = machine.run('exec "$@"', sys.executable, "-c", REACH, *places)
        held = replace(machine, sandbox=replace(machine.sandbox, network="none"))
        without = held.run('exec "$@"', sys.executable, "-c", REACH, *places)
    assert with_network.stdout.split() == ["loopback", "abstract"]
    assert without.stdout.split() == ["-", "-"]


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


def test_a_process_that_takes_more_memory_than_the_run_may_gets_none(machine: Machine) -> None:
    machine.sandbox = replace(machine.sandbox, limits=replace(machine.sandbox.limits, memory_gb=0.1))
    ended = machine.run("head -c 300000000 /dev/zero | tail -c 300000000 | wc -c")
    assert "300000000" not in ended.stdout
    assert "memory" in ended.stdout


def test_a_run_starts_on_as_many_processors_as_it_was_granted(machine: Machine) -> None:
    there = os.sched_getaffinity(0)
    assert processors_for(None) == processors_for(len(there)) == ()
    if len(there) < 2 or shutil.which("taskset") is None:
        pytest.skip("there is one processor, or no taskset")
    chosen = processors_for(0.5)
    assert len(chosen) == 1 and set(chosen) < there
    machine.sandbox = replace(machine.sandbox, limits=replace(machine.sandbox.limits, processors=chosen))
    assert machine.run("grep Cpus_allowed_list /proc/self/status").stdout.split()[1] == str(chosen[0])
