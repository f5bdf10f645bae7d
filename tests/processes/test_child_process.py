"""Child processes: stop, parent, priority and private variables."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import signal
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.processes import privacy
from osmosis_ai.processes.child_process import TAIL_BYTES, ChildProcess, FinishedProgram, run_program
from osmosis_ai.processes.privacy import is_debuggable
from tests.processes import alive, gone

# Ends only by force; says so on its output once it is deaf to a polite end.
STUBBORN = "import signal, threading; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); threading.Event().wait()"
POLITE = "import threading; print('ready', flush=True); threading.Event().wait()"


def start(source: str, tmp_path: Path, *, guard: bool = False, **changes: Any) -> ChildProcess:
    command = [sys.executable, *(["-m", "osmosis_ai.processes", sys.executable] if guard else [])]
    fields: dict[str, Any] = {"env": dict(os.environ), "cwd": tmp_path, "stdout": subprocess.PIPE, **changes}
    return ChildProcess([*command, "-c", textwrap.dedent(source)], **fields)


def first_line(child: ChildProcess) -> str:
    return child.stdout.readline().decode().strip()


@pytest.mark.integration
@pytest.mark.parametrize(
    ("source", "grace_s", "status"),
    [(POLITE, 600, -signal.SIGTERM), (STUBBORN, 0.05, -signal.SIGKILL)],
    ids=["polite", "deaf"],
)
async def test_stop(tmp_path: Path, source: str, grace_s: float, status: int) -> None:
    child = start(source, tmp_path)
    assert first_line(child) in ("ready", "deaf")
    assert await child.stop(grace_s=grace_s) == status


@pytest.mark.integration
async def test_cancelled_stop(tmp_path: Path) -> None:
    child = start(STUBBORN, tmp_path)
    assert first_line(child) == "deaf"
    stopping = asyncio.create_task(child.stop(grace_s=600))
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert await asyncio.wait_for(child.wait(), 60) == -signal.SIGKILL


@pytest.mark.integration
async def test_stop_of_grandchildren(tmp_path: Path) -> None:
    child = start(
        f"""
        import subprocess, sys
        grandchild = subprocess.Popen([sys.executable, "-c", {STUBBORN!r}], stdout=subprocess.PIPE)
        grandchild.stdout.readline()
        print(grandchild.pid, flush=True)
        grandchild.wait()
        """,
        tmp_path,
    )
    grandchild = int(first_line(child))
    await child.stop()
    await asyncio.wait_for(gone(grandchild), 60)


WATCHING = "from osmosis_ai.processes.child_process import watch_parent\nwatch_parent()\n" + POLITE
WATCHING_WITH_DEAF_GRANDCHILD = f"""
    import signal, subprocess, sys, threading
    from osmosis_ai.processes import child_process
    child_process.TERMINATION_GRACE_S = 0.2
    child_process.watch_parent()
    grandchild = subprocess.Popen([sys.executable, "-c", {STUBBORN!r}], stdout=subprocess.PIPE)
    grandchild.stdout.readline()
    print(grandchild.pid, flush=True)
    threading.Event().wait()
"""
FOREIGN = "import os, threading; print(os.getpid(), flush=True); threading.Event().wait()"


@pytest.mark.integration
@pytest.mark.e2e
@pytest.mark.parametrize(
    ("source", "guard", "number"),
    [
        (WATCHING, False, signal.SIGKILL),
        (WATCHING, False, signal.SIGTERM),
        (WATCHING_WITH_DEAF_GRANDCHILD, False, signal.SIGKILL),
        (FOREIGN, True, signal.SIGKILL),
    ],
    ids=["killed", "terminated", "deaf grandchild", "a program that does not watch"],
)
async def test_child_ends_with_its_parent(
    source: str, guard: bool, number: signal.Signals, tmp_path: Path
) -> None:
    parent_source = f"""
