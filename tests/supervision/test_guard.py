"""A program that knows nothing of lifelines ends with its starter, and in its own way when it is asked to."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from osmosis_ai.supervision import ChildProcess
from tests.processes import alive, gone

pytestmark = pytest.mark.integration

FOREIGN = "import os, threading; print(os.getpid(), flush=True); threading.Event().wait()"
CAREFUL = """
import signal, sys, threading
def end(*_):
    print("cleaned up", flush=True)
    sys.exit(3)
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
threading.Event().wait()
"""
PARENT = f"""
import os, sys, threading
from pathlib import Path
from osmosis_ai.supervision import ChildProcess
child = ChildProcess(
    [sys.executable, "-m", "osmosis_ai.supervision", sys.executable, "-c", {FOREIGN!r}],
    env=dict(os.environ), cwd=Path.cwd(), stdout=1,
)
threading.Event().wait()
"""


def guarded(source: str, tmp_path: Path) -> ChildProcess:
    return ChildProcess(
        [sys.executable, "-m", "osmosis_ai.supervision", sys.executable, "-c", source],
        env=dict(os.environ),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
    )


def line(child: ChildProcess) -> str:
    assert child.stdout is not None
    return child.stdout.readline().decode().strip()


def test_a_program_ends_when_its_starter_is_killed() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    foreign = int(parent.stdout.readline())
    assert alive(foreign)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    asyncio.run(asyncio.wait_for(gone(foreign), 300))


async def test_a_program_that_is_asked_to_end_is_waited_for(tmp_path: Path) -> None:
    child = guarded(CAREFUL, tmp_path)
    assert line(child) == "ready"
    assert await child.stop(grace_s=600) == 3
    assert line(child) == "cleaned up"


async def test_a_program_that_can_not_be_started_is_named(tmp_path: Path) -> None:
    child = ChildProcess(
        [sys.executable, "-m", "osmosis_ai.supervision", "/nowhere/program"],
        env=dict(os.environ),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
    )
    assert "`/nowhere/program` can not be started: No such file or directory" in line(child)
    assert await child.wait() == 1


async def test_the_guard_ends_as_its_program_did(tmp_path: Path) -> None:
    assert await guarded("raise SystemExit(7)", tmp_path).wait() == 7
    killed = guarded("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", tmp_path)
    assert await killed.wait() == -signal.SIGKILL
