"""A process of ours is not read by other programs of its user, and what it alone is told is in no environment.

Root reads everything, so these tests run as `nobody` where they are started by root.
"""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.supervision import ChildProcess, kept_to_itself
from osmosis_ai.supervision.kept_to_itself import is_debuggable

pytestmark = pytest.mark.integration
CANARY = "canary-8731"
READER = """
import sys
for name in ("environ", "mem"):
    try:
        with open(f"/proc/{sys.argv[1]}/{name}", "rb") as file:
            if name == "mem":
                print("mem")
            elif b"canary-8731" in file.read():
                print("environ")
    except PermissionError:
        pass
"""


def unprivileged() -> dict[str, Any]:
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _interpreter(user: dict[str, Any]) -> str:
    for candidate in (os.path.realpath(sys.executable), "/usr/bin/python3"):
        try:
            subprocess.run([candidate, "-c", ""], cwd="/", check=True, **user)
        except (OSError, subprocess.CalledProcessError):
            continue
        return candidate
    pytest.skip("`nobody` can start no interpreter here")


def what_a_neighbour_reads(variables: dict[str, str]) -> set[str]:
    """Start a process that keeps to itself, and return what another program of its user reads of it."""
    user = unprivileged()
    python = [_interpreter(user), "-I", "-S", "-c"]
    source = Path(kept_to_itself.__file__).read_text()
    keeper = f"{source}\nkeep_to_itself(os.environ)\nprint('ready', flush=True)\nsys.stdin.read()\n"
    with subprocess.Popen(
        [*python, keeper],
        env={"SECRET": CANARY, **variables},
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        **user,
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == b"ready\n"
        reader = [*python, READER, str(process.pid)]
        read = subprocess.run(reader, env={}, cwd="/", capture_output=True, text=True, check=True, **user)
        process.stdin.close()
    return set(read.stdout.split())


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone has it")
def test_neither_environment_nor_memory_is_read_by_another_program_of_the_user() -> None:
    assert what_a_neighbour_reads({}) == set()


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone has it")
def test_an_operator_who_wants_to_look_inside_can() -> None:
    assert "environ" in what_a_neighbour_reads({"OSMOSIS_DEBUGGABLE": "1"})
    assert not is_debuggable({}) and not is_debuggable({"OSMOSIS_DEBUGGABLE": "0"})


async def test_what_a_child_alone_is_told_is_in_no_environment(tmp_path: Path) -> None:
    program = """
import json, os
from osmosis_ai.supervision import take_handed
began_with = open("/proc/self/environ").read() if os.path.exists("/proc/self/environ") else str(os.environ)
first, second = take_handed(), take_handed()
print(json.dumps([CANARY in began_with, first, second, sorted(name for name in os.environ if "HANDED" in name)]))
""".replace("CANARY", repr(CANARY))
    told = tmp_path / "told"
    child = ChildProcess(
        [sys.executable, "-c", program],
        env=dict(os.environ),
        cwd=tmp_path,
        stdout=told,
        handed={"SECRET": CANARY},
    )
    assert await asyncio.wait_for(child.wait(), 60) == 0, told.read_text()
    await child.stop()
    assert json.loads(told.read_text()) == [False, {"SECRET": CANARY}, {}, []]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows a process's descriptors as files")
async def test_what_a_child_alone_is_told_nobody_takes_out_of_its_descriptors(tmp_path: Path) -> None:
    # It has not kept to itself yet, and waits until we have looked.
    child = ChildProcess(
        [sys.executable, "-c", "import threading; print('begun', flush=True); threading.Event().wait()"],
        env=dict(os.environ),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        handed={"SECRET": CANARY},
    )
    assert child.stdout is not None and child.stdout.readline() == b"begun\n"
    stolen = []
    for descriptor in Path(f"/proc/{child.pid}/fd").iterdir():
        with suppress(OSError):
            opened = os.open(descriptor, os.O_RDONLY | os.O_NONBLOCK)
            with suppress(OSError):
                stolen.append(os.read(opened, 1 << 16))
            os.close(opened)
    await child.stop()
    assert stolen and CANARY.encode() not in b"".join(stolen)


@pytest.mark.parametrize("reads", [True, False])
async def test_a_child_is_told_more_than_a_pipe_holds(reads: bool, tmp_path: Path) -> None:
    program = "from osmosis_ai.supervision import take_handed\nprint(len(take_handed()['TOKEN']))"
    told, before = tmp_path / "told", set(threading.enumerate())
    child = ChildProcess(
        [sys.executable, "-c", program if reads else "print('ended')"],
        env=dict(os.environ),
        cwd=tmp_path,
        stdout=told,
        handed={"TOKEN": "x" * 1_000_000},
    )
    assert await asyncio.wait_for(child.wait(), 60) == 0, told.read_text()
    await child.stop()
    assert told.read_text().strip() == ("1000000" if reads else "ended")
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
        assert not thread.is_alive()


def test_what_is_handed_to_a_program_that_there_is_not_waits_for_nobody(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with pytest.raises(OSError, match="/no/such/program"):
        ChildProcess(
            ["/no/such/program"], env={}, cwd=tmp_path, stdout=None, handed={"TOKEN": "x" * 1_000_000}
        )
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
        assert not thread.is_alive()