import subprocess, threading
from pathlib import Path
from tests.processes.test_child_process import start
child = start({source!r}, Path.cwd(), guard={guard})
print(child.pid, child.stdout.readline().decode(), end="", flush=True)
threading.Event().wait()
"""
    with subprocess.Popen(  # noqa: ASYNC220 - it starts at once and is read one line from
        [sys.executable, "-c", parent_source],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as parent:
        started = [int(word) for word in parent.stdout.readline().split() if word.isdigit()]
        assert all(map(alive, started)), started
        parent.send_signal(number)
    for pid in started:
        await asyncio.wait_for(gone(pid), 60)


@pytest.mark.integration
async def test_log_file(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "child.log"
    for word in ("one", "two"):
        await start(f"import sys; print({word!r}, file=sys.stderr)", tmp_path, stdout=log).wait()
    assert log.read_text() == "one\ntwo\n"
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


@pytest.mark.integration
def test_lower_priority_is_inherited() -> None:
    script = """
from pathlib import Path
from osmosis_ai.processes.child_process import lower_priority
from tests.processes.test_child_process import first_line, start
lower_priority()
print(first_line(start('import os; print(os.getpriority(os.PRIO_PROCESS, 0))', Path.cwd())))
"""
    result = subprocess.run(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.stdout.strip() == str(max(10, os.getpriority(os.PRIO_PROCESS, 0))), result.stderr


CAREFUL = """
import signal, sys, threading
def end(*_):
    print("cleaned up", flush=True)
    sys.exit(3)
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
threading.Event().wait()
"""


@pytest.mark.integration
async def test_stop_waits_for_cleanup(tmp_path: Path) -> None:
    child = start(CAREFUL, tmp_path, guard=True)
    assert first_line(child) == "ready"
    assert await child.stop(grace_s=600) == 3
    assert first_line(child) == "cleaned up"


@pytest.mark.integration
async def test_exit_status_of_the_guard(tmp_path: Path) -> None:
    assert await start("raise SystemExit(7)", tmp_path, guard=True).wait() == 7
    killed = start("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", tmp_path, guard=True)
    assert await killed.wait() == -signal.SIGKILL


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
    source = Path(privacy.__file__).read_text()
    keeper = f"{source}\ndisable_inspection(os.environ)\nprint('ready', flush=True)\nsys.stdin.read()\n"
    with subprocess.Popen(
        [*python, keeper],
        env={"SECRET": CANARY, **variables},
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        **user,
    ) as process:
        assert process.stdout.readline() == b"ready\n"
        reader = [*python, READER, str(process.pid)]
        read = subprocess.run(reader, env={}, cwd="/", capture_output=True, text=True, check=True, **user)
        process.stdin.close()
    return set(read.stdout.split())


@pytest.mark.integration
@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone has it")
def test_other_programs_cannot_inspect() -> None:
    assert what_a_neighbour_reads({}) == set()


@pytest.mark.integration
@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone has it")
def test_debuggable_setting() -> None:
    assert "environ" in what_a_neighbour_reads({"OSMOSIS_DEBUGGABLE": "1"})
    assert not is_debuggable({}) and not is_debuggable({"OSMOSIS_DEBUGGABLE": "0"})


@pytest.mark.integration
async def test_private_variables(tmp_path: Path) -> None:
    program = """
import json, os
from osmosis_ai.processes.privacy import take_private_variables
began_with = open("/proc/self/environ").read() if os.path.exists("/proc/self/environ") else str(os.environ)
first, second = take_private_variables(), take_private_variables()
print(json.dumps([CANARY in began_with, first, second, sorted(name for name in os.environ if "HANDED" in name)]))
""".replace("CANARY", repr(CANARY))
    told = tmp_path / "told"
    child = start(program, tmp_path, stdout=told, private_env={"SECRET": CANARY})
    assert await asyncio.wait_for(child.wait(), 60) == 0, told.read_text()
    await child.stop()
    assert json.loads(told.read_text()) == [False, {"SECRET": CANARY}, {}, []]


@pytest.mark.integration
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows a process's descriptors as files")
async def test_private_variables_are_not_in_descriptors(tmp_path: Path) -> None:
    # It has not kept to itself yet, and waits until we have looked.
    child = start(POLITE, tmp_path, private_env={"SECRET": CANARY})
    assert first_line(child) == "ready"
    stolen = []
    for descriptor in Path(f"/proc/{child.pid}/fd").iterdir():
        with suppress(OSError):
            opened = os.open(descriptor, os.O_RDONLY | os.O_NONBLOCK)
            with suppress(OSError):
                stolen.append(os.read(opened, 1 << 16))
            os.close(opened)
    await child.stop()
    assert stolen and CANARY.encode() not in b"".join(stolen)


# Of this process alone: the tests of another checkout may run next to these.
SLEEPS = [f"sleep {10**9 + 10 * os.getpid() + number}" for number in range(4)]


def running(words: str) -> bool:
    for process in Path("/proc").iterdir():
        try:
            command = (process / "cmdline").read_bytes() if process.name.isdigit() else b""
        except OSError:
            continue
        if command.replace(b"\0", b" ").startswith(words.encode()):
            return True
    return False


async def until(condition: Callable[[], bool]) -> None:
    async def look() -> None:
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    await asyncio.wait_for(look(), 60)


async def run(
    place: Path, *command: str, grace_s: float = 1.0, max_output_bytes: int = 1 << 20
) -> FinishedProgram:
    (place / "prompt").write_text("hello")
    return await run_program(
        command,
        env=dict(os.environ),
        cwd=place,
        stdin=place / "prompt",
        max_output_bytes=max_output_bytes,
        grace_s=grace_s,
    )


@pytest.mark.e2e
async def test_program_status_and_output(tmp_path: Path) -> None:
    ended = await run(tmp_path, "sh", "-c", "cat; echo problem >&2; exit 7")
    assert ended == FinishedProgram(7, "hello", "problem\n", flooded=False)
    long = await run(tmp_path, "sh", "-c", f"yes | head -c {3 * TAIL_BYTES}; echo end; kill -9 $$")
    assert (long.status, len(long.stdout), long.stdout[-4:]) == (-signal.SIGKILL, TAIL_BYTES, "end\n")
    assert tmp_path.exists(), "it was not called off"


@pytest.mark.e2e
async def test_program_with_too_much_output(tmp_path: Path) -> None:
    flood = f"yes {os.getpid()}"
    ended = await run(tmp_path, "sh", "-c", flood, max_output_bytes=100_000)
    assert ended.flooded and len(ended.stdout) == TAIL_BYTES
    assert not running(flood)


@pytest.mark.e2e
async def test_cancelled_program(tmp_path: Path) -> None:
    stubborn = f"trap '' TERM; (setsid {SLEEPS[0]} &); while :; do {SLEEPS[1]}; done"
    task = asyncio.create_task(run(tmp_path, "sh", "-c", stubborn, grace_s=0.05))
    await until(lambda: running(SLEEPS[0]) and running(SLEEPS[1]))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not running(SLEEPS[0]) and not running(SLEEPS[1])


@pytest.mark.e2e
async def test_program_ends_with_its_starter(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    starter = f"""
import asyncio
from pathlib import Path
from tests.processes.test_child_process import run
asyncio.run(run(Path({str(place)!r}), "sh", "-c", "(setsid {SLEEPS[2]} &) ; {SLEEPS[3]}", grace_s=0.05))
"""
    process = subprocess.Popen([sys.executable, "-c", starter], cwd=Path(__file__).parents[2])  # noqa: ASYNC220
    try:
        await until(lambda: running(SLEEPS[2]) and running(SLEEPS[3]))
    finally:
        process.kill()
        process.wait()
    await until(lambda: not running(SLEEPS[2]) and not running(SLEEPS[3]) and not place.exists())
